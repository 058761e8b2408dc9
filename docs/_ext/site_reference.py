"""The reference pages: the public names of a module, and the commands, written from docstrings and signatures.

Docstrings are Markdown, so they are parsed as such; the objects are declared in Sphinx's Python domain, which gives search and index.
"""

from __future__ import annotations

import builtins
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from importlib import import_module
from types import ModuleType
from typing import Any

import click
from site_pages import outside_code
from sphinx.application import Sphinx
from sphinx.ext.autodoc.mock import mock

from tritium.op import Kind, Op

OPTIONAL = {"tritium.torch": "torch"}  # modules whose library may be absent where the site is built
ANNOTATION = re.compile(r"\btritium(?:\.\w+)*\.(?=[A-Za-z])")  # where a type is defined says nothing to a reader
TAG = re.compile(r"<(?=[A-Za-z/!])")


def import_public(name: str) -> ModuleType:
    """Return a module, with a stand-in for the library that it needs where that is not installed."""
    library = OPTIONAL.get(name)
    if library is None or _installed(library):
        return import_module(name)
    with ExitStack() as stack:
        stack.enter_context(mock([library]))
        stack.callback(_forget, name)  # nothing else may come by a module over the stand-in
        return import_module(name)


def _installed(library: str) -> bool:
    try:
        import_module(library)
    except ImportError:
        return False
    return True


def _forget(name: str) -> None:
    for module in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
        del sys.modules[module]


def docstring(value: Any) -> str:
    """Return an object's own docstring as Markdown; "" for one inherited from its type."""
    text = inspect.getdoc(value) or ""
    if not isinstance(value, type) and text == (inspect.getdoc(type(value)) or ""):
        return ""
    return outside_code(text, lambda prose: TAG.sub("&lt;", prose))


def signature(value: Any, *, method: bool = False) -> str:
    """Return the parameters of a callable as they are written; "(…)" where Python cannot tell."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return "(*args, **kwargs)"
    parameters = list(found.parameters.values())
    if method and parameters and parameters[0].name in ("self", "cls"):
        parameters = parameters[1:]
    parameters = [p.replace(default=_Source(p.default)) if p.default is not p.empty else p for p in parameters]
    text = str(
        found.replace(
            parameters=[p.replace(annotation=_annotation(p.annotation)) for p in parameters],
            return_annotation=_annotation(found.return_annotation),
        )
    )
    return ANNOTATION.sub("", text.replace("\n", " "))


class _Source:
    """A default value, shown without addresses and long tables."""

    def __init__(self, value: Any) -> None:
        text = repr(value)
        self.text = text if len(text) <= 40 and " at 0x" not in text and "<" not in text else "..."

    def __repr__(self) -> str:
        return self.text


class _Annotation:
    """A type, shown as it is written in the source."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _annotation(value: Any) -> Any:
    if value is inspect.Parameter.empty:
        return value
    return _Annotation(value if isinstance(value, str) else inspect.formatannotation(value))


def declare(kind: str, name: str, body: str, *options: str, level: int = 0) -> str:
    """Return one object of the Python domain as a MyST directive."""
    fence = "`" * (9 - level)
    return "\n".join([f"{fence}{{py:{kind}}} {name}", *options, "", body, fence, ""])


def describe_class(name: str, value: type, module: str) -> str:
    """Return a class with its own public members."""
    parts = [docstring(value)]
    shown = set()
    for key, member in sorted(_members(value).items()):
        shown.add(key)
        raw = inspect.unwrap(getattr(member, "__func__", member))
        if isinstance(member, property):
            parts.append(declare("property", key, docstring(member), level=1))
        elif callable(raw) and not isinstance(raw, type):
            kind = "classmethod" if isinstance(member, classmethod) else ""
            kind = "staticmethod" if isinstance(member, staticmethod) else kind
            options = [f":{kind}:"] if kind else []
            parts.append(
                declare(
                    "method",
                    key + signature(raw, method=not isinstance(member, staticmethod)),
                    docstring(raw),
                    *options,
                    level=1,
                )
            )
    parts += [
        declare("attribute", key, "", f":type: {_shown_type(annotation)}", level=1)
        for key, annotation in inspect.get_annotations(value).items()
        if not key.startswith("_") and key not in shown and "ClassVar" not in str(annotation)
    ]
    kind = "exception" if issubclass(value, BaseException) else "class"
    return declare(kind, name + _constructor(value), "\n\n".join(filter(None, parts)), f":module: {module}")


def _shown_type(annotation: Any) -> str:
    return ANNOTATION.sub("", annotation if isinstance(annotation, str) else inspect.formatannotation(annotation))


