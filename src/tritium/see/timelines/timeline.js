// timelineView(root): draws the timeline whose columns are inside `root`, with zoom, pan, search and sums of a selection.
// Text from a profile is only ever drawn or put into textContent.
async function timelineView(root) {
"use strict";
const one = (query) => root.querySelector(query);
const [map, main, box, space, state, panel] = [".tl-map", ".tl-main", ".tl-box", ".tl-space", ".tl-state", ".tl-panel"].map(one);
const FONT = "12px system-ui,-apple-system,'Segoe UI',Roboto,'Liberation Sans',Arial,sans-serif";
const BAR = 17, STRIP = 7, PATH = 5, GAP = 10, COUNTER = 42, AXIS = 22, LABEL = 15;

// ---- the columns
async function bytes(packed) {
  const raw = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  return new Uint8Array(await new Response(new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer());
}

async function table(packed) {
  const raw = await bytes(packed.gzip), out = { length: packed.length };
  let at = 0;
  for (const [name, planes] of packed.columns) {
    const values = new Float64Array(packed.length);
    for (let k = 0, scale = 1; k < planes; k++, scale *= 256) for (let i = 0; i < packed.length; i++) values[i] += raw[at++] * scale;
    out[name] = values;
  }
  return out;
}

let data, spans, links, path, gaps, samples = null;
try {
  data = JSON.parse(new TextDecoder().decode(await bytes(JSON.parse(one("script").textContent))));
  [spans, links, path, gaps] = await Promise.all([data.spans, data.links, data.path, data.gaps].map(table));
  if (data.samples) samples = await table(data.samples.table);
} catch (error) {
  state.textContent = "This browser cannot unpack the timeline: " + error.message;
  return;
}
const NAME = 0, KIND = 1, KERNEL = 2, DEVICE = 3, DETAIL = 4, FLOPS = 5, BYTES = 6, COLOUR = 7;
const whats = data.whats, total = data.total;
const end = (t, i) => t.start[i] + t.elapsed[i];

// Strips: the spans of one row and level, disjoint and in order; `busy` is the time covered up to each.
function strips(t, keys) {
  const out = [];
  let strip = null;
  for (let i = 0; i < t.length; i++) {
    if (!strip || keys.some((key) => t[key][i] !== strip[key])) {
      strip = { first: i, last: i, table: t };
      for (const key of keys) strip[key] = t[key][i];
      out.push(strip);
    }
    strip.last = i + 1;
  }
  for (const s of out) {
    s.busy = new Float64Array(s.last - s.first + 1);
    for (let i = s.first; i < s.last; i++) s.busy[i - s.first + 1] = s.busy[i - s.first] + t.elapsed[i];
  }
  return out;
}

const rows = data.rows.map(([name, levels], number) => ({ name, levels, number, strips: [], gaps: null, samples: null, path: null, open: true }));
for (const strip of strips(spans, ["row", "level"])) rows[strip.row].strips[strip.level] = strip;
for (const strip of strips(gaps, ["row"])) rows[strip.row].gaps = strip;
if (samples) for (const strip of strips(samples, ["row"])) rows[strip.row].samples = strip;
const onPath = rows.map(() => []);
for (let i = 0; i < path.length; i++) onPath[path.row[i]].push(i);
const waits = new Map(), handed = new Map();
for (let i = 0; i < links.length; i++) { waits.set(links.late[i], links.early[i]); handed.set(links.early[i], links.late[i]); }
const DEEPEST = 40;

// First index in [first, last) for which a rising value is at least `least`.
function bisect(first, last, least, value) {
  while (first < last) { const middle = (first + last) >> 1; if (value(middle) < least) first = middle + 1; else last = middle; }
  return first;
}

const startAtLeast = (s, time) => bisect(s.first, s.last, time, (i) => s.table.start[i]);
const endsAfter = (s, time) => { let i = bisect(s.first, s.last, time, (k) => end(s.table, k)); while (i < s.last && end(s.table, i) <= time && s.table.elapsed[i] > 0) i++; return i; };

// ---- the view
let from = 0, until = total, width = 0, height = 0, gutter = 0, chosen = null, range = null, hover = null, ranging = false;
let matches = null, matchSums = null, found = [], foundAt = -1, colours = {}, due = false;
const least = Math.max(1, Math.min(50, total));

function time(ns) {
  if (ns === 0) return "0";
  const size = Math.abs(ns), [unit, name] = size >= 1e9 ? [1e9, "s"] : size >= 1e6 ? [1e6, "ms"] : size >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  return Number((ns / unit).toPrecision(4)) + " " + name;
}

const percent = (part, whole) => whole ? (100 * part / whole).toFixed(part / whole < 0.1 ? 1 : 0) + " %" : "-";
const x = (t) => gutter + (t - from) / (until - from) * (width - gutter);
const t = (px) => from + (px - gutter) / (width - gutter) * (until - from);

function theme() {
  const style = getComputedStyle(root), read = (name) => style.getPropertyValue(name).trim();
  for (const name of ["paper", "ink", "muted", "faint", "grid", "axis", "bad", "c1", "panel"]) colours[name] = read("--" + name) || "#888";
  colours.on = read("--fl-on");
  colours.hit = read("--fl-hit");
  colours.names = Array.from({ length: 12 }, (_, i) => read("--fl-" + i));
  draw();
}

function show(a, b) {
  const span = Math.min(total, Math.max(least, b - a));
  from = Math.min(Math.max(0, a), total - span);
  until = from + span;
  remember();
  draw();
}

function zoom(by, px) {
  const centre = px === undefined ? (from + until) / 2 : t(px), share = (centre - from) / (until - from), span = (until - from) * by;
  show(centre - share * Math.min(total, Math.max(least, span)), centre + (1 - share) * Math.min(total, Math.max(least, span)));
}

// The view is in the address, beside what others keep there.
let remembered = 0;
function remember() {
  clearTimeout(remembered);
  remembered = setTimeout(() => {
    const others = location.hash.slice(1).split("&").filter((part) => part && !part.startsWith("tl="));
    if (from > 0 || until < total) others.push("tl=" + Math.round(from) + "~" + Math.round(until));
    try { history.replaceState(null, "", "#" + others.join("&")); } catch { return; }
  }, 300);
}

function recall() {
  const mine = location.hash.slice(1).split("&").find((part) => part.startsWith("tl="));
  const [a, b] = mine ? mine.slice(3).split("~").map(Number) : [];
  if (b > a && a >= 0 && b <= total) { from = a; until = Math.max(b, a + least); }
}

// ---- layout: the y of every row; names stand beside the rows, or above them where it is narrow
function layout() {
  width = box.clientWidth;
  const pen = main.getContext("2d");
  pen.font = FONT;
  gutter = width > 640 ? Math.min(230, Math.max(120, ...rows.map((row) => pen.measureText(row.name).width + 34))) : 0;
  let y = AXIS;
  for (const row of rows) {
    row.y = y;
    row.top = y + (gutter ? 0 : LABEL) + PATH;
    const levels = row.open ? Math.min(row.levels, DEEPEST) : 1;
    row.bottom = row.top + BAR * levels;
    row.sampled = row.bottom;
    if (row.samples) row.bottom += STRIP + 2;
    y = row.bottom + GAP;
  }
  for (const counter of data.counters) { counter.y = y; y += COUNTER; }
  height = y;
  space.style.height = height + "px";
  const high = Math.min(height, box.clientHeight || height);
  main.style.height = high + "px";
  main.style.marginBottom = -high + "px";
  for (const [canvas, h] of [[main, high], [map, 46]]) {
    const scale = devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(h * scale);
    canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
  }
  draw();
}

function draw() { if (!due) { due = true; requestAnimationFrame(() => { due = false; paint(); paintMap(); }); } }

function clipped(g, text, room) {
  if (room < 16) return "";
  if (g.measureText(text).width <= room) return text;
  let n = Math.max(0, Math.floor(text.length * room / g.measureText(text).width) - 1);
  return n < 2 ? "" : text.slice(0, n) + "…";
}

// The first span after i that begins at a pixel or beyond; or before it and is wide enough to be drawn.
function pastPixel(s, i, px) {
  const next = Math.max(i + 1, startAtLeast(s, t(px)));
  return next - 1 > i && x(end(s.table, next - 1)) - x(s.table.start[next - 1]) >= 1 ? next - 1 : next;
}

// ---- drawing: a span that is narrower than a pixel is merged with its neighbours, found by bisection: a frame costs its pixels
function paintStrip(g, s, y, h, colour, label, matched) {
  const pixel = (until - from) / (width - gutter);
  let i = endsAfter(s, from);
  const stop = until;
  while (i < s.last && s.table.start[i] < stop) {
    const left = x(s.table.start[i]), right = x(end(s.table, i));
    if (right - left >= 1) {
      const a = Math.max(left, gutter), b = Math.min(right, width);
      g.globalAlpha = matched && !matched(i, i + 1) ? 0.18 : 1;
      g.fillStyle = colour(i);
      g.fillRect(a, y, Math.max(b - a - (b - a > 3 ? 0.6 : 0), 0.6), h);
      if (label && b - a > 24) label(i, a, b);
      i++;
      continue;
    }
    const column = Math.floor(left), next = pastPixel(s, i, column + 1);
    const share = (s.busy[next - s.first] - s.busy[i - s.first]) / pixel;
    g.globalAlpha = (matched && !matched(i, next) ? 0.18 : 1) * Math.min(1, Math.max(0.3, share));
    g.fillStyle = colour(i);
    g.fillRect(Math.max(column, gutter), y, 1, h);
    i = next;
  }
  g.globalAlpha = 1;
}

const spanColour = (i) => colours.names[whats[spans.what[i]][COLOUR]];

function paintRow(g, row) {
  const levels = row.open ? Math.min(row.levels, DEEPEST) : 1;
  for (let level = 0; level < levels; level++) {
    const s = row.strips[level];
    if (!s) continue;
    const y = row.top + BAR * level;
    const matched = matches && ((a, b) => matchSums[b] > matchSums[a]);
    paintStrip(g, s, y, BAR - 1, spanColour, (i, a, b) => {
      const text = clipped(g, whats[spans.what[i]][NAME], b - a - 6);
      if (!text) return;
      g.fillStyle = colours.on;
      g.fillText(text, a + 3, y + 12);
    }, matched);
  }
  if (row.gaps) paintGaps(g, row);
  if (row.samples) paintStrip(g, row.samples, row.sampled + 1, STRIP, (i) => {
    const stack = data.samples.stacks[samples.stack[i]];
    return stack.length ? colours.names[data.samples.frames[stack[stack.length - 1]][1]] : colours.grid;
  });
  g.fillStyle = colours.bad;
  const mine = onPath[row.number];
  let i = bisect(0, mine.length, from, (k) => end(path, mine[k])), reached = -1;
  for (; i < mine.length && path.start[mine[i]] < until; i++) {
    const a = Math.max(x(path.start[mine[i]]), gutter), b = Math.min(Math.max(x(end(path, mine[i])), a + 1), width);
    if (b > reached) { g.fillRect(Math.max(a, reached), row.top - PATH + 1, b - Math.max(a, reached), PATH - 2); reached = b; }
  }
}

let hatch = null;
function hatched(g) {
  if (hatch && hatch.colour === colours.axis) return hatch.pattern;
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const c = tile.getContext("2d");
  c.strokeStyle = colours.axis;
  c.beginPath();
  for (const shift of [-6, 0, 6]) { c.moveTo(shift, 6); c.lineTo(shift + 6, 0); }
  c.stroke();
  hatch = { colour: colours.axis, pattern: g.createPattern(tile, "repeat") };
  return hatch.pattern;
}

function paintGaps(g, row) {
  const s = row.gaps;
  for (let i = endsAfter(s, from); i < s.last && gaps.start[i] < until;) {
    const left = x(gaps.start[i]), right = x(end(gaps, i));
    if (right - left < 2) { i = pastPixel(s, i, left + 2); continue; }
    const a = Math.max(left, gutter), b = Math.min(right, width);
    g.fillStyle = hatched(g);
    g.fillRect(a, row.top, b - a, BAR - 1);
    const [kind, reason] = data.reasons[gaps.reason[i]];
    const text = kind === "unknown" ? "" : clipped(g, reason, b - a - 8);
    if (text) {
      g.fillStyle = colours.paper;
      g.fillRect(a + 2, row.top + 1, g.measureText(text).width + 6, BAR - 3);
      g.fillStyle = colours.muted;
      g.fillText(text, a + 5, row.top + 12);
    }
    i++;
  }
}

function step(span, room) {
  const raw = span / Math.max(2, room / 110), power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
}

function paintAxis(g) {
  g.fillStyle = colours.paper;
  g.fillRect(0, 0, width, AXIS);
  const by = step(until - from, width - gutter);
  g.strokeStyle = colours.grid;
  g.fillStyle = colours.muted;
  for (let tick = Math.ceil(from / by) * by; tick <= until; tick += by) {
    const at = x(tick), text = time(tick), w = g.measureText(text).width;
    g.beginPath(); g.moveTo(at, AXIS - 6); g.lineTo(at, AXIS); g.stroke();
    if (at + 4 + w < width) g.fillText(text, at + 4, 14);
  }
}

function paintCounter(g, c, y) {
  const high = Math.max(...c.values), low = Math.min(0, ...c.values), h = COUNTER - 16;
  g.save();
  g.beginPath();
  g.rect(gutter, y, width - gutter, COUNTER);
  g.clip();
  g.strokeStyle = colours.c1;
  g.beginPath();
  c.at.forEach((at, i) => {
    const px = x(at), py = y + 14 + h * (1 - (c.values[i] - low) / (high - low || 1));
    if (i) g.lineTo(px, py); else g.moveTo(px, py);
  });
  g.stroke();
  g.restore();
  g.fillStyle = colours.paper;
  if (gutter) g.fillRect(0, y, gutter, COUNTER);
  g.fillStyle = colours.muted;
  g.fillText(c.name + ", at most " + amount(high, c.unit), gutter ? 8 : 4, y + (gutter ? 24 : 11), gutter ? gutter - 14 : width);
}

function amount(value, unit) {
  if (unit !== "B") return Number(value.toPrecision(3)) + " " + unit;
  const power = Math.min(4, Math.max(0, Math.floor(Math.log2(Math.max(1, value)) / 10)));
  return Number((value / 1024 ** power).toPrecision(3)) + " " + ["B", "KiB", "MiB", "GiB", "TiB"][power];
}

function paint() {
  const g = main.getContext("2d"), offset = box.scrollTop, high = parseFloat(main.style.height) || height;
  g.save();
  g.clearRect(0, 0, width, high);
  g.font = FONT;
  g.lineWidth = 1;
  g.translate(0, -offset);
  const by = step(until - from, width - gutter);
  g.strokeStyle = colours.grid;
  g.beginPath();
  for (let tick = Math.ceil(from / by) * by; tick <= until; tick += by) { g.moveTo(x(tick), AXIS); g.lineTo(x(tick), height); }
  g.stroke();
  for (const row of rows) if (row.bottom > offset && row.y < offset + high) paintRow(g, row);
  for (const c of data.counters) if (c.y + COUNTER > offset && c.y < offset + high) paintCounter(g, c, c.y);
  paintLinks(g);
  paintNames(g, offset, high);
  if (range) {
    const a = Math.max(gutter, x(range[0])), b = Math.min(width, x(range[1]));
    g.fillStyle = colours.c1;
    g.globalAlpha = 0.14;
    g.fillRect(a, 0, Math.max(1, b - a), height);
    g.globalAlpha = 1;
  }
  for (const i of [chosen, hover]) if (i !== null) outline(g, i);
  g.translate(0, offset);
  paintAxis(g);
  g.restore();
}

function outline(g, i) {
  const row = rows[spans.row[i]], level = spans.level[i];
  if ((!row.open && level > 0) || level >= DEEPEST || end(spans, i) < from || spans.start[i] > until) return;
  const a = Math.max(gutter, x(spans.start[i])), b = Math.min(width, x(end(spans, i)));
  g.strokeStyle = colours.ink;
  g.lineWidth = i === chosen ? 2 : 1;
  g.strokeRect(a, row.top + BAR * level, Math.max(b - a - 1, 2), BAR - 1);
  g.lineWidth = 1;
}

function paintNames(g, offset, high) {
  if (gutter) { g.fillStyle = colours.paper; g.fillRect(0, 0, gutter - 1, rows.length ? rows[rows.length - 1].bottom + GAP / 2 : 0); }
  for (const row of rows) {
    if (row.bottom < offset || row.y > offset + high) continue;
    g.fillStyle = colours.ink;
    const deep = row.levels > 1 ? (row.open ? "▾ " : "▸ ") : "";
    const text = clipped(g, deep + row.name, (gutter || width) - 14);
    g.fillText(text, 8, gutter ? row.top + 12 : row.y + 12);
  }
}

// Arrows from the end of a piece of work to what waited for it, where they are few enough to be read. A kernel may begin before its call ends.
function paintLinks(g) {
  const visible = [];
  for (let i = 0; i < links.length && visible.length <= 150; i++) {
    const a = links.early[i], b = links.late[i];
    if (end(spans, a) >= from && spans.start[b] <= until) visible.push([a, b]);
  }
  if (visible.length > 150) return;
  g.strokeStyle = colours.muted;
  g.globalAlpha = 0.55;
  for (const [a, b] of visible) {
    const first = rows[spans.row[a]], second = rows[spans.row[b]];
    const x0 = Math.max(gutter, x(Math.min(end(spans, a), spans.start[b]))), y0 = first.top + BAR / 2, x1 = Math.max(gutter, x(spans.start[b])), y1 = second.top + (y0 < second.top ? 0 : BAR);
    const bend = Math.max(12, (x1 - x0) / 2);
    g.beginPath(); g.moveTo(x0, y0); g.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1); g.stroke();
  }
  g.globalAlpha = 1;
}

function paintMap() {
  const g = map.getContext("2d"), high = 46, scale = (width - gutter) / total;
  g.clearRect(0, 0, width, high);
  const each = Math.max(1, (high - 8) / Math.max(1, rows.length));
  rows.forEach((row, n) => {
    const s = row.strips[0];
    if (!s) return;
    for (let px = 0; px < width - gutter; px += 2) {
      const a = startAtLeast(s, px / scale), b = startAtLeast(s, (px + 2) / scale), inside = b > a ? b : a;
      let share = (s.busy[inside - s.first] - s.busy[a - s.first]) * scale / 2;
      if (a > s.first && end(spans, a - 1) > px / scale) share += (Math.min(end(spans, a - 1), (px + 2) / scale) - px / scale) * scale / 2;
      if (share <= 0) continue;
      g.globalAlpha = Math.min(1, 0.2 + 0.8 * share);
      g.fillStyle = colours.c1;
      g.fillRect(gutter + px, 4 + n * each, 2, Math.max(1, each - 1));
    }
  });
  g.globalAlpha = 1;
  g.fillStyle = colours.paper;
  g.globalAlpha = 0.65;
  g.fillRect(gutter, 0, from * scale, high);
  g.fillRect(gutter + until * scale, 0, width, high);
  g.globalAlpha = 1;
  g.strokeStyle = colours.ink;
  g.strokeRect(gutter + from * scale + 0.5, 0.5, Math.max(3, (until - from) * scale - 1), high - 1);
}

// ---- what is under the pointer
function rowAt(y) { return rows.find((row) => y >= row.y && y < row.bottom + GAP / 2); }

function at(px, py) {
  const y = py + box.scrollTop, row = rowAt(y), when = t(px), reach = 2 * (until - from) / (width - gutter);
  if (!row || px < gutter) return { row };
  if (row.samples && y >= row.sampled) {
    const i = endsAfter(row.samples, when);
    return { row, sample: i < row.samples.last && samples.start[i] <= when ? i : null };
  }
  const s = row.strips[Math.floor((y - row.top) / BAR)];
  if (s) {
    const i = endsAfter(s, when - reach);
    if (i < s.last && spans.start[i] <= when + reach) return { row, span: i };
  }
  if (row.gaps && y < row.top + BAR) {
    const i = endsAfter(row.gaps, when);
    if (i < row.gaps.last && gaps.start[i] <= when) return { row, gap: i };
  }
  return { row };
}

function own(i) {
  const s = rows[spans.row[i]].strips[spans.level[i] + 1];
  if (!s) return spans.elapsed[i];
  const a = startAtLeast(s, spans.start[i]), b = startAtLeast(s, end(spans, i));
  return Math.max(0, spans.elapsed[i] - (s.busy[Math.max(b, a) - s.first] - s.busy[a - s.first]));
}

function parents(i) {
  const out = [];
  for (let level = spans.level[i] - 1; level >= 0; level--) {
    const s = rows[spans.row[i]].strips[level], k = s ? startAtLeast(s, spans.start[i] + 0.5) - 1 : -1;
    if (s && k >= s.first && end(spans, k) >= end(spans, i)) out.unshift(k);
  }
  return out;
}

function brief(place) {
  if (place.span != null) { const w = whats[spans.what[place.span]]; return w[NAME] + " · " + time(spans.elapsed[place.span]) + (w[DETAIL] ? " · " + w[DETAIL] : ""); }
  if (place.gap != null) return time(gaps.elapsed[place.gap]) + " without a span: " + data.reasons[gaps.reason[place.gap]][1];
  if (place.sample != null) { const stack = data.samples.stacks[samples.stack[place.sample]]; return stack.length ? data.samples.frames[stack[stack.length - 1]][0] : ""; }
  return "";
}

function status() {
  if (matches) {
    const n = found.length;
    state.textContent = n ? n.toLocaleString("en") + (n === 1 ? " span" : " spans") + ", " + time(found.total) + (foundAt >= 0 ? "; at " + (foundAt + 1) : "") : "Nothing has that name.";
    return;
  }
  const left = data.leftOut ? "; " + data.leftOut.toLocaleString("en") + " of the shortest are left out" : "";
  const lost = data.dropped ? "; " + data.dropped.toLocaleString("en") + " did not fit while recording" : "";
  state.textContent = spans.length.toLocaleString("en") + " spans in " + time(total) + "; shown: " + time(until - from) + left + lost;
}

// ---- the panel: a span, a gap, a sample, or the sums of a range
const element = (tag, text, within = panel) => { const made = document.createElement(tag); made.textContent = text; within.append(made); return made; };
const clear = () => panel.replaceChildren();
const button = (text, act, within = panel) => { const made = element("button", text, within); made.type = "button"; made.addEventListener("click", act); return made; };

function hint() {
  clear();
  element("p", matchMedia("(pointer:coarse)").matches
    ? "Drag to move, pinch to zoom, tap a span for its details. “Range” selects a time and sums it."
    : "Drag to move, Ctrl + wheel or + and − to zoom, click a span for its details, Shift + drag (or “Range”) to sum a time. A click on a name folds its row.");
}

function tell(i) {
  chosen = i; range = null;
  clear();
  const w = whats[spans.what[i]], mine = own(i), row = rows[spans.row[i]];
  element("h3", w[NAME]);
  element("p", [w[KIND], w[KERNEL], w[DEVICE], w[DETAIL]].filter(Boolean).join(" · "));
  element("p", time(spans.elapsed[i]) + ", own " + time(mine) + ", from " + time(spans.start[i]) + " on " + row.name);
  if (mine && (w[FLOPS] || w[BYTES])) element("p", [w[FLOPS] && Number((w[FLOPS] / mine).toPrecision(3)) + " GFLOP/s", w[BYTES] && Number((w[BYTES] / mine).toPrecision(3)) + " GB/s"].filter(Boolean).join(", ") + " of own time");
  const outer = parents(i);
  if (outer.length) element("p", "Inside " + outer.map((k) => whats[spans.what[k]][NAME]).join(" › "));
  const link = (other, words) => { if (other !== undefined) button(words + " " + whats[spans.what[other]][NAME] + " on " + rows[spans.row[other]].name, () => reveal(other)); };
  link(waits.get(i), "It waited for");
  link(handed.get(i), "It handed over to");
  button("Zoom to it", () => { const pad = Math.max(spans.elapsed[i], 1) * 0.1; show(spans.start[i] - pad, end(spans, i) + pad); });
  button("Find all of this name", () => { one("input").value = w[NAME]; search(w[NAME], true); });
  draw();
}

function tellGap(i) {
  chosen = null;
  clear();
  const [kind, reason] = data.reasons[gaps.reason[i]];
  element("h3", time(gaps.elapsed[i]) + " without a span on " + rows[gaps.row[i]].name);
  element("p", { item: "Waiting", room: "Waiting", launch: "Waiting", wake: "Handover", python: "By the samples", unknown: "No evidence" }[kind] + ": " + reason);
  button("Zoom to it", () => { const pad = gaps.elapsed[i] * 0.25; show(gaps.start[i] - pad, end(gaps, i) + pad); });
}

function tellSample(i) {
  clear();
  const stack = data.samples.stacks[samples.stack[i]];
  element("h3", "Stack at " + time(end(samples, i)) + " on " + rows[samples.row[i]].name);
  element("p", "It counts as " + time(samples.elapsed[i]) + ", the time since the sample before" + (samples.late[i] ? "; " + time(samples.late[i]) + " of it late: a native call held the GIL, or there was no CPU" : ""));
  for (const frame of [...stack].reverse()) element("p", data.samples.frames[frame][0]);
}

function reveal(i) {
  const span = Math.max(until - from, 2 * spans.elapsed[i]), middle = spans.start[i] + spans.elapsed[i] / 2;
  show(middle - span / 2, middle + span / 2);
  const row = rows[spans.row[i]];
  if (!row.open) { row.open = true; layout(); }
  const y = row.top + BAR * spans.level[i];
  if (y < box.scrollTop + AXIS || y + BAR > box.scrollTop + box.clientHeight) box.scrollTop = Math.max(0, y - box.clientHeight / 2);
  tell(i);
}

// Sums of a range: of each name the calls, the time inside the range, and that without what ran inside.
function sums(a, b) {
  const by = new Map(), busy = [];
  for (const row of rows) {
    let covered = 0;
    row.strips.forEach((s, level) => {
      if (!s) return;
      const above = row.strips[level - 1];
      let k = above ? above.first : 0;
      for (let i = endsAfter(s, a); i < s.last && spans.start[i] < b; i++) {
        const inside = Math.min(b, end(spans, i)) - Math.max(a, spans.start[i]), name = whats[spans.what[i]][NAME];
        const sum = by.get(name) || { name, calls: 0, total: 0, own: 0 };
        sum.calls++; sum.total += inside; sum.own += inside;
        by.set(name, sum);
        if (level === 0) { covered += inside; continue; }
        if (!above) continue;
        k = Math.max(k, startAtLeast(above, spans.start[i] + 0.5) - 1);
        const parent = by.get(whats[spans.what[k]][NAME]);
        if (parent) parent.own -= inside;
      }
    });
    if (covered > 0) busy.push([row.name, covered]);
  }
  return { names: [...by.values()].sort((p, q) => q.own - p.own), busy };
}

function waiting(a, b) {
  const by = new Map();
  for (const row of rows) {
    const s = row.gaps;
    if (!s) continue;
    for (let i = endsAfter(s, a); i < s.last && gaps.start[i] < b; i++) {
      const key = row.name + ": " + data.reasons[gaps.reason[i]][1], inside = Math.min(b, end(gaps, i)) - Math.max(a, gaps.start[i]);
      by.set(key, (by.get(key) || 0) + inside);
    }
  }
  return [...by].sort((p, q) => q[1] - p[1]);
}

function grid(heads, body) {
  const within = element("div", "");
  within.className = "tl-scroll";
  const table = element("table", "", within), head = element("tr", "", element("thead", "", table)), rows = element("tbody", "", table);
  for (const text of heads) element("th", text, head);
  for (const cells of body) {
    const row = element("tr", "", rows);
    cells.forEach((cell, i) => { const td = element("td", i ? cell : "", row); if (!i) { if (typeof cell === "string") td.textContent = cell; else button(cell.name, cell.act, td); } });
  }
}

function tellRange() {
  const [a, b] = range, length = b - a, { names, busy } = sums(a, b), most = 25;
  chosen = null;
  clear();
  element("h3", time(length) + " selected, from " + time(a) + " to " + time(b));
  for (const [name, ns] of busy.slice(0, 12)) element("p", name + ": busy " + percent(ns, length) + " of the range");
  button("Zoom to it", () => { show(a, b); });
  button("Clear", () => { range = null; hint(); draw(); });
  grid(["in the range", "calls", "total", "own", "own, of the range"], names.slice(0, most).map((s) =>
    [{ name: s.name, act: () => { one("input").value = s.name; search(s.name, true); } }, s.calls.toLocaleString("en"), time(s.total), time(Math.max(0, s.own)), percent(Math.max(0, s.own), length)]));
  if (names.length > most) element("p", (names.length - most) + " more names");
  const idle = waiting(a, b);
  if (idle.length) grid(["gaps", "time", "of the range"], idle.slice(0, 8).map(([reason, ns]) => [reason, time(ns), percent(ns, length)]));
  draw();
}

// ---- search: in names, kernels and details
function search(text, whole) {
  const words = text.trim().toLowerCase().split(/\s+/).filter(Boolean);
  found = []; foundAt = -1; found.total = 0;
  if (!words.length) { matches = matchSums = null; status(); draw(); return; }
  matches = Uint8Array.from(whats, (w) => {
    const hay = [w[NAME], w[KERNEL], w[DETAIL], w[DEVICE]].join(" ").toLowerCase();
    return Number(whole ? w[NAME] === text : words.every((word) => hay.includes(word)));
  });
  matchSums = new Uint32Array(spans.length + 1);
  for (let i = 0; i < spans.length; i++) {
    const hit = matches[spans.what[i]];
    matchSums[i + 1] = matchSums[i] + hit;
    if (hit) { found.push(i); found.total += spans.elapsed[i]; }
  }
  const total = found.total;
  found.sort((a, b) => spans.start[a] - spans.start[b]);
  found.total = total;
  status();
  draw();
}

function next(by) {
  if (!found.length) return;
  const total = found.total;
  foundAt = (foundAt + by + found.length) % found.length;
  found.total = total;
  reveal(found[foundAt]);
  status();
}

// ---- pointers: one moves or selects, two zoom
const touches = new Map();
let began = null;

main.addEventListener("pointerdown", (event) => {
  touches.set(event.pointerId, event);
  main.setPointerCapture(event.pointerId);
  const px = event.offsetX;
  if (touches.size === 2) { const [p, q] = [...touches.values()]; began = { pinch: Math.abs(p.offsetX - q.offsetX) || 1, from, until, middle: t((p.offsetX + q.offsetX) / 2) }; return; }
  began = { px, py: event.offsetY, from, until, moved: false, ranged: ranging || event.shiftKey, start: t(px) };
});

main.addEventListener("pointermove", (event) => {
  if (touches.has(event.pointerId)) touches.set(event.pointerId, event);
  const px = event.offsetX;
  if (!began) { look(px, event.offsetY); return; }
  if (began.pinch) {
    if (touches.size < 2) return;
    const [p, q] = [...touches.values()], span = (began.until - began.from) * began.pinch / Math.max(8, Math.abs(p.offsetX - q.offsetX));
    const share = ((p.offsetX + q.offsetX) / 2 - gutter) / (width - gutter);
    show(began.middle - share * span, began.middle + (1 - share) * span);
    return;
  }
  if (Math.abs(px - began.px) > 4) began.moved = true;
  if (!began.moved) return;
  if (began.ranged) {
    const now = Math.min(total, Math.max(0, t(Math.max(gutter, px))));
    range = [Math.min(began.start, now), Math.max(began.start, now)];
    state.textContent = time(range[1] - range[0]);
    draw();
    return;
  }
  main.classList.add("dragging");
  const shift = (began.px - px) / (width - gutter) * (began.until - began.from);
  show(began.from + shift, began.until + shift);
});

function release(event) {
  touches.delete(event.pointerId);
  main.classList.remove("dragging");
  const was = began;
  began = touches.size ? began : null;
  if (!was || was.pinch || event.type === "pointercancel") return;
  if (was.moved && was.ranged && range && range[1] > range[0]) { tellRange(); status(); return; }
  if (was.moved) return;
  pick(event.offsetX, event.offsetY);
}

function pick(px, py) {
  const place = at(px, py);
  if (place.row && (px < gutter || (!gutter && py + box.scrollTop < place.row.y + LABEL)) && place.row.levels > 1) { place.row.open = !place.row.open; layout(); return; }
  if (place.span != null) tell(place.span);
  else if (place.gap != null) tellGap(place.gap);
  else if (place.sample != null) tellSample(place.sample);
  else { chosen = null; range = null; hint(); draw(); }
}

function look(px, py) {
  const place = at(px, py), before = hover;
  hover = place.span ?? null;
  const text = brief(place);
  if (text) state.textContent = text; else status();
  if (hover !== before) draw();
}

main.addEventListener("pointerup", release);
main.addEventListener("pointercancel", release);
main.addEventListener("pointerleave", () => { hover = null; status(); draw(); });
main.addEventListener("dblclick", (event) => { const place = at(event.offsetX, event.offsetY); if (place.span != null) { const i = place.span; show(spans.start[i], end(spans, i)); } });
main.addEventListener("wheel", (event) => {
  if (event.ctrlKey || event.metaKey) { event.preventDefault(); zoom(Math.exp(Math.sign(event.deltaY) * Math.min(0.4, Math.abs(event.deltaY) / 240)), event.offsetX); }
  else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) { event.preventDefault(); const by = event.deltaX / (width - gutter) * (until - from); show(from + by, until + by); }
}, { passive: false });
main.addEventListener("keydown", (event) => {
  const span = until - from;
  const acts = {
    ArrowLeft: () => show(from - span / 8, until - span / 8), ArrowRight: () => show(from + span / 8, until + span / 8),
    "+": () => zoom(1 / 1.5), "=": () => zoom(1 / 1.5), "-": () => zoom(1.5), "0": () => show(0, total), w: () => zoom(1 / 1.5), s: () => zoom(1.5),
    a: () => show(from - span / 8, until - span / 8), d: () => show(from + span / 8, until + span / 8), n: () => next(1), p: () => next(-1),
    Escape: () => { chosen = range = null; hint(); draw(); },
  };
  if (acts[event.key] && !event.ctrlKey && !event.metaKey) { event.preventDefault(); acts[event.key](); status(); }
});
let mapping = false;
const centre = (event) => { const middle = Math.max(0, event.offsetX - gutter) / (width - gutter) * total, half = (until - from) / 2; show(middle - half, middle + half); };
map.addEventListener("pointerdown", (event) => { mapping = true; map.setPointerCapture(event.pointerId); centre(event); });
map.addEventListener("pointermove", (event) => { if (mapping) centre(event); });
map.addEventListener("pointerup", () => { mapping = false; });

// ---- tools
const tools = one(".tl-tools");
tools.hidden = false;
const acts = {
  in: () => zoom(1 / 2), out: () => zoom(2), all: () => show(0, total), next: () => next(1), previous: () => next(-1),
  range: (made) => { ranging = !ranging; made.setAttribute("aria-pressed", String(ranging)); main.classList.toggle("ranging", ranging); },
};
for (const made of tools.querySelectorAll("button")) made.addEventListener("click", () => { acts[made.dataset.act](made); status(); });
const field = one("input");
field.addEventListener("input", () => search(field.value, false));
field.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); next(event.shiftKey ? -1 : 1); } if (event.key === "Escape") { field.value = ""; search("", false); } });
box.addEventListener("scroll", draw, { passive: true });
new ResizeObserver(layout).observe(box);
new MutationObserver(theme).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
matchMedia("(prefers-color-scheme:dark)").addEventListener("change", theme);
addEventListener("hashchange", () => { recall(); draw(); });
root.addEventListener("timeline-show", (event) => { show(event.detail[0], event.detail[1]); });
recall();
theme();
layout();
hint();
status();
root.dataset.ready = "true";
}
