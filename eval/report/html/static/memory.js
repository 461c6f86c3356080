// Memory: outcomes, costs, growth, failures, settings, prompts, and the nodes as a tree.
"use strict";

report.pages.memory = {
  title: "Memory",
  async draw(page, query) {
    const { runs } = report.index;
    if (!runs.length) { page.append(el("p", null, "There are no runs.")); return; }
    const number_ = Math.max(0, runs.findIndex((run) => run.key === query.get("run") || (!query.has("run") && report.index.sets[run.set].key === query.get("set")))), run = runs[number_];
    const data = await report.load(`run${number_}`), set = report.index.sets[run.set];
    page.append(el("h2", null, run.title), el("div", { class: "controls" }, choice("Run", runs.map((each) => [each.key, `${each.title} · ${report.index.sets[each.set].label}`]), run.key, (value) => { location.hash = report.link("memory", { run: value }); }),
      el("a", { href: report.link("compare", { a: run.key }) }, "Compare it")),
      el("ul", { class: "worth" }, el("li", { class: set.status === "official" ? null : "warning" }, `${set.label}: ${set.status} data${set.cut ? `, subset: ${set.cut}` : ""}`), el("li", { class: run.stand_ins.length ? "warning" : null }, run.stand_ins.length ? `STAND-IN: ${run.stand_ins.join(", ")}` : `reader ${run.reader}`), el("li", { class: run.answered < run.asked ? "warning" : null }, `${run.answered} of ${run.asked} questions, ${run.finished} of ${run.cases} histories`), el("li", null, `runs/${run.key}`)));
    page.append(el("div", { class: "grid" }, outcomesCard(data), totalsCard(data)), growthCard(data), phasesCard(data), purposesCard(data));
    page.append(await treeCard(data, query), settingsCard(data), promptsCard(data, run));
    openNamed(page, "prompt", query.get("prompt"));
  },
};

const outcomesCard = (data) => el("section", { class: "card" }, el("h3", null, "Outcomes"), plainTable(["outcome", "questions"], data.outcomes),
  data.errors.length ? el("details", null, el("summary", null, "Why questions have no answer"), el("ul", null, data.errors.map(([reason, count]) => el("li", { class: "text" }, `${count}× ${reason}`)))) : "");

function totalsCard(data) {
  const rows = report.index.costs.map(([name, title]) => [title, amount(data.totals[name])]);
  const counts = [["parse failures", data.totals.parse_failures], ["failed calls", data.totals.failed_calls], ["replies cut", data.totals.cut], ["items over the budget", data.totals.dropped_items], ["units", data.totals.units], ["entries held, most", data.totals.held]];
  return el("section", { class: "card" }, el("h3", null, "Costs"), data.totals.missing ? el("p", { class: "warning badge" }, data.totals.missing) : "", el("div", { class: "scroll" }, el("table", null, el("tbody", null, [...rows, ...counts].map(([title, value]) => el("tr", null, el("th", { scope: "row" }, title), el("td", { class: "number" }, typeof value === "number" ? value.toLocaleString("en") : value)))))));
}

function growthCard(data) {
  if (!data.growth.length) return el("section", { class: "card" }, el("h3", null, "Growth of cost"), el("p", null, "No unit was written, or its cost was not kept."));
  const panel = (place, title) => curves(data.growth.map((line) => ({ name: line.case, points: line.points.map((point) => [point[0], point[place]]) })), { xTitle: "units written", yTitle: title });
  return el("section", { class: "card" }, el("h3", null, "Growth of cost: what had been spent after each unit"), key(data.growth.map((line) => line.case)), el("div", { class: "grid" }, panel(1, "model tokens"), panel(2, "model calls"), panel(3, "seconds")),
    el("details", null, el("summary", null, "As a table"), plainTable(["history", "units", "tokens", "calls", "seconds"], data.growth.map((line) => [line.case, ...line.points[line.points.length - 1]]))));
}

