// Overview: what the numbers are worth, a leaderboard that sorts by quality or cost, every table, what is missing.
"use strict";

// The row's run in a column, and what is known of it.
report.runOf = (row, column) => {
  const folder = row.runs[column.dataset];
  return folder ? report.index.runs.find((run) => `runs/${run.key}` === folder) : null;
};

const heading = (column) => `${column.title} · ${column.metric}`;

// Our number in a cell; null in a text.
const oursIn = (cell) => (cell.estimates ? cell.estimates.all : null);

// As `eval.statistics.stats.preferred_interval`.
const preferred = (ours) => (ours ? (ours.clusters >= 5 && ours.case) || ours.cautious || (ours.clusters < 5 ? ours.question : null) : null);

report.pages.overview = {
  title: "Overview",
  async draw(page, query) {
    const { tables, missing, sets } = report.index;
    page.append(el("h2", null, "Overview"));
    if (!tables.length) {
      page.append(worth(null), missing.length ? missingCard(missing) : "", el("p", null, "No table has been made; the runs stand below."), runsCard());
      return;
    }
    const stem = query.get("table") || tables[0].stem, place = Math.max(0, tables.findIndex((table) => table.stem === stem));
    const table = await report.load(`table${place}`);
    const scores = table.columns.map((column, at) => [at, heading(column)]).filter(([at]) => table.rows.some((row) => oursIn(row.cells[at])));
    const at = scores.some(([each]) => String(each) === query.get("column")) ? Number(query.get("column")) : scores.length ? scores[0][0] : null;
    const dataset = at === null ? null : table.columns[at].dataset, first = at === null ? null : table.rows.map((row) => report.runOf(row, table.columns[at])).find(Boolean);
    if (first) report.context = { ...report.context, set: sets[first.set].key, run: first.key };
    report.context = { ...report.context, table: tables[place].stem, column: at };
    page.append(el("div", { class: "controls" },
      choice("Table", tables.map((each) => [each.stem, each.title]), tables[place].stem, (value) => { location.hash = report.link("overview", { table: value }); }),
      at === null ? "" : choice("Column", scores, at, (value) => { location.hash = report.link("overview", { ...Object.fromEntries(query), table: stem, column: value }); })),
      worth(table, dataset), at === null ? "" : leaderboard(table, at, query), tableWorth(table, at), pairsCard(table, at), fullTable(table, tables[place], place), livesCard(), missing.length ? missingCard(missing) : "", runsCard());
    if (sets.length === 0) page.append(el("p", null, "No run folder is below this results folder."));
  },
};

// What stands in the place of models in this table, and the data behind the column that is shown; without a table, of all runs.
function worth(table, dataset) {
  const behind = table ? new Set(table.rows.flatMap((row) => Object.entries(row.runs)).filter(([name]) => !dataset || name === dataset).map(([, folder]) => folder)) : null;
  const runs = report.index.runs.filter((run) => !behind || behind.has(`runs/${run.key}`)), places = new Set(runs.map((run) => run.set));
  const sets = report.index.sets.filter((_, place) => places.has(place));
  const standIn = table ? table.caption.find((line) => line.startsWith("STAND-IN")) : (runs.some((run) => run.stand_ins.length) ? "STAND-IN: offline engines without a model took the place of models. These numbers test the machinery and say nothing about models." : "");
  return el("ul", { class: "worth" },
    standIn ? el("li", { class: "warning" }, standIn) : "",
    sets.map((own) => el("li", { class: own.status === "official" ? null : "warning" }, `${own.label}: ${own.status} data${own.cut ? ` (subset: ${own.cut})` : ""}, ${plural(own.questions, "question")} about ${plural(own.histories, "history")}`)));
}

