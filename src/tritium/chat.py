"""Messages to one prompt, by the chat template of a model: Jinja in a sandbox, bounded in time and size.

Knows nothing of models. Templates come with model files and are not trusted: they see messages as plain data, reach
nothing of Python, and stop after MAX_SECONDS of work or MAX_TEXT characters. Needs `jinja2` (extra `model`).

    prompt = render(tokenizer.chat_template, [{"role": "user", "content": "Hello"}], bos_token="<s>")
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, wraps
from typing import Any

from tritium.errors import ArgumentError, FormatError, PackageError
from tritium.io.reader import printable
from tritium.tokens import Tokenizer

MAX_SECONDS = 2.0  # of this thread's own time
MAX_TEXT = 8 << 20  # characters a template may write, with all that it writes on the way
MAX_NUMBER = 1 << 20  # the largest width, count or length it may ask for
MAX_RANGE = 10_000
MAX_TEMPLATE = 1 << 20
PIECE = 16  # what a value in a list counts, in characters
MAX_BITS = 4096  # of a number
MAX_DEPTH = 32  # of data in a message
NEEDED = (3, 1, 6)  # jinja2 before it has known ways out of the sandbox
NO_TEMPLATE = (
    "This model has no chat template: it was not made for chats. Give one with --template FILE (template=…), or use generate"
    " with a plain prompt."
)


def render(
    template: str | None, messages: Sequence[Mapping[str, Any]], *, bos_token: str = "", eos_token: str = "",
    add_generation_prompt: bool = True, **more: Any,
) -> str:  # fmt: skip
    """The prompt for a chat. `more` are further names the template may read, such as `tools`."""
    if template is None:
        raise ArgumentError(NO_TEMPLATE)
    if not isinstance(template, str) or len(template) > MAX_TEMPLATE:
        raise ArgumentError(f"chat: the template must be a text of at most {MAX_TEMPLATE} characters.")
    names = {"messages": check(messages), "bos_token": bos_token, "eos_token": eos_token,
             "add_generation_prompt": bool(add_generation_prompt)} | {k: _plain(v, k) for k, v in more.items()}  # fmt: skip
    ready = _compiled(template)
    mark = _budget.set(Budget(time.thread_time() + MAX_SECONDS))
    try:
        return str(ready.render(**names))
    except SpentError as error:
        raise FormatError(f"chat template: {error}. Do not trust this model; give another template.") from None
    except RecursionError:
        raise FormatError("chat template: it calls itself without end. Give another template.") from None
    except Exception as error:  # what a template does wrong is the template's fault, whatever Python calls it
        why = printable(str(error), 400).rstrip(".") or type(error).__name__
        raise FormatError(f"chat template: {why}. Check the messages, or give another template.") from None
    finally:
        _budget.reset(mark)


def encode(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]], *, template: str | None = None, **options: Any
) -> list[int]:
    """The token ids of a chat, by the given template or the model's own; a first token only where the template writes it."""
    template = tokenizer.chat_template if template is None else template
    first, last = (getattr(tokenizer, f"{key}_token", "") for key in ("bos", "eos"))
    return tokenizer.encode(render(template, messages, bos_token=first, eos_token=last, **options), bos=False)


# ---- messages


def check(messages: Any) -> list[dict[str, Any]]:
    """Messages as plain data: a role, and text as one string; parts of text are joined."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise ArgumentError(
            f"chat: messages must be a list of at least one {{'role': …, 'content': …}}, given {_told(messages)}."
        )
    return [_message(m, f"messages[{i}]") for i, m in enumerate(messages)]


def _message(given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ArgumentError(f"chat: {where} must be {{'role': …, 'content': …}}, given {_told(given)}.")
    role, content = given.get("role"), given.get("content")
    if not isinstance(role, str) or not re.fullmatch(r"[a-zA-Z_]{1,32}", role):
        raise ArgumentError(f"chat: {where}.role must be a word such as 'user', given {_told(role)}.")
    if content is None and "tool_calls" not in given:
        raise ArgumentError(f"chat: {where}.content is missing; a text is needed.")
    found = {str(k): _plain(v, f"{where}.{k}") for k, v in given.items() if k != "content"}
    return found | {"content": content if content is None else _content(content, f"{where}.content")}


def _content(given: Any, where: str) -> str:
    if isinstance(given, str):
        return str(given)
    if not isinstance(given, Sequence) or isinstance(given, bytes):
        raise ArgumentError(f"chat: {where} must be a text or a list of text parts, given {_told(given)}.")
    texts = []
    for i, part in enumerate(given):
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("text") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(text, str):
            what = f"type {_told(kind)}" if isinstance(part, Mapping) else _told(part)
            raise ArgumentError(
                f"chat: {where}[{i}] must be {{'type': 'text', 'text': …}}, given {what}. Only text can be read."
            )
        texts.append(text)
    return "".join(texts)


def _plain(value: Any, where: str, depth: int = 0) -> Any:
    """The same out of JSON's own types: other objects have methods that a template should not reach."""
    if depth > MAX_DEPTH:
        raise ArgumentError(f"chat: {where} is nested deeper than {MAX_DEPTH}.")
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(k): _plain(v, where, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v, where, depth + 1) for v in value]
    raise ArgumentError(f"chat: {where} must be made of text, numbers, lists and mappings, given {_told(value)}.")


