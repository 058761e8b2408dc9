"use strict";
const EVERY = 1000;
const part = (parent, tag, text, name) => {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (name) e.className = name;
  parent.append(e);
  return e;
};
const scaled = (v, steps, unit) => {
  if (v === null || v === undefined) return "–";
  for (const [size, name] of steps) if (Math.abs(v) >= size) return (v / size).toPrecision(3) + " " + name + unit;
  return (v === 0 ? "0" : v.toPrecision(3)) + " " + unit;
};
const DECIMAL = [[1e9, "G"], [1e6, "M"], [1e3, "k"]];
const BINARY = [[2 ** 30, "Gi"], [2 ** 20, "Mi"], [2 ** 10, "Ki"]];
const rate = (v, unit) => scaled(v, DECIMAL, unit);
const bytes = (v) => scaled(v, BINARY, "B");
const lasting = (s) => {
  if (s < 120) return `${Math.round(s)} s`;
  const min = Math.floor(s / 60), h = Math.floor(min / 60);
  if (min < 120) return `${min} min`;
  return h < 48 ? `${h} h ${min % 60} min` : `${Math.floor(h / 24)} d ${h % 24} h`;
};
const line = (parent, values, label) => {
  const known = values.filter((v) => v !== null);
  if (known.length < 2) return;
  const most = Math.max(...known, 1e-9);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 100 40");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  const path = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  const step = 100 / Math.max(known.length - 1, 1);
  path.setAttribute("points", known.map((v, i) => `${(i * step).toFixed(2)},${(38 - 36 * v / most).toFixed(2)}`).join(" "));
  svg.append(path);
  parent.append(svg);
};
const figure = (parent, title, value, past) => {
  const box = part(parent, "div", undefined, "figure");
  part(box, "div", title, "quiet");
  part(box, "b", value);
  if (past) line(box, past, title + " over time");
};
const process = (parent, p) => {
  const card = part(parent, "section", undefined, "process");
  const head = part(card, "div");
  part(head, "h2", p.name);
  part(head, "span", `process ${p.pid}, ${lasting(p.uptime_s)}, publishing takes ${(100 * p.overhead).toPrecision(2)} % of one CPU`, "quiet");
  const figures = part(card, "div", undefined, "figures");
  const past = p.past || {};
  figure(figures, "tokens decoded", rate(p.tokens_per_s, "/s"), past.tokens_per_s);
  figure(figures, "ops", rate(p.ops_per_s, "/s"), past.ops_per_s);
  figure(figures, "memory", bytes(p.rss), past.rss);
  figure(figures, "requests running", `${p.running}, ${p.waiting} waiting`, past.running);
  part(card, "div", `CPU ${p.cpu_percent === null ? "–" : Math.round(p.cpu_percent) + " %"} · prefill ${rate(p.prefill_per_s, "tokens/s")} · ` +
    `pool ${bytes(p.pool)} (${bytes(p.pool_idle)} idle) · ${p.decode_tokens} tokens in all · ` +
    `${p.requests_done} requests done, ${p.requests_failed} failed`, "quiet");
  if (p.top_ops.length) {
    const ops = part(card, "div", undefined, "ops");
    for (const [name, calls] of p.top_ops) {
      part(ops, "span", name);
      const bar = part(part(ops, "span"), "i");
      bar.style.width = (100 * calls / p.top_ops[0][1]).toFixed(1) + "%";
      part(ops, "span", rate(calls, "/s"), "quiet");
    }
  }
};
const show = (view) => {
  const tiles = document.getElementById("machine");
  const list = document.getElementById("processes");
  tiles.replaceChildren();
  list.replaceChildren();
  for (const s of view.machine) {
    if (s.value === null) continue;
    const tile = part(tiles, "div", undefined, "tile");
    part(tile, "span", s.name.replaceAll("_", " "), "quiet");
    part(tile, "b", s.unit === "B" ? bytes(s.value) : s.value.toPrecision(3) + " " + s.unit);
  }
  if (view.joules !== null) {
    const energy = part(tiles, "div", undefined, "tile");
    part(energy, "span", "energy since the command began", "quiet");
    part(energy, "b", rate(view.joules, "J"));
    if (view.tokens_per_joule !== null) part(energy, "div", view.tokens_per_joule.toPrecision(3) + " tokens/J", "quiet");
  }
  for (const p of view.processes) process(list, p);
  if (!view.processes.length) part(list, "p", document.getElementById("none").textContent, "quiet");
  for (const fault of view.faults) part(list, "p", fault, "quiet");
  const absent = view.machine.filter((s) => s.value === null).map((s) => `${s.name.replaceAll("_", " ")}: ${s.reason}`);
  document.getElementById("absent").textContent = absent.length ? "Not measured: " + absent.join("; ") + "." : "";
};
const state = document.getElementById("state");
const look = async () => {
  try {
    const answer = await fetch("/view.json", { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    show(await answer.json());
    state.textContent = "live, every second";
    state.className = "";
  } catch {
    state.textContent = "no answer: the command has ended";
    state.className = "lost";
  }
  setTimeout(look, EVERY);
};
look();
