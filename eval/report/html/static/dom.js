// Elements, numbers, tables, data files. Text from data reaches the page through textContent only.
"use strict";

const report = { data: new Map(), waiting: new Map(), pages: {} };

report.receive = (name, value) => {
  report.data.set(name, value);
  const done = report.waiting.get(name);
  if (done) { report.waiting.delete(name); done.resolve(value); }
};

// A page opened from a disk may not fetch a file, but may load a script.
report.load = (name) => {
  if (report.data.has(name)) return Promise.resolve(report.data.get(name));
  if (report.waiting.has(name)) return report.waiting.get(name).promise;
  const entry = {};
  entry.promise = new Promise((resolve, reject) => { entry.resolve = resolve; entry.reject = reject; });
  report.waiting.set(name, entry);
  const script = document.createElement("script");
  script.src = `data/${name}.js`;
  script.onerror = () => { report.waiting.delete(name); entry.reject(new Error(`data/${name}.js cannot be read`)); };
  script.onload = () => script.remove();
  document.head.append(script);
  return entry.promise;
};

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

// As Python and the terminal round: a value exactly between two goes to the even digit, which toFixed takes away from zero.
function fixed(value, digits = 3) {
  const text = value.toFixed(digits), last = Number(text.at(-1)), exact = value.toFixed(100);
  const between = /^50*$/.test(exact.slice(exact.indexOf(".") + 1 + digits));
  return between && last % 2 ? `${text.slice(0, -1)}${last - 1}` : text;
}
const number = (value, digits = 3) => (value === null || value === undefined ? "–" : fixed(value, digits));
const signed = (value) => (value > 0 ? "+" : "") + fixed(value).replace("-", "−");
const amount = (value) => {
  if (value === null || value === undefined) return "–";
  if (value >= 1000) return Number(fixed(value, 0)).toLocaleString("en");
  return value >= 100 ? fixed(value, 0) : value >= 10 ? fixed(value, 1) : value >= 0.01 || value === 0 ? fixed(value, 2) : value.toPrecision(2);
};
const between = (ends) => (ends ? `[${fixed(ends[0])}, ${fixed(ends[1])}]` : "");
const byCase = (ends, clusters) => (ends ? `{${fixed(ends[0])}, ${fixed(ends[1])}}` : clusters > 0 && clusters < 5 ? `{${clusters} case${clusters > 1 ? "s" : ""}}` : clusters ? "{no spread}" : "");
const probability = (p) => (p === null || p === undefined ? "–" : p < 0.001 ? "<0.001" : fixed(p));
const plural = (count, word) => `${count.toLocaleString("en")} ${count === 1 ? word : `${word.replace(/([^aeiou])y$/, "$1ie")}s`}`;

const CLIP = 1500;
// A long text shows its beginning and a button for the rest; words of the gold answer may be marked.
function longText(text, words, clip = CLIP) {
  const box = el("div", { class: "text", dir: "auto" });
  const show = (part) => box.replaceChildren(...(words && words.size ? marked(part, words) : [part]));
  if (text.length <= clip) { show(text); return box; }
  show(text.slice(0, clip) + "… ");
  box.append(el("button", { type: "button", onclick: () => show(text) }, `show all ${text.length.toLocaleString("en")} characters`));
  return box;
}

const WORD = /[\p{L}\p{N}_]+(?:['’][\p{L}\p{N}_]+)?/gu;
function marked(text, words) {
  const parts = [];
  let last = 0;
  for (const match of text.matchAll(WORD)) {
    if (!words.has(match[0].toLowerCase().replace("’", "'"))) continue;
    parts.push(text.slice(last, match.index), el("mark", { title: "a content word of the gold answer" }, match[0]));
    last = match.index + match[0].length;
  }
  return [...parts, text.slice(last)];
}

// A table whose columns sort. Columns: {title, cell(row), value(row)?, number?}.
function sortable(columns, rows, options = {}) {
  const body = el("tbody");
  let order = options.sort ?? null, down = options.down ?? true;
  const heads = columns.map((column, place) => {
    const head = el("th", { scope: "col", class: column.number ? "number" : column.class ?? null });
    head.append(column.value ? el("button", { type: "button", onclick: () => { down = order === place ? !down : column.down ?? true; order = place; draw(); if (options.onsort) options.onsort(place, down); } }, column.title) : column.title);
    return head;
  });
  const draw = () => {
    const sorted = rows.slice();
    if (order !== null) {
      const value = columns[order].value, rank = (row) => { const own = value(row); return own === null || own === undefined || Number.isNaN(own) ? null : own; };
      sorted.sort((a, b) => {
        const x = rank(a), y = rank(b);
        if (x === null || y === null) return (x === null) - (y === null);
        return (typeof x === "string" ? x.localeCompare(y) : x - y) * (down ? -1 : 1);
      });
    }
    heads.forEach((head, place) => place === order ? head.setAttribute("aria-sort", down ? "descending" : "ascending") : head.removeAttribute("aria-sort"));
    body.replaceChildren(...sorted.map((row) => el("tr", { class: options.rowClass ? options.rowClass(row, order === null) : null },
      columns.map((column, place) => el(place ? "td" : "th", { class: column.number ? "number" : column.class ?? null, scope: place ? null : "row" }, column.cell(row))))));
  };
  draw();
  return el("div", { class: "scroll" }, el("table", { class: options.class }, el("thead", null, el("tr", null, heads)), body));
}

const plainTable = (titles, rows, numbersFrom = 1) => sortable(
  titles.map((title, place) => ({ title, number: place >= numbersFrom, cell: (row) => typeof row[place] === "number" ? row[place].toLocaleString("en") : row[place], value: rows.length > 1 ? (row) => row[place] : null, down: place >= numbersFrom })), rows);

function choice(label, options, value, onchange) {
  const select = el("select", { onchange: (event) => onchange(event.target.value) },
    options.map(([key, title]) => el("option", { value: key }, title)));
  select.value = value;
  return el("label", null, label, select);
}

// The address of a page: everything that was chosen stands in it, by name, so that a link stays valid.
report.address = () => {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { page: path || "overview", query: new URLSearchParams(query || "") };
};
report.link = (page, values = {}) => {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) if (value !== null && value !== undefined && value !== "") query.set(name, value);
  const text = query.toString();
  return `#/${page}${text ? "?" + text : ""}`;
};
report.remember = (values) => {
  const { page, query } = report.address();
  history.replaceState(null, "", report.link(page, { ...Object.fromEntries(query), ...values }));
};
report.stored = (name) => { try { return localStorage.getItem(name); } catch { return null; } };
report.store = (name, value) => { try { value === null ? localStorage.removeItem(name) : localStorage.setItem(name, value); return true; } catch { return false; } };
