"""Names that try to be more than names: HTML, SVG, scripts, Markdown, formulas, terminal codes, directions, paths.

Always the same ones, in the same order. A payload that ran would set `window.owned` or ask https://evil.example.
"""

# ruff: noqa: E501
from __future__ import annotations

JS = "window.owned=1"
EVIL = "https://evil.example"

ELEMENTS = (
    f"<script>{JS}</script>", f"<SCRIPT SRC={EVIL}/x.js></SCRIPT>", f"<script type=module>{JS}</script>",
    f"<script\n>{JS}</script\n>", f"<script/x>{JS}</script>", f"<<script>{JS}//<</script>",
    f"</title><script>{JS}</script>", f"</textarea><script>{JS}</script>", f"</style><script>{JS}</script>",
    f"</script><script>{JS}</script>", f"--><script>{JS}</script>", f"]]><script>{JS}</script>",
    f"</noscript><script>{JS}</script>", f"</template><script>{JS}</script>", f"<noscript><p title=\"</noscript><script>{JS}</script>",
    f"<img src={EVIL}/x.png>", f"<img src=x onerror={JS}>", f"<img src=x onerror='{JS}'>", f'<img src="x" onerror="{JS}">',
    f"<img/src=x/onerror={JS}>", f"<image src=x onerror={JS}>", f"<IMG SRC=javascript:{JS}>", f"<img src=`x` onerror=`{JS}`>",
    f"<iframe src=javascript:{JS}></iframe>", f"<iframe srcdoc='<script>{JS}</script>'></iframe>", f"<iframe src={EVIL}></iframe>",
    f"<object data={EVIL}/x.swf></object>", f"<object data=javascript:{JS}></object>", f"<embed src={EVIL}/x.swf>",
    f"<link rel=stylesheet href={EVIL}/x.css>", f"<link rel=prefetch href={EVIL}>", f"<base href={EVIL}/>",
    f"<meta http-equiv=refresh content='0;url={EVIL}'>", "<meta charset=utf-7>", f"<form action={EVIL}><input type=submit></form>",
    f"<button formaction=javascript:{JS}>x</button>", f"<input autofocus onfocus={JS}>", f"<select autofocus onfocus={JS}>",
    f"<textarea autofocus onfocus={JS}>", f"<keygen autofocus onfocus={JS}>", f"<body onload={JS}>", f"<html onload={JS}>",
    f"<video src=x onerror={JS}>", f"<video><source onerror={JS}></video>", f"<audio src=x onerror={JS}>",
    f"<details open ontoggle={JS}>", f"<marquee onstart={JS}>", f"<a href=javascript:{JS}>x</a>", f"<a href='{EVIL}' target=_blank>x</a>",
    f"<a href=\"data:text/html,<script>{JS}</script>\">x</a>", f"<a href=vbscript:{JS}>x</a>", f"<a href=jAvAsCrIpT&colon;{JS}>x</a>",
    f"<a href='java\tscript:{JS}'>x</a>", f"<table background=javascript:{JS}>", f"<td background=javascript:{JS}>",
    f"<div style=\"background:url(javascript:{JS})\">", f"<div style=\"width:expression({JS})\">", "<style>*{display:none}</style>",
    f"<style>@import '{EVIL}/x.css';</style>", "</style><style>body{background:red}", f"<template><script>{JS}</script></template>",
    f"<dialog open oncancel={JS}>", f"<portal src={EVIL}>", f"<x onclick={JS}>x</x>", "<!--", "-->", "<!-- x --!>", "<![CDATA[", "]]>",
    "<!DOCTYPE html>", "<?xml version='1.0'?>", "<?php echo 1; ?>", "</", "<", ">", "<>", "</p>", "</td></tr></table>", "<b>bold</b>",
    "&lt;script&gt;", "&#60;script&#62;", "&amp;", "&", "&#x3c;", "&nbsp;", "&notanentity;", "&#0;", "&#xD800;",
)  # fmt: skip

