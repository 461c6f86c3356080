// Question: gold, evidence, and for each memory the recall, the prompt, the answer, the verdicts; a reader's own verdict.
"use strict";

const ratingKey = (run, caseId, id) => `memsys-rating ${JSON.stringify([run, caseId, id])}`;

report.ratings = () => {
  const found = [];
  try {
    for (let place = 0; place < localStorage.length; place += 1) {
      const name = localStorage.key(place);
      if (name.startsWith("memsys-rating ")) found.push(JSON.parse(localStorage.getItem(name)));
    }
  } catch { return []; }
  const known = new Set(report.index.runs.map((run) => run.key));
  return found.filter((rating) => known.has(rating.run)).sort((a, b) => `${a.run} ${a.case_id} ${a.question_id}`.localeCompare(`${b.run} ${b.case_id} ${b.question_id}`));
};

report.pages.question = {
  title: "Question",
  async draw(page, query) {
    const { sets, runs } = report.index;
    const place = Math.max(0, sets.findIndex((own) => own.key === query.get("set"))), set = sets[place];
    if (!set) { page.append(el("p", null, "There are no runs.")); return; }
    const shared = await report.load(`set${place}`);
    const wanted = shared.questions.findIndex((row) => row[0] === query.get("case") && row[1] === query.get("id"));
    if (wanted < 0 && query.has("id")) page.append(el("p", { class: "warning badge" }, `This report has no question ${query.get("id")} of ${query.get("case")}; the first one is shown.`));
    const at = Math.max(0, wanted), row = shared.questions[at];
    if (!row) { page.append(el("p", null, "No question was asked.")); return; }
    const block = await report.load(`set${place}-block${row[6]}`), question = block.questions[row[7]];
    const own = runs.filter((run) => run.set === place);
    const go = (to) => report.link("question", { ...Object.fromEntries(query), set: set.key, case: shared.questions[to][0], id: shared.questions[to][1] });
    const listed = report.listed && report.listed.set === set.key ? report.listed.places : shared.questions.map((_, each) => each);
    const here = listed.indexOf(at), before = listed[here - 1], after = here < 0 ? listed[0] : listed[here + 1];
    report.around = { before: before === undefined ? null : go(before), after: after === undefined ? null : go(after), up: report.link("compare", { set: set.key, a: query.get("a"), b: query.get("b"), by: query.get("by") }) };
    page.append(el("div", { class: "controls" }, before === undefined ? "" : el("a", { href: go(before) }, "← previous (k)"), el("a", { href: report.around.up }, "list (u)"), after === undefined ? "" : el("a", { href: go(after) }, "next (j) →"),
      sets.length > 1 ? choice("Data", sets.map((each) => [each.key, each.label]), set.key, (value) => { location.hash = report.link("question", { set: value }); }) : ""));
    page.append(questionCard(set, question));
    const order = [query.get("a"), query.get("b")].filter(Boolean);
    const answers = question.runs.map((answer) => ({ answer, run: own[answer.run] })).sort((x, y) => rank(order, x.run) - rank(order, y.run));
    const words = new Set(question.words);
    const cards = (own) => el("div", { class: "grid" }, own.map(({ answer, run }) => answerCard(set, question, answer, run, block.texts, words, shared)));
    const failed = answers.filter((each) => isFailed(each) && !order.includes(each.run.key)), whole = answers.filter((each) => !failed.includes(each));
    const named = query.get("sent") || "", rest = whole.slice(ANSWERS);
    const pin = (side) => choice(`First ${side === "a" ? "A" : "B"}`, [["", "–"], ...own.map((run) => [run.key, run.title])], query.get(side) || "", (value) => { location.hash = report.link("question", { ...Object.fromEntries(query), set: set.key, case: row[0], id: row[1], [side]: value }); });
    page.append(el("div", { class: "controls" }, el("h3", null, plural(answers.length, "answer")), own.length > 2 ? [pin("a"), pin("b")] : ""), cards(whole.slice(0, ANSWERS)),
      rest.length ? lazy(`${rest.length} more answers`, () => cards(rest), rest.some(({ run }) => named.endsWith(`@${run.key}`))) : "",
      failed.length ? lazy(`${plural(failed.length, "answer")} of runs that failed or did not get here`, () => cards(failed), failed.some(({ run }) => named.endsWith(`@${run.key}`))) : "", exportCard());
    openNamed(page, "sent", query.get("sent"));
  },
};

// More answers than these are folded, and so are those of runs that failed.
const ANSWERS = 12;
const isFailed = ({ answer }) => answer.outcome === "error" || answer.outcome === "not reached";

const rank = (order, run) => { const place = order.indexOf(run.key); return place < 0 ? order.length : place; };

