// Quality against cost, published against ours, and the loss waterfall where its file is there.
"use strict";

async function tableChoice(page, query, name) {
  const { tables } = report.index;
  if (!tables.length) { page.append(el("p", null, "No table has been made.")); return null; }
  const place = Math.max(0, tables.findIndex((table) => table.stem === query.get("table")));
  const table = await report.load(`table${place}`);
  return { table, stem: tables[place].stem, select: choice("Table", tables.map((each) => [each.stem, each.title]), tables[place].stem, (value) => { location.hash = report.link(name, { table: value }); }) };
}

const standIn = (table) => el("div", null, table.caption.filter((line) => line.startsWith("STAND-IN")).map((line) => el("p", { class: "badge warning" }, line)));

report.pages.cost = {
  title: "Quality against cost",
  async draw(page, query) {
    page.append(el("h2", null, "Quality against cost"));
    const picked = await tableChoice(page, query, "cost");
    if (!picked) return;
    const { table, stem, select } = picked, { costs } = report.index;
    const columns = table.columns.map((column, at) => [at, heading(column)]).filter(([at]) => table.rows.some((row) => row.cells[at].kind === "score" && row.cells[at].estimates.all));
    if (!columns.length) { page.append(select, el("p", null, "This table has no scores.")); return; }
    const at = columns.some(([each]) => String(each) === query.get("column")) ? Number(query.get("column")) : columns[0][0];
    const by = costs.some(([name]) => name === query.get("by")) ? query.get("by") : "recalled_tokens";
    const go = (changes) => { location.hash = report.link("cost", { table: stem, column: at, by, ...changes }); };
    page.append(el("div", { class: "controls" }, select, choice("Quality", columns, at, (value) => go({ column: value })), choice("Cost", costs, by, (value) => go({ by: value }))), standIn(table));
    const points = table.rows.flatMap((row) => {
      const cell = row.cells[at], run = report.runOf(row, table.columns[at]), ours = cell.kind === "score" ? cell.estimates.all : null;
      if (!ours || !run || run.costs[by] === null) return [];
      const ends = preferred(ours) || [null, null];
      return [{ x: run.costs[by], y: ours.mean, low: ends[0], high: ends[1], name: row.title, title: `${row.title}: ${number(ours.mean)} for ${amount(run.costs[by])}`, href: report.link("memory", { run: run.key }) }];
    });
    if (!points.length) { page.append(el("p", null, "No row has both.")); return; }
    const beaten = (one) => points.some((other) => other.y >= one.y && other.x <= one.x && (other.y > one.y || other.x < one.x));
    const front = points.filter((point) => !beaten(point)).sort((p, q) => p.x - q.x);
    const left = table.rows.length - points.length;
    page.append(el("section", { class: "card" }, el("div", { class: "figure" }, scatter(points, { xTitle: costs.find(([name]) => name === by)[1], yTitle: table.columns[at].metric, front }),
      el("div", null, el("strong", null, "On the front"), el("ol", null, front.map((point) => el("li", null, el("a", { href: point.href }, point.title)))))),
      el("p", { class: "note" }, `Filled, named and joined: no other row is as good for less, or better for as much. Bars: 95 % intervals.${left ? ` ${plural(left, "row")} without score or cost left out.` : ""}`)),
      el("details", { class: "card" }, el("summary", null, "As a table"), sortable([{ title: "Memory", cell: (point) => point.name, value: (point) => point.name, down: false }, { title: "quality", number: true, cell: (point) => number(point.y), value: (point) => point.y }, { title: "cost", number: true, cell: (point) => amount(point.x), value: (point) => point.x, down: false }, { title: "on the front", cell: (point) => front.includes(point) ? "yes" : "" }], points)));
  },
};

