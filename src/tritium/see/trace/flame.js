// Zoom (click, Enter), search, keys and a permalink for one flame graph. Text is only ever set as text.
function flameGraph(svg) {
  "use strict";
  if (svg.classList.contains("live")) return;
  var SVG = "http://www.w3.org/2000/svg", XHTML = "http://www.w3.org/1999/xhtml";
  var MARGIN = +svg.getAttribute("data-m"), CELL = 7.23, LEAST = 3;
  var key = svg.getAttribute("data-key") || "flame";
  var least = +svg.getAttribute("data-least") || 320;
  var height = svg.viewBox.baseVal.height, drawn = svg.viewBox.baseVal.width;
  var info = svg.querySelector(".fl-info"), hint = svg.querySelector(".fl-hint");
  var calm = info ? info.textContent : "";
  var panes = Array.prototype.map.call(svg.querySelectorAll(".pane"), read);
  var term = "", shown = 0, searched = 0, box, reset, found, holder;
  if (!panes.length || !panes[0].frames.length) return;

  function read(group) {
    var pane = { full: +group.getAttribute("data-full"), frames: [], zoom: null }, open = [];
    Array.prototype.forEach.call(group.querySelectorAll(".f"), function (g, i) {
      var depth = +g.getAttribute("data-d");
      open.length = depth;
      var f = {
        g: g, rect: g.querySelector("rect"), text: g.querySelector("text"), i: i, last: i, depth: depth, pane: pane,
        x: +g.getAttribute("data-x"), w: +g.getAttribute("data-w"), parent: open[depth - 1] || null, children: [],
        tip: g.querySelector("title").textContent.split("\n"), before: g.getAttribute("data-p") || "", after: g.getAttribute("data-s") || ""
      };
      f.name = f.tip[0];
      if (f.parent) f.parent.children.push(f);
      for (var p = f.parent; p; p = p.parent) p.last = i;
      open.push(f);
      g.flame = f;
      g.setAttribute("tabindex", "-1");
      g.setAttribute("role", "button");
      pane.frames.push(f);
    });
    pane.zoom = pane.frames[0];
    return pane;
  }

  function cells(code) {
    return (code >= 0x1100 && code < 0x1160) || (code >= 0x2e80 && code < 0xa4d0) || (code >= 0xac00 && code < 0xd7a4) ||
      (code >= 0xf900 && code < 0xfb00) || (code >= 0xfe30 && code < 0xfe70) || (code >= 0xff01 && code < 0xff61) || code >= 0x1f300 ? 2 : 1;
  }

  function clipped(text, width) {
    var room = Math.floor((width - 6) / CELL), used = 0, out = "";
    if (room < LEAST) return "";
    for (var c of text) {
      used += cells(c.codePointAt(0));
      if (used > room) return Array.from(out).slice(0, -1).join("") + "…";
      out += c;
    }
    return out;
  }

  function width() {
    var room = svg === document.documentElement ?
      Math.min(window.innerWidth, document.documentElement.clientWidth || window.innerWidth) : svg.parentNode.clientWidth;
    return Math.max(least, Math.floor(room || drawn));
  }

  function render() {
    shown = width();
    svg.setAttribute("viewBox", "0 0 " + shown + " " + height);
    svg.setAttribute("width", shown);
    svg.setAttribute("height", height);
    if (holder) holder.setAttribute("width", shown - 2 * MARGIN);
    panes.forEach(function (pane) {
      var z = pane.zoom, whole = z === pane.frames[0];
      var scale = (shown - 2 * MARGIN) / Math.max(1, whole ? pane.full : z.w);
      pane.frames.forEach(function (f) {
        var above = f.i < z.i && f.last >= z.i, inside = f.i >= z.i && f.i <= z.last;
        var x = above ? 0 : (f.x - z.x) * scale, w = above ? z.w * scale : f.w * scale;
        var gone = !above && (!inside || w < 0.05);
        f.g.classList.toggle("gone", gone);
        f.g.classList.toggle("above", above);
        if (gone) return;
        f.rect.setAttribute("x", (MARGIN + x).toFixed(2));
        f.rect.setAttribute("width", w.toFixed(2));
        f.text.setAttribute("x", (MARGIN + x + 4).toFixed(1));
        f.text.textContent = clipped(f.before + f.name + f.after, w);
      });
    });
    reset.disabled = !term && panes.every(function (p) { return p.zoom === p.frames[0]; });
  }

  function say(f) {
    if (info) info.textContent = f ? f.tip.join(" · ") : calm;
  }

  function zoom(f) {
    f.pane.zoom = f;
    render();
    remember();
  }

  function search(text) {
    term = text;
    var wanted = text.toLowerCase(), shares = [];
    searched = 0;
    panes.forEach(function (pane) {
      var until = -1, sum = 0;
      pane.frames.forEach(function (f) {
        var hit = wanted !== "" && f.name.toLowerCase().indexOf(wanted) >= 0;
        f.g.classList.toggle("hit", hit);
        if (!hit) return;
        searched += 1;
        if (f.i > until) {
          sum += f.w;
          until = f.last;
        }
      });
      shares.push((100 * sum / Math.max(1, pane.frames[0].w)).toFixed(1) + " %");
    });
    found.textContent = wanted === "" ? "" : searched === 0 ? "no match" : "matched " + shares.join(", before ");
    reset.disabled = !term && panes.every(function (p) { return p.zoom === p.frames[0]; });
  }

  function clear() {
    panes.forEach(function (p) { p.zoom = p.frames[0]; });
    box.value = "";
    search("");
    render();
    remember();
  }

  // Other parts of the hash belong to others.
  function others() {
    return location.hash.slice(1).split("&").filter(function (part) { return part && part.indexOf(key + "=") !== 0; });
  }

  function remember() {
    try {
      var parts = others();
      if (!reset.disabled) {
        var places = panes.map(function (p) { return p.zoom.i; }).join(".");
        parts.push(key + "=" + places + (term ? "~" + encodeURIComponent(term) : ""));
      }
      history.replaceState(null, "", location.href.split("#")[0] + (parts.length ? "#" + parts.join("&") : ""));
    } catch (e) {
      return; // a place without a history: the graph works all the same
    }
  }

  function recall() {
    var mine = location.hash.slice(1).split("&").filter(function (part) { return part.indexOf(key + "=") === 0; })[0];
    if (!mine) return;
    var parts = mine.slice(key.length + 1).split("~"), text = "";
    try {
      text = decodeURIComponent(parts[1] || "");
    } catch (e) {
      text = "";
    }
    parts[0].split(".").forEach(function (at, i) {
      if (panes[i]) panes[i].zoom = panes[i].frames[parseInt(at, 10)] || panes[i].frames[0];
    });
    box.value = text;
    search(text);
  }

  function element(name, of, parent) {
    var made = document.createElementNS(of, name);
    parent.appendChild(made);
    return made;
  }

  function controls() {
    holder = element("foreignObject", SVG, svg);
    holder.setAttribute("x", MARGIN);
    holder.setAttribute("y", hint ? hint.getAttribute("data-y") : 0);
    holder.setAttribute("height", 30);
    var bar = element("div", XHTML, holder);
    bar.setAttribute("class", "fl-bar");
    box = element("input", XHTML, bar);
    box.setAttribute("type", "search");
    box.setAttribute("placeholder", "Search names");
    box.setAttribute("aria-label", "Search names in the flame graph");
    reset = element("button", XHTML, bar);
    reset.setAttribute("type", "button");
    reset.textContent = "Reset";
    found = element("span", XHTML, bar);
    found.setAttribute("role", "status");
    if (hint) hint.remove();
    box.addEventListener("input", function () { search(box.value); remember(); });
    reset.addEventListener("click", clear);
  }

  function near(f, key) {
    var row = f.parent ? f.parent.children : [f], at = row.indexOf(f);
    return { ArrowUp: f.parent, ArrowDown: f.children[0], ArrowLeft: row[at - 1], ArrowRight: row[at + 1] }[key];
  }

  function pressed(event) {
    var target = event.target.closest ? event.target.closest(".f") : null, f = target && target.flame;
    if (event.key === "Escape") clear();
    else if (event.key === "/" && event.target !== box) box.focus();
    else if (f && (event.key === "Enter" || event.key === " ")) zoom(f);
    else if (f && event.key.indexOf("Arrow") === 0) {
      var next = near(f, event.key);
      if (next && next.g.classList.contains("gone")) next = null;
      if (next) {
        f.g.setAttribute("tabindex", "-1");
        next.g.setAttribute("tabindex", "0");
        next.g.focus();
      }
    } else return;
    event.preventDefault();
  }

  function over(event) {
    var target = event.target.closest ? event.target.closest(".f") : null;
    say(target && target.flame);
  }

  controls();
  svg.classList.add("live");
  svg.setAttribute("role", "group");
  panes.forEach(function (pane) { pane.frames[0].g.setAttribute("tabindex", "0"); });
  svg.addEventListener("click", function (event) {
    var target = event.target.closest(".f");
    if (target) zoom(target.flame);
  });
  svg.addEventListener("mouseover", over);
  svg.addEventListener("focusin", over);
  svg.addEventListener("mouseleave", function () { say(null); });
  svg.addEventListener("keydown", pressed);
  window.addEventListener("hashchange", function () { recall(); render(); });
  window.addEventListener("resize", function () { if (width() !== shown) render(); });
  if (window.ResizeObserver && svg.parentNode.nodeType === 1)
    new ResizeObserver(function () { if (width() !== shown) render(); }).observe(svg.parentNode);
  recall();
  render();
}