function questionCard(set, question) {
  const card = el("section", { class: "card" }, el("p", { class: "meta" }, [set.name, question.case, question.id, question.category].filter(Boolean).join(" · ")));
  if (question.text === null) return fill(card, null, [el("p", { class: "warning badge" }, `Question and gold are not shown: ${set.why}`)]);
  card.append(el("h2", { class: "text", dir: "auto" }, question.text.length > CLIP ? longText(question.text) : question.text));
  if (question.asked) card.append(el("p", { class: "meta" }, `Asked: ${question.asked}`));
  if (question.options.length) card.append(el("ol", { type: "A" }, question.options.map((option) => el("li", { class: "text", dir: "auto" }, option))));
  if (question.instruction) card.append(el("p", { class: "meta text" }, question.instruction));
  card.append(el("p", { dir: "auto" }, el("strong", { class: "good" }, "Gold: "), question.gold.length ? longText(question.gold.join(" | ")) : "none named"));
  if (!question.answerable) card.append(el("p", null, el("span", { class: "badge" }, "not answerable from the history: abstaining is right"), question.trap ? el("span", { class: "text" }, ` Trap: ${question.trap}`) : ""));
  card.append(el("details", { open: question.evidence.length > 0 }, el("summary", null, question.evidence.length ? `Evidence: ${plural(question.turns.length, "turn")}` : "The data set names no evidence"),
    question.evidence.map((session) => el("div", null, el("p", { class: "meta" }, [session.id, session.time, session.heading].filter(Boolean).join(" · ")),
      session.turns.map(([id, speaker, text, hit]) => el("div", { class: hit ? "turn evidence" : "turn" }, el("span", { class: "meta" }, `${id} `), speaker ? el("b", null, `${speaker}: `) : "", longText(text, hit ? new Set(question.words) : null)))))));
  return card;
}

function answerCard(set, question, answer, run, texts, words, shared) {
  const card = el("article", { class: "card" }, el("h3", null, el("a", { href: report.link("memory", { run: run.key }) }, run.title)));
  if (answer.outcome === "not reached") return fill(card, null, [el("p", { class: "badge warning" }, "not reached: the run is not finished")]);
  if (answer.outcome !== "answered" || answer.cut) card.append(el("span", { class: "badge warning" }, answer.cut ? "cut at the token limit" : answer.outcome));
  card.append(el("div", { class: "answer" }, answer.answer ? longText(answer.answer, words) : el("em", null, "no answer")), answer.error ? el("p", { class: "bad text" }, answer.error) : "");
  card.append(el("ul", { class: "verdicts" }, answer.verdicts.length ? answer.verdicts.map((verdict) => verdictLine(set, answer, verdict)) : el("li", { class: "meta" }, "not scored")));
  card.append(el("p", { class: "meta" }, spent("read", answer.read), answer.answered ? `; ${spent("answer", answer.answered)}, ${amount(answer.answered.context_tokens)} tokens of recall shown, ${plural(answer.answered.dropped_items, "item")} left out` : ""));
  const held = answer.items.filter((item) => item[5].length).length;
  const covered = answer.covered_by === undefined ? "" : answer.covered_by === null ? "; the words of the gold answer are not all in it" : `; all words of the gold answer within the first ${answer.covered_by}`;
  card.append(lazy(`Recalled ${plural(answer.items.length, "item")}${question.text === null ? "" : `, ${held} with evidence${covered}`}`, () => answer.items.map(([place, id, score, level, kind, turns], number) =>
    el("div", { class: turns.length ? "item evidence" : "item" }, el("div", { class: "head" }, `${number + 1} · ${fixed(score, 4)} · ${kind}, level ${level} · ${id}`, turns.length ? el("strong", { class: "good" }, ` · evidence ${turns.join(", ")}`) : ""), longText(texts[place], words)))));
  card.append(answer.prompt ? promptBox("The reader's prompt as it was sent", set, question, run, "reader", [answer.prompt], 1, texts) : el("p", { class: "meta" }, `Prompt not shown: ${answer.no_prompt}`));
  for (const [place, judged] of Object.entries(answer.judged || {})) {
    const { title, stem } = set.scorers[place];
    card.append(judged.why ? el("p", { class: "meta text" }, `Prompt of ${title} not shown: ${judged.why}`) : promptBox(`The prompt of ${title} as it was sent`, set, question, run, stem, judged.requests, judged.count, texts));
  }
  card.append(rateBox(run, question, answer), sampleLink(set, run, shared));
  return card;
}

// Requests, each a list of roles with their pieces; the address names the box that is open.
function promptBox(title, set, question, run, name, requests, count, texts) {
  const sent = `${name}@${run.key}`, link = report.link("question", { set: set.key, case: question.case, id: question.id, sent });
  const written = (parts) => parts.map((part) => typeof part === "number" ? texts[part] : part).join("");
  const box = lazy(title, () => [el("p", { class: "meta" }, el("a", { href: link }, "permanent link"), count > requests.length ? ` · ${count} requests, the first ${requests.length} are shown` : ""),
    requests.map((messages) => messages.map(([role, parts]) => [el("p", { class: "meta" }, role), el("pre", { dir: "auto" }, written(parts))]))]);
  box.dataset.sent = sent;
  return box;
}

