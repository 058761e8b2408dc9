(() => {
"use strict";
const all = (query, within = document) => [...within.querySelectorAll(query)];
const one = (query) => document.querySelector(query);
const root = document.documentElement;

// ---- the hash: #place&filter=…&theme=…&sort=…; it alone remembers, nothing is stored. Flame graphs have keys of their own there.
function read() {
  const parts = location.hash.slice(1).split("&").filter(Boolean);
  const place = parts.length && !parts[0].includes("=") ? safe(parts.shift()) : "";
  return { place, kept: new Map(parts.map((part) => [part.split("=")[0], safe(part.slice(part.indexOf("=") + 1))])) };
}

function safe(text) {
  try { return decodeURIComponent(text); } catch { return ""; }
}

function address(place, kept) {
  const parts = [...kept].map(([key, value]) => key + "=" + encodeURIComponent(value).replaceAll("%7E", "~"));
  return "#" + (place ? [encodeURIComponent(place), ...parts] : parts).join("&");
}

function set(key, value) {
  const { place, kept } = read();
  if (value) kept.set(key, value); else kept.delete(key);
  try { history.replaceState(null, "", address(place, kept)); } catch { return; }
}

const asked = (key) => read().kept.get(key) || "";

for (const tools of all(".tools")) tools.hidden = false;

// ---- colours
const THEMES = ["auto", "light", "dark"];
const SPOKEN = { auto: "as the system", light: "light", dark: "dark" };
const themes = one("#theme");

function paint(theme) {
  if (theme === "auto") root.removeAttribute("data-theme"); else root.setAttribute("data-theme", theme);
  themes.textContent = theme;
  themes.setAttribute("aria-label", "Colours: " + SPOKEN[theme]);
}

themes.addEventListener("click", () => {
  const now = THEMES.indexOf(asked("theme") || "auto");
  const next = THEMES[(now + 1) % THEMES.length];
  paint(next);
  set("theme", next === "auto" ? "" : next);
});
paint(THEMES.includes(asked("theme")) ? asked("theme") : "auto");

// ---- filter: cards and rows by the name of their case
const box = one("#filter");
const nothing = "No " + box.dataset.noun + " matches.";
const cards = all(".card").map((card) => [card, card.querySelector(".name").textContent.toLowerCase()]);
const rows = all("table.filtered tbody tr").map((row) => [row, row.cells[0].textContent.toLowerCase()]);
const tables = all("table.filtered").map((table) => {
  const none = document.createElement("p");
  none.className = "none";
  none.textContent = nothing;
  none.hidden = true;
  table.parentElement.after(none);
  return [table, none];
});
const marks = all("svg.chart [data-r]").map((mark) => [mark, (mark.querySelector("title") || mark).textContent.split("\n")[0].toLowerCase()]);

function filter(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (name) => words.every((word) => name.includes(word));
  let shown = 0;
  for (const [card, name] of cards) { card.hidden = !fits(name); shown += !card.hidden; }
  for (const [row, name] of rows) row.hidden = !fits(name);
  for (const [table, none] of tables) none.hidden = !words.length || [...table.tBodies[0].rows].some((row) => !row.hidden);
  for (const [mark, name] of marks) mark.classList.toggle("off", words.length > 0 && !fits(name));
  const count = one("#count");
  if (count) count.textContent = !words.length ? "" : shown ? shown + " of " + cards.length + " cases" : nothing;
}

box.addEventListener("input", () => { filter(box.value); set("filter", box.value.trim()); });
box.value = asked("filter");
if (box.value) filter(box.value);

// ---- sorting
all("table.grid").forEach((table, number) => {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  if (body.rows.length < 3) return;
  heads.forEach((head, column) => {
    const label = head.firstChild;
    if (!label || label.nodeType !== Node.TEXT_NODE) return;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = label.textContent;
    head.replaceChild(button, label);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      sort(column, down);
      set("sort", number + "." + column + (down ? ".d" : ""));
    });
  });
  function sort(column, down) {
    const value = (row) => {
      const cell = row.cells[column];
      return cell.dataset.s === undefined ? null : Number(cell.dataset.s);
    };
    const sorted = [...body.rows].sort((a, b) => {
      const x = value(a), y = value(b);
      if (x === null && y === null) {
        const order = a.cells[column].textContent.localeCompare(b.cells[column].textContent, "en", { numeric: true });
        return down ? -order : order;
      }
      if (x === null || y === null) return x === null ? 1 : -1;
      return down ? y - x : x - y;
    });
    body.append(...sorted);
    heads.forEach((head, i) => { if (i === column) head.setAttribute("aria-sort", down ? "descending" : "ascending"); else head.removeAttribute("aria-sort"); });
  }
  const [table_, column_, down_] = asked("sort").split(".");
  if (table_ === String(number) && heads[Number(column_)]) sort(Number(column_), down_ === "d");
});