def _constructor(value: type) -> str:
    return "" if issubclass(value, BaseException) else re.sub(r"\s*->.*$", "", signature(value))


def _members(value: type) -> dict[str, Any]:
    """Return the members that a class defines itself and says something about; operations are on a page of their own."""
    return {
        key: member
        for key, member in vars(value).items()
        if not key.startswith("_")
        and not isinstance(member, Op)
        and (
            isinstance(member, property)
            or (docstring(getattr(member, "__func__", member)) and not isinstance(member, type))
        )
    }


def describe_names(module: str, names: dict[str, Any]) -> Iterator[str]:
    """Yield the Markdown of a module's public names: operations by kind, functions, classes, then the rest."""
    rows = {n: v for n, v in names.items() if isinstance(v, Op)}
    classes = {n: v for n, v in names.items() if isinstance(v, type)}
    functions = {n: v for n, v in names.items() if n not in rows and n not in classes and inspect.isroutine(v)}
    modules = {n: v for n, v in names.items() if isinstance(v, ModuleType)}
    if functions:
        yield "## Functions"
        for name, value in functions.items():
            yield declare("function", name + signature(value), docstring(value), f":module: {module}")
    if classes:
        yield "## Classes"
        for name, value in classes.items():
            yield describe_class(name, value, module)
    for kind in Kind:
        of_kind = {n: v for n, v in rows.items() if v.kind is kind}
        if of_kind:
            yield f"## Operations: {kind.value}"
            for name, row in of_kind.items():
                yield declare(
                    "function", f"{name}{row.__signature__}", outside_code(row.doc, _no_tags), f":module: {module}"
                )
    if modules:
        yield "## Modules"
        for name, value in modules.items():
            yield f"- `{module}.{name}`: {' '.join(docstring(value).partition(chr(10) * 2)[0].split())}"
    rest = [n for n in names if n not in rows and n not in classes and n not in functions and n not in modules]
    if rest:
        yield "## Values"
        for name in rest:
            # A dtype that is named like a type of Python's: annotations mean the latter, and must not link to it.
            shadow = [":no-index:"] if isinstance(vars(builtins).get(name), type) else []
            yield declare("data", name, docstring(names[name]), f":module: {module}", *_value(names[name]), *shadow)


def _no_tags(prose: str) -> str:
    return TAG.sub("&lt;", prose)


def _value(value: Any) -> list[str]:
    text = repr(value)
    return [f":value: {text}"] if len(text) <= 60 and "<" not in text and "\n" not in text else []


def option_rows(command: click.Command, context: click.Context) -> list[tuple[str, str]]:
    """Return a command's options as click's own help shows them."""
    records = [p.get_help_record(context) for p in command.get_params(context)]
    return [(option, text) for option, text in filter(None, records) if "--help" not in option]


def describe_command(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    """Yield the Markdown of a command and of those below it."""
    path = context.command_path
    yield f"{'#' * level} {path}"
    # A form feed or \b in a help text is for click's wrapping.
    text = textwrap.dedent(re.sub(r"[\f\b]", "", inspect.cleandoc(command.help or "")))
    yield outside_code(text, _no_tags)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    yield f"```text\n{usage}\n```"
    if rows := option_rows(command, context):
        cells = [f"| `{_cell(option)}` | {_cell(_no_tags(text))} |" for option, text in rows]
        yield "\n".join(["| option | meaning |", "|---|---|", *cells])
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from describe_command(below, click.Context(below, info_name=name, parent=context), level + 1)


def _cell(text: str) -> str:
    return (
        text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("*", "\\*")
        if "`" not in text
        else text.replace("|", "\\|")
    )


def module_page(name: str) -> Iterator[str]:
    """Yield the Markdown of the names in a module's __all__, in their order."""
    module = import_public(name)
    names = {n: getattr(module, n) for n in module.__all__ if not n.startswith("__")}
    yield f"```{{py:module}} {name}\n```"
    yield docstring(module)
    yield from describe_names(name, names)


def command_page(program: str) -> Iterator[str]:
    """Yield the Markdown of every command of the package's command line."""
    from tritium.cli.root import cli

    yield from describe_command(cli, click.Context(cli, info_name=program, terminal_width=80), 2)


PAGES = {"public-api": module_page, "command-line": command_page}
BLOCK = re.compile(r"^```\{(public-api|command-line)\} (\S+)\n```$", re.MULTILINE)


def read_source(app: Sphinx, docname: str, content: list[str]) -> None:
    """Replace the blocks of a page that stand for generated Markdown."""
    content[0] = BLOCK.sub(lambda block: "\n\n".join(PAGES[block[1]](block[2])), content[0])


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the hook with Sphinx."""
    app.connect("source-read", read_source)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
