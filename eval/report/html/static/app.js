// Which page is shown, the keys, light and dark.
"use strict";

const KEYS = [["1 – 7", "the pages"], ["/", "search"], ["j, k", "next and previous question, or line of a list"], ["u", "back to the list"], ["t", "light, dark, as the system"], ["?", "these keys"]];
const THEMES = ["system", "light", "dark"];
const SIGNS = { system: "◐ auto", light: "☀ light", dark: "☾ dark" };

function setTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = SIGNS[theme];
  report.theme = theme;
}
const nextTheme = () => { const theme = THEMES[(THEMES.indexOf(report.theme) + 1) % 3]; report.store("memsys-theme", theme); setTheme(theme); };

// What a control says, by which it is found again on a page that was drawn anew.
const named = (control) => control.matches("main select, main .controls > button:not(.export)") ? (control.closest("label") || control).firstChild.textContent : null;

let drawing = 0;
async function show() {
  const { page, query } = report.address(), own = Object.hasOwn(report.pages, page) ? report.pages[page] : report.pages.overview;
  const turn = ++drawing, main = document.getElementById("page"), fresh = document.createDocumentFragment();
  report.around = null;
  for (const link of document.querySelectorAll("#nav a")) link.dataset.page === page ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  try {
    await own.draw(fresh, query);
  } catch (error) {
    fresh.append(el("p", { class: "badge warning" }, `This page cannot be shown: ${error.message}`));
  }
  if (turn !== drawing) return;
  remember(query);
  const moved = report.shown !== undefined && report.shown !== page, used = moved ? null : named(document.activeElement);
  main.replaceChildren(fresh);
  document.title = `${own.title} · ${report.index.title}`;
  const again = used && [...main.querySelectorAll("select, button")].find((control) => named(control) === used);
  if (!again) scrollTo(0, 0);
  if (again || moved) (again || main).focus({ preventScroll: true });
  report.shown = page;
  main.dataset.ready = location.hash || "#/overview";
}

// The pages open on the data, the run and the table that were looked at last.
function remember(query) {
  const { runs, sets } = report.index, run = runs.find((each) => each.key === (query.get("run") || query.get("a")));
  if (run) report.context = { ...report.context, run: run.key, set: sets[run.set].key };
  else if (query.has("set")) report.context = { ...report.context, set: query.get("set"), run: (runs.find((each) => sets[each.set].key === query.get("set")) || {}).key };
  const { table, column, set, run: last } = report.context || {}, values = { overview: { table, column }, compare: { set }, question: { set }, memory: { run: last } };
  for (const link of document.querySelectorAll("#nav a")) if (Object.hasOwn(values, link.dataset.page)) link.setAttribute("href", report.link(link.dataset.page, values[link.dataset.page]));
}

function step(by) {
  const links = [...document.querySelectorAll(".list a")];
  if (!links.length) return;
  const here = links.indexOf(document.activeElement);
  links[Math.min(links.length - 1, Math.max(0, here + by))].focus();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const pages = [...document.querySelectorAll("#nav a")], search = document.getElementById("search");
  if (/^[1-9]$/.test(event.key) && pages[event.key - 1]) location.hash = pages[event.key - 1].getAttribute("href");
  else if (event.key === "/" && search) { event.preventDefault(); search.focus(); search.select(); }
  else if (event.key === "j") report.around ? report.around.after && (location.hash = report.around.after) : step(1);
  else if (event.key === "k") report.around ? report.around.before && (location.hash = report.around.before) : step(-1);
  else if (event.key === "u" && report.around) location.hash = report.around.up;
  else if (event.key === "t") nextTheme();
  else if (event.key === "?") document.getElementById("keys").showModal();
}

setTheme(THEMES.includes(report.stored("memsys-theme")) ? report.stored("memsys-theme") : "system");
document.getElementById("theme").addEventListener("click", nextTheme);
document.getElementById("keys").append(el("h2", null, "Keys"), el("table", null, el("tbody", null, KEYS.map(([name, what]) => el("tr", null, el("td", null, el("kbd", null, name)), el("td", null, what))))), el("form", { method: "dialog" }, el("button", null, "Close")));
document.getElementById("help").addEventListener("click", () => document.getElementById("keys").showModal());
addEventListener("keydown", onKey);
addEventListener("hashchange", show);
// On paper everything that is folded is open.
addEventListener("beforeprint", () => document.querySelectorAll("details:not([open])").forEach((box) => { if (box.fillNow) box.fillNow(); box.open = true; box.dataset.printed = ""; }));
addEventListener("afterprint", () => document.querySelectorAll("details[data-printed]").forEach((box) => { box.open = false; delete box.dataset.printed; }));
report.load("index").then((index) => {
  report.index = index;
  const names = ["overview", "compare", "question", "memory", "cost", "published", ...(index.losses.length + index.ceilings.length ? ["losses"] : [])];
  document.getElementById("nav").append(...names.map((name) => el("a", { href: `#/${name}`, "data-page": name }, report.pages[name].title)));
  return show();
}).catch((error) => document.getElementById("page").replaceChildren(el("p", { class: "badge warning" }, `The report cannot be read: ${error.message}`)));
