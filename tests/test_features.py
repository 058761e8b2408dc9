"""The table of features: every row of docs/features.md has its number, names that exist, and tests that hold it."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

import tritium
from doc_pages import ROOT
from tritium import settings
from tritium.cli.root import cli

PAGE = ROOT / "docs" / "features.md"
SIGN = "◐"  # of a row that is not complete
MOST_TESTS = 4  # of a row: the ones to read first, not all there are
COUNTS = {
    "A": 20, "B": 18, "C": 19, "D": 9, "E": 17, "F": 6, "G": 4, "H": 11, "I": 7, "J": 15, "K": 5, "L": 9, "M": 6, "N": 6, "O": 2,
    "P": 18,
}  # fmt: skip
CODE = re.compile(r"`([^`]+)`")
ROW = re.compile(r"^\| *([A-Z]\d+) *\|(.*)\|\s*$")
HEADING = re.compile(r"^## ([A-Z])\. ")
OPTIONAL = ("tritium.torch.", "tritium.vllm.", "tritium.backends.cuda.")  # packages that import an optional library


class Row(NamedTuple):
    """A feature: its number, the letter of the table it is in, its text, where to use it, and the tests that hold it."""

    number: str
    group: str
    feature: str
    names: list[str]
    tests: list[str]


def read_rows(text: str) -> Iterator[Row]:
    """Yield the rows of all tables of a page."""
    group = ""
    for line in text.splitlines():
        if heading := HEADING.match(line):
            group = heading[1]
        elif row := ROW.match(line):
            cells = [cell.strip() for cell in row[2].split("|")]
            assert len(cells) == 3, (
                f"{row[1]}: a row has a feature, where to use it, and tests; it has {len(cells)} cells"
            )
            yield Row(row[1], group, cells[0], CODE.findall(cells[1]), CODE.findall(cells[2]))


ROWS = list(read_rows(PAGE.read_text(encoding="utf-8")))


def resolve(text: str) -> Any:
    """Return what a name, a command or a variable of the environment stands for; raise LookupError where there is nothing."""
    if text.isupper():
        if not re.search(rf"^\| {text} ", settings.__doc__ or "", re.MULTILINE):
            raise LookupError(f"{text} is no setting of tritium.settings")
        return text
    words = shlex.split(text)
    return resolve_command(words[1:]) if len(words) > 1 else resolve_name(text)


def resolve_command(words: list[str]) -> click.Command:
    """Return the command that words after `tritium` call; options among them must be its own."""
    command: click.Command = cli
    for word in words:
        context = click.Context(command)
        if word.startswith("-"):
            options = {name for p in command.get_params(context) for name in (*p.opts, *p.secondary_opts)}
            if word not in options:
                raise LookupError(f"{command.name} has no option {word}")
            continue
        inner = command.get_command(context, word) if isinstance(command, click.Group) else None
        if inner is None:
            raise LookupError(f"{command.name} has no command {word}")
        command = inner
    return command


def resolve_name(name: str) -> Any:
    """Return the object of a dotted name: an attribute of the package or of one of its modules, or a field of a record.

    A name of an optional package is looked up in its source: what it imports may be absent.
    """
    if name.startswith(OPTIONAL):
        return declared(name)
    first, *rest = name.split(".")
    if first not in ("tt", "tritium"):
        raise LookupError(f"{name}: a name begins with tt. or tritium.")
    value: Any = tritium
    path = "tritium"
    for part in rest:
        path = f"{path}.{part}"
        if part in getattr(value, "__dataclass_fields__", {}):
            value = value.__dataclass_fields__[part]
        elif hasattr(value, part):
            value = getattr(value, part)
        else:
            try:
                value = import_module(path)
            except ImportError as error:
                raise LookupError(f"there is no {path}") from error
    return value


def declared(name: str) -> Path:
    """Return the file that is a module, or in which a name is defined or imported, without importing it."""
    path = ROOT / "src" / Path(*name.split("."))
    if path.with_suffix(".py").is_file():
        return path.with_suffix(".py")
    package = path.parent / "__init__.py"
    nodes = parse(package).body if package.is_file() else []
    aliases = [alias for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names]
    if path.name not in {getattr(node, "name", "") for node in nodes} | {a.asname or a.name for a in aliases}:
        raise LookupError(f"there is no {name}")
    return package


@cache
def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def unconditional(mark: ast.expr) -> bool:
    """Return True if a decorator or mark always skips a test or expects its failure."""
    call = mark if isinstance(mark, ast.Call) else None
    name = ast.unparse(call.func if call else mark)
    if name.endswith(("mark.skip", "unittest.skip")):
        return True
    conditions = [] if call is None else [*call.args, *(k for k in call.keywords if k.arg == "condition")]
    return name.endswith("mark.xfail") and not conditions


def marks_of(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield the marks of a whole file: what `pytestmark` is set to."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(ast.unparse(t) == "pytestmark" for t in node.targets):
            yield from node.value.elts if isinstance(node.value, (ast.List, ast.Tuple)) else [node.value]


def needs_library(test: str) -> bool:
    """Return True if a test is in a file that is skipped as a whole where an optional library is absent."""
    tree = parse(ROOT / test.partition("::")[0])
    values = [node.value for node in tree.body if isinstance(node, (ast.Assign, ast.Expr))]
    return any(isinstance(value, ast.Call) and ast.unparse(value.func) == "pytest.importorskip" for value in values)


def skips_itself(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return True if a test calls pytest.skip or pytest.xfail under no condition."""
    calls = [s.value.func for s in node.body if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call)]
    return any(ast.unparse(call) in ("pytest.skip", "pytest.xfail") for call in calls)


