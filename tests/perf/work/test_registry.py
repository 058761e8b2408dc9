"""A user's own benchmarks: registered, found again in another process, and checked."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tritium as tt
from tritium.errors import ArgumentError, FormatError
from tritium.perf.engine.worker import checked, resolve
from tritium.perf.records.case import Case, Made, UnsupportedError, Work
from tritium.perf.work import recipes as work, registry

SOURCE = """
import numpy as np
import tritium as tt
from tritium.perf.records.case import Work

from beside import FACTOR


@tt.perf.benchmark("custom_op", sizes=[(4, 8), 16], work=lambda shape: Work(flops=int(np.prod(shape)), item="element"),
                   expected=lambda shape: np.full(shape, 2.0))
def custom_op(shape, candidate="tritium"):
    x = np.full(shape, FACTOR, np.float32) if candidate == "numpy" else tt.full(shape, FACTOR)
    yield lambda: x * 2


@tt.perf.benchmark("plain_op")
def plain_op():
    return sum(range(100))
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside.py").write_text("FACTOR = 1.0\n")
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    yield path
    for name in [n for n, m in sys.modules.items() if str(tmp_path) in str(getattr(m, "__file__", ""))]:
        del sys.modules[name]


def made(case: Case, candidate: str = "tritium") -> Made:
    found: Made = resolve(case.recipe.target)(candidate, **json.loads(json.dumps(dict(case.recipe.arguments))))
    return found


def test_a_file_registers_its_names(file: Path) -> None:
    assert registry.load(file) == ["custom_op", "plain_op"]
    assert {"custom_op", "plain_op"} <= set(work.operation_names())


def test_a_benchmark_is_measured_at_its_own_sizes(file: Path) -> None:
    registry.load(file)
    found = work.grid(["custom_op", "add"], [(3, 3)])
    assert [c.name for c in found] == ["custom_op 4x8", "custom_op 16", "add 3x3 f32"]
    assert (found[0].work.flops, found[0].work.item) == (32, "element")
    assert work.refuses("custom_op", (3, 3), "f32") == ""


@pytest.mark.parametrize("candidate", ["tritium", "numpy"])
def test_its_answer_is_checked(file: Path, candidate: str) -> None:
    registry.load(file)
    one = made(registry.cases("custom_op")[0], candidate)
    assert checked(one, one.call())["checked"] == "the same values"


def test_an_answer_may_be_one_number() -> None:
    @registry.benchmark("number_for_test", expected=lambda: 4950)
    def number() -> int:
        return sum(range(100))

    try:
        one = made(registry.cases("number_for_test")[0])
        assert checked(one, one.call())["checked"] == "the same values"
    finally:
        registry._registered.pop("number_for_test")


def test_a_function_without_yield_is_timed_itself(file: Path) -> None:
    registry.load(file)
    (case,) = registry.cases("plain_op")
    assert case.name == "plain_op"
    assert made(case).call() == 4950


def test_a_function_without_a_candidate_is_tritiums_own(file: Path) -> None:
    registry.load(file)
    (case,) = registry.cases("plain_op")
    with pytest.raises(UnsupportedError, match="parameter `candidate`"):
        made(case, "numpy")


def test_another_process_finds_it_by_its_file(file: Path) -> None:
    registry.load(file)
    (case, _) = registry.cases("custom_op")
    code = (
        "import json, sys; from tritium.perf.engine.worker import resolve\n"
        "target, arguments = json.loads(sys.argv[1])\n"
        "made = resolve(target)('tritium', **arguments); print(float(made.call().sum()))"
    )
    told = json.dumps([case.recipe.target, dict(case.recipe.arguments)])
    done = subprocess.run([sys.executable, "-c", code, told], capture_output=True, text=True, timeout=60, check=True)
    assert float(done.stdout) == 64


def test_set_up_comes_before_and_tear_down_after() -> None:
    seen: list[str] = []

    @registry.benchmark("ordered_for_test")
    def ordered() -> Iterator[object]:
        seen.append("up")
        try:
            yield lambda: seen.append("call")
        finally:
            seen.append("down")

    try:
        one = made(registry.cases("ordered_for_test")[0])
        one.call()
        assert one.close is not None
        one.close()
        assert seen == ["up", "call", "down"]
    finally:
        registry._registered.pop("ordered_for_test")


def test_the_grid_gives_shapes_and_dtypes_to_what_names_none() -> None:
    @registry.benchmark("shaped_for_test", work=Work(items=3))
    def shaped(shape: tuple[int, ...], dtype: str) -> Iterator[object]:
        x = tt.ones(shape, dtype=dtype)
        yield lambda: x + x

    try:
        found = work.grid(["shaped_for_test"], [(2, 3), (4, 5)], ["f32", "f16"])
        assert [c.name for c in found] == [f"shaped_for_test {s} {d}" for s in ("2x3", "4x5") for d in ("f32", "f16")]
        assert made(found[1]).call().dtype is tt.f16
        assert found[0].work.items == 3
        with pytest.raises(ArgumentError, match="none was given"):
            registry.cases("shaped_for_test")
    finally:
        registry._registered.pop("shaped_for_test")


def test_the_function_can_still_be_called() -> None:
    @registry.benchmark("callable_for_test")
    def three() -> int:
        return 3

    registry._registered.pop("callable_for_test")
    assert three() == 3


def test_what_yields_no_function_is_an_error() -> None:
    @registry.benchmark("wrong_for_test")
    def wrong() -> Iterator[object]:
        yield np.ones(3)

    try:
        with pytest.raises(ArgumentError, match="must yield what is timed"):
            made(registry.cases("wrong_for_test")[0])
    finally:
        registry._registered.pop("wrong_for_test")


def test_a_parameter_nobody_can_give_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="Did you mean 'shape'"):
        registry.benchmark("x_for_test")(lambda shap: None)


@pytest.mark.parametrize("name", ["matmul", "decode", "allocate", "upload", "canary compute"])
def test_a_name_of_an_operation_is_taken(name: str) -> None:
    with pytest.raises(ArgumentError, match="is a case of Tritium"):
        registry.benchmark(name)(lambda: None)


def test_one_name_stands_in_one_file(file: Path, tmp_path: Path) -> None:
    registry.load(file)
    other = tmp_path / "other.py"
    other.write_text('import tritium as tt\n@tt.perf.benchmark("plain_op")\ndef f(): pass\n')
    with pytest.raises(ArgumentError, match="already"):
        registry.load(other)


def test_a_function_of_no_file_is_an_error() -> None:
    space: dict[str, object] = {"benchmark": registry.benchmark}
    with pytest.raises(ArgumentError, match="is in no file"):
        exec("@benchmark('typed_for_test')\ndef f(): pass", space)


@pytest.mark.parametrize(("text", "said"), [(None, "no such file"), ("x = 1", "nothing in it is registered")])
def test_a_file_that_cannot_serve_is_explained(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "empty.py"
    if text:
        path.write_text(text)
    with pytest.raises(FormatError, match=said):
        registry.load(path)


def test_an_unknown_name_says_how_to_load_it() -> None:
    with pytest.raises(ArgumentError, match="--load"):
        registry.cases("nothing_for_test")


@pytest.mark.parametrize("name", ["", "  ", 3])
def test_a_name_is_needed(name: object) -> None:
    with pytest.raises(ArgumentError, match="a name is needed"):
        registry.benchmark(name)  # type: ignore[arg-type]