const phasesCard = (data) => el("section", { class: "card" }, el("h3", null, "Costs by phase"), plainTable(["phase", ...data.phase_titles], data.phases));
const purposesCard = (data) => data.purposes.length ? el("section", { class: "card" }, el("h3", null, "Calls by purpose"), plainTable(["purpose", "calls", "attempts", "failures", "parse failures"], data.purposes)) : "";
const settingsCard = (data) => lazyCard("Settings (run.json)", () => el("pre", null, data.settings));
const promptsCard = (data, run) => {
  const card = lazyCard(`Prompts of memory, reader and judges (${data.prompts.length})`, () => data.prompts.map(([name, digest, text]) => {
    const box = el("details", null, el("summary", null, `${name} · ${digest}`), el("p", { class: "meta" }, el("a", { href: report.link("memory", { run: run.key, prompt: name }) }, "permanent link")), el("pre", { dir: "auto" }, text));
    box.dataset.prompt = name;
    return box;
  }));
  if (report.address().query.has("prompt")) card.fillNow();
  return card;
};
const lazyCard = (title, make) => { const box = lazy(title, make); box.classList.add("card"); return box; };

async function treeCard(data, query) {
  const card = el("section", { class: "card" }, el("h3", null, "Nodes"));
  const have = data.cases.filter(([, file]) => !file.startsWith("-"));
  if (!have.length) return fill(card, null, [el("p", null, data.cases.length ? data.cases[0][1].slice(1) : "No history was reached.")]);
  const picked = have.find(([id]) => id === query.get("case")) || have[0], tree = await report.load(picked[1]);
  const left = data.cases.length - have.length;
  card.append(el("div", { class: "controls" }, choice("History", have.map(([id]) => [id, id]), picked[0], (value) => { location.hash = report.link("memory", { ...Object.fromEntries(query), case: value }); })));
  if (left) card.append(el("p", { class: "note" }, `${plural(left, "further history")} without nodes here: ${data.cases.find(([, file]) => file.startsWith("-"))[1].slice(1)}`));
  return fill(card, null, [treeView(tree)]);
}

// A node with several parents stands below each of them. Children are made when a node is opened.
function treeView(tree) {
  const below = tree.ids.map(() => []), tops = [];
  tree.parents.forEach((parents, node) => { if (parents.length) parents.forEach((parent) => below[parent].push(node)); else tops.push(node); });
  const levels = new Map();
  tree.levels.forEach((level) => levels.set(level, (levels.get(level) || 0) + 1));
  const holder = el("div", { class: "tree" });
  const row = (node, depth) => {
    const children = below[node], list = el("ul"), line = el("li");
    let open = false;
    const toggle = (to) => {
      open = to;
      button.textContent = open ? "▾" : "▸";
      button.setAttribute("aria-expanded", String(open));
      list.replaceChildren(...(open ? many(children, depth + 1) : []));
    };
    const button = children.length ? el("button", { type: "button", "aria-label": `Children of ${tree.ids[node]}`, onclick: () => toggle(!open) }) : el("span");
    line.append(el("div", { class: "node" }, button, el("span", { class: "level" }, `${tree.kinds[node]}, level ${tree.levels[node]} · ${tree.ids[node]} · ${plural(tree.sources[node], "turn")}${children.length ? ` · ${children.length} below` : ""}`), longText(tree.texts[node], null, 160)), list);
    if (children.length) toggle(depth < shownDepth);
    return line;
  };
  const many = (nodes, depth) => {
    const lines = nodes.slice(0, 50).map((node) => row(node, depth));
    if (nodes.length > 50) lines.push(el("li", null, el("button", { type: "button", class: "more", onclick: (event) => event.target.parentNode.replaceWith(...nodes.slice(50).map((node) => row(node, depth))) }, "…"), `${nodes.length - 50} more`));
    return lines;
  };
  let shownDepth = 1;
  const draw = () => holder.replaceChildren(el("ul", null, many(tops, 0)));
  draw();
  const summary = [...levels].sort((x, y) => y[0] - x[0]).map(([level, count]) => `level ${level}: ${count}`).join(", ");
  return el("div", null, el("p", { class: "note" }, `${plural(tree.ids.length, "node")}; ${summary}`), el("div", { class: "controls" }, choice("Open to depth", [0, 1, 2, 3, 4].map((each) => [each, each]), 1, (value) => { shownDepth = Number(value); draw(); })), holder);
}