function tableWorth(table, at) {
  const dataset = at === null ? null : table.columns[at].title;
  const detectable = table.caption.filter((line) => line.startsWith("Detectable") && (!dataset || line.includes(dataset)));
  const data = table.caption.filter((line) => dataset && line.startsWith(`${dataset}: `) && line.includes("questions"));
  const rest = table.caption.filter((line) => !line.startsWith("Detectable") && !data.includes(line) && !/^(STAND-IN|OTHER MODEL)/.test(line));
  const items = (lines) => el("ul", { class: "caption" }, lines.map((line) => el("li", null, line)));
  return el("div", { class: "card" }, el("h3", null, "What these numbers are worth"), table.caption.filter((line) => line.startsWith("OTHER MODEL")).map((line) => el("p", { class: "badge warning" }, line)),
    items([...detectable, ...data]), el("details", null, el("summary", null, `Models, cells, notes (${rest.length})`), items(rest)));
}

const missingCard = (missing) => el("details", { class: "card", open: missing.length <= 4 }, el("summary", null, `What is missing (${missing.length})`), el("ul", null, missing.map((line) => el("li", { class: "text" }, line))));

function leaderboard(table, at, query) {
  const every = table.rows.map((row) => ({ row, cell: row.cells[at], ours: oursIn(row.cells[at]), run: report.runOf(row, table.columns[at]) }));
  const rows = every.filter(({ ours }) => ours), without = every.filter(({ ours }) => !ours);
  const reference = every.find(({ row }) => row.name === table.reference);
  const ends = rows.flatMap(({ ours, cell }) => [...(ours ? [ours.mean, ...(preferred(ours) || [])] : []), ...(cell.published ? [cell.published.value] : [])]);
  const to = Math.max(...ends, 0) > 1 ? Math.max(...ends) : Math.min(1, Math.max(...ends, 0.05) * 1.05), from = Math.min(0, ...ends);
  const pair = new Map(table.pairs.filter((each) => each.column === at).map((each) => [each.row, each]));
  const detectable = ({ row }) => { const gap = pair.get(row.name); return !gap || gap.adjusted == null || gap.adjusted < 0.05; };
  const usd = ({ row }) => row.usd[table.columns[at].dataset] ?? "–";
  const columns = [
    { title: "Memory", value: ({ row }) => row.title, down: false, cell: ({ row, run }) => run ? el("a", { href: report.link("memory", { run: run.key }) }, row.title) : row.title },
    { title: "Score", number: true, value: ({ ours }) => ours ? ours.mean : null, cell: ({ ours }) => number(ours.mean) },
    { title: "95 % interval", class: "bars", cell: ({ ours, cell }) => { const own = preferred(ours); return ours ? intervalBar(ours.mean, own ? own[0] : null, own ? own[1] : null, cell.published ? cell.published.value : null, from, to) : ""; } },
    { title: "n", number: true, value: ({ ours }) => ours ? ours.n : null, cell: ({ ours, cell }) => ours ? `${ours.n}${cell.counts && cell.counts.all[0] > ours.n ? ` of ${cell.counts.all[0]}` : ""}` : "" },
    { title: "Published", number: true, value: ({ cell }) => cell.published ? cell.published.value : null, cell: ({ cell }) => cell.published ? cell.published.text : "–" },
    { title: "Verdict", value: ({ cell }) => cell.verdict ?? "", cell: ({ cell }) => [verdictBadge(cell.published ? cell.verdict : ""), cell.above_ceiling ? el("span", { class: "badge bad" }, `above its ceiling ${number(cell.ceiling)}`) : ""] },
    ...report.index.costs.map(([name, title]) => ({ title, number: true, down: false, value: ({ run }) => run ? run.costs[name] : null, cell: ({ run }) => run ? amount(run.costs[name]) : "" })),
    { title: "USD", number: true, down: false, value: (row) => Number.isFinite(Number(usd(row))) ? Number(usd(row)) : null, cell: usd },
    { title: "", cell: ({ row, run }) => run && reference && reference.run && row !== reference.row && run.set === reference.run.set ? el("a", { href: report.link("compare", { a: run.key, b: reference.run.key }), title: `question by question against ${reference.row.title}` }, "compare") : "" },
  ];
  const sort = query.has("sort") ? Number(query.get("sort")) : null;
  return el("section", { class: "card" }, el("h3", null, heading(table.columns[at])),
    el("p", { class: "note" }, "Dot and bar: our mean and its 95 % interval, by case from five cases on, with fewer the cautious one. Diamond: published. Pale rows: the difference from the reference row is not significant (5 % for the table's family). Headings sort."),
    sortable(columns, rows, { sort, down: query.get("down") !== "0", class: "full leaderboard", rowClass: (row, plain) => [row.row.ruled && plain ? "ruled" : "", detectable(row) ? "" : "dim"].join(" ").trim() || null,
      onsort: (place, down) => report.remember({ sort: place, down: down ? "1" : "0" }) }),
    without.length ? el("p", { class: "note" }, `Without a number here: ${without.map(({ row, cell }) => cell.kind === "text" && cell.text !== "–" ? `${row.title} (${cell.text})` : row.title).join("; ")}.`) : "");
}

