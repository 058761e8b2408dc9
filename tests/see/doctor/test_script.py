"""The doctor beside a program: seeded faults are found and named with their place, and a sound program is fine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tritium as tt
from null import Null
from tritium import launch, ops
from tritium.batching.batches import BatchSize, Trial
from tritium.op import Kind, Spec, eager
from tritium.see.doctor import script as doctor_script, watch as doctor_watch
from tritium.see.doctor.checks import Finding
from tritium.see.doctor.diagnosis import examine
from tritium.see.doctor.watch import Calls, Chains, Copied, summarize, watching

HERE = Path(__file__).name
CPU = tt.device("cpu")


def found(run: Callable[[], Any], check: str) -> list[Finding]:
    return [f for f in examine(run) if f.check == check]


def call(op: Any, *inputs: Spec, out: Spec | None = None, kernel: str = "k") -> launch.Launched:
    return launch.Launched(op, kernel, CPU, inputs, out or inputs[0], {})


def calls(op: Any, *inputs: Spec, times: Any) -> Calls:
    return Calls(op, "k", "cpu", inputs, inputs[0], np.asarray(times, np.int64))


# ---- seeded faults


def test_a_hidden_copy_is_found_with_its_place_and_size() -> None:
    x = tt.randn((512, 1024), seed=0)

    def program() -> None:
        for _ in range(3):
            x.T.reshape(-1)  # the view cannot show this layout

    (finding,) = found(program, "hidden copies")
    assert finding.severity == "warning"
    assert f"{HERE}:{program.__code__.co_firstlineno + 2}" in finding.what
    assert "3 times, 6 MiB" in finding.evidence


def test_a_program_without_hidden_copies_is_fine() -> None:
    x = tt.randn((64, 64), seed=0)
    (finding,) = found(lambda: x.T.contiguous().reshape(-1), "hidden copies")
    assert finding.severity == "fine"


def test_ternary_values_in_f32_weights_are_found_at_every_place() -> None:
    rng = np.random.default_rng(0)
    dense = tt.asarray(rng.standard_normal((128, 128)).astype(np.float32))
    ternary = tt.asarray((rng.integers(-1, 2, (128, 128)) * 0.25).astype(np.float32))
    x = tt.randn((4, 128), seed=1)

    def program() -> None:
        x @ dense  # the same kind of call as the next
        x @ ternary

    findings = found(program, "f32 weights")
    assert [f.severity for f in findings] == ["warning"]
    assert f"{HERE}:{program.__code__.co_firstlineno + 2}" in findings[0].what
    assert "-0.25, 0 or 0.25" in findings[0].evidence
    named = {"tt": tt, "w": ternary}
    exec(findings[0].remedy.partition(": ")[0], named)  # a line of code that does what it says
    assert (named["layer"].weight.dequantize() == ternary.T).all()


def test_weights_that_are_all_zero_are_not_worth_a_word() -> None:
    x, w = tt.randn((4, 128), seed=1), tt.zeros((128, 128))
    assert "warning" not in [f.severity for f in found(lambda: x @ w, "f32 weights")]


def test_a_place_is_shown_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    named: dict[str, Any] = {"x": tt.randn((64, 64), seed=0)}
    code = compile("x.T.reshape(-1)", str(tmp_path / "mine.py"), "exec")
    (finding,) = found(lambda: exec(code, named), "hidden copies")
    assert "at mine.py:1" in finding.what


def test_a_copy_in_a_pool_of_threads_is_not_blamed_on_the_pool() -> None:
    x = tt.randn((64, 64), seed=0)

    def program() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(x.T.reshape, -1).result()  # no line of ours in that thread

    (finding,) = found(program, "hidden copies")
    assert finding.severity == "note"
    assert "concurrent" not in finding.what


def test_turns_of_a_loop_are_chains_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_watch, "SMALL_NS", 1 << 62)  # however long a busy machine takes
    x = tt.randn((16, 16), seed=0)

    def program() -> None:
        for _ in range(50):
            tt.relu(x * 2.0 + 1.0)

    with watching() as seen:
        program()
    chains = seen().chains
    assert chains is not None
    assert (chains.names, chains.times) == (("multiply", "add", "relu"), 50)
    assert chains.saved_bytes == 50 * 2 * 2 * x.nbytes


def test_strided_operands_are_found_with_their_place() -> None:
    x = tt.randn((128, 128), seed=0)

    def program() -> None:
        tt.exp(x[:, ::2])

    (finding,) = found(program, "layouts")
    where = finding.what.removeprefix("exp has a non-contiguous operand at ")
    assert where.endswith(f"{HERE}:{program.__code__.co_firstlineno + 1}")
    assert "f32[128,64] with strides (128, 2)" in finding.evidence


def test_broadcast_and_transposed_products_are_no_gaps() -> None:
    x, row = tt.randn((128, 128), seed=0), tt.randn((128,), seed=1)

    def program() -> None:
        tt.add(x, row)
        x @ x.T

    (finding,) = found(program, "layouts")
    assert finding.severity == "fine"


def test_transfers_are_counted_with_their_share(null: str) -> None:
    x = tt.randn((64, 64), seed=0)

    def program() -> None:
        for _ in range(30):
            x.to(null)

    (finding,) = found(program, "transfers")
    assert finding.severity in ("note", "warning", "problem")
    assert "30 transfers, 480 KiB" in finding.evidence


@pytest.fixture
def null() -> Iterator[str]:
    tt.register("null", Null)
    yield "null"
    tt.unregister("null")


def test_a_program_is_left_as_it_was() -> None:
    before = eager[0]
    with pytest.raises(ZeroDivisionError), watching():
        1 / 0  # noqa: B018
    assert eager[0] is before
    assert not doctor_watch.recording.active


def test_a_failed_program_is_a_problem() -> None:
    (finding,) = [f for f in examine(lambda: 3) if f.check == "program"]
    assert (finding.severity, finding.evidence) == ("problem", "exit code 3")


def test_every_check_says_something_of_a_program_that_does_nothing() -> None:
    findings = examine(lambda: None)
    assert [f.check for f in findings] == [c.name for c in doctor_script.SCRIPT]
    assert {f.severity for f in findings} == {"fine"}


# ---- what was seen, made up


def spans(*rows: tuple[Any, int, int, int]) -> tuple[list[Any], np.ndarray[Any, Any]]:
    return [r[0] for r in rows], np.array([r[1:] for r in rows], np.int64).reshape(-1, 3)


def test_calls_are_summed_by_kind() -> None:
    small, large = Spec((8,)), Spec((16,))
    a, b = call(ops.exp, small), call(ops.exp, large)
    run = summarize(*spans((a, 0, 5, 1), (b, 10, 7, 1), (a, 20, 6, 1)), 1.0)
    assert {str(c): (len(c.elapsed_ns), c.total_ns) for c in run.calls} == {
        "exp(f32[8])": (2, 11),
        "exp(f32[16])": (1, 7),
    }
    assert run.eager_calls == 3


def test_steps_of_a_program_are_no_eager_calls() -> None:
    a = call(ops.exp, Spec((8,)))
    run = summarize(
        *spans((launch.Ran("f", 2), 0, 100, 1), (a, 10, 5, 1), (a, 20, 5, 1), (a, 200, 5, 1), (a, 50, 5, 2)), 1.0
    )
    assert run.eager_calls == 2
    assert run.calls[0].total_ns == 20


def test_chains_are_calls_on_the_result_before() -> None:
    s, other = Spec((8,)), Spec((4,))
    add, exp, odd = call(ops.add, s, s), call(ops.exp, s), call(ops.exp, other)
    product = call(ops.matmul, s, s)
    run = summarize(
        *spans((add, 0, 5, 1), (exp, 10, 5, 1), (odd, 20, 5, 1), (product, 30, 5, 1), (add, 40, 5, 1), (exp, 50, 5, 1)),
        1.0,
    )
    assert run.chains == Chains(4, 20, 2 * 2 * 32, ("add", "exp"), 2)


@given(
    st.lists(
        st.tuples(st.sampled_from([ops.exp, ops.add, ops.matmul, ops.sum]), st.integers(0, 10**5), st.integers(1, 3)),
        max_size=40,
    )
)
def test_any_spans_can_be_summed(rows: list[tuple[Any, int, int]]) -> None:
    s = Spec((8,))
    made = [(call(op, s, s), 10 * i, elapsed, thread) for i, (op, elapsed, thread) in enumerate(rows)]
    run = summarize(*spans(*made), 1.0)
    assert sum(len(c.elapsed_ns) for c in run.calls) == run.eager_calls == len(rows)
    if run.chains is not None:
        assert run.chains.calls <= sum(op.kind is Kind.MAP for op, _, _ in rows)


def test_small_calls_in_a_row_are_told_to_compile() -> None:
    chain = Chains(200, 400_000_000, 1 << 20, ("multiply", "add", "relu"), 60)
    finding = doctor_script.check_small_calls(chain, 300, 1.0)
    assert finding.severity == "warning"
    assert "200 of 300 calls" in finding.evidence
    assert "multiply → add → relu, 60 times" in finding.evidence
    assert "@tt.compile" in finding.remedy


def test_times_that_vary_are_told_with_their_quartiles() -> None:
    steady = calls(ops.exp, Spec((8,)), times=[10_000_000] * 40)
    wide = calls(ops.tanh, Spec((8,)), times=[10_000_000, 30_000_000] * 20)
    (finding,) = doctor_script.check_spread([steady, wide], 1.0)
    assert finding.severity == "warning"
    assert "tanh(f32[8]) vary by 100%" in finding.what
    (fine,) = doctor_script.check_spread([steady], 1.0)
    assert fine.severity == "fine"


def test_the_pool_is_blamed_only_for_blocks_it_gave_back() -> None:
    before = tt.memory.stats()

    def after(misses: int, kept: int) -> Any:
        from dataclasses import replace

        classes = (*before.classes, tt.memory.ClassStats(1 << 30, 0, kept, 0, 0))
        return replace(before, allocations=before.allocations + 1000, misses=before.misses + misses, classes=classes)

    assert doctor_script.check_pool(before, after(900, 900)).severity == "fine"  # tensors that are kept
    bad = doctor_script.check_pool(before, after(900, 10))
    assert bad.severity == "warning"
    assert "890 of them" in bad.evidence
    assert "tt.memory.configure(limit=" in bad.remedy
    assert doctor_script.check_pool(before, before).severity == "fine"


def test_recompiling_is_told() -> None:
    assert doctor_script.check_compilation((100, 100)).severity == "warning"
    assert doctor_script.check_compilation((100, 5)).severity == "fine"


def test_programs_and_their_calls_are_counted() -> None:
    x = tt.randn((8, 8), seed=0)

    def program() -> None:
        fn = tt.compile(lambda x: tt.relu(x) + 1.0)
        for _ in range(5):
            fn(x)

    (finding,) = found(program, "compilation")
    assert finding.what == "1 program compiled for 5 calls of compiled functions"


def test_a_tiny_batch_is_measured_beside_larger_ones() -> None:
    one = calls(ops.matmul, Spec((1, 256)), Spec((256, 256)), times=[10_000_000] * 50)
    finding = doctor_script.check_batches([one], 1.0)
    assert "50 calls of matmul(f32[1,256], f32[256,256]), 50% of the run" in finding.evidence
    large = calls(ops.matmul, Spec((64, 256)), Spec((256, 256)), times=[10_000_000] * 50)
    assert "no dense product of at most 8 rows" in doctor_script.check_batches([large], 1.0).what


@pytest.mark.parametrize(("seconds", "severity"), [(2e-6, "warning"), (60e-6, "fine")])
def test_a_tiny_batch_is_told_where_a_larger_one_is_faster_for_each_row(
    monkeypatch: pytest.MonkeyPatch, seconds: float, severity: str
) -> None:
    trials = (Trial(1, (1e-6,) * 3, 0), Trial(64, (seconds,) * 3, 0))
    monkeypatch.setattr(doctor_script, "measure_batch", lambda *_: BatchSize(64, "measured", trials))
    one = calls(ops.matmul, Spec((1, 256)), Spec((256, 256)), times=[10_000_000] * 50)
    finding = doctor_script.check_batches([one], 1.0)
    assert finding.severity == severity
    assert ("process_in_batches" in finding.remedy) == (severity == "warning")
    assert "64" in finding.evidence


def test_what_a_batch_costs_is_said_once_and_in_plain_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    trials = (Trial(1, (7.5e-4,) * 3, 0), Trial(64, (64 * 7.5e-5,) * 3, 0))
    monkeypatch.setattr(doctor_script, "measure_batch", lambda *_: BatchSize(64, "measured", trials))
    one = calls(ops.matmul, Spec((1, 256)), Spec((256, 256)), times=[10_000_000] * 50)
    finding = doctor_script.check_batches([one], 1.0)
    assert finding.evidence.endswith(
        "measured now: 1 at a time take 750 µs a row, 64 at a time 75 µs: 10.0 times as fast (medians of 3 runs)"
    )
    assert "a batch of" not in finding.evidence


def test_copies_are_listed_largest_first() -> None:
    few = doctor_script.check_copies([Copied("reshape", "a.py:1", 1, 10), Copied("reshape", "b.py:2", 9, 1 << 21)])
    assert [(f.severity, "b.py:2" in f.what) for f in few] == [("warning", True), ("note", False)]
