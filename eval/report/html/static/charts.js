// Figures as SVG: an interval as a bar, points with labels, curves. Colours come from the style sheet.
"use strict";

const seriesColour = (place) => `var(--s${place % 6})`;
const DASHES = ["", "6 3", "2 3", "8 3 2 3"];

// The interval of a mean on a scale that all rows share.
function intervalBar(mean, low, high, published, from, to) {
  const at = (value) => 4 + (Math.min(Math.max(value, from), to) - from) / (to - from || 1) * 192;
  const parts = [svg("line", { x1: 4, x2: 196, y1: 11, y2: 11, class: "axis" })];
  if (mean !== null) parts.push(svg("rect", { x: at(Math.max(from, 0)), y: 8, width: Math.max(0, at(mean) - at(Math.max(from, 0))), height: 6, fill: "var(--accent-wash)" }));
  if (low !== null && mean !== null) parts.push(svg("line", { x1: at(low), x2: at(high), y1: 11, y2: 11, stroke: "var(--accent)", "stroke-width": 3, "stroke-linecap": "round" }));
  if (mean !== null) parts.push(svg("circle", { cx: at(mean), cy: 11, r: 4.5, fill: "var(--accent)" }));
  if (published !== null) parts.push(svg("path", { d: `M${at(published)} 4l5 7l-5 7l-5-7z`, fill: "var(--card)", stroke: "var(--s1)", "stroke-width": 1.5 }));
  const label = mean === null ? "no number" : `${fixed(mean)}${low === null ? "" : `, 95 % ${fixed(low)} to ${fixed(high)}`}`;
  return svg("svg", { class: "bar", viewBox: "0 0 200 22", preserveAspectRatio: "none", role: "img", "aria-label": label }, svg("title", null, label), parts);
}

function niceTicks(low, high, count = 5) {
  if (!(high > low)) return [low];
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= raw);
  const ticks = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) ticks.push(Math.abs(value) < step / 1e6 ? 0 : value);
  return ticks;
}
const tickText = (value) => (Math.abs(value) >= 10000 ? `${value / 1000}k` : String(+value.toPrecision(4)));

const TEXT = 7; // pixels of a character, at most