// ---- tips: by pointer, by focus, and by arrow keys inside a chart
const tip = document.createElement("div");
tip.className = "tip";
tip.id = "tip";
tip.setAttribute("role", "tooltip");
tip.hidden = true;
document.body.append(tip);
const told = new WeakMap();
for (const mark of all("svg.chart .m")) {
  const title = mark.querySelector("title");
  if (title) { told.set(mark, title.textContent); title.remove(); }
}
const TIPPED = "[data-tip], svg.chart .m";
const text = (element) => element.dataset.tip || told.get(element) || "";

function show(element) {
  const said = text(element);
  if (!said) return;
  tip.textContent = said;
  tip.hidden = false;
  const at = element.getBoundingClientRect(), own = tip.getBoundingClientRect();
  const left = Math.min(Math.max(12, at.left + at.width / 2 - own.width / 2), innerWidth - own.width - 12);
  const above = at.top - own.height - 8;
  tip.style.left = Math.max(12, left) + "px";
  tip.style.top = (above > 8 ? above : Math.min(at.bottom + 8, innerHeight - own.height - 8)) + "px";
}

function hide() { tip.hidden = true; }

document.addEventListener("pointerover", (event) => {
  const found = event.target.closest && event.target.closest(TIPPED);
  if (found) show(found); else hide();
});
document.addEventListener("focusin", (event) => {
  if (event.target.matches("[data-tip]")) { event.target.setAttribute("aria-describedby", "tip"); show(event.target); } else hide();
});
document.addEventListener("focusout", hide);
addEventListener("scroll", hide, { passive: true });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

for (const chart of all("svg.chart")) {
  if (!chart.querySelector(".m")) continue;
  chart.setAttribute("tabindex", "0");
  let at = -1;
  chart.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const own = all(".m", chart);
    if (event.key === "Enter" && at >= 0) {
      const link = own[at].closest("a") || own[at].querySelector("a");
      if (link) link.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true }));
      return;
    }
    if (!by) return;
    event.preventDefault();
    if (own[at]) own[at].classList.remove("on");
    at = (at + by + own.length) % own.length;
    own[at].classList.add("on");
    chart.setAttribute("aria-description", text(own[at]));
    show(own[at]);
  });
  chart.addEventListener("blur", () => { for (const mark of all(".m.on", chart)) mark.classList.remove("on"); });
}

// ---- places: a case opens when it is asked for
function go(name, smooth) {
  const target = name && document.getElementById(name);
  if (!target) return;
  for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  const inner = target.querySelector(":scope > details.fold");
  if (inner) inner.open = true;
  if (target.hidden) { box.value = ""; filter(""); set("filter", ""); }
  target.scrollIntoView({ behavior: smooth ? undefined : "instant", block: "start" });
}

document.addEventListener("click", (event) => {
  const link = event.target.closest && event.target.closest("a[href^='#']");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const name = link.getAttribute("href").slice(1);
  if (!document.getElementById(name)) return;
  history.pushState(null, "", address(name, read().kept));
  event.preventDefault();
  go(name, true);
  const target = document.getElementById(name);
  const focusable = target.matches("details") ? target.querySelector("summary") : target;
  if (!focusable.hasAttribute("tabindex") && focusable === target) target.setAttribute("tabindex", "-1");
  focusable.focus({ preventScroll: true });
});
addEventListener("hashchange", () => go(read().place, false));
addEventListener("popstate", () => go(read().place, false));
go(read().place, false);

const opener = one("#open-all");
if (opener) opener.addEventListener("click", () => {
  const open = opener.textContent === "Open all";
  for (const [card] of cards) card.open = open && !card.hidden;
  opener.textContent = open ? "Close all" : "Open all";
});

// ---- contents: where the reader is; the menu closes when something was chosen, or a click or Escape goes elsewhere
const menu = one(".menu");
document.addEventListener("click", (event) => { if (menu.open && (event.target.closest(".menu a") || !event.target.closest(".menu"))) menu.open = false; });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") menu.open = false; });
const links = new Map();
for (const link of all(".toc a, .menu a")) {
  const id = link.getAttribute("href").slice(1);
  links.set(id, [...(links.get(id) || []), link]);
}
if ("IntersectionObserver" in window) {
  const seen = new Set();
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) seen.add(entry.target.id); else seen.delete(entry.target.id);
    const now = [...links.keys()].find((id) => seen.has(id));
    if (!now) return;
    for (const [id, same] of links) for (const link of same) if (id === now) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
  }, { rootMargin: "-80px 0px -55% 0px" });
  for (const id of links.keys()) { const target = document.getElementById(id); if (target) watch.observe(target); }
}

// ---- print: everything that is folded opens, and closes again
let closed = [];
addEventListener("beforeprint", () => { closed = all("details:not([open])"); for (const fold of closed) fold.open = true; });
addEventListener("afterprint", () => { for (const fold of closed) fold.open = false; });

// ---- the data inside
async function unpacked(packed) {
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).blob();
}

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const data = JSON.parse(one("#inside").textContent);
for (const button of all("button[data-save]")) {
  if (button.dataset.save === "json" && !data.gzip) { button.hidden = true; continue; }
  button.addEventListener("click", async () => {
    if (button.dataset.save === "csv") save(new Blob([data.csv], { type: "text/csv" }), data.name + "-figures.csv");
    else save(await unpacked(data.gzip), data.name + "-results.json");
  });
}
})();
