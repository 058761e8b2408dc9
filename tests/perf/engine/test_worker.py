"""A worker in another revision of the package: the harness is today's, what it measures may lie in other modules."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import tritium as tt
from structure import Structure, structure_of
from tritium.buffer import native
from tritium.perf.engine import callgrind
from tritium.perf.engine.measuring import measure
from tritium.perf.engine.worker import load_perf
from tritium.perf.gate import selftest_cases
from tritium.perf.records.case import Arm, Case, UnsupportedError
from tritium.perf.records.run import Plan
from tritium.perf.work import calls, canary, moves, quantised, recipes, registry, rows, whole_model, workloads

ROOT = Path(__file__).parents[3]
RECIPE = re.compile(r'Recipe\(\s*"(tritium[\w.]+):(\w+)"')
# What a worker imports by itself, and the modules of the package's own recipes.
ENTRIES = {
    "tritium.perf.engine.worker",
    *(
        module.__name__
        for module in (calls, canary, moves, quantised, recipes, registry, selftest_cases, whole_model, workloads)
    ),
}
PUBLIC = {"tritium", "tritium.errors", "tritium.memory", "tritium.nn", "tritium.quant", "tritium.testing"}
RENAMED = ("batching", "compiler", "contract", "graph", "machine", "models")  # packages of today that a revision lacks


@pytest.fixture(scope="module")
def structure() -> Structure:
    return structure_of(ROOT)


@pytest.fixture(scope="module")
def closure(structure: Structure) -> set[str]:
    """Every module of the harness that a worker may import, at the top of a file or in a function."""
    seen: set[str] = set()
    pending = list(ENTRIES)
    while pending:
        name = pending.pop()
        if name not in seen and name.startswith("tritium.perf"):
            seen.add(name)
            pending += [*structure.edges[name], name.rpartition(".")[0]]
    return seen


def trees(structure: Structure, names: set[str]) -> Iterator[tuple[str, ast.AST]]:
    for name in sorted(names):
        for node in ast.walk(ast.parse(structure.modules[name].read_text(encoding="utf-8"))):
            yield name, node


# ---- in the text


def test_every_recipe_of_the_package_is_an_entry(structure: Structure) -> None:
    written = {m for file in structure.files for m in RECIPE.findall(file.read_text(encoding="utf-8"))}
    assert {module for module, _ in written} | {"tritium.perf.engine.worker"} == ENTRIES
    assert all(callable(getattr(importlib.import_module(module), name)) for module, name in written)


def test_a_worker_imports_only_the_harness_and_public_modules(structure: Structure, closure: set[str]) -> None:
    assert closure > ENTRIES
    foreign = {
        f"{name}:{i.line} imports {i.target}"
        for name in closure
        for i in structure.imports[name]
        if not i.for_types and not i.target.startswith("tritium.perf") and i.target not in PUBLIC
    }
    assert not foreign


def test_a_worker_imports_only_public_names_of_them(structure: Structure, closure: set[str]) -> None:
    wrong = set()
    for name, node in trees(structure, closure):
        if not isinstance(node, ast.ImportFrom) or node.module not in PUBLIC:
            continue
        for alias in node.names:
            value = getattr(importlib.import_module(node.module), alias.name, None)
            whole = f"{node.module}.{alias.name}"
            if node.module == "tritium":
                public = alias.name in tt.__all__ or whole in PUBLIC
            elif node.module == "tritium.errors":
                public = inspect.isclass(value)
            else:
                home = getattr(value, "__module__", "")
                public = home.startswith(node.module) and not alias.name.startswith("_")
            if not public:
                wrong.add(f"{name}:{node.lineno} {whole}")
    assert not wrong


def test_a_worker_uses_only_names_the_package_lists(structure: Structure, closure: set[str]) -> None:
    lists = {"tt": tt.__all__, "tt.nn": tt.nn.__all__}
    wrong = {
        f"{name}:{node.lineno} {ast.unparse(node)}"
        for name, node in trees(structure, closure)
        if isinstance(node, ast.Attribute)
        and ast.unparse(node.value) in lists
        and node.attr not in lists[ast.unparse(node.value)]
    }
    assert not wrong


def test_the_machine_is_described_in_the_parent(closure: set[str]) -> None:
    assert not {"tritium.perf.records.environment", "tritium.perf.records.run", "tritium.perf.work.peers"} & closure


# ---- in a process


def renamed(text: str) -> str:
    names = "|".join(RENAMED)
    text = re.sub(rf"\btritium\.({names})\b", r"tritium.\1_before", text)
    return re.sub(rf'"({names})\.(\w+)"', r'"\1_before.\2"', text)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Arm:
    """An arm whose package has the same public names in other modules, and no harness of its own."""
    folder = tmp_path_factory.mktemp("other")
    package = folder / "tritium"
    left_out = shutil.ignore_patterns("perf", "see", "cli", "__pycache__", "_native*")
    shutil.copytree(ROOT / "src" / "tritium", package, ignore=left_out)
    for name in RENAMED:
        (package / name).rename(package / f"{name}_before")
    for file in package.rglob("*.py"):
        file.write_text(renamed(file.read_text(encoding="utf-8")), encoding="utf-8")
    if native is not None:
        (package / Path(native.__file__).name).symlink_to(native.__file__)
    python = folder / "python"  # without site: an editable installation would come before PYTHONPATH
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    return Arm("other", python=str(python), environment=(("PYTHONPATH", path), ("TRITIUM_TUNED", "0")))


def listed() -> list[Case]:
    """One case or a few of every recipe of the package."""

    def layer(x: tt.Tensor, w: tt.Tensor) -> tt.Tensor:
        held = tt.copy(x)
        held[1:3] = tt.softmax(x[1:3] * 2.0)
        return tt.relu(held @ w) + x

    found = [
        *recipes.grid(["add", "matmul", "bitlinear", "quantize", "dequantize", "attention"], [(64, 64)]),
        *recipes.dtypes([(64, 64)], ["f16", "i4"]),
        *recipes.layouts(["add"], [(64, 64)]),
        *recipes.grid(["add"], [(32, 32)], transfer=True),
        *whole_model.cases("model_decode", [(4,)]),
        *workloads.workloads(width=64, tokens=4, context=8, batch=2, items=8),
        *quantised.quantisation([(32, 64)], ["ternary", "int8"]),
        *moves.memory([("small", 1 << 10)]),
        *moves.transfer([(16, 16)]),
        *(rows.cases(name)[0] for name in ("relu", "update", "fused", "random_normal")),
        *rows.traced(layer, tt.Spec((4, 4)), tt.Spec((4, 4))),
        *rows.traced(tt.compile(lambda x, y: tt.relu(x * y) + x).program(tt.ones((4, 4)), tt.ones((4, 4))).graph),
        *selftest_cases.cases(),
        *canary.canaries(),
    ]
    return list({case.name: case for case in found}.values())


@pytest.mark.slow
def test_a_worker_measures_a_package_of_another_layout(other: Arm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callgrind.shutil, "which", lambda name: None)  # valgrind takes minutes where it is installed
    names = (*RENAMED, "perf")
    script = "import json, tritium; from importlib.util import find_spec as f; " + (
        f"print(json.dumps([tritium.__file__, [n for n in {names!r} if f('tritium.' + n)]]))"
    )
    command = [other.python, "-P", "-c", script]
    done = subprocess.run(command, env=other.variables(), capture_output=True, text=True, timeout=60, check=True)
    place, today = json.loads(done.stdout)
    assert Path(place).parents[1] == Path(other.python).parent
    assert today == []
    assert all(find_spec(f"tritium.{name}") for name in RENAMED)

    cases = listed()
    apart = {"tritium.perf.engine.worker", registry.__name__}  # the worker itself; the next test has a registered case
    assert {case.recipe.target.partition(":")[0] for case in cases} == ENTRIES - apart
    metrics = ("wall", "cpu", "peak_bytes", "rss_bytes", "instructions", "temperature")
    plan = Plan(
        "once", generations=1, rounds=1, batches=1, least_batch_s=1e-4, warmup_batches=1, threads=1, canary=False, metrics=metrics
    )  # fmt: skip
    results = measure(cases, [Arm("today"), other], plan)
    for run in results:
        assert run.status == "ok", (run.arm, run.case, run.reason)
        wall = run.of("wall")
        assert wall is not None
        assert all(v > 0 for v in wall.flat)
    assert {run.arm for run in results} == {"today", "other"}
    for case in cases:
        one, two = results.of(case.name, "today"), results.of(case.name, "other")
        assert one is not None
        assert two is not None
        assert (one.checked, one.work) == (two.checked, two.work)


def test_a_users_benchmark_is_measured_there(other: Arm, tmp_path: Path) -> None:
    file = tmp_path / "own_of_workers.py"
    file.write_text(
        "import tritium as tt\n\n\n@tt.perf.benchmark('own_of_workers', sizes=[(8, 8)])\ndef own(shape):\n"
        "    x = tt.ones(shape)\n    yield lambda: tt.relu(x)\n",
        encoding="utf-8",
    )
    (name,) = registry.load(file)
    try:
        plan = Plan(
            "once", generations=1, rounds=1, batches=1, least_batch_s=1e-4, warmup_batches=1, threads=1, canary=False
        )
        (run,) = measure(registry.cases(name), [other], plan)
    finally:
        registry._registered.pop(name)
    assert run.status == "ok", run.reason


def test_the_harness_of_this_package_is_left_as_it_is() -> None:
    before = sys.modules["tritium.perf"]
    load_perf()
    assert sys.modules["tritium.perf"] is before


# ---- what is handed over


@pytest.mark.parametrize(
    "value",
    [None, True, 3, 0.1, float("inf"), "blas", (1, (2, None)), tt.bf16, tt.tern2, tt.Spec((2, 3), tt.f16)],
    ids=str,
)
def test_an_attribute_is_read_as_it_was_written(value: object) -> None:
    assert calls.from_json(json.loads(json.dumps(rows.as_json(value)))) == value


@pytest.mark.parametrize(("row", "attribute"), [("update", "layout"), ("fused", "body")])
def test_layouts_and_bodies_are_read_as_they_were_written(row: str, attribute: str) -> None:
    value = dict(calls.table()[row].samples[0].attrs)[attribute]
    again = calls.from_json(json.loads(json.dumps(rows.as_json(value))))
    assert type(again) is type(value)
    assert again == value


def test_what_cannot_be_handed_over_is_an_error() -> None:
    with pytest.raises(tt.errors.ArgumentError, match="of type object cannot be sent to a worker"):
        rows.as_json(object())


def test_a_row_the_measured_package_lacks_is_skipped() -> None:
    with pytest.raises(UnsupportedError, match="has no op 'of tomorrow'"):
        calls.row_named("of tomorrow")