DRAWINGS = (
    f"<svg onload={JS}>", f"<svg/onload={JS}>", f"</svg><script>{JS}</script>", f"</text><script>{JS}</script>",
    f"</title></g><script>{JS}</script>", f"</desc></svg><img src=x onerror={JS}>", f"<svg><script>{JS}</script></svg>",
    f"<svg><script xlink:href={EVIL}/x.js /></svg>", f"<svg><a xlink:href=javascript:{JS}><text>x</text></a></svg>",
    f"<svg><animate onbegin={JS} attributeName=x dur=1s>", f"<svg><set onbegin={JS} attributeName=x>",
    f"<svg><foreignObject><iframe src=javascript:{JS}></iframe></foreignObject></svg>", f"<svg><use href='{EVIL}/x.svg#x'/></svg>",
    f"<svg><use href=\"data:image/svg+xml,<svg id='x' onload='{JS}'/>#x\"/></svg>", f"<svg><image href={EVIL}/x.png /></svg>",
    f"<svg><style>@import url({EVIL})</style></svg>", f"<svg><handler type='text/javascript'>{JS}</handler></svg>",
    f"<math><maction actiontype=statusline xlink:href=javascript:{JS}>x</maction></math>",
    f"<math><mtext><style><img src onerror={JS}></style></mtext></math>", "<!ENTITY x SYSTEM 'file:///etc/passwd'>",
    "<!DOCTYPE svg [<!ENTITY x 'y'>]>&x;", f"\" /><script>{JS}</script>", f"' /><script>{JS}</script>", "url(#x)", "fill:url(#grad)",
    f"url({EVIL}/x.svg#f)", "translate(0,0)\" onload=\"x", "xml:base='javascript:'", "<tspan x='-9999'>", "<text y='9999'>x</text>",
)  # fmt: skip

HANDLERS = tuple(
    f"{quote} on{event}={quote}{JS}"
    for event in (
        "click", "load", "error", "mouseover", "mouseenter", "focus", "focusin", "blur", "keydown", "keyup", "input",
        "change", "toggle", "wheel", "scroll", "drag", "drop", "copy", "paste", "beforeunload", "hashchange", "message",
        "pageshow", "resize", "submit", "touchstart", "pointerover", "animationstart", "transitionend", "begin", "end",
    )
    for quote in ('"', "'", "`", "")
)  # fmt: skip

ADDRESSES = tuple(
    form.format(scheme)
    for scheme in (
        f"javascript:{JS}", f"JaVaScRiPt:{JS}", f"java\nscript:{JS}", f"\x01javascript:{JS}", f"data:text/html,<script>{JS}</script>",
        f"vbscript:{JS}", "file:///etc/passwd", f"{EVIL}/?q=x", "//evil.example/x", "\\\\evil.example\\share",
    )
    for form in ("{}", "[x]({})", "![x]({})", "<{}>")
)  # fmt: skip

MARKDOWN = (
    "|", "a|b|c", "\\|", "||", "| --- | --- |", "# heading", "## a\n## b", "> quote", "- item", "1. item", "* * *", "---", "===", "**bold**",
    "_x_", "~~x~~", "`code`", "``", "```", "```\ncode\n```", "~~~", "` `` ``` ````", "[x][y]", f"[x]: {EVIL}", "![x][y]", "<details>", "@everyone",
    "@someone", "#1", "GH-1", "org/repo#1", "[ ] todo", "- [x] done", ":tada:", "$x$", "$$\\frac{1}{0}$$", "[^1]", "\\", "\\\\", "a\\", "trailing  ",
    "<br>", "<!-- comment", "]( ", "](x)", "[[x]]", "x^2^", "H~2~O", "==x==", "{: .class}", "+++", f"www.evil.example {EVIL}",
)  # fmt: skip

FORMULAS = tuple(
    f"{before}{formula}"
    for before in ("", " ", "\t", "\r", "\n", "'", '"', ";", ",", "x;")
    for formula in (
        "=1+1", "+1+1", "-1+1", "@SUM(1)", f'=HYPERLINK("{EVIL}","x")', "=cmd|' /C calc'!A0", "＝1+1", "%0A=1",
    )
)  # fmt: skip

TERMINAL = (
    "\x1b[31mred\x1b[0m", "\x1b[2J", "\x1b[H", "\x1b[1A\x1b[2K", "\x1b[?1049h", "\x1b[?25l", "\x1b[8m", "\x1b[5m", "\x1b[6n", "\x1b[c", "\x1b[999D",
    "\x1b]0;title\x07", "\x1b]2;title\x1b\\", f"\x1b]8;;{EVIL}\x07x\x1b]8;;\x07", "\x1b]52;c;b3duZWQ=\x07", "\x1b]1337;File=:AAAA\x07",
    "\x1b]4;1;?\x07", "\x1b]11;?\x07", "\x1bPq#0\x1b\\", "\x1b_x\x1b\\", "\x1b^x\x1b\\", "\x1bc", "\x1b7\x1b8", "\x1b(0", "\x1b#8", "\x1b",
    "\x9b31m", "\x9d0;x\x9c", "\x90q\x9c", "a\rb", "a\x08\x08b", "\x07", "\x0e\x0f", "a\x7fb", "::error::x", "::stop-commands::x", " ::warning::x",
    "##[error]x", "##vso[task.setvariable]x", "##teamcity[x]", "::set-output name=x::y", "::add-mask::x", "%0A::error::x", "\n::error::x",
)  # fmt: skip

DIRECTIONS = tuple(
    shape.format(mark)
    for mark in (
        "\u202a", "\u202b", "\u202c", "\u202d", "\u202e", "\u2066", "\u2067", "\u2068", "\u2069", "\u200e", "\u200f", "\u061c",
    )
    for shape in ("{}abc", "user{}cod.exe", "x{}")
)  # fmt: skip