def fault_of(test: str, root: Path = ROOT) -> str:
    """Return why a node id names no test that is run; an empty text if it does."""
    path, *names = test.split("::")
    file = root / path
    if not (path.startswith("tests/") and file.is_file()):
        return f"there is no file {path}"
    if not file.name.startswith("test_") or not names:
        return f"{test} is no test: a node id is tests/test_FILE.py::test_NAME"
    tree = parse(file)
    marks = list(marks_of(tree))
    body: list[ast.stmt] = tree.body
    node: ast.stmt | None = None
    for name in names:
        matches = [n for n in body if getattr(n, "name", "") == name]
        if not matches:
            return f"{path} has no {name}"
        node = matches[-1]
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            marks += node.decorator_list
            body = node.body
    if not names[-1].startswith(("test_", "Test")):
        return f"{test} is not collected: its name does not begin with test_"
    if any(map(unconditional, marks)):
        return f"{test} is always skipped, or expected to fail"
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and skips_itself(node):
        return f"{test} always skips itself"
    return ""


def test_every_number_is_there_once_in_its_table_and_in_order() -> None:
    numbers = [f"{letter}{i}" for letter, count in COUNTS.items() for i in range(1, count + 1)]
    assert len(numbers) == 172
    assert [row.number for row in ROWS] == numbers
    assert [row.number for row in ROWS if row.number[0] != row.group] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.number)
def test_a_row_has_names_that_exist_and_tests_that_run(row: Row) -> None:
    assert row.feature.rstrip().endswith((".", "%")), "a sentence says what one gets"
    assert row.names, "a row says where to use it"
    for name in row.names:
        resolve(name)
    assert 1 <= len(row.tests) <= MOST_TESTS
    assert len(set(row.tests)) == len(row.tests)
    assert [fault for fault in map(fault_of, row.tests) if fault] == []
    if not all(name.startswith(OPTIONAL) for name in row.names):
        assert not all(map(needs_library, row.tests)), "one test at least runs where no optional library is installed"


def test_every_row_is_complete() -> None:
    assert SIGN not in PAGE.read_text(encoding="utf-8")


TESTS = """
import pytest
import unittest

def test_runs(): assert True
@pytest.mark.skip(reason="never")
def test_skipped(): assert True
@pytest.mark.skip
def test_skipped_plainly(): assert True
@pytest.mark.xfail(reason="wrong", strict=True)
def test_fails(): assert True
@pytest.mark.skipif(True, reason="needs a GPU")
def test_needs_a_gpu(): assert True
@pytest.mark.xfail(True, reason="needs a GPU")
def test_fails_sometimes(): assert True
@unittest.skip("never")
def test_skipped_by_unittest(): assert True
def test_skips_itself():
    pytest.skip("never")
def test_skips_where_it_must(library):
    if library is None:
        pytest.skip("needs it")
def helper(): assert True
class TestInside:
    def test_runs(self): assert True
@pytest.mark.skip
class TestSkipped:
    def test_runs(self): assert True
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "tests" / "helper.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "tests" / "test_y.py").write_text(f"{TESTS}\npytestmark = [pytest.mark.skip]\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    "test",
    [
        "tests/test_x.py::test_runs",
        "tests/test_x.py::test_needs_a_gpu",
        "tests/test_x.py::test_fails_sometimes",
        "tests/test_x.py::test_skips_where_it_must",
        "tests/test_x.py::TestInside",
        "tests/test_x.py::TestInside::test_runs",
    ],
)
def test_a_test_that_runs_has_no_fault(test: str, root: Path) -> None:
    assert fault_of(test, root) == ""


@pytest.mark.parametrize(
    ("test", "fault"),
    [
        ("tests/test_z.py::test_runs", "there is no file"),
        ("src/test_x.py::test_runs", "there is no file"),
        ("tests/helper.py::test_runs", "is no test"),
        ("tests/test_x.py", "is no test"),
        ("tests/test_x.py::test_absent", "has no test_absent"),
        ("tests/test_x.py::TestInside::test_absent", "has no test_absent"),
        ("tests/test_x.py::helper", "is not collected"),
        ("tests/test_x.py::test_skipped", "always skipped"),
        ("tests/test_x.py::test_skipped_plainly", "always skipped"),
        ("tests/test_x.py::test_fails", "expected to fail"),
        ("tests/test_x.py::test_skipped_by_unittest", "always skipped"),
        ("tests/test_x.py::TestSkipped::test_runs", "always skipped"),
        ("tests/test_x.py::test_skips_itself", "always skips itself"),
        ("tests/test_y.py::test_runs", "always skipped"),
    ],
)
def test_a_test_that_cannot_hold_a_row_is_named_with_its_fault(test: str, fault: str, root: Path) -> None:
    assert fault in fault_of(test, root)


@pytest.mark.parametrize(
    "name",
    [
        "tt.zeroes",
        "np.zeros",
        "tt.Tensor.vieww",
        "tritium.perff",
        "tritium.torch.BitLinea",
        "tritium.vllm.row",
        "tritium compar",
        "tritium compare --outputs",
        "TRITIUM_LOUD",
    ],
)
def test_a_name_that_leads_nowhere_is_an_error(name: str) -> None:
    with pytest.raises(LookupError):
        resolve(name)


def test_a_row_needs_its_cells() -> None:
    (row,) = read_rows(
        "## A. x\n| A1 | Text. ◐ A part. | `tt.zeros` | `tests/test_x.py::test_a`, `tests/test_x.py::test_b` |\n"
    )
    assert (row.number, row.group, row.names) == ("A1", "A", ["tt.zeros"])
    assert len(row.tests) == 2
    with pytest.raises(AssertionError, match="it has 2 cells"):
        list(read_rows("| A1 | Text. | `tt.zeros` |\n"))
