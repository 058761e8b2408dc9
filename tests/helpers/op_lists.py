"""Find the literals of a module that name many rows of the op table by hand.

`python tests/helpers/op_lists.py [FOLDER]` prints those of the package in that folder.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from structure import statements
from tritium.op import OPS

MANY = 6  # rows in one literal: a list that a column of the table should answer

Names = dict[str, str]  # of a module: what it calls a row, and the row's name


class OpList(NamedTuple):
    """A literal that names rows."""

    owner: str  # the variable it is assigned to, behind the function it is in
    line: int
    rows: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.owner} names {' '.join(self.rows)}"


def lists_of(package: Path) -> list[tuple[Path, OpList]]:
    """Return the lists of ops of a package, without the op table itself and the public names."""
    rows = frozenset(OPS)
    files = sorted({*package.rglob("*.py")} - {package / "ops.py", package / "__init__.py"})
    sources = {file: file.read_text(encoding="utf-8") for file in files}
    named = {file: {word.rstrip("_") for word in re.findall(r"\w+", source)} for file, source in sources.items()}
    several = [file for file in files if len(named[file] & rows) >= MANY]
    return [(file, one) for file in several for one in op_lists(sources[file], rows)]


def op_lists(source: str, rows: frozenset[str]) -> list[OpList]:
    """Return the outermost literals of a module's source that name at least MANY rows."""
    module = ast.parse(source)
    return list(_literals(module, "", _Reader(module, rows)))


class _Reader:
    """Reads the rows that an expression names: strings, `ops.x`, and names imported from `tritium.ops`."""

    def __init__(self, module: ast.Module, rows: frozenset[str]) -> None:
        self.rows, self.tables, self.imported = rows, set[str](), Names()
        for node in statements(module):
            if isinstance(node, ast.ImportFrom) and node.module == "tritium.ops":
                self.imported |= {a.asname or a.name: a.name.rstrip("_") for a in node.names}
            if isinstance(node, ast.ImportFrom) and node.module == "tritium":
                self.tables |= {a.asname or a.name for a in node.names if a.name == "ops"}

    def named(self, node: ast.AST | None) -> Iterator[str]:
        """Walk through nested literals, and through the first argument of a call: of frozenset, dict.fromkeys or a record."""
        match node:
            case ast.Constant(value=str(text)):
                yield from self._known(text)
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in self.tables:
                yield from self._known(name.rstrip("_"))
            case ast.Name(id=name):
                yield from self._known(self.imported.get(name, ""))
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                yield from self._each(parts)
            case ast.Dict(keys=keys, values=values):
                yield from self._each([*keys, *values])
            case ast.BinOp(left=left, right=right):
                yield from self._each([left, right])
            case ast.MatchOr(patterns=patterns):
                yield from self._each(patterns)
            case ast.Starred(value=value) | ast.MatchValue(value=value):
                yield from self.named(value)
            case ast.Call(func=ast.Attribute(value=text, attr="split")):
                yield from (word for part in ast.walk(text) for word in _words(part) if word in self.rows)
            case ast.Call(args=[first, *_]):
                yield from self.named(first)

    def _each(self, parts: list[ast.expr | None] | list[ast.expr] | list[ast.pattern]) -> Iterator[str]:
        for part in parts:
            yield from self.named(part)

    def _known(self, name: str) -> Iterator[str]:
        if name in self.rows:
            yield name


def _words(node: ast.AST) -> list[str]:
    return node.value.split() if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def _is_literal(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "split"
    if isinstance(node, ast.BinOp):
        return _is_literal(node.left) or _is_literal(node.right)
    return isinstance(node, (ast.Tuple, ast.List, ast.Set, ast.Dict, ast.MatchOr))


def _literals(node: ast.AST, owner: str, reader: _Reader) -> Iterator[OpList]:
    """Walk down to the outermost literals; what is inside one that names few rows is looked at by itself."""
    for child in ast.iter_child_nodes(node):
        inside = _owner(child, owner)
        rows = tuple(dict.fromkeys(reader.named(child))) if _is_literal(child) else ()
        if len(rows) >= MANY:
            yield OpList(inside, child.lineno, rows)  # type: ignore[attr-defined]
        else:
            yield from _literals(child, inside, reader)


def _owner(node: ast.AST, owner: str) -> str:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            pass
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            pass
        case ast.AugAssign(target=ast.Name(id=name)):
            pass
        case _:
            return owner
    return f"{owner}.{name}" if owner else name


if __name__ == "__main__":
    lists = lists_of(Path(sys.argv[1] if len(sys.argv) > 1 else ".") / "src" / "tritium")
    sys.stdout.writelines(f"{file}:{one.line}: {one}\n" for file, one in lists)
    sys.stdout.write(f"{len(lists)} lists of ops in {len({file for file, _ in lists})} modules\n")
