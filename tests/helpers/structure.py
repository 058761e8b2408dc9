"""The structure of the package, counted: `python tests/helpers/structure.py [CHECKOUT]` prints it, `tests/test_house.py` holds it.

Reads source text alone, so that any checkout can be counted, whatever its dependencies.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

LONGEST_FUNCTION = 60


@dataclass(frozen=True)
class Import:
    """One module of the package imported by another."""

    target: str
    line: int
    at_top: bool  # of the file: carried out when it is imported
    for_types: bool  # under TYPE_CHECKING: never carried out


@dataclass(frozen=True)
class Function:
    """A function or method, with its length in lines."""

    file: Path
    name: str
    line: int
    lines: int


def inner_statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements directly inside a node. Expressions, most of a tree, hold none."""
    for field in ("body", "orelse", "handlers", "cases", "finalbody"):
        inside = getattr(node, field, ())
        if isinstance(inside, list):
            yield from inside


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield every statement below a node."""
    for child in inner_statements(node):
        yield child
        yield from statements(child)


def calls(file: Path, *names: str) -> list[int]:
    """Return the lines that call one of these names, each `name` or `module.name`. Only a file with such a text is parsed."""
    text = file.read_text(encoding="utf-8")
    if not any(f"{name}(" in text for name in names):
        return []
    return [node.lineno for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and _callee(node) in names]


def _callee(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return f"{owner}.{name}"
    return ""


class Structure:
    """Modules of a checkout's package, and what they import and declare."""

    def __init__(self, root: Path) -> None:
        self.source = root / "src"
        self.files = sorted((self.source / "tritium").rglob("*.py"))
        self.modules = {self.name(file): file for file in self.files}
        self.packages = {name for name, file in self.modules.items() if file.name == "__init__.py"}

    def name(self, file: Path) -> str:
        parts = file.relative_to(self.source).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def read(self) -> dict[str, tuple[list[Import], list[Function], list[str]]]:
        """Imports, functions and classes at the top of each module: every file is parsed once, and no tree is kept."""
        result = {}
        for name, file in self.modules.items():
            tree = ast.parse(file.read_text(encoding="utf-8"))
            functions = [
                Function(file, node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1)
                for node in statements(tree)
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            ]
            classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
            result[name] = self._imports(tree), functions, classes
        return result

    @cached_property
    def imports(self) -> dict[str, list[Import]]:
        return {name: imports for name, (imports, _, _) in self.read.items()}

    def _imports(self, tree: ast.Module) -> list[Import]:
        result: list[Import] = []

        def visit(node: ast.AST, at_top: bool, for_types: bool) -> None:
            for child in inner_statements(node):
                typed = for_types or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
                top = at_top and not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))
                for target in self._targets(child):
                    result.append(Import(target, getattr(child, "lineno", 0), top, typed))
                visit(child, top, typed)

        visit(tree, True, False)
        return result

    def _targets(self, node: ast.AST) -> list[str]:
        """The modules of the package that an import statement names."""
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                names.append(whole if whole in self.modules else node.module or "")
        return [name for name in names if name.partition(".")[0] == "tritium"]

    @cached_property
    def edges(self) -> dict[str, set[str]]:
        """Which modules each one imports, at its top or in a function; imports for type checkers alone do not count."""
        return {name: {i.target for i in imports if not i.for_types} - {name} for name, imports in self.imports.items()}

    @cached_property
    def closures(self) -> dict[str, set[str]]:
        """What importing each module brings in: its imports at the top and theirs, and the packages it lies in."""
        direct = {
            name: {i.target for i in imports if i.at_top and not i.for_types} for name, imports in self.imports.items()
        }
        for name in direct:
            if "." in name:
                direct[name] = direct[name] | {name.rpartition(".")[0]}
        for target in {t for targets in direct.values() for t in targets} - direct.keys():
            direct[target] = set()
        result: dict[str, set[str]] = {}
        for name in direct:
            seen: set[str] = set()
            pending = [name]
            while pending:
                current = pending.pop()
                if current not in seen:
                    seen.add(current)
                    pending += direct.get(current, ())
            result[name] = seen
        return result

    def children(self, package: str) -> dict[str, set[str]]:
        """The modules and packages directly inside a package, and which of them import which."""
        depth = package.count(".") + 2
        graph: dict[str, set[str]] = defaultdict(set)
        for name, targets in self.edges.items():
            if name.startswith(f"{package}."):
                child = ".".join(name.split(".")[:depth])
                graph[child] |= {".".join(t.split(".")[:depth]) for t in targets if t.startswith(f"{package}.")} - {
                    child
                }
        return dict(graph)

    def circles(self) -> list[list[str]]:
        """Groups of modules that import each other, by whatever way."""
        return components(self.edges)

    def package_circles(self) -> list[list[str]]:
        """Groups of neighbours inside one package, modules or packages, that import each other."""
        return [group for package in sorted(self.packages) for group in components(self.children(package))]

    def sizes(self) -> Counter[str]:
        """How many modules lie directly in each package, without its `__init__`."""
        return Counter(name.rpartition(".")[0] for name in self.modules if name not in self.packages)

    def functions(self) -> list[Function]:
        return [function for _, functions, _ in self.read.values() for function in functions]

    def repeated_classes(self) -> dict[str, list[str]]:
        """Class names that several modules of one package declare: package.Class -> modules."""
        places: dict[str, list[str]] = defaultdict(list)
        for name, (_, _, classes) in self.read.items():
            package = name if name in self.packages else name.rpartition(".")[0]
            for declared in classes:
                places[f"{package}.{declared}"].append(name)
        return {where: names for where, names in places.items() if len(names) > 1}

    def inner_imports(self) -> list[tuple[str, Import]]:
        """Imports of the package's own modules inside functions."""
        return [(name, i) for name, imports in self.imports.items() for i in imports if not i.at_top]

    def needless_inner_imports(self) -> list[tuple[str, Import]]:
        """Those of modules that the importing file, or `import tritium`, has brought in already: they put nothing off."""
        brought = self.closures["tritium"]
        return [(name, i) for name, i in self.inner_imports() if i.target in self.closures[name] | brought]


