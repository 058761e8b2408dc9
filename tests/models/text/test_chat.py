"""Chats: templates render as transformers renders them; hostile ones reach nothing and end soon."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tritium.errors import ArgumentError, FormatError, PackageError
from tritium.models.text import chat
from tritium.models.text.chat import check, encode, render
from tritium.models.text.tokenizer import ALPHABET
from tritium.models.text.vocabulary import ByteTokenizer, Facts

pytest.importorskip("jinja2", reason="chat templates need the extra `run`")

BITNET = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = message['role'] | capitalize + ': '+"
    " message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
    "{{ content }}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}"
)
LLAMA3 = (
    "{{- bos_token }}\n{%- if messages[0]['role'] == 'system' %}\n    {%- set system = messages[0]['content']|trim %}\n"
    "    {%- set messages = messages[1:] %}\n{%- else %}\n    {%- set system = '' %}\n{%- endif %}\n"
    "{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}\n{%- if tools is defined and tools %}\n"
    "    {%- for t in tools %}\n        {{- t | tojson(indent=4) }}\n    {%- endfor %}\n{%- endif %}\n{{- system }}\n"
    "{%- for message in messages %}\n    {%- if message.role not in ['user', 'assistant'] %}\n"
    "        {{- raise_exception('roles must be user and assistant') }}\n    {%- endif %}\n"
    "    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' ~ message['content'] | trim + eos_token }}\n"
    "{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n{%- endif %}\n"
)
OTHERS = [
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + m.content|length %}{% endfor %}{{ ns.n }}",
    "{% macro say(m, end='!') %}{{ m.role|upper }}={{ m.content }}{{ end }}{% endmacro %}{% for m in messages %}{{ say(m) }}{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}{% if loop.first %}{% continue %}{% endif %}x{% endfor %}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join('; ') }}",
    "{% generation %}{{ messages[-1].content.split('?')[0].strip() }}{% endgeneration %}",
    "{{ '%s-%d' | format('a', 3) }} {{ '{}/{}'.format(1, 'b') }} {{ 'a\nb\n\nc' | indent(3, true) }} {{ 'aXbX'|replace('X', '--', 1) }}",
    "{{ 'aXbX'.replace('X', '') }} {{ ', '.join(['1', '2']) }} {{ 3 ~ [1, (2,)] ~ {'a': none} }} {{ [1, 2.5]|sum }}",
    "   {% if true %}\n  kept\n   {% endif %}\n{{ {'b': 1, 'a': [true, 'é<']}|tojson }}{{ dict(a=1).items()|list }}",
    "{{ range(3)|list }}{{ (messages|last).content[::-1] }}{{ 'é'|length }}{{ messages is iterable }}{{ x is defined }}{{ 7 % 4 }}",
]
CHAT = [
    {"role": "system", "content": " Be kind. "}, {"role": "user", "content": "Who? <b>"},
    {"role": "assistant", "content": "Me."}, {"role": "user", "content": "Ünïcode?\n"},
]  # fmt: skip


def test_the_form_of_bitnet_2b_4t() -> None:
    found = render(BITNET, [{"role": "user", "content": "Hi "}], bos_token="<|begin_of_text|>")
    assert found == "<|begin_of_text|>User: Hi<|eot_id|>Assistant: "


@pytest.mark.parametrize("template", [BITNET, LLAMA3, *OTHERS], ids=range(2 + len(OTHERS)))
@pytest.mark.parametrize("prompt", [True, False])
def test_templates_render_as_transformers_renders_them(template: str, prompt: bool) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils", reason="its rendering is the yardstick")
    names = {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": prompt}
    expected = utils._compile_jinja_template(template).render(messages=CHAT, **names)
    assert render(template, CHAT, **names) == expected


EXPECTED = {
    0: "30", 1: "SYSTEM= Be kind. !USER=Who? <b>!ASSISTANT=Me.!USER=Ünïcode?\n!", 2: "1/22/2x", 3: "Who? <b>; Ünïcode?\n",
    4: "Ünïcode", 5: "a-3 1/b    a\n   b\n\n   c a--bX", 6: "ab 1, 2 3[1, (2,)]{'a': None} 3.5",
    7: "  kept\n{\"b\": 1, \"a\": [true, \"é<\"]}[('a', 1)]", 8: "[0, 1, 2]\n?edocïnÜ1TrueFalse3",
}  # fmt: skip


@pytest.mark.parametrize("i", EXPECTED)
def test_what_templates_use_works(i: int) -> None:
    assert render(OTHERS[i], CHAT) == EXPECTED[i]


def test_tools_and_other_names_are_given_to_the_template() -> None:
    found = render(LLAMA3, CHAT[1:2], tools=[{"name": "f"}])
    assert '{\n    "name": "f"\n}' in found


def test_the_date_can_be_asked() -> None:
    assert render("{{ strftime_now('%Y') }}", CHAT).isdigit()


def test_a_chat_is_encoded_with_the_models_own_tokens() -> None:
    made = ByteTokenizer(["<s>", "<|eot_id|>", *ALPHABET], frozenset({0, 1}),
                         facts=Facts(0, frozenset({1}), True, "<s>", "<|eot_id|>", BITNET))  # fmt: skip
    ids = encode(made, [{"role": "user", "content": "Hi"}])
    assert ids == [0, *(2 + b for b in b"User: Hi"), 1, *(2 + b for b in b"Assistant: ")]
    assert encode(made, CHAT, template="x") == [2 + ord("x")]


# ---- messages


def test_parts_of_text_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert check([{"role": "user", "content": parts}]) == [{"role": "user", "content": "ab"}]


def test_calls_of_tools_need_no_content() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}
    assert check([message]) == [message]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages must be a list of at least one"), ("hi", "messages must be a list"), ({}, "messages must be a list"),
        (None, "messages must be a list"), (["hi"], r"messages\[0\] must be \{'role'"),
        ([{"content": "x"}], r"messages\[0\].role must be a word such as 'user', given a NoneType"),
        ([{"role": "us er", "content": "x"}], "role must be a word such as 'user', given 'us er'"),
        ([{"role": "user"}], r"messages\[0\].content is missing"),
        ([{"role": "user", "content": 3}], "content must be a text or a list of text parts, given a int"),
        ([CHAT[0], {"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}],
         r"messages\[1\].content\[0\] must be .* given type 'image_url'. Only text can be read"),
        ([{"role": "user", "content": ["x"]}], r"content\[0\] must be .*given 'x'"),
        ([{"role": "user", "content": "x", "more": object()}], r"messages\[0\].more must be made of text, numbers"),
    ],
)  # fmt: skip
def test_a_wrong_message_is_named(messages: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        render(BITNET, messages)


def test_data_without_end_is_refused() -> None:
    deep: list[Any] = []
    deep.append(deep)
    with pytest.raises(ArgumentError, match="nested deeper than"):
        render(BITNET, [{"role": "user", "content": "x", "more": deep}])


# ---- templates that are absent or wrong


def test_without_a_template_the_remedy_is_told() -> None:
    with pytest.raises(ArgumentError, match=r"no chat template: .*--template FILE"):
        render(None, CHAT)
    with pytest.raises(ArgumentError, match=r"--template FILE"):
        encode(ByteTokenizer(), CHAT)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for %}", "chat template, line 1: Expected an expression"), ("a\n{{ x", "line 2: unexpected end of template"),
        ("{{ raise_exception('no\x1b[0m system') }}", r"chat template: no\\x1b\[0m system. Check the messages"),
        ("{{ foo.bar }}", "'foo' is undefined"), ("{{ 1 / 0 }}", "division by zero"), ("{{ 'a' + 1 }}", "chat template: "),
        ("{{ 'a'|nonsense }}", "No filter named 'nonsense'"), ("{{ " + "(" * 9000 + "}}", "nested without end"),
    ],
)  # fmt: skip
def test_what_a_template_does_wrong_is_told(template: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        render(template, CHAT)


@pytest.mark.parametrize("template", [3, "x" * (chat.MAX_TEMPLATE + 1)])
def test_what_is_no_template_is_refused(template: Any) -> None:
    with pytest.raises(ArgumentError, match="must be a text of at most"):
        render(template, CHAT)


def test_without_the_package_the_command_that_brings_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    chat._environment.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(PackageError, match=r"^A chat template needs the package 'jinja2', .* pip install jinja2"):
        render("never seen before", CHAT)


def test_a_sandbox_with_known_holes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    chat._environment.cache_clear()
    monkeypatch.setattr("jinja2.__version__", "3.1.5")
    with pytest.raises(PackageError, match=r"jinja2 3\.1\.5 has known ways out"):
        render("never seen before either", CHAT)


# ---- hostile templates

ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages.__class__.__base__ }}", "{{ messages.append(1) }}",
    "{{ messages[0].update({'a': 1}) }}", "{{ raise_exception.__globals__['x'] }}", "{{ range.__globals__.x }}",
    "{% import 'os' as os %}", "{% include '/etc/passwd' %}", "{% extends 'x' %}", "{{ self.x() }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}", "{{ namespace(__class__=1) }}", "{{ (''|attr('__class__')).x }}",
    "{{ '{0.__class__.__mro__}'.format('') }}{{ x.y }}", "{{ cycler('a') }}", "{{ lipsum.__globals__.os }}",
    "{{ ''|map('attr', '__class__')|list|first|attr('x').y }}", "{{ environment.tick.x }}",
]  # fmt: skip


@pytest.mark.parametrize("template", ESCAPES)
def test_templates_reach_nothing_of_python(template: str) -> None:
    with pytest.raises(FormatError, match="chat template"):
        render(template, CHAT)


LAUGHS = "{% set a0=['x'] %}" + "".join(f"{{% set a{i + 1}=[{','.join([f'a{i}'] * 10)}] %}}" for i in range(11))
BOMBS = {
    "loops": "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n > 0 %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursion": "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "range": "{% for a in range(10000000) %}x{% endfor %}",
    "output": "{% for a in range(9999) %}{{ 'x' * 9999 }}{% endfor %}",
    "product": "{{ 'a' * 1000000000 }}", "list": "{{ [[['aaaa']*1000]*1000]*1000 }}", "power": "{{ 10 ** 1000000000 }}",
    "sum": "{% set ns = namespace(s='aa') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "tilde": "{% set ns = namespace(s='aa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "blocks": "{% set s0 %}aaaaaaaaa{% endset %}"
    + "".join(f"{{% set s{i + 1} %}}{{{{ s{i} }}}}{{{{ s{i} }}}}{{% endset %}}" for i in range(50)),
    "laughs": LAUGHS + "{{ a11 }}", "json": "{{ [[1]]|tojson(indent=1000000000) }}",
    "dicts": "{% set d0={'a':1} %}" + "".join(f"{{% set d{i + 1}=dict(a=d{i},b=d{i},c=d{i}) %}}" for i in range(25)) + "{{ d25 }}",
    "arguments": "{% macro f(n) %}{% if n %}{{ f(n-1, varargs, varargs, varargs) }}{% endif %}{% endmacro %}{{ f(60, 1) }}",
    "widths": "{{ 'a'.ljust(10000000000) }}", "center": "{{ 'a'|center(10000000000) }}",
    "format": "{{ '{:10000000000}'.format(1) }}", "percent": "{{ '%10000000000d' % 1 }}", "star": "{{ '%*d' % (1000000000, 1) }}",
    "percent filter": "{{ '%10000000000d'|format(1) }}",
    "replace": "{{ ('a'*100000).replace('a', 'b'*100000) }}", "replace filter": "{{ ('a'*100000)|replace('a', 'b'*100000) }}",
    "join": "{{ ('a'*1000000).join(range(9999)|map('string')) }}", "join filter": "{{ range(9999)|join('a'*1000000) }}",
    "indent": "{{ ('a\n'*100000)|indent(1000000) }}", "translate": "{{ ('a'*1000).translate({97: 'b'*1000000}) }}",
    "markup": "{{ ('x'|e).zfill(4000000000)|length }}", "markup repeated": "{{ ('x'|safe) * 1000000000 }}",
    "markup join": "{{ (('<'*1000000)|safe).join(range(9999)|map('string')) }}", "expandtabs": "{{ ('\t'*1000).expandtabs(1000000) }}",
    "fields": "{{ ('{0:9999}'*100000).format(1)|length }}", "markup fields": "{{ (('{0:9999}'*100000)|safe).format(1)|length }}",
    "percent fields": "{{ (('%(a)9999d'*100000) % {'a': 1})|length }}", "precision": "{{ '%.10000000000f' % 1 }}",
    "fields filter": "{{ ('%(a)9999d'*100000)|format(a=1)|length }}", "nested field": "{{ '{:{}}'.format(1, 10000000000) }}",
    "json indent": "{{ [[1]]|tojson(indent='x'*100000)|length }}", "separators": "{{ range(9999)|list|tojson(separators=('x'*100000, ':')) }}",
    "splits": "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [('a,'*100000).split(','), ns.l] %}{% endfor %}",
    "characters": "{% set ns = namespace(l=0) %}{% for i in range(99) %}{% set ns.l = [('\u4e2d'*400000)|list, ns.l] %}{% endfor %}",
    "printed": "{% set l = ['x'*1000]*7000 %}{% for i in range(9999) %}{{ l }}{% endfor %}",
    "printed view": "{% set d = {'a': ['\x00'*1000]*7000} %}{{ d.items() }}",
    "printed macros": "{% macro " + "f" * 150 + "() %}{% endmacro %}{{ [" + "f" * 150 + "]*500000 }}",
    "slices": "{% set s = ('x'*1000000)*8 %}" + "".join(f"{{% set s{i} = s[{i}:] %}}" for i in range(300)),
    "data": "{% for i in range(9999) %}" + "x" * 100000 + "{% endfor %}", "test": "{{ '%10000000000d' is odd }}",
    "test argument": "{{ '%10000000000d' is divisibleby 3 }}", "round": "{{ 'abc'|round(9, 'ceil') }}",
    "spread": "{% macro f() %}{{ varargs|length }}{% endmacro %}{{ f(*('\u4e2d'*1000000)*8) }}",
    "generators": "{% set ns = namespace(g=['a']) %}{% for i in range(999) %}{% for j in range(9999) %}"
    "{% set ns.g = ns.g|map('upper') %}{% endfor %}{% endfor %}",
    "loop length": "{% for c in ('\u4e2d'*1000000)*8 if true %}{{ loop.length }}{% break %}{% endfor %}",
    "nested": "{% set ns = namespace(l=()) %}{% for i in range(9999) %}{% set ns.l = (ns.l,) %}{% endfor %}",
    "lists": "{% set l = range(9999)|list %}{{ ([l]*40)|sum(start=[])|length }}", "bytes": "{{ (1).to_bytes(10000000000) }}",
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_templates_without_end_are_stopped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MAX_SECONDS", 0.1)
    with pytest.raises(FormatError, match="chat template"):
        render(BOMBS[name], CHAT)


def test_a_namespace_hides_what_it_holds() -> None:
    nested = "".join(f"{{% set n{i + 1}=namespace(a=n{i},b=n{i}) %}}" for i in range(45))
    assert render("{% set n0=namespace(a=1) %}" + nested + "{{ n45 }}", CHAT) == "<namespace>"


def test_a_bound_that_was_met_does_not_last() -> None:
    with pytest.raises(FormatError):
        render(BOMBS["output"], CHAT)
    assert render("fine", CHAT) == "fine"


def test_a_long_chat_is_no_bomb() -> None:
    chat_ = [{"role": "user", "content": "word " * 200}, {"role": "assistant", "content": "yes"}] * 500
    assert len(render(BITNET, chat_)) > 500_000
    assert len(render(LLAMA3, chat_)) > 500_000