def _told(value: Any) -> str:
    return repr(printable(value)) if isinstance(value, str) else f"a {type(value).__name__}"


# ---- bounds


class SpentError(Exception):
    """A template went beyond its bounds."""


@dataclass
class Budget:
    """What one rendering has left."""

    deadline: float
    text: int = MAX_TEXT

    def tick(self) -> None:
        """Time goes on."""
        if time.thread_time() > self.deadline:
            raise SpentError(f"it worked for more than {MAX_SECONDS:g} s")

    def allow(self, size: int) -> None:
        """Whether something of this size may be made at all."""
        if size > self.text:
            raise SpentError(f"it asked for a text or list of {size}, more than the {MAX_TEXT} characters it may write")

    def spend(self, value: Any) -> Any:
        """A text that was made is paid for; the value itself is given back."""
        self.tick()
        if isinstance(value, str):
            self.text -= len(value)
            if self.text < 0:
                raise SpentError(f"it wrote more than {MAX_TEXT} characters")
        return value

    def weigh(self, value: Any) -> Any:
        """A list or mapping that was made: as text it must not be larger than what may be written. So nothing that a
        template holds can be, however often it puts the same list into another."""
        self.tick()
        left, size = [value], 0
        while left:
            inner = left.pop()
            size += PIECE + (len(inner) if isinstance(inner, Sized) else 0)
            self.allow(size)
            if isinstance(inner, Mapping):
                left += [*inner.keys(), *inner.values()]
            elif isinstance(inner, (list, tuple)):
                left += inner
        return value


_budget: ContextVar[Budget] = ContextVar("budget")


def _tick() -> None:
    _budget.get().tick()


def _spend(value: Any) -> Any:
    return _budget.get().spend(value)


def _weigh(value: Any) -> Any:
    return _budget.get().weigh(value)


def _joined(parts: Iterable[Any], between: str = "") -> str:
    """Texts as one: Jinja's `~`, and join."""
    texts = [str(p) for p in parts]
    _budget.get().allow(sum(map(len, texts)) + len(between) * len(texts))
    return str(_spend(between.join(texts)))


def _replaced(text: str, old: str, new: str, count: int = -1) -> str:
    places = text.count(old) if count < 0 else min(count, text.count(old))
    _budget.get().allow(len(text) + places * len(new))
    return str(_spend(text.replace(old, new, count)))


def _indented(text: str, width: Any = 4, first: bool = False, blank: bool = False) -> str:
    pad = width if isinstance(width, str) else " " * _number(width)
    lines = str(text).splitlines() or [""]
    _budget.get().allow(len(text) + len(pad) * len(lines))
    rest = [pad + line if line or blank else line for line in lines[1:]]
    return str(_spend("\n".join([pad + lines[0] if first else lines[0], *rest])))


def _number(value: int) -> int:
    if not isinstance(value, int) or abs(value) > MAX_NUMBER:
        raise SpentError(f"it asked for {printable(repr(value))}; numbers up to {MAX_NUMBER} are allowed there")
    return value


def _form(text: str) -> str:
    """A pattern for numbers and texts; its fields must not be wide."""
    if re.search(r"\d{5,}|\*", text):
        raise SpentError("it asked for a field wider than 9999 characters")
    return text