def components(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other, by Tarjan's algorithm without recursion."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    result: list[list[str]] = []
    for root in graph:
        if root in index:
            continue
        work = [(root, iter(sorted(graph.get(root, ()))))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(sorted(graph.get(target, ())))))
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    group = []
                    while not group or group[-1] != node:
                        group.append(stack.pop())
                        on_stack.discard(group[-1])
                    if len(group) > 1:
                        result.append(sorted(group))
    return result


def summary(structure: Structure) -> list[tuple[str, str]]:
    """The counts, with their names."""
    sizes = structure.sizes()
    root = len([f for f in structure.files if f.parent.name == "tritium"])
    largest = max((p for p in sizes if p != "tritium"), key=lambda p: sizes[p])
    inner, needless = structure.inner_imports(), structure.needless_inner_imports()
    return [
        ("modules", str(len(structure.modules) - len(structure.packages))),
        ("packages", str(len(structure.packages))),
        ("files at the root", str(root)),
        ("largest package", f"{largest} ({sizes[largest]} modules)"),
        ("circles of modules", str(len(structure.circles()))),
        ("circles inside packages", str(len(structure.package_circles()))),
        ("class names declared twice in a package", str(len(structure.repeated_classes()))),
        (
            f"functions over {LONGEST_FUNCTION} lines",
            str(sum(f.lines > LONGEST_FUNCTION for f in structure.functions())),
        ),
        ("imports inside functions", str(len(inner))),
        ("of these, of modules that are there already", str(len(needless))),
    ]


@cache
def structure_of(root: Path) -> Structure:
    """Return the structure of a checkout, read once in a process: that takes seconds."""
    return Structure(root)


def main(arguments: list[str]) -> None:
    structure = Structure(Path(arguments[0]) if arguments else Path(__file__).resolve().parents[2])
    details = "--details" in arguments
    for name, value in summary(structure):
        sys.stdout.write(f"{name:<46}{value:>8}\n")
    if details:
        for group in structure.circles() + structure.package_circles():
            sys.stdout.write(f"circle: {' '.join(group)}\n")
        for where, names in structure.repeated_classes().items():
            sys.stdout.write(f"class twice: {where} in {' '.join(names)}\n")
        for function in structure.functions():
            if function.lines > LONGEST_FUNCTION:
                sys.stdout.write(f"long: {function.file}:{function.line} {function.name} {function.lines}\n")
        for name, found in structure.needless_inner_imports():
            sys.stdout.write(f"needless: {name}:{found.line} {found.target}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