CONTROLS = tuple(f"a{chr(c)}b" for c in (*range(0x20), *range(0x7F, 0xA0)))

INVISIBLE = tuple(
    f"a{c}b"
    for c in (
        "\u00a0", "\u00ad", "\u034f", "\u115f", "\u17b4", "\u180e", "\u200b", "\u200c", "\u200d", "\u2028", "\u2029", "\u2060", "\u2061", "\u2064",
        "\u3000", "\u3164", "\ufe0f", "\ufeff", "\uffa0", "\ufff9", "\ufffa", "\ufffb", "\ufffe", "\uffff", "\U000e0001", "\U000e0041",
        "\U0001d173", "\U000f0000", "\U0010ffff", "\ue000",
    )
)  # fmt: skip

PATHS = (
    "../../etc/passwd", "..", ".", "/", "//", "/etc/passwd", "~/x", "~root", "a/b", "a\\b", "..\\..\\windows\\win.ini", "C:\\x", "C:x", "\\\\?\\C:\\x",
    "CON", "con.txt", "NUL", "AUX", "COM1", "LPT1", "a:b", "a*b", "a?b", "a\0.txt", ".hidden", "x.", "x ", " x", "-rf", "--help", "-", "$HOME", "${HOME}",
    "`id`", "$(id)", "; rm -rf /", "| cat", "&& id", "> x", "* ", "%PATH%", "%2e%2e%2f", "..%c0%af", "file://x", "a\nb",
)  # fmt: skip

TEMPLATES = (
    "{{7*7}}", "{{constructor.constructor('window.owned=1')()}}", "${7*7}", "#{7*7}", "<%= 7*7 %>", "{% raw %}", "{%x%}", "{0}", "{}", "{x", "}", "%s",
    "%n", "%(x)s", "%", "%%", "$x", "{x!r}", "{0.__class__}", "[[7*7]]", "*{7*7}", "@{7*7}", "{{{x}}}", "{{", "}}", "{{`{{x}}`}}", "\\u003c", "\\x3c",
    "\\", '"', "'", '"}', '"]', '"},{"x":"', '\\"', '"\\', "\\\\\"", "null", "true", "NaN", "Infinity", "-0", "1e999", "[]", "{}x", '{"a":1}', ",", ":",
    "</script", "<!--<script>", "*/", "/*", "//", "`;window.owned=1//", "';window.owned=1//", '";window.owned=1//', "\\';window.owned=1//",
    "__proto__", "constructor", "prototype", "toString", "hasOwnProperty", "valueOf", "__class__", "__init__", "length", "then",
    "a;b;c 12", "a;b", "a b 1", ";", ";;", "a;", ";a", "x 123", "123", "0", "-1", "all", "root", "other", "…", "… 3 more",
    'a"} 1\nowned{x="', "# HELP x", "# TYPE x counter", 'x{a="b"} 1', "x,y=z 1", "' OR 1=1 --", "x'; DROP TABLE runs; --", "\ufeffx",
)  # fmt: skip

BROKEN = (
    "\ud800", "\udfff", "a\ud800b", "a\udc00b", "\udc80\udcff", "\ud83d", "\udcff", "<\ud800script>", "x\ud800" * 50, "\udce9t\udce9",
)  # fmt: skip

LONG = (
    "n" * 5000, "<" * 5000, "&" * 3000, "\x1b[31m" * 1000, "é" * 4000, "𝕏" * 3000, "a;" * 2500, "a b " * 1000, "🙂" * 2000,
    "Z\u0300\u0301\u0302\u0303\u0304\u0305\u0306\u0307" * 40, "\u202e" * 2000, f"<script>{JS}</script>" * 200, "مرحبا " * 500, "שלום",
)  # fmt: skip

EMPTY = (
    "",
    " ",
    "   ",
    "\t",
    "\n",
    "\r\n",
    "\u2028",
    "\0",
    "\u3000",
    "a\nb\nc",
    "a\r\nb",
    "one\u2028two\u2029three\x0bfour\x0cfive\x85six",
)

GROUPS: dict[str, tuple[str, ...]] = {
    "elements": ELEMENTS, "drawings": DRAWINGS, "handlers": HANDLERS, "addresses": ADDRESSES, "markdown": MARKDOWN, "formulas": FORMULAS,
    "terminal": TERMINAL, "directions": DIRECTIONS, "controls": CONTROLS, "invisible": INVISIBLE, "paths": PATHS, "templates": TEMPLATES,
    "broken": BROKEN, "long": LONG, "empty": EMPTY,
}  # fmt: skip

NAMES: tuple[str, ...] = tuple(dict.fromkeys(name for group in GROUPS.values() for name in group))
