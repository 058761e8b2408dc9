"""The house: imports point down, packages are small, calls are shallow, files say what they are."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tritium as tt
from null import Null
from structure import LONGEST_FUNCTION, calls, components, statements, structure_of
from tritium import buffer, ops
from tritium.backends import Device, Kernel
from tritium.op import OPS, Kind, Op, Trait

ROOT = Path(__file__).parents[1]
STRUCTURE = structure_of(ROOT)
PACKAGE = ROOT / "src" / "tritium"
FILES = STRUCTURE.files
MODULES = STRUCTURE.modules

MOST_MODULES = 15  # in a package, its `__init__` apart
MOST_AT_THE_ROOT = 25
# What lies at the root of the package, each line above what it may import: itself and the lines before it.
LAYERS = """
errors settings garbage
arguments escape
dtype layout
pure buffer
op recording
fragment
ops
machine
backends
launch
tensor
interop functions
indexing eager quant memory threads testing linalg fft
graph
families
compiler contract nn io
parallel
counts batching models
serve torch perf vllm
see
cli
__main__
"""
LAYER = {f"tritium.{name}": i for i, line in enumerate(LAYERS.strip().splitlines()) for name in line.split()}
# The package as its users import it may be named by what is imported with it, or measures it.
PUBLIC = {"tritium.cli", "tritium.perf"}
LIBRARIES = {"jax", "mlx", "numpy", "pytest", "scipy", "torch", "transformers", "triton", "vllm"}
NOT_PACKAGES = {"bench", "docs", "fuzz", "golden", "helpers", "pytorch"}  # folders of tests that mirror something else


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def test_every_module_and_package_at_the_root_has_its_layer() -> None:
    assert set(STRUCTURE.children("tritium")) == set(LAYER)


@pytest.mark.parametrize("name", LAYER)
def test_imports_point_down(name: str) -> None:
    up = {
        f"{module} imports {target}"
        for module, targets in STRUCTURE.edges.items()
        if module == name or module.startswith(f"{name}.")
        for target in targets - ({"tritium"} if name in PUBLIC else set())
        if LAYER.get(".".join(target.split(".")[:2]), len(LAYER)) > LAYER[name]
    }
    assert not up


@pytest.mark.parametrize("package", sorted(STRUCTURE.packages))
def test_what_lies_in_a_package_forms_a_dag(package: str) -> None:
    assert components(STRUCTURE.children(package)) == []


def test_no_modules_import_each_other() -> None:
    assert STRUCTURE.circles() == []


def test_a_package_is_small_enough_to_be_read() -> None:
    sizes = STRUCTURE.sizes()
    assert len(list(PACKAGE.glob("*.py"))) <= MOST_AT_THE_ROOT
    del sizes["tritium"]
    assert {package: n for package, n in sizes.items() if n > MOST_MODULES} == {}


def test_a_function_is_at_most_60_lines_long() -> None:
    assert [f"{f.file}:{f.line} {f.name}" for f in STRUCTURE.functions() if f.lines > LONGEST_FUNCTION] == []


def test_a_class_name_is_declared_once_in_a_package() -> None:
    assert STRUCTURE.repeated_classes() == {}


def test_an_import_inside_a_function_puts_something_off() -> None:
    assert [f"{name}:{i.line} {i.target}" for name, i in STRUCTURE.needless_inner_imports()] == []


def test_modules_are_imported_by_their_whole_name() -> None:
    relative = [
        f"{file}:{node.lineno}"
        for file in FILES
        if re.search(r"^\s*from\s+\.", file.read_text(encoding="utf-8"), re.MULTILINE)
        for node in statements(parsed(file))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []


def test_folders_of_tests_mirror_packages() -> None:
    folders = {f.parent.relative_to(ROOT / "tests") for f in (ROOT / "tests").rglob("test_*.py")}
    unknown = {str(f) for f in folders if f.parts and f.parts[0] not in NOT_PACKAGES and not (PACKAGE / f).is_dir()}
    assert unknown == set()


def test_the_map_of_moves_leads_to_files() -> None:
    rows = [line.split() for line in (ROOT / "docs" / "moved.txt").read_text().splitlines() if not line.startswith("#")]
    assert [new for _, new in filter(None, rows) if not (ROOT / new).exists()] == []


def test_no_folder_of_tests_is_named_after_a_library() -> None:
    """Where the library is absent, `importorskip` would take the folder for it."""
    assert {f.name for f in (ROOT / "tests").rglob("*") if f.is_dir()} & LIBRARIES == set()


def test_nobody_but_the_command_line_prints() -> None:
    for module, file in MODULES.items():
        prints = calls(file, "print")
        assert not prints or module == "tritium.cli.root", f"{file}:{prints}"


def test_only_launch_has_a_kernel_run_and_only_backends_call_one() -> None:
    for module, file in MODULES.items():
        run, called = calls(file, "backend.run"), calls(file, "kernel.fn")
        assert bool(run) == (module == "tritium.launch"), f"{file}:{run}"
        assert bool(called) == (module in ("tritium.backends", "tritium.backends.values.device")), f"{file}:{called}"


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_a_file_begins_by_saying_what_it_is(file: Path) -> None:
    assert ast.get_docstring(parsed(file))


def test_nothing_is_left_for_later() -> None:
    later = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    sources = [
        f for folder in ("src", "csrc") for f in (ROOT / folder).rglob("*") if f.suffix in (".py", ".h", ".cpp", ".txt")
    ]
    found = [
        f"{f}:{i}"
        for f in sources
        for i, line in enumerate(f.read_text(encoding="utf-8").splitlines(), 1)
        if later.search(line)
    ]
    assert not found


def test_at_most_four_python_frames_lead_to_a_kernel() -> None:
    stacks: list[list[str]] = []

    class Recording(Null):
        def __init__(self, device: Device) -> None:
            super().__init__(device)
            self.kernels = dict(self.kernels) | {ops.add: [Kernel("recording", record)]}

    def record(x1: Any, x2: Any, *, out: Any) -> None:
        stacks.append([f.name for f in traceback.extract_stack()])
        np.add(x1, x2, out=out)

    tt.register("recording", Recording)
    try:
        a = tt.ones(3, device="recording")
        tt.add(a, a)
        tt.add(a, a, out=a)
        assert len(stacks) == 2
        here = traceback.extract_stack()[-1].name
        own = buffer.native is None  # then a row is called through a frame of Python's
        for stack, allowed in zip(stacks, (4, 5), strict=True):  # writing into out= takes one more
            between = stack[len(stack) - stack[::-1].index(here) : -1]
            assert 1 <= len(between) <= allowed + own, between
    finally:
        tt.unregister("recording")


def test_import_brings_in_no_other_framework() -> None:
    code = "import sys, tritium; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert not {"torch", "mlx", "jax", "triton", "tensorflow", "cupy", "click", "pytest"} & set(done.stdout.split())


def test_the_rows_are_the_public_names() -> None:
    functions = {"astype", "reshape", "searchsorted"}  # around the row of the same name
    for name, row in OPS.items():
        if Trait.INTERNAL in row.traits:
            assert not hasattr(tt, name), f"{name}: an internal row has a public name"
        else:
            assert name in tt.__all__ or name in functions, (
                f"{name}: a row of the package is imported for type checkers"
            )
            assert getattr(tt, name) is row or name in functions
            assert name in dir(tt)


def test_a_new_row_is_a_name_of_the_package() -> None:
    row = Op(lambda x, /: x, Kind.MOVE, name="brand_new_row")
    try:
        assert tt.brand_new_row is row
        assert "brand_new_row" in dir(tt)
    finally:
        del OPS["brand_new_row"]
        vars(tt).pop("brand_new_row", None)


def test_every_public_name_is_listed_for_type_checkers() -> None:
    # pytest rewrites the assertions of a package that ships a plugin, and leaves names such as "@pytest_ar" behind.
    names = {n for n in dir(tt) if n.isidentifier() and not n.startswith("_")}
    parts = {name.rpartition(".")[2] for name in LAYER} | {"_native"}  # modules, there once they are imported
    public = {n for n in names if not (n in parts and n not in tt.__all__)}
    assert public - set(tt.__all__) <= {"TYPE_CHECKING", "Any", "import_module", "sys"}
    for name in tt.__all__:
        assert hasattr(tt, name), name