// The word of a verdict, without its numbers; "not comparable: …" keeps its reason.
const verdictWord = (text) => /^(equivalent|differs|cannot tell)/.exec(text ?? "")?.[0] ?? text;
const verdictBadge = (text) => (text ? el("span", { class: `badge ${{ equivalent: "good", differs: "bad" }[verdictWord(text)] ?? ""}` }, text) : "");

function pairsCard(table, at) {
  const own = table.pairs.filter((pair) => pair.column === at);
  if (!own.length) return "";
  const titles = new Map(table.rows.map((row) => [row.name, row.title]));
  return el("details", { class: "card" }, el("summary", null, `Paired differences from ${titles.get(table.reference)}`),
    sortable([
      { title: "Memory", cell: (pair) => titles.get(pair.row), value: (pair) => titles.get(pair.row), down: false },
      { title: "Difference", number: true, cell: (pair) => signed(pair.mean), value: (pair) => pair.mean },
      { title: "by case", cell: (pair) => pair.case ? byCase(pair.case) : "–" }, { title: "by question", cell: (pair) => between(pair.question) },
      { title: "p by case", number: true, cell: (pair) => probability(pair.untested ? null : pair.p_case), value: (pair) => pair.p_case, down: false }, { title: "adjusted p", number: true, cell: (pair) => pair.untested || probability(pair.adjusted), value: (pair) => pair.adjusted, down: false },
      { title: "n", number: true, cell: (pair) => pair.n },
    ], own));
}

function fullTable(table, entry, place) {
  const heads = [{ title: "Memory", cell: (row) => row.title }, ...table.columns.map((column, at) => ({
    title: heading(column), cell: (row) => row.cells[at].text }))];
  return el("details", { class: "card" }, el("summary", null, "The whole table, as printed"), sortable(heads, table.rows, { rowClass: (row) => row.ruled ? "ruled" : null }),
    el("p", { class: "note" }, `File: tables/${entry.stem}.json, .csv, .md · `, el("a", { href: `table-${place}.html` }, "page to print")));
}

function livesCard() {
  if (!report.index.lives.length) return "";
  return el("p", null, "What became of single facts when they changed: ", report.index.lives.flatMap(([file, label], place) => [place ? ", " : "", el("a", { href: file }, label)]));
}

function runsCard() {
  return el("details", { class: "card" }, el("summary", null, `All runs (${report.index.runs.length})`), sortable([
    { title: "Run", cell: (run) => el("a", { href: report.link("memory", { run: run.key }) }, run.title), value: (run) => run.title, down: false },
    { title: "Folder below runs", cell: (run) => run.key, value: (run) => run.key, down: false },
    { title: "Reader", cell: (run) => run.reader },
    { title: "Histories", number: true, cell: (run) => `${run.finished} of ${run.cases}` },
    { title: "Questions", number: true, cell: (run) => `${run.answered} of ${run.asked}`, value: (run) => run.answered },
  ], report.index.runs));
}