// Opens the box that the address names, and brings it into view.
function openNamed(page, name, value) {
  const box = value && [...page.querySelectorAll(`details[data-${name}]`)].find((each) => each.dataset[name] === value);
  if (!box) return;
  for (let above = box; above; above = above.parentElement && above.parentElement.closest("details")) { if (above.fillNow) above.fillNow(); above.open = true; }
  setTimeout(() => box.scrollIntoView({ block: "start" }), 0);
}

// Contents that are made when they are first opened.
function lazy(title, make, open = false) {
  const box = el("details", null, el("summary", null, title));
  box.fillNow = () => { if (box.children.length === 1) box.append(...[make()].flat(Infinity)); };
  box.addEventListener("toggle", () => { if (box.open) box.fillNow(); });
  box.open = open;
  return box;
}

const spent = (phase, cost) => cost === null || cost === undefined ? `${phase}: not measured` : `${phase}: ${plural(cost.calls, "call")}, ${(cost.tokens_in + cost.tokens_out).toLocaleString("en")} tokens, ${amount(cost.seconds)} s${cost.parse_failures ? `, ${plural(cost.parse_failures, "parse failure")}` : ""}`;

function verdictLine(set, answer, [scorer, repeat, value, why, detail]) {
  const right = value !== null && value >= report.index.right, own = set.scorers[scorer];
  const repeats = answer.verdicts.filter((verdict) => verdict[0] === scorer).length;
  const details = Object.entries(detail).map(([name, found]) => `${name} ${typeof found === "number" ? +fixed(found, 4) : typeof found === "string" ? found : JSON.stringify(found)}`).join(", ");
  return el("li", null, el("span", { class: `badge ${value === null ? "" : right ? "good" : "bad"}` }, value === null ? "no verdict" : number(value, Number.isInteger(value) ? 0 : 3)), ` ${own.title}${repeats > 1 ? `, repeat ${repeat + 1}` : ""}`,
    why ? el("span", { class: "text meta", dir: "auto" }, ` ${why}`) : "", details ? el("span", { class: "meta" }, ` ${details}`) : "");
}

function rateBox(run, question, answer) {
  const name = ratingKey(run.key, question.case, question.id);
  const old = JSON.parse(report.stored(name) || "null");
  const valid = old && old.answer === answer.hash ? old : null;
  const note = el("input", { type: "text", placeholder: "note", "aria-label": `Note on the answer of ${run.title}`, value: valid ? valid.why : "" });
  const said = el("span", { class: "meta", role: "status" }, old && !valid ? "the answer has changed since you rated it" : "");
  let value = valid ? valid.value : undefined;
  const buttons = [["right", 1], ["partial", 0.5], ["wrong", 0]].map(([title, own]) => el("button", { type: "button", "data-value": own, "aria-pressed": String(value === own), onclick: () => { value = value === own ? undefined : own; keep(); } }, title));
  const keep = () => {
    buttons.forEach((button) => button.setAttribute("aria-pressed", String(value === Number(button.dataset.value))));
    const rating = { run: run.key, case_id: question.case, question_id: question.id, answer: answer.hash, repeat: 0, value, why: note.value, detail: {} };
    const kept = report.store(name, value === undefined ? null : JSON.stringify(rating));
    said.textContent = !kept ? "this browser keeps nothing" : value === undefined ? "removed" : "kept in this browser";
    for (const button of document.querySelectorAll(".export")) button.textContent = exportTitle();
  };
  note.addEventListener("change", () => { if (value !== undefined) keep(); });
  return el("div", { class: "rate" }, el("span", { class: "meta" }, "Your verdict:"), buttons, note, said);
}

// The next answer of the random sample: the first in the order of the sample that has no rating yet.
function sampleLink(set, run, shared) {
  const key = (place) => ratingKey(run.key, shared.questions[place][0], shared.questions[place][1]);
  const rated = shared.sample.findIndex((place) => !report.stored(key(place)));
  if (rated < 0) return el("p", { class: "note" }, "Every answer is rated.");
  const [caseId, id] = shared.questions[shared.sample[rated]];
  return el("p", { class: "note" }, el("a", { class: "sample", href: report.link("question", { set: set.key, case: caseId, id }) }, "next of the random sample"), ` (${rated} rated in its order; memsys-bench judge-card --ratings makes a score of them)`);
}

const exportTitle = () => `Export ${plural(report.ratings().length, "rating")} as JSONL`;

function exportCard() {
  return el("div", { class: "controls" }, el("button", { type: "button", class: "export", onclick: () => {
    const lines = report.ratings().map((rating) => JSON.stringify(rating) + "\n");
    const link = el("a", { href: URL.createObjectURL(new Blob(lines, { type: "application/jsonl" })), download: "ratings.jsonl" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  } }, exportTitle()), el("span", { class: "note" }, "memsys-bench tables ratings ratings.jsonl sets them against the judges."));
}
