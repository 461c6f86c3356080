// Search and sorting of the leaderboards, and the questions of a claim. Texts reach the page through textContent only.
"use strict";

const STEP = 50;
const byId = (id) => document.getElementById(id);
const words = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);

// ---- leaderboards: rows are in the page, a search hides some ----------------------------------------------------------

function leaderboards() {
  const rows = [...document.querySelectorAll("table.claims tbody tr")].map((row) => ({ row, text: row.dataset.search, status: row.dataset.status }));
  const boards = [...document.querySelectorAll(".board")];
  const draw = () => {
    const wanted = words(byId("search").value), status = byId("status").value;
    let count = 0;
    for (const each of rows) {
      const fits = (!status || each.status === status) && wanted.every((word) => each.text.includes(word));
      each.row.hidden = !fits;
      count += fits;
    }
    for (const board of boards) board.hidden = !board.querySelector("tbody tr:not([hidden])");
    byId("count").textContent = count === rows.length ? plural(count, "file") : `${count} of ${plural(rows.length, "file")}`;
  };
  byId("search").addEventListener("input", draw);
  byId("status").addEventListener("change", draw);
  document.querySelectorAll("table.claims").forEach(sortRows);
  draw();
}

function sortRows(table) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((head, place) => {
    const kind = head.dataset.sort;
    if (!kind) return;
    const button = el("button", { type: "button" }, head.textContent);
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") !== "descending" : kind === "number";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => { const text = row.cells[place].textContent.trim(); return kind === "text" ? text : parseFloat(text.replaceAll(",", "")); };
      const sorted = [...body.rows].map((row) => [value(row), row]);
      sorted.sort(([a], [b]) => kind === "text" ? a.localeCompare(b) * (down ? -1 : 1) : Number.isNaN(a) - Number.isNaN(b) || (a - b) * (down ? -1 : 1));
      body.append(...sorted.map(([, row]) => row));
    });
  });
}

// ---- a claim: its questions come from data files when they are near the screen, or are asked for ----------------------

const KINDS = {
  all: () => true,
  right: (row) => row.verdict !== null && row.verdict >= 0.5,
  wrong: (row) => row.verdict !== null && row.verdict < 0.5,
  open: (row) => row.verdict === null,
  differ: (row) => new Set([row.verdict, ...row.judges.map(([, verdict]) => verdict)].filter((verdict) => verdict !== null).map((verdict) => verdict >= 0.5)).size > 1,
  zero: (row) => row.f1 === 0,
  unknown: (row) => row.unknown === 1,
};

function rowsOf(own, shared) {
  const places = own.at || own.questions.map((_, place) => place), questions = own.at ? shared : own.questions;
  return places.map((place, number) => {
    const [conversation, id, category, answerable, text, gold] = questions[place], answer = own.answers ? own.answers[number] : null;
    const row = { conversation, id, category, answerable, text, gold, answer, verdict: own.verdict[number], f1: own.f1[number], words: own.words[number], unknown: own.unknown[number], judges: (own.judges || []).map(([name, verdicts]) => [name, verdicts[number]]) };
    row.search = [conversation, id, text, gold, answer].filter(Boolean).join("\n").toLowerCase();
    return row;
  });
}

function drawn(row) {
  const facts = [row.id, `category ${row.category}`, row.answerable ? null : "the history has no answer", `verdict ${row.verdict ?? "–"}`, ...row.judges.map(([name, verdict]) => `${name} ${verdict ?? "–"}`), `F1 ${number(row.f1, 2)}`, plural(row.words, "word")];
  const part = (name, text) => text ? el("p", { class: name === "gold" ? "gold" : "said", dir: "auto" }, el("span", { class: "tag" }, name + " "), longText(text)) : null;
  return el("li", null, el("p", { class: "meta" }, facts.filter((fact) => fact && fact !== "category ").join(" · ")), row.text ? el("p", { class: "text", dir: "auto" }, row.text) : null, part("gold", row.gold), part("answer", row.answer));
}

function questions(section) {
  let rows = null, fitting = [], loading = null;
  const list = byId("list"), more = byId("more");
  const add = () => {
    list.append(...fitting.slice(list.children.length, list.children.length + STEP).map(drawn));
    more.hidden = list.children.length >= fitting.length;
  };
  const draw = () => {
    if (!rows) return;
    const wanted = words(byId("search").value), kind = KINDS[byId("kind").value], category = byId("category").value;
    fitting = rows.filter((row) => kind(row) && (!category || row.category === category) && wanted.every((word) => row.search.includes(word)));
    list.replaceChildren();
    add();
    byId("count").textContent = fitting.length === rows.length ? plural(rows.length, "question") : `${fitting.length.toLocaleString("en")} of ${plural(rows.length, "question")}`;
  };
  const load = () => loading ||= Promise.all([report.load(section.dataset.name), section.dataset.shared ? report.load(section.dataset.shared) : null]).then(([own, shared]) => {
    rows = rowsOf(own, shared);
    byId("category").append(...[...new Set(rows.map((row) => row.category))].filter(Boolean).sort().map((name) => el("option", { value: name }, name)));
    draw();
    section.dataset.ready = rows.length;
  }).catch((error) => { byId("count").textContent = `The questions cannot be read: ${error.message}`; });
  byId("search").addEventListener("input", draw);
  byId("search").addEventListener("focus", load);
  for (const id of ["kind", "category"]) byId(id).addEventListener("change", () => load().then(draw));
  more.addEventListener("click", add);
  new IntersectionObserver((seen, observer) => { if (seen.some((each) => each.isIntersecting)) { observer.disconnect(); load(); } }, { rootMargin: "600px" }).observe(section);
  report.questions = load;
}

if (byId("status")) leaderboards();
if (byId("questions")) questions(byId("questions"));
addEventListener("beforeprint", () => document.querySelectorAll("details:not([open])").forEach((box) => { box.open = true; box.dataset.printed = ""; }));
addEventListener("afterprint", () => document.querySelectorAll("details[data-printed]").forEach((box) => { box.open = false; delete box.dataset.printed; }));
byId("page").dataset.ready = location.hash;