def _operated(operator: str, left: Any, right: Any) -> None:
    """Refuses products, powers and sums that would grow without end."""
    budget = _budget.get()
    sizes = [len(v) for v in (left, right) if isinstance(v, Sized)]
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * (abs(right) if operator == "**" else 1) + right.bit_length()
        if bits > MAX_BITS:
            raise SpentError(f"it made a number of more than {MAX_BITS} bits")
    elif operator == "%" and isinstance(left, str):
        _form(left)
    elif sizes:
        count = _number(left if isinstance(left, int) else right) if len(sizes) == 1 and operator == "*" else 1
        budget.allow(count * sum(sizes))


def _sum(values: Iterable[Any], attribute: Any = None, start: Any = 0) -> Any:
    if attribute is not None or not isinstance(start, (int, float)):
        raise SpentError("it sums something else than numbers")
    return sum((v for v in values if isinstance(v, (int, float))), start)


# What texts, mappings and lists may be asked; all else could make up memory before anything is measured.
METHODS: dict[type, set[str]] = {
    str: set(
        "strip lstrip rstrip split rsplit splitlines startswith endswith upper lower capitalize title swapcase casefold find"
        " rfind index rindex count join replace removeprefix removesuffix partition rpartition format isdigit isalpha isalnum"
        " isspace isupper islower isnumeric isdecimal istitle isidentifier isascii".split()
    ),
    dict: {"items", "keys", "values", "get", "copy"},
    list: {"index", "count", "copy"},
    tuple: {"index", "count"},
}
FILTERS = (
    "abs attr capitalize count d default dictsort e escape first float groupby int items last length list lower map max min"
    " reject rejectattr reverse round safe select selectattr sort string title trim truncate unique upper wordcount"
).split()
OWN: dict[str, Callable[..., Any]] = {
    "join": lambda values, between="", attribute=None: _joined(
        values if attribute is None else [v[attribute] for v in values], str(between)
    ),
    "replace": lambda text, old, new, count=None: _replaced(
        str(text), str(old), str(new), -1 if count is None else count
    ),
    "indent": _indented,
    "sum": _sum,
    "format": lambda text, *values, **named: _form(str(text)) % (named or values),
    "tojson": lambda value, **options: _tojson(value, **options),
}  # filters of ours, bounded where Jinja's are not


# ---- Jinja


def _package() -> Any:
    try:
        import jinja2
        import jinja2.ext
        import jinja2.sandbox
    except ImportError as error:
        raise PackageError(
            "Chat templates need the package 'jinja2', which is not installed; pip install 'tritium[model]'."
        ) from error
    if tuple(int(n) for n in re.findall(r"\d+", jinja2.__version__)[:3]) < NEEDED:
        raise PackageError(
            f"jinja2 {jinja2.__version__} has known ways out of its sandbox; pip install 'jinja2>={'.'.join(map(str, NEEDED))}'."
        )
    return jinja2


@lru_cache(maxsize=1)
def _environment() -> Any:
    """The sandbox, with the names that Hugging Face's templates use."""
    package = _package()

    class Sandbox(package.sandbox.ImmutableSandboxedEnvironment):  # type: ignore[misc, name-defined]
        intercepted_binops = frozenset({"+", "*", "**", "%"})
        # the compiled template finds these by name, where no template can put another in their place
        tick, spend = staticmethod(_tick), staticmethod(_spend)
        weigh, joined = staticmethod(_weigh), staticmethod(_joined)

        def is_safe_attribute(self, owner: Any, name: str, value: Any) -> bool:
            allowed = METHODS.get(type(owner))
            known = not callable(value) or allowed is None or name in allowed
            return (
                known
                and not isinstance(owner, (int, float, bytes, range))
                and super().is_safe_attribute(owner, name, value)
            )

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _operated(operator, left, right)
            return _weigh(_spend(super().call_binop(context, operator, left, right)))

        def call(__self, __context: Any, __called: Any, *args: Any, **named: Any) -> Any:  # noqa: N805
            own, name = getattr(__called, "__self__", None), getattr(__called, "__name__", "")
            if isinstance(own, str) and name in ("join", "replace"):
                return _joined(args[0], own) if name == "join" else _replaced(own, *args)
            if isinstance(__called, package.runtime.Macro) and (args or named):
                _weigh([*args, *named.values()])  # they may come back as one list
            return super().call(__context, __called, *args, **named)

        def wrap_str_format(self, value: Any) -> Any:
            found = super().wrap_str_format(value)
            if found is not None:
                _form(value.__self__)
            return found

        def _parse(self, source: str, name: Any, filename: Any) -> Any:
            return _bounded(super()._parse(source, name, filename))

    made = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _generation(package)])
    made.filters = {n: _paid(made.filters[n]) for n in FILTERS} | {n: _paid(call) for n, call in OWN.items()}
    made.globals = _globals(package)
    return made


