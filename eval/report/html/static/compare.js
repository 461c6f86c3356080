// Compare: two runs of one set, question by question.
"use strict";

const SIDES = ["both right", "A only", "B only", "both wrong", "not scored"];
const SHOWN = 100;

// The set, two runs and the scorer that the address names; what it leaves out is chosen here.
function chosen(query) {
  const { sets, runs } = report.index;
  const named = runs.find((run) => run.key === query.get("a")) || runs.find((run) => run.key === query.get("b"));
  const place = Math.max(0, named ? named.set : sets.findIndex((own) => own.key === query.get("set")));
  const own = runs.filter((run) => run.set === place);
  const a = own.find((run) => run.key === query.get("a")) || own[0];
  const b = own.find((run) => run.key === query.get("b")) || own.find((run) => run !== a) || a;
  const scorer = Math.max(0, sets[place].scorers.findIndex((each) => each.stem === query.get("by")));
  return { place, set: sets[place], own, a, b, scorer };
}

const sideOf = (x, y) => (x === null || y === null || x === undefined || y === undefined ? 4 : (x >= report.index.right ? 0 : 2) + (y >= report.index.right ? 0 : 1));

report.pages.compare = {
  title: "Compare",
  async draw(page, query) {
    if (!report.index.sets.length) { page.append(el("p", null, "There are no runs to compare.")); return; }
    const picked = chosen(query), { place, set, own, a, b, scorer } = picked;
    const [shared, first, second, pairs] = await Promise.all([report.load(`set${place}`), report.load(`set${place}-run${a.place}`), report.load(`set${place}-run${b.place}`),
      set.scorers.length ? report.load(`set${place}-pairs${scorer}`) : []]);
    const go = (changes) => { location.hash = report.link("compare", { ...Object.fromEntries(query), set: set.key, a: a.key, b: b.key, by: set.scorers.length ? set.scorers[scorer].stem : null, ...changes }); };
    const titles = own.map((run) => [run.key, run.title]);
    page.append(el("h2", null, `${a.title} against ${b.title}`), el("div", { class: "controls" },
      report.index.sets.length > 1 ? choice("Data", report.index.sets.map((each) => [each.key, each.label]), set.key, (value) => { location.hash = report.link("compare", { set: value }); }) : "",
      choice("A", titles, a.key, (value) => go({ a: value })), choice("B", titles, b.key, (value) => go({ b: value })),
      el("button", { type: "button", onclick: () => go({ a: b.key, b: a.key }) }, "Swap"),
      set.scorers.length ? choice("Score", set.scorers.map((each) => [each.stem, each.title]), set.scorers[scorer].stem, (value) => go({ by: value })) : ""));
    const x = (first.scores[scorer] || []), y = (second.scores[scorer] || []);
    page.append(differenceCard(picked, shared, pairs, x, y), questionList(picked, shared, first, second, x, y, query));
  },
};

// Pairs are stored once, the earlier run first.
function gapOf(pairs, a, b, category) {
  const found = pairs.find((pair) => pair[2] === category && ((pair[0] === a && pair[1] === b) || (pair[0] === b && pair[1] === a)));
  if (!found) return null;
  const turn = found[0] === a ? 1 : -1, ends = (pair) => pair && (turn === 1 ? pair : [-pair[1], -pair[0]]);
  return { mean: turn * found[3], n: found[4], question: ends(found[5]), case: ends(found[6]), clusters: found[7], p: found[8] };
}

function differenceCard({ a, b }, shared, pairs, x, y) {
  const names = [...new Set(pairs.map((pair) => pair[2]))];
  const inside = (name) => shared.questions.map((question, place) => [question, place]).filter(([question]) => name === "all" || (name === "answerable" ? question[5] : question[4].includes(name)));
  const rows = names.map((name) => {
    const counts = [0, 0, 0, 0, 0];
    for (const [, place] of inside(name)) counts[sideOf(x[place], y[place])] += 1;
    return { name, counts, gap: gapOf(pairs, a.place, b.place, name) };
  });
  const columns = [
    { title: "Questions", cell: (row) => row.name },
    { title: "A − B", number: true, cell: (row) => row.gap ? signed(row.gap.mean) : "–" },
    { title: "95 % by case", cell: (row) => row.gap ? byCase(row.gap.case, row.gap.clusters) : "" },
    { title: "95 % by question", cell: (row) => row.gap ? between(row.gap.question) : "" },
    { title: "p by case, this pair alone", number: true, cell: (row) => row.gap ? probability(row.gap.p) : "" },
    { title: "n", number: true, cell: (row) => row.gap ? row.gap.n : 0 },
    ...SIDES.map((side, place) => ({ title: side, number: true, cell: (row) => row.counts[place] })),
  ];
  return el("section", { class: "card" }, el("p", { class: "note" }, `A: ${a.title}. B: ${b.title}. Right: a score of at least ${report.index.right}. Exploratory: p is not adjusted for the other pairs that could be looked at, and needs five histories. Tables test a declared family at one level.`),
    rows.length ? sortable(columns, rows) : el("p", null, a === b ? "A and B are the same run." : "No question has a score from both."));
}