function frame(width, height, x, y, xTitle, yTitle) {
  const yTicks = niceTicks(...y).map((tick) => [tick, tickText(tick)]);
  const box = { left: Math.max(52, 30 + TEXT * Math.max(...yTicks.map(([, text]) => text.length))), right: width - 14, top: 14, bottom: height - 40 };
  const px = (value) => box.left + (value - x[0]) / (x[1] - x[0] || 1) * (box.right - box.left);
  const py = (value) => box.bottom - (value - y[0]) / (y[1] - y[0] || 1) * (box.bottom - box.top);
  const parts = [
    ...yTicks.map(([tick, text]) => [svg("line", { class: "tick", x1: box.left, x2: box.right, y1: py(tick), y2: py(tick) }), svg("text", { x: box.left - 6, y: py(tick) + 4, "text-anchor": "end" }, text)]),
    ...niceTicks(...x).map((tick) => [svg("line", { class: "axis", x1: px(tick), x2: px(tick), y1: box.bottom, y2: box.bottom + 4 }), svg("text", { x: px(tick), y: box.bottom + 17, "text-anchor": "middle" }, tickText(tick))]),
    svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    svg("text", { x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, xTitle),
    svg("text", { x: 12, y: (box.top + box.bottom) / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${(box.top + box.bottom) / 2})` }, yTitle),
  ];
  return { box, px, py, parts };
}

// No larger than drawn, so that its print stays the size of the page's.
const sized = (width, figure) => { figure.style.maxWidth = `min(100%, ${width}px)`; return figure; };

const room = (values, zero) => {
  const low = zero ? Math.min(0, ...values) : Math.min(...values), high = Math.max(...values), gap = (high - low || Math.abs(high) || 1) * 0.06;
  return [zero && low === 0 ? 0 : low - gap, high + gap];
};

// Where a point's name stands: next to it, over no mark and no other name, and as near as that allows. Boxes are {left, right, top, bottom}.
function nameBox(x, y, name, box, taken) {
  const apart = (a, b) => a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
  const width = TEXT * name.length, sides = x + 9 + width <= box.right ? [9, -9 - width] : [-9 - width, 9];
  const places = [...Array(24)].flatMap((_, step) => sides.map((side) => {
    const base = y + (step % 2 ? 15 : -7) + (step % 2 ? 13 : -13) * Math.floor(step / 2);
    return { left: x + side, right: x + side + width, top: base - 11, bottom: base + 4 };
  })).filter((place) => place.left >= box.left && place.top >= 0 && place.bottom <= box.bottom);
  return places.find((place) => taken.every((other) => apart(place, other))) || places[0];
}

// Points: {x, y, low, high, title, href, named}. The front is joined; only its points are named, the others are numbered in the key.
function scatter(points, { xTitle, yTitle, front = [], diagonal = false, width = 900, height = 430 }) {
  width = Math.max(300, Math.min(width, innerWidth - 60)); // drawn for the screen, so that its print stays legible on a phone
  height = Math.min(height, Math.max(280, width * 0.75));
  const ys = points.flatMap((point) => [point.y, point.low ?? point.y, point.high ?? point.y]);
  const span = diagonal ? room([...ys, ...points.map((point) => point.x)], false) : null;
  const { box, px, py, parts } = frame(width, height, span || room(points.map((point) => point.x), true), span || room(ys, false), xTitle, yTitle);
  if (diagonal) parts.push(svg("line", { x1: px(span[0]), y1: py(span[0]), x2: px(span[1]), y2: py(span[1]), class: "axis", "stroke-width": 1.5 }));
  if (front.length > 1) parts.push(svg("polyline", { points: front.map((point) => `${px(point.x)},${py(point.y)}`).join(" "), fill: "none", stroke: "var(--accent)", "stroke-width": 1.2 }));
  const taken = points.map((point) => ({ left: px(point.x) - 6, right: px(point.x) + 6, top: py(point.y) - 6, bottom: py(point.y) + 6 }));
  for (const point of points) {
    const on = front.includes(point), colour = on || diagonal ? "var(--accent)" : "var(--faint)";
    if (point.low !== null && point.low !== undefined) parts.push(svg("line", { x1: px(point.x), x2: px(point.x), y1: py(point.low), y2: py(point.high), stroke: colour, "stroke-width": 1, opacity: 0.55 }));
    const mark = svg("circle", { cx: px(point.x), cy: py(point.y), r: on ? 5.5 : 4.5, fill: on ? colour : "var(--card)", stroke: colour, "stroke-width": 1.6 });
    parts.push(svg("a", { href: point.href, "aria-label": point.title }, svg("title", null, point.title), mark));
  }
  for (const point of front) {
    const place = nameBox(px(point.x), py(point.y), point.name, box, taken);
    if (!place) continue; // longer than the figure is wide: the list next to it has it
    taken.push(place);
    const left = place.left < px(point.x);
    parts.push(svg("text", { x: left ? place.right : place.left, y: place.bottom - 4, "text-anchor": left ? "end" : "start" }, point.name));
  }
  return sized(width, svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${yTitle} against ${xTitle}` }, parts));
}

// Curves: [{name, points: [[x, y], …]}].
function curves(lines, { xTitle, yTitle, width = 460, height = 280 }) {
  width = Math.max(300, Math.min(width, innerWidth - 60));
  const xs = lines.flatMap((line) => line.points.map((point) => point[0])), ys = lines.flatMap((line) => line.points.map((point) => point[1]));
  if (!ys.some((y) => y > 0)) return el("p", { class: "note" }, `${yTitle}: 0 throughout.`);
  const { px, py, parts } = frame(width, height, [0, Math.max(...xs)], room(ys, true), xTitle, yTitle);
  lines.forEach((line, place) => parts.push(svg("polyline", {
    points: line.points.map(([x, y]) => `${px(x)},${py(y)}`).join(" "), fill: "none", stroke: seriesColour(place), "stroke-width": 1.8, "stroke-dasharray": DASHES[Math.floor(place / 6) % 4] || null,
  }, svg("title", null, line.name))));
  return sized(width, svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${yTitle} against ${xTitle}` }, parts));
}

const key = (names) => el("ul", { class: "key" }, names.map((name, place) => {
  const swatch = el("i");
  swatch.style.background = seriesColour(place);
  return el("li", null, swatch, name);
}));