report.pages.published = {
  title: "Published",
  async draw(page, query) {
    page.append(el("h2", null, "Published against ours"));
    const picked = await tableChoice(page, query, "published");
    if (!picked) return;
    const { table, select } = picked;
    page.append(el("div", { class: "controls" }, select), standIn(table));
    const rows = table.rows.flatMap((row) => row.cells.map((cell, at) => ({ row, cell, column: table.columns[at], ours: oursIn(cell) }))).filter(({ cell }) => cell.published);
    if (!rows.length) { page.append(el("p", null, "This table has no published numbers.")); return; }
    const points = rows.filter(({ ours, cell }) => ours && cell.kind === "score").map(({ row, cell, column, ours }) => {
      const ends = preferred(ours) || [null, null], run = report.runOf(row, column);
      return { x: cell.published.value, y: ours.mean, low: ends[0], high: ends[1], name: row.title, title: `${row.title}, ${heading(column)}: ours ${number(ours.mean)}, published ${cell.published.text}, ${cell.verdict}`, href: run ? report.link("memory", { run: run.key }) : report.link("published") };
    });
    const tally = new Map();
    rows.forEach(({ cell }) => { const word = verdictWord(cell.verdict); tally.set(word, (tally.get(word) || 0) + 1); });
    page.append(el("ul", { class: "worth" }, [...tally].map(([verdict, count]) => el("li", null, `${verdict}: ${count}`))));
    if (points.length) page.append(el("section", { class: "card" }, scatter(points, { xTitle: "published", yTitle: "ours", diagonal: true, width: 620, height: 430 }), el("p", { class: "note" }, "On the line the two are equal. Bars: our 95 % intervals.")));
    page.append(el("section", { class: "card" }, sortable([
      { title: "Memory", cell: ({ row }) => row.title, value: ({ row }) => row.title, down: false }, { title: "Column", cell: ({ column }) => heading(column), value: ({ column }) => `${column.title} ${column.metric}`, down: false },
      { title: "Ours", number: true, cell: ({ ours }) => number(ours ? ours.mean : null), value: ({ ours }) => ours ? ours.mean : null }, { title: "95 %", cell: ({ ours }) => between(preferred(ours)) },
      { title: "Published", number: true, cell: ({ cell }) => cell.published.text, value: ({ cell }) => cell.published.value }, { title: "Difference", number: true, cell: ({ ours, cell }) => ours ? signed(ours.mean - cell.published.value) : "–", value: ({ ours, cell }) => ours ? ours.mean - cell.published.value : null },
      { title: "Verdict", cell: ({ cell }) => verdictBadge(cell.verdict), value: ({ cell }) => cell.verdict, down: false }, { title: "Source", cell: ({ cell }) => cell.published.source },
    ], rows)));
  },
};

report.pages.losses = {
  title: "Losses",
  async draw(page) {
    const { losses, ceilings } = report.index;
    page.append(el("h2", null, "Where answers are lost, and what could be won"));
    for (const [number_, stem] of losses) page.append(lossCard(await report.load(`table${number_}`), stem));
    if (ceilings.length) page.append(el("h2", null, "Ceilings: scores with the known errors of gold answers laid over them"), el("p", { class: "note" }, "Ceiling: the share of questions whose gold answer is sound, which is all that a perfect memory can win as released. A score above it was earned by agreeing with errors."));
    for (const [number_, stem] of ceilings) page.append(ceilingCard(await report.load(`table${number_}`), stem));
  },
};

// A waterfall: each bar begins where the one above ended, from 1 down to the score.
function lossCard(loss, stem) {
  let left = 1;
  const rows = loss.steps.map((step) => {
    const total = step.name === "score", high = total ? step.value : left;
    if (!total) left -= step.value;
    return { ...step, low: total ? 0 : left, high };
  });
  return el("section", { class: "card" }, el("h3", null, loss.title), sortable([{ title: "Step", cell: (step) => step.name }, { title: loss.unit || "questions", number: true, cell: (step) => number(step.value) }, { title: "from 1 down to the score", cell: fallBar }, { title: "with 95 % intervals", number: true, cell: (step) => step.note || "" }], rows), el("p", { class: "note" }, loss.from ? `Computed from ${loss.from}` : `File: losses/${stem}.json`));
}

function fallBar(step) {
  const from = Math.max(0, Math.min(step.low, step.high)), to = Math.min(1, Math.max(step.low, step.high)), width = 260;
  return svg("svg", { class: "bar", viewBox: `0 0 ${width} 14`, preserveAspectRatio: "none", role: "img", "aria-label": `${step.name} ${number(step.value)}` },
    svg("line", { class: "axis", x1: 0, x2: width, y1: 13, y2: 13 }), svg("rect", { fill: step.name === "score" ? "var(--accent)" : step.value < 0 ? "var(--good)" : "var(--bad)", x: from * width, y: 2, width: Math.max(1, (to - from) * width), height: 9 }));
}

function ceilingCard(own, stem) {
  const mean = (title, field) => ({ title, number: true, cell: (row) => row[field] ? `${number(row[field].mean)} ${between(preferred(row[field]))}` : "–", value: (row) => row[field] ? row[field].mean : null });
  return el("section", { class: "card" }, el("h3", null, own.title), own.stand_ins.length ? el("p", { class: "badge warning" }, `STAND-IN: ${own.stand_ins.join(", ")}`) : "",
    sortable([{ title: "Questions", cell: (row) => row.category }, { title: "n", number: true, cell: (row) => row.n }, { title: "wrong gold", number: true, cell: (row) => row.faulty }, mean("as released", "released"), mean("without known errors", "sound"), mean("corrected", "corrected"),
      { title: "ceiling", number: true, cell: (row) => number(row.ceiling) }, { title: "", cell: (row) => row.above ? el("span", { class: "badge bad" }, "above its ceiling") : "" }], own.rows), el("p", { class: "note" }, `File: ceilings/${stem}.json`));
}
