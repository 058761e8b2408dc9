"""Chat templates stay within their memory: listed and generated ones run under a limit of the address space."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tritium.errors import FormatError, TritiumError
from tritium.models.text import chat
from tritium.models.text.chat import render

jinja2 = pytest.importorskip("jinja2", reason="chat templates need the extra `run`")

CHAT = [{"role": "user", "content": "Hi <b>\n there", "tags": ["a", "B"]}, {"role": "assistant", "content": "Me."}]
ROOM = 512 << 20  # bytes; SECURITY.md promises this
VALUES = [
    "('x'*1000000)*4", "('<'*1000000)|e", "('x'|safe)*1000000", "'\\u4e2d\\n'*1000000", "'{0:9999}'*100000", "'%9999d'*100000",
    "'%(a)9999d'*100000", "['ab']*200000", "[['<']*400]*400", "range(9999)", "{'a': 'x'*1000000, 'b': [1]*9999}",
    "messages", "messages[0]", "'\\x00'*1000000", "1", "2**4000", "'1'*4000", "('a b '*500000).split()", "undefined_name",
]  # fmt: skip
STEPS = [
    "({0}).zfill(4000000000)", "({0}).ljust(9000000)", "({0}).center(1000000)", "({0}).format(1, a=2)", "({0}) % 1", "({0}) % {{'a': 1}}",
    "({0})|format(a=1)", "({0})|tojson(indent='x'*100000)", "({0})|tojson(indent=200)", "({0})|tojson(ensure_ascii=true)",
    "({0}).split()", "({0}).split('x')", "({0}).splitlines()", "({0})|list", "({0})|string", "({0})|e", "({0})|safe", "({0})|upper",
    "({0})|title", "({0})|indent(200)", "({0})|indent('x'*100000)", "({0})|replace('x', 'y'*1000)", "({0}).replace('', 'yy')",
    "({0})|join('x'*1000)", "('x'*1000).join({0})", "({0})|map('list')|list", "({0})|map('string')|join", "({0})|sort", "({0})|unique|list",
    "({0})|groupby(0)", "({0})|batch(3)|list", "({0})|slice(3)|list", "({0})|wordwrap(1)", "({0})|center(90000000)", "({0})|xmlattr",
    "({0})|pprint", "({0})|reverse|list", "({0})|wordcount", "({0})|truncate(10, end='x'*1000000)", "({0})[::-1]", "({0})[1:]",
    "({0})*1000", "({0}) + ({0})", "({0}) ~ ({0})", "[{0}, {0}]", "({0}, {0})", "dict(a={0}, b={0})", "({0}).items()", "({0}).values()|list",
    "({0}).translate({{97: 'b'*1000000}})", "({0}).expandtabs(1000000)", "({0}).encode('utf-32')", "({0})|urlencode", "({0})|dictsort",
    "({0})|round(300, 'ceil')", "({0}) is odd", "({0}) is divisibleby(3)", "({0}) is upper", "({0})|int(base=2)", "({0})|sum",
    "({0}).index('q')", "'%r %a' % ({0}, {0})", "'{{!r:9999}}{{!a}}'.format({0}, {0})", "({0}) ** 100000", "({0})|first", "({0})|length",
    "({0})|selectattr('role')|list", "({0})|map(attribute='x.'*1000000)|list", "f(*({0}))", "f({0}, {0})", "namespace(a={0}).a",
]  # fmt: skip
FRAMES = [
    "{{{{ {0} }}}}", "{{{{ ({0})|length }}}}",
    "{{% set ns = namespace(l=[]) %}}{{% for i in range(999) %}}{{% set ns.l = [ns.l, {0}] %}}{{% endfor %}}",
    "{{% for c in {0} if c %}}{{{{ loop.length }}}}{{{{ c }}}}{{% endfor %}}", "{{% for i in range(999) %}}{{{{ {0} }}}}{{% endfor %}}",
    "{{% set a = {0} %}}{{% set b = a %}}{{{{ [a, b, a, b] }}}}", "{{% filter upper %}}{{{{ {0} }}}}{{% endfilter %}}",
]  # fmt: skip
MACRO = "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}"


def generated(count: int) -> list[str]:
    """Templates that chain steps on large values; the same ones in every run."""
    choose = random.Random(5)
    templates = []
    for i in range(count):
        expression = choose.choice(VALUES)
        for step in [STEPS[i % len(STEPS)], *choose.sample(STEPS, choose.randrange(3))]:
            expression = step.format(expression)
        templates.append(MACRO + choose.choice(FRAMES).format(expression))
    return templates


def run_all() -> None:
    """Render everything under a limit; a MemoryError would be one allocation that was not counted before."""
    import resource

    from test_chat import BOMBS

    chat.MAX_SECONDS = 0.03
    render("{{ 1 }}", CHAT)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    rendered = 0
    for template in [*BOMBS.values(), *generated(250)]:
        try:
            render(template, CHAT)
            rendered += 1
        except TritiumError as error:
            if "MemoryError" in str(error):
                sys.exit(f"{error}: {template[:400]}")
    if rendered < 15:
        sys.exit(f"only {rendered} templates were harmless; the generator is wrong")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs the size of the address space")
def test_no_template_takes_more_memory_than_promised() -> None:
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


SAME = [
    "{{ '<a>' + ('<b>'|safe) + '<c>' }} {{ ('<'|e) ~ '<' }} {{ ('%s<'|safe) % '<' }} {{ ('{}<'|safe).format('<') }}",
    "{{ ('a<'|e).replace('a', '<') }} {{ ('<'|safe).join(['<', 'b']) }} {{ ('a b'|safe).split() }} {{ ('a'|e)|upper }}",
    "{{ [1, 'a\n\\'', {'b': (1,)}] }} {{ messages[0].items() }} {{ messages[0].keys()|list }} {{ range(3) }} {{ none }}",
    "{{ 'a\nb\n'|indent(2) }}|{{ 'a\n\nb'|indent('> ', true, true) }}|{{ ['a']|string }}|{{ 'one two'|title }}",
    "{{ '%5.2f|%-4s|%r|%%|%(x)s' % {'x': 1} if false else '%5.2f|%-4s|%r|%%' % (1.5, 'a', 'b') }}",
    "{{ '{0:>5}|{0!r}|{a[0]}|{b.c}|{:{}}'.format('a', 'b', 3, a=[1], b={'c': 2}) if false else '{0:>5}{a[0]}'.format('x', a=[1]) }}",
    "{{ [3, 1, 2]|sort }} {{ messages|groupby('role')|map(attribute='grouper')|list }} {{ 'abc'|reverse }} {{ [1, 2]|reverse|list }}",
    "{{ messages|map(attribute='tags', default=[])|list }} {% if [] | select %}always{% endif %} {{ ['b', 'A']|unique|join }}",
    "{% for a, b in messages[0]|dictsort if b is string %}{{ loop.index }}/{{ loop.length }}{{ a }}{% endfor %} {{ 'a\nb'.splitlines() }}",
    "{% for m in messages recursive %}{{ m }}{% if m is mapping %}{{ loop(m.role) }}{% endif %}{% endfor %}",
    "{% for m in messages %}{{ loop.cycle('a', 'b') }}{{ loop.changed(m.role) }}{{ loop.previtem is defined }}{% else %}none{% endfor %}",
    "{% macro f(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{{ caller() if caller }}{% endmacro %}{{ f(1, 2, 3, c=4) }}"
    "{% call f(*[1, 2], **{'d': 1}) %}in{% endcall %}{% filter upper %}x{% endfilter %}{% set s %}a{{ 1 }}{% endset %}{{ s }}",
    "{{ 7 // 2 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ -7 % 3 }} {{ 'ab' * 3 }} {{ [1] * 2 + [3] }} {{ (1,) + (2,) }} {{ 3 is odd }}",
    "{{ 2.567|round(1) }} {{ '3'|int + 1 }} {{ -3|abs }} {{ 'a b'|wordcount }} {{ 'a b c d'|truncate(5, true, '…', 0) }} {{ 'a'.ljust(3) }}.",
    "{% block b %}x{% endblock %}{{ self.b() }}{% with a = 1 %}{{ a }}{% endwith %}{{ messages[::-1][0].content[:2] }}{{ messages[-1:] }}",
]  # fmt: skip


@pytest.mark.parametrize("template", SAME, ids=range(len(SAME)))
def test_bounds_do_not_change_what_jinja_renders(template: str) -> None:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    expected = plain.from_string(template).render(messages=chat.check(CHAT))
    assert render(template, CHAT) == expected


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ ('x'|e).expandtabs() }}", "may not use 'expandtabs' of a Markup"), ("{{ 'x'.encode() }}", "'encode' of a str"),
        ("{{ 'x'|pprint }}", "No filter named 'pprint'"), ("{{ 'x' is nonsense }}", "No test named 'nonsense'"),
        ("{% autoescape true %}x{% endautoescape %}", "'ScopedEvalContextModifier' is not allowed"),
        ("{% include 'x' %}", "'Include' is not allowed"), ("{{ 'x'() }}", "a str cannot be called"),
        ("{{ '%*d' % (3, 1) }}", "formats with a field other than"), ("{{ {}.keys() - {}.keys() }}", "unsupported operand"),
        ("{{ 'a'.zfill(2000000) }}", "asked for 2000000; whole numbers up to"), ("{{a}}" * 200_000, "more than 20000 tokens"),
        ("{{ " + "a" * 201 + " }}", "a name has more than 200 characters"), ("{% if 1 %}" * 120 + "{% endif %}" * 120, "chat template"),
        ("{{ " + "0" * 5000 + "1 }}", "chat template"),
    ],
)  # fmt: skip
def test_what_is_not_listed_is_refused_by_name(template: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        render(template, CHAT)


if __name__ == "__main__":
    run_all()