def _paid(call: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that pays for its text; `wraps` keeps the marks by which Jinja knows what to pass."""

    @wraps(call)
    def filter_(*args: Any, **named: Any) -> Any:
        _tick()
        for value in (*args, *named.values()):
            if type(value) is int:
                _number(value)
        return _spend(call(*args, **named))

    return filter_


def _open(name: Any) -> str:
    """A name that a template may give to a value of its own."""
    if not isinstance(name, str) or name.startswith("_"):
        raise SpentError(f"the name {printable(repr(name))} begins with an underscore")
    return name


def _globals(package: Any) -> dict[str, Any]:
    class Namespace(package.utils.Namespace):  # type: ignore[misc]
        def __init__(*given: Any, **named: Any) -> None:  # a template may name a value `self`
            self, *values = given
            held = dict(*values, **named)
            package.utils.Namespace.__init__(self, {_open(name): value for name, value in held.items()})

        def __setitem__(self, name: str, value: Any) -> None:
            super().__setitem__(_open(name), value)

        def __repr__(self) -> str:
            return "<namespace>"

    def raise_exception(message: Any) -> None:
        raise package.exceptions.TemplateError(str(message))

    def bounded_range(*args: int) -> range:
        found = range(*args)
        if len(found) > MAX_RANGE:
            raise SpentError(f"it asked for a range of {len(found)}, more than {MAX_RANGE}")
        return found

    return {
        "range": bounded_range, "dict": lambda *a, **k: _weigh(dict(*a, **k)), "namespace": Namespace,
        "raise_exception": raise_exception, "strftime_now": lambda form: datetime.now().strftime(str(form)[:256]),
    }  # fmt: skip


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as it is, without HTML's escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _generation(package: Any) -> Any:
    """`{% generation %}`, which marks what an assistant said: training reads it, here it changes nothing."""

    class Generation(package.ext.Extension):  # type: ignore[misc]
        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            return package.nodes.Scope(parser.parse_statements(["name:endgeneration"], drop_needle=True)).set_lineno(
                line
            )

    return Generation


def _bounded(tree: Any) -> Any:
    """The template with every loop and macro counting time, and all texts, lists and mappings it makes counting size."""
    nodes = _package().nodes

    def call(name: str, *args: Any) -> Any:
        return nodes.Call(nodes.EnvironmentAttribute(name), list(args), [], None, None)

    def made(node: Any) -> Any:
        if isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock)):
            node.body.insert(0, nodes.ExprStmt(call("tick")))
        elif isinstance(node, nodes.Output):
            node.nodes = [n if isinstance(n, nodes.TemplateData) else call("spend", n) for n in node.nodes]
        elif isinstance(node, nodes.Concat):
            return call("joined", nodes.List(node.nodes))
        elif isinstance(node, (nodes.List, nodes.Dict)) or (isinstance(node, nodes.Tuple) and node.ctx == "load"):
            return call("weigh", node)
        return node

    return _mapped(tree, made).set_environment(tree.environment)


def _mapped(node: Any, change: Callable[[Any], Any]) -> Any:
    """The tree with every node changed, innermost first."""
    for name, value in node.iter_fields():
        if isinstance(value, list):
            value[:] = [_mapped(v, change) if hasattr(v, "iter_fields") else v for v in value]
        elif hasattr(value, "iter_fields"):
            setattr(node, name, _mapped(value, change))
    return change(node)


@lru_cache(maxsize=8)
def _compiled(template: str) -> Any:
    made = _environment()
    try:
        return made.from_string(template)
    except RecursionError:
        raise FormatError("chat template: it is nested without end. Give another template.") from None
    except _package().exceptions.TemplateSyntaxError as error:
        raise FormatError(
            f"chat template, line {error.lineno}: {printable(str(error.message).rstrip('.'), 400)}. Give another template."
        ) from None
