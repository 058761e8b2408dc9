"""The language of the package, counted: `python tests/helpers/language.py [CHECKOUT] [--details] [PACKAGE …]` prints it.

Reads source text alone, so that any checkout can be counted, whatever its dependencies.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

QUESTIONS = frozenset(("what", "who", "whose", "whether", "how", "where", "which", "when", "why"))
"""First words of a docstring that asks instead of saying what is done or what the thing is."""

PARTICIPLES = frozenset("found told said given made kept asked wanted taken gone at of about".split())
"""Names that say neither what a value is nor what a function does."""


@dataclass(frozen=True)
class Remark:
    """One place that is not in the language of the field."""

    kind: str
    file: Path
    line: int
    text: str


def package_of(file: Path, source: Path) -> str:
    """Return the package of a file with dots, "" for the root: `perf.gate`, `io.model`."""
    return ".".join(file.relative_to(source / "tritium").parts[:-1])


def remarks(file: Path) -> Iterator[Remark]:
    """Yield docstrings that open with a question word and names that are participles or prepositions."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            words = (ast.get_docstring(node) or "").split()
            if words and words[0].strip(",.:;").lower() in QUESTIONS:
                line = node.body[0].lineno
                yield Remark("docstring", file, line, " ".join(words[:12]))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in PARTICIPLES:
            yield Remark("name", file, node.lineno, node.id)
        if isinstance(node, ast.arg) and node.arg in PARTICIPLES:
            yield Remark("name", file, node.lineno, node.arg)
        if isinstance(node, ast.FunctionDef) and node.name in PARTICIPLES:
            yield Remark("name", file, node.lineno, node.name)


def read(root: Path) -> dict[str, list[Remark]]:
    """Return the remarks of each package of a checkout."""
    source = root / "src"
    result: dict[str, list[Remark]] = {}
    for file in sorted((source / "tritium").rglob("*.py")):
        result.setdefault(package_of(file, source), []).extend(remarks(file))
    return result


def main() -> None:
    """Print counts for each package, and with --details every place."""
    words = [word for word in sys.argv[1:] if word != "--details"]
    root = Path(words[0]) if words else Path(__file__).parents[2]
    packages = words[1:]
    total: Counter[str] = Counter()
    lines = []
    for package, places in sorted(read(root).items()):
        if packages and not any(package == name or package.startswith(f"{name}.") for name in packages):
            continue
        count = Counter(place.kind for place in places)
        total += count
        lines.append(f"{package or 'tritium':24} docstrings {count['docstring']:4}   names {count['name']:4}")
        if "--details" in sys.argv:
            lines += [
                f"    {place.file.relative_to(root)}:{place.line}: {place.kind}: {place.text}" for place in places
            ]
    lines.append(f"{'total':24} docstrings {total['docstring']:4}   names {total['name']:4}")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