function questionList({ set, a, b, scorer }, shared, first, second, x, y, query) {
  const state = { side: query.get("side") ?? "", q: query.get("q") ?? "", outcome: query.get("outcome") ?? "", category: query.get("category") ?? "", split: query.get("split") === "1" };
  const categories = [...new Set(shared.questions.flatMap((question) => question[4]))];
  const outcomes = [...new Set([...first.outcomes, ...second.outcomes])].sort();
  const sides = shared.questions.map((_, place) => sideOf(x[place], y[place]));
  const texts = shared.questions.map((question, place) => `${question[0]} ${question[1]}\n${question[2]}\n${question[3]}\n${first.answers[place]}\n${second.answers[place]}`);
  const list = el("ol", { class: "list" }), count = el("p", { class: "note", role: "status" }), quad = el("div", { class: "quad" });
  const search = el("input", { type: "search", id: "search", value: state.q, placeholder: "regular expression: question, gold, answers, id", "aria-label": "Search" });
  const change = (changes) => { Object.assign(state, changes); report.remember({ ...state, split: state.split ? "1" : "" }); draw(); };
  let limit = SHOWN;

  function matching() {
    let pattern = null;
    if (state.q) pattern = new RegExp(state.q, "iu");
    const rows = [];
    for (let place = 0; place < texts.length; place += 1) {
      if (state.category && !shared.questions[place][4].includes(state.category)) continue;
      if (state.outcome && first.outcomes[place] !== state.outcome && second.outcomes[place] !== state.outcome) continue;
      if (state.split && !first.split[place] && !second.split[place]) continue;
      if (pattern && !pattern.test(texts[place])) continue;
      rows.push(place);
    }
    return rows;
  }

  function draw() {
    let rows;
    try { rows = matching(); search.removeAttribute("aria-invalid"); } catch (error) { search.setAttribute("aria-invalid", "true"); count.textContent = `Not a regular expression: ${error.message}`; return; }
    const counts = [0, 0, 0, 0, 0];
    for (const place of rows) counts[sides[place]] += 1;
    const at = [...quad.children].indexOf(document.activeElement);
    quad.replaceChildren(...SIDES.map((side, place) => el("button", { type: "button", "aria-pressed": String(state.side === String(place)), onclick: () => { limit = SHOWN; change({ side: state.side === String(place) ? "" : String(place) }); } }, el("strong", null, counts[place].toLocaleString("en")), side)));
    if (at >= 0) quad.children[at].focus();
    const kept = state.side === "" ? rows : rows.filter((place) => String(sides[place]) === state.side);
    count.textContent = `${plural(kept.length, "question")}${kept.length > limit ? `, the first ${limit} shown` : ""}`;
    list.replaceChildren(...kept.slice(0, limit).map(line));
    if (kept.length > limit) list.append(el("li", null, el("button", { type: "button", onclick: () => { limit += 500; draw(); } }, "Show 500 more")));
    report.listed = { set: set.key, places: kept };
  }

  const score = (value) => (value === null || value === undefined ? "–" : number(value, Number.isInteger(value) ? 0 : 2));
  const line = (place) => {
    const [caseId, id, text, gold] = shared.questions[place];
    return el("li", null, el("a", { href: report.link("question", { set: set.key, case: caseId, id, a: a.key, b: b.key, by: set.scorers.length ? set.scorers[scorer].stem : null }) },
      el("span", { class: "meta" }, `A ${score(x[place])} · B ${score(y[place])}`), el("span", { class: "text" }, text || `${caseId} · ${id}`),
      gold ? el("span", { class: "gold", dir: "auto" }, `Gold: ${gold.slice(0, 200)}`) : "",
      el("span", { class: "pair" }, el("span", { dir: "auto" }, `A: ${first.answers[place].slice(0, 160) || first.outcomes[place]}`), el("span", { dir: "auto" }, `B: ${second.answers[place].slice(0, 160) || second.outcomes[place]}`))));
  };
  search.addEventListener("input", () => { limit = SHOWN; change({ q: search.value }); });
  draw();
  return el("section", null, el("h3", null, "Questions"), el("div", { class: "controls" }, el("label", { class: "wide" }, "Search", search),
    categories.length > 1 ? choice("Category", [["", "all"], ...categories.map((each) => [each, each])], state.category, (value) => change({ category: value })) : "",
    choice("Outcome of A or B", [["", "any"], ...outcomes.map((each) => [each, each])], state.outcome, (value) => change({ outcome: value })),
    choice("Judges", [["", "all answers"], ["1", "verdicts disagree on A or B"]], state.split ? "1" : "", (value) => change({ split: value === "1" }))), quad, count, list);
}
