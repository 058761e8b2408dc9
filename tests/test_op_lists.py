"""Facts about ops are columns of the op table: no module lists ops by hand, and the page on columns is complete."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from op_lists import MANY, lists_of, op_lists
from tritium import ops
from tritium.op import OPS, Axes, Fuse, Kind, Op, Scale, Trait

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "tritium"
PAGE = ROOT / "docs" / "add-an-op.md"

# A backend has a kernel for each row it runs: these assignments (or the function that holds them) are such tables.
KERNELS = {
    "backends/cpu/device.py": "VARIANTS",
    "backends/reference/kernels.py": "_UFUNCS _STORED _REDUCTIONS _MOVES KERNELS",
    "backends/reference/quantized.py": "KERNELS",
    "backends/values/elements.py": "_moves _reductions",
    "backends/values/quantized.py": "_weight_makers",
    "backends/torch/complexes.py": "_FUNCTIONS _SAME_FOR_ALL kernels.makers",
    "backends/torch/maps.py": "maps",
    "backends/torch/rows.py": "_reductions _moves",
    "backends/torch/unsigned.py": "_OF_U64",
    "backends/mlx/rows.py": "ONE_CALL BY_F32 BY_KIND OTHER _maps.rows _reductions makers.rows",
    "backends/cuda/fused/code.py": "WRITTEN",
}
# A benchmark has a catalogue of operations of its own, and for each the function of another library.
CONTENDERS = {
    "perf/work/operations.py": "ALL",
    "perf/work/libraries.py": "_common torch_functions use_jax.functions use_mlx.functions",
}


def test_no_module_lists_ops_by_hand() -> None:
    allowed = {
        (module, owner) for part in (KERNELS, CONTENDERS) for module, owners in part.items() for owner in owners.split()
    }
    lists = {
        (file.relative_to(PACKAGE).as_posix(), one.owner): f"{file}:{one.line}: {one}"
        for file, one in lists_of(PACKAGE)
    }
    wrong = [text for place, text in lists.items() if place not in allowed]
    assert not wrong, "a column of the op table should say this:\n" + "\n".join(wrong)
    assert not allowed - set(lists), "these are allowed and no longer there"


@pytest.mark.parametrize(
    "source",
    [
        'X = ("add", "exp", "log", "sin", "cos", "tan")',
        'X = frozenset(["add", "exp", "log", "sin", "cos", "tan"])',
        'X = "add exp log " "sin cos tan".split()',
        'X = {"add": 1, "exp": 2, "log": 3, "sin": 4, "cos": 5, "tan": 6}',
        "from tritium import ops as o\nX = {o.add, o.exp, o.log} | {o.sin, o.cos, o.ceil_}",
        "from tritium.ops import add, exp, log, sin, cos, tan as t\ndef f(): return [add, exp, log, sin, cos, t]",
        'X = [R("add", 1), R("exp", 2), R("log", 1), R("sin", 1), R("cos", 1), R("tan", 1)]',
        'X = [("add", 1), ("exp", 2), ("log", 1), ("sin", 1), ("cos", 1), ("tan", 1)]',
        'X = dict.fromkeys(("add", "exp", "log", "sin", "cos", "tan"), 1)',
        'def f(x):\n match x:\n  case "add" | "exp" | "log" | "sin" | "cos" | "tan": return 1',
    ],
)
def test_a_list_of_ops_is_seen(source: str) -> None:
    assert [len(one.rows) for one in op_lists(source, frozenset(OPS))] == [MANY]


def test_a_short_list_and_other_names_are_no_list_of_ops() -> None:
    few = 'X = ("add", "exp", "log", "sin", "cos", "add")\nY = ("a", "b", "c", "d", "e", "f")'
    assert op_lists(few, frozenset(OPS)) == []


# ---- the columns


def described(heading: str) -> dict[str, list[Path]]:
    """Return the first cell of each line of the table below a heading of the page, and the readers in its last."""
    section = PAGE.read_text(encoding="utf-8").partition(f"{heading}\n")[2]
    table = re.search(r"(?:^\|.*\n)+", section, re.M)
    assert table, heading
    lines = [line.strip("|\n").split("|") for line in table[0].splitlines()[2:]]
    return {first.strip(" `"): [PACKAGE / name for name in re.findall(r"`(.+?)`", last)] for first, *_, last in lines}


def test_the_page_lists_every_column_and_trait() -> None:
    columns = set(inspect.signature(Op.__init__).parameters) - {"self"}
    assert set(described("## Columns")) == columns
    assert set(described("### Traits")) == {t.name for t in Trait}


def test_the_readers_of_a_column_read_it() -> None:
    for heading, before in (("## Columns", r"\."), ("### Traits", r"Trait\.")):
        for column, readers in described(heading).items():
            assert readers, column
            word = re.compile(r"\.traits\b" if column == "ASSOCIATES" else rf"{before}{column}\b")  # only shown
            for reader in readers:
                files = sorted(reader.rglob("*.py")) if reader.is_dir() else [reader]
                assert any(word.search(f.read_text(encoding="utf-8")) for f in files), f"{column}: {reader}"


def test_a_row_without_columns_is_unfused_and_by_itself() -> None:
    row = Op(lambda x, /: x, Kind.MOVE, name="new_row")
    try:
        assert (row.fuses, row.axes, row.ulps_of) == (Fuse.NONE, Axes.OWN, Scale.RESULT)
        assert (row.traits, row.operator, row.aliases) == (Trait.NONE, "", ())
    finally:
        del OPS["new_row"]


def test_traits_agree_with_each_other() -> None:
    assert ops.rows_with(Trait.SYMMETRIC) <= ops.rows_with(Trait.COMMUTES)
    assert not ops.rows_with(Trait.IDEMPOTENT) & ops.rows_with(Trait.INVOLUTION)
    assert not ops.rows_with(Trait.CHEAP) & ops.rows_with(Trait.TRANSCENDENTAL)


def test_operators_and_aliases_are_taken_once() -> None:
    operators = [o.operator for o in OPS.values() if o.operator]
    aliases = [name for o in OPS.values() for name in o.aliases]
    assert len(operators) == len(set(operators))
    assert len(aliases) == len(set(aliases))
    assert not set(aliases) & set(OPS)
