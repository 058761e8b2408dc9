"""Attack the sandbox of chat templates with generated ones, under a limit of the address space; print counts.

A template is a random tree of Jinja's syntax over large and odd values, or the text of one with random changes, or a fragment
repeated until it is large. Each is compiled and rendered; what must come of it is a text or the package's own error, within its
time and without a MemoryError, which would be memory that was not counted before it was asked for.

    python bench/attack_templates.py                      100,000 templates (about 20 minutes)
    python bench/attack_templates.py --count 2000         a short look
    python bench/attack_templates.py --seed 7 --show      print what was wrong in full

Exits with 1 if anything was wrong: a foreign error, a MemoryError, an attribute of Python reached, or a process that died.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tritium.errors import TritiumError
from tritium.models.text import chat

ROOM = 512 << 20  # bytes beyond what the process has when the attack begins, as SECURITY.md states
SECONDS = 0.05  # of rendering; the bound is the same mechanism as with the 2 s of `tritium.models.text.chat`
SLACK_S = 1.0  # one step between two looks at the clock, on a machine with other load
COMPILE_S = 10.0  # for the largest template that is allowed
BATCH = 500  # templates of one process
MESSAGES = [
    {"role": "user", "content": "Hi <b>\n there", "tags": ["a", "B"]},
    {"role": "assistant", "content": "Me.", "tool_calls": [{"name": "f", "arguments": {"x": [1, None, 2.5]}}]},
]
ATOMS = [
    "1", "0", "-1", "2**4000", "1.5", "1e308", "10**400", "none", "true", "'x'", "''", "'<&>'", "'\\n'", "'%9999d'", "'{0:9999}'",
    "'x'*1000000", "('<'*100000)|e", "('x'|safe)*1000000", "'\\u4e2d\\n'*100000", "'\\x00'*1000000", "['ab']*100000", "[['<']*400]*400",
    "range(9999)", "{'a': 1, 'b': [1]*9999}", "messages", "messages[0]", "messages[1].tool_calls", "undefined_name", "loop", "self",
    "namespace(a=1)", "dict(a=1)", "(1, 2)", "[]", "{}", "f", "caller", "varargs", "cycler", "joiner", "lipsum", "'a b '*100000",
    "'ﷺ'*10000", "'İ'*100000", "9999999999", "'__class__'", "'%s%r%a'", "'{0.__class__}'", "'{a[0]}'", "bos_token",
]  # fmt: skip
FILTERS = """abs attr capitalize count default dictsort e escape first float format groupby indent int items join last length list lower map
    max min reject rejectattr replace reverse round safe select selectattr sort string sum title tojson trim truncate unique upper
    wordcount""".split()
FORBIDDEN_FILTERS = """batch center filesizeformat forceescape pprint random slice striptags urlencode urlize wordwrap xmlattr""".split()
METHODS = """zfill ljust rjust center format join replace split rsplit splitlines partition strip upper lower title capitalize casefold
    swapcase index count find startswith removeprefix items keys values get copy isdigit""".split()
FORBIDDEN_METHODS = """format_map translate expandtabs encode maketrans pop update setdefault append extend insert sort reverse clear __class__
    __mul__ __format__ mro bit_length to_bytes hex as_integer_ratio real""".split()
TESTS = "defined none string mapping iterable odd even divisibleby(3) in('abc') lower upper eq(1) gt('a') sameas(1) callable filter".split()
NUMBERS = [
    "0",
    "1",
    "3",
    "-5",
    "300",
    "9999",
    "1000000",
    "4000000000",
    "'x'",
    "'x'*100000",
    "none",
    "1.5",
    "[1]",
    "messages",
]
BINARY = ["+", "-", "*", "/", "//", "%", "**", "~", "==", "<", ">=", "and", "or", "in", "not in"]
STATEMENTS = [
    "{{{{ {0} }}}}", "{{{{ ({0})|length }}}}", "{{% for c in {0} %}}{{{{ c }}}}{{% endfor %}}",
    "{{% for a, b in {0} if a %}}{{{{ loop.length }}}}{{{{ loop.index }}}}{{% else %}}none{{% endfor %}}",
    "{{% for i in range(999) %}}{{{{ {0} }}}}{{% endfor %}}", "{{% set a = {0} %}}{{{{ [a, a, a] }}}}",
    "{{% if {0} %}}yes{{% elif {1} %}}no{{% endif %}}",
    "{{% set ns = namespace(l=[]) %}}{{% for i in range(500) %}}{{% set ns.l = [ns.l, {0}] %}}{{% endfor %}}{{{{ ns.l }}}}",
    "{{% macro f(a, b={0}) %}}{{{{ a }}}}{{{{ varargs }}}}{{{{ kwargs }}}}{{% endmacro %}}{{{{ f({1}) }}}}{{{{ f(*({0}), **dict(c={1})) }}}}",
    "{{% macro g(n) %}}{{{{ n }}}}{{{{ g(n + 1) }}}}{{% endmacro %}}{{{{ g({0}) }}}}", "{{% call(x) f({0}) %}}{{{{ x }}}}{{% endcall %}}",
    "{{% filter {2} %}}{{{{ {0} }}}}{{% endfilter %}}", "{{% set s %}}{{{{ {0} }}}}{{% endset %}}{{{{ s * 1000 }}}}",
    "{{% for m in {0} recursive %}}{{{{ loop(m) }}}}{{% endfor %}}", "{{% with x = {0} %}}{{{{ x ~ x }}}}{{% endwith %}}",
    "{{% block b %}}{{{{ {0} }}}}{{% endblock %}}{{{{ self.b() }}}}", "{{% generation %}}{{{{ {0} }}}}{{% endgeneration %}}",
    "{{% set x = namespace(a={0}) %}}{{% for i in range(99) %}}{{% set x.a = x.a + x.a %}}{{% endfor %}}{{{{ x.a }}}}",
    "{{{{ raise_exception({0}) }}}}", "{{{{ strftime_now({0}) }}}}", "{{% include {0} %}}",
]  # fmt: skip
FRAGMENTS = [
    "{{a}}", "{% if 1 %}", "{% for i in [1] %}", "((", "[", "{", "{{ 1 +", " ~ a", "|e", "{%", "}}", "{#", "-%}", "{% raw %}", "\n", "\x00",
    "é",     ".a", "[0]", "not ", "-", "(1,", "'", '"', "\\", "{% macro f() %}", "{% endfor %}", "{% set x = ", "{% block a %}", "1", "a",
    " if ", " else ",     "\t", "\u2028", "\ud800", "{% generation %}", "**", "%}", "{{ '", "is ", ":=",
    "async ", "lambda ", "yield ", "{% break %}", "{{ caller(",
]  # fmt: skip
ESCAPED = (
    "<class ",
    "<function",
    "<built-in",
    "<module",
    "object at 0x",
    "<bound method",
    "<slot wrapper",
    "jinja2.",
)  # Python showing through


def pick(choose: random.Random, allowed: list[str], forbidden: list[str]) -> str:
    """Return a name; one in twelve is forbidden."""
    return choose.choice(forbidden if choose.random() < 1 / 12 else allowed)


def expression(choose: random.Random, depth: int) -> str:
    """Return an expression of Jinja; most are wrong somewhere."""
    if depth <= 0 or choose.random() < 0.1:
        return choose.choice(ATOMS)
    inner = expression(choose, depth - 1)
    kind = choose.randrange(9)
    if kind < 3:
        arguments = ", ".join(choose.choice(NUMBERS) for _ in range(choose.choice([0, 0, 1, 1, 2])))
        name = choose.choice(["attribute=", "width=", "indent=", "default=", "start=", "by=", "", "", ""])
        return f"({inner})|{pick(choose, FILTERS, FORBIDDEN_FILTERS)}" + (
            f"({name if ',' not in arguments else ''}{arguments})" if arguments else ""
        )
    if kind < 5:
        arguments = ", ".join(
            choose.choice([*NUMBERS, expression(choose, depth - 2)]) for _ in range(choose.randrange(4))
        )
        return f"({inner}).{pick(choose, METHODS, FORBIDDEN_METHODS)}" + (
            "" if choose.random() < 0.1 else f"({arguments})"
        )
    if kind == 5:
        return f"({inner}) {choose.choice(BINARY)} ({expression(choose, depth - 1)})"
    if kind == 6:
        return f"({inner}) is {choose.choice(['', 'not '])}{choose.choice(TESTS)}"
    if kind == 7:
        ends = [choose.choice(["", "1", "-1", "0", "99999", "'a'"]) for _ in range(3)]
        return f"({inner})[{':'.join(ends[: choose.choice([1, 2, 3])]) or 0}]"
    return choose.choice(
        ["[{0}, {0}]", "({0}, {0})", "{{'a': {0}, {0}: 1}}", "({0} if {0} else {0})", "f({0}, a={0})"]
    ).format(inner)


def generate(choose: random.Random) -> str:
    """Return one template: a tree, a changed text, or a fragment many times."""
    if choose.random() < 0.08:
        count = choose.choice([10, 100, 1000, 10_000, 200_000])
        parts = choose.sample(FRAGMENTS, choose.choice([1, 1, 2, 3]))
        return ("".join(parts) * count)[: chat.MAX_TEMPLATE]
    text = "".join(
        choose.choice(STATEMENTS).format(
            expression(choose, choose.randrange(1, 5)), expression(choose, 2), choose.choice(FILTERS)
        )
        for _ in range(choose.choice([1, 1, 1, 2, 3]))
    )
    for _ in range(choose.choice([0, 0, 0, 1, 3])):
        at = choose.randrange(len(text) + 1)
        text = (
            text[:at] + choose.choice(FRAGMENTS) * choose.choice([1, 1, 50]) + text[at + choose.choice([0, 0, 1, 10]) :]
        )
    return text[: chat.MAX_TEMPLATE]


def attack(template: str) -> tuple[str, str]:
    """Compile and render; return what came of it and, where that is wrong, why."""
    compiling = time.thread_time()
    try:
        chat._compiled(template)
    except TritiumError as error:
        if "MemoryError" in str(error):
            return "wrong", f"compiling: {error}"
        result = "refused by its syntax"
    except BaseException as error:
        return "wrong", f"compiling: {type(error).__name__}: {error}"[:300]
    else:
        result = ""
    rendering = time.thread_time()
    if rendering - compiling > COMPILE_S:
        return "wrong", f"compiling took {rendering - compiling:.1f} s"
    if result:
        return result, ""
    try:
        text = chat.render(template, MESSAGES)
    except TritiumError as error:
        if "MemoryError" in str(error):
            return "wrong", f"rendering: {error}"
        result = "stopped at a bound" if "Do not trust" in str(error) else "refused while rendering"
    except BaseException as error:
        return "wrong", f"rendering: {type(error).__name__}: {error}"[:300]
    else:
        result = "rendered"
        if shown := [mark for mark in ESCAPED if mark in text and mark not in template]:
            return "wrong", f"the text shows {shown[0]!r}"
    taken = time.thread_time() - rendering
    return ("wrong", f"rendering took {taken:.2f} s") if taken > SECONDS + SLACK_S else (result, "")


def run_batch(seed: int, count: int) -> dict[str, Any]:
    """Attack with `count` templates in this process, which gets no more than ROOM."""
    chat.MAX_SECONDS = SECONDS
    chat.render("{{ 1 }}", MESSAGES)
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    counts: Counter[str] = Counter()
    wrong: list[list[str]] = []
    choose, slowest = random.Random(seed), 0.0
    for _ in range(count):
        template = generate(choose)
        begin = time.thread_time()
        result, why = attack(template)
        slowest = max(slowest, time.thread_time() - begin)
        counts[result] += 1
        if why:
            wrong.append([why, template[:2000]])
    return {"counts": counts, "wrong": wrong[:20], "slowest_s": slowest}


def start_batch(seed: int, count: int) -> dict[str, Any]:
    """Run a batch in a process of its own; one that dies is a result too."""
    command = [sys.executable, __file__, "--batch", str(seed), "--count", str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        why = f"the process of seed {seed} ended with {done.returncode}: {done.stderr[-300:]}"
        return {"counts": {"wrong": 1}, "wrong": [[why, ""]], "slowest_s": 0.0}
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main() -> int:
    """Attack in batches and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=100_000, help="Templates.")
    parser.add_argument("--seed", type=int, default=1, help="The same seed gives the same templates.")
    parser.add_argument("--show", action="store_true", help="Print templates that went wrong.")
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.batch is not None:
        print(json.dumps(run_batch(args.batch, args.count)))
        return 0
    counts: Counter[str] = Counter()
    wrong: list[list[str]] = []
    slowest, begin = 0.0, time.monotonic()
    for i in range(0, args.count, BATCH):
        result = start_batch(args.seed * 1_000_003 + i, min(BATCH, args.count - i))
        counts.update(result["counts"])
        wrong += result["wrong"]
        slowest = max(slowest, result["slowest_s"])
    for name, count in counts.most_common():
        print(f"{count:8}  {name}")
    print(
        f"{counts.total():8}  in all, under {ROOM >> 20} MiB, in {time.monotonic() - begin:.0f} s; the slowest took {slowest:.2f} s"
    )
    for why, template in wrong[:20]:
        print(f"WRONG: {why}" + (f"\n  {template!r}" if args.show else ""))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
