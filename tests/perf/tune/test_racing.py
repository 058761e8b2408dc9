"""Tuning: the fastest wins whatever the noise, failures are recorded, and what is kept explains itself and can be checked."""

from __future__ import annotations

import json
import logging
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from math import comb
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import tritium as tt
from null import Null
from tritium import backends, ops
from tritium.batching import batches as batching
from tritium.buffer import native
from tritium.errors import ArgumentError, TuneError
from tritium.machine import tuned
from tritium.op import Spec
from tritium.perf.tune import choices as tune_choices, file as tune_file, racing as tune
from tritium.perf.tune.file import Candidate, Tuning, median_interval

needs_native = pytest.mark.skipif(native is None, reason="there is no native library")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TRITIUM_CACHE", str(tmp_path))
    monkeypatch.delenv("TRITIUM_TUNED", raising=False)
    monkeypatch.delenv("TRITIUM_ISA", raising=False)
    tune._functions.clear()
    tune_file._unsaved.clear()
    backends.retuned()
    yield tmp_path
    monkeypatch.undo()
    batching._measured_by_name.clear()
    backends.retuned()


class Clock:
    """Time that passes only when a configuration runs."""

    def __init__(self, took: dict[Any, float], noise: float = 0.0, seed: int = 0) -> None:
        self.now, self.took, self.noise, self.random = 0.0, took, noise, random.Random(seed)
        self.calls: list[Any] = []

    def __call__(self) -> float:
        return self.now

    def run(self, config: Any) -> None:
        self.calls.append(config)
        self.now += self.took[config] * self.random.lognormvariate(0, self.noise)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Clock]:
    def make(took: dict[Any, float], **how: Any) -> Clock:
        made = Clock(took, **how)
        monkeypatch.setattr(tune, "perf_counter", made)
        return made

    return make


# ---- intervals


@pytest.mark.parametrize(("n", "outside"), [(1, 0), (5, 0), (6, 0), (8, 0), (9, 1), (12, 2), (15, 3), (20, 5)])
def test_the_interval_of_a_median_leaves_out_as_many_as_it_may(n: int, outside: int) -> None:
    assert median_interval(list(range(n))) == (outside, n - 1 - outside)


@given(st.integers(6, 60))
def test_the_interval_covers_the_median_in_95_of_100_and_no_narrower_one_does(n: int) -> None:
    low, high = median_interval(list(range(n)))
    assert low + high == n - 1
    missed = sum(comb(n, i) for i in range(int(low) + 1)) * 2 / 2**n
    assert missed <= 0.05
    assert missed + 2 * comb(n, int(low) + 1) / 2**n > 0.05 or 2 * (low + 1) >= n - 1


def test_of_nothing_the_interval_is_infinite() -> None:
    assert median_interval([]) == (float("inf"), float("inf"))


# ---- the race


def test_the_fastest_wins(clock: Callable[..., Clock]) -> None:
    c = clock({"slow": 0.03, "fast": 0.01, "middle": 0.02})
    assert tt.tune("x", ["slow", "fast", "middle"], c.run) == "fast"


@given(st.integers(0, 1000))
def test_the_fastest_wins_through_noise(seed: int) -> None:
    c = Clock({1: 0.010, 2: 0.013, 4: 0.020, 8: 0.080}, noise=0.05, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tune, "perf_counter", c)
        made, _ = tune.run("x", [4, 2, 8, 1], c.run, seed=seed)
    assert made.best is not None
    assert made.best.config == "1"


def test_one_that_is_far_slower_is_dropped_after_two_rounds(clock: Callable[..., Clock]) -> None:
    c = clock({"a": 0.01, "b": 0.0101, "far": 1.0}, noise=0.03)
    made, _ = tune.run("x", ["a", "b", "far"], c.run)
    far = made.of("far")
    assert far is not None
    assert (len(far.seconds), far.status) == (2, "dropped")
    assert c.calls.count("far") == 4  # two to get ready
    assert "times the best" in far.reason


def test_equal_ones_are_said_not_to_be_told_apart(clock: Callable[..., Clock]) -> None:
    c = clock({"a": 0.01, "b": 0.01}, noise=0.05)
    made, _ = tune.run("x", ["a", "b"], c.run)
    assert sorted(x.status for x in made.candidates) == ["best", "not told apart"]
    assert made.rounds == tune.ROUNDS


def test_rounds_are_interleaved_and_their_order_changes(clock: Callable[..., Clock]) -> None:
    c = clock(dict.fromkeys("abcd", 0.01))
    tune.run("x", list("abcd"), c.run, rounds=10)
    rounds = ["".join(c.calls[8 + 4 * i : 12 + 4 * i]) for i in range(10)]
    assert all(sorted(r) == list("abcd") for r in rounds)
    assert len(set(rounds)) > 1


def test_short_calls_are_repeated_within_a_sample(clock: Callable[..., Clock]) -> None:
    c = clock({"a": 1e-5})
    made, _ = tune.run("x", ["a"], c.run, rounds=3)
    assert made.candidates[0].calls == 200
    assert made.candidates[0].median == pytest.approx(1e-5)


def test_the_budget_ends_a_race(clock: Callable[..., Clock]) -> None:
    c = clock({"a": 1.0, "b": 1.0})
    made, _ = tune.run("x", ["a", "b"], c.run, budget_s=5.0)
    assert made.rounds == 3
    assert made.note == "the budget of 5 s ended it after 3 of 15 rounds"


def test_a_failing_configuration_is_recorded_and_the_others_go_on(clock: Callable[..., Clock]) -> None:
    c = clock({1: 0.02, 2: 0.01})

    def fn(config: Any) -> None:
        if config == 3:
            raise MemoryError("too large")
        c.run(config)

    assert tt.tune("x", [1, 2, 3], fn) == 2
    failed = tune.history("x")[0].of(3)
    assert failed == Candidate("3", (), "failed", "MemoryError: too large")


def test_one_that_fails_later_cannot_win(clock: Callable[..., Clock]) -> None:
    c = clock({"good": 0.02, "late": 0.01})

    def fn(config: str) -> None:
        c.run(config)
        if c.calls.count("late") > 4 and config == "late":
            raise OSError("gone")

    assert tt.tune("x", ["late", "good"], fn) == "good"


def test_when_all_fail_it_is_an_error_and_still_recorded() -> None:
    with pytest.raises(TuneError, match="no configuration of 'x' ran: 1: ZeroDivisionError: division by zero"):
        tt.tune("x", [1], lambda c: 1 / 0)
    assert len(tune.history("x")) == 1
    assert tt.get_optimal_config("x") is None


def test_ctrl_c_is_no_failure_of_a_configuration() -> None:
    def fn(config: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tt.tune("x", [1], fn)


@pytest.mark.parametrize("kind", [timedelta, lambda seconds: seconds])
def test_a_function_may_return_how_long_it_took(kind: Any) -> None:
    took = {"batch_size_16": 0.1, "batch_size_32": 0.08, "batch_size_64": 0.12}
    as_told = (lambda s: timedelta(seconds=s)) if kind is timedelta else kind
    assert tt.tune("matmul", list(took), lambda c: as_told(took[c])) == "batch_size_32"
    made = tune.history("matmul")[0]
    assert made.source == "seconds the function returned"
    assert made.best is not None
    assert set(made.best.seconds) == {0.08}


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan"), float("inf")])
def test_a_time_that_cannot_be_is_a_failure(wrong: float) -> None:
    with pytest.raises(TuneError, match="no time"):
        tt.tune("x", [1], lambda c: wrong)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("", [1], print), "a name is needed"),
        ((3, [1], print), "a name is needed"),
        (("x", [], print), "no configurations"),
        (("x", [1, 1], print), "given twice"),
        (("x", [1], 3), "cannot be called"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(args: Any, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        tt.tune(*args)
    for wrong in ({"rounds": 0}, {"rounds": True}, {"budget_s": 0}, {"budget_s": "5"}):
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            tt.tune("x", [1], print, **wrong)  # type: ignore[arg-type]


# ---- what is kept

configs = st.one_of(
    st.integers(), st.text(), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False), st.binary(),
    st.tuples(st.integers(), st.text()), st.dictionaries(st.text(), st.integers()), st.lists(st.tuples(st.integers())),
)  # fmt: skip


@given(configs)
def test_a_configuration_comes_back_as_it_was(config: Any) -> None:
    tune.tune("any", [config], lambda c: 0.5, rounds=1)
    tune._functions.clear()  # as in another process
    found = tune.get_optimal_config("any")
    assert (found, type(found)) == (config, type(config))


def test_another_process_knows_what_was_tuned(cache: Path) -> None:
    tt.tune("layers", [(64, 32), (32, 64)], lambda c: c[0] / 100)
    code = "import tritium as tt; print(tt.get_optimal_config('layers'), len(tt.perf.tune.history('layers')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "(32, 64) 1\n"


class Named:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<{self.name}>"


def test_other_objects_are_found_again_among_those_given() -> None:
    a, b = Named("a"), Named("b")
    assert tt.tune("x", [a, b], lambda c: 1.0 + (c is a)) is b
    assert tt.get_optimal_config("x") is b  # this process knows it
    tune._functions.clear()
    assert tt.get_optimal_config("x", configs=[a, b]) is b
    assert tt.get_optimal_config("x", configs=[a]) is None
    with pytest.raises(ArgumentError, match="the best of 'x' is <b>, which is no literal; pass configs="):
        tt.get_optimal_config("x")


def test_objects_named_by_their_address_are_kept_in_this_process_only() -> None:
    a, b = object(), object()
    assert tt.tune("x", [a, b], lambda c: 1.0 + (c is a)) is b
    assert tt.get_optimal_config("x") is b
    assert not tuned.path().exists()


def test_shape_dtype_and_device_tell_apart_what_has_one_name() -> None:
    for shape, winner in (((64, 64), "a"), ((1024, 1024), "b")):
        tt.tune("matmul", ["a", "b"], lambda c, w=winner: 1.0 + (c != w), shape=shape, dtype=tt.f32, device="cpu")
    assert tt.get_optimal_config("matmul", shape=(64, 64), dtype=tt.f32, device="cpu") == "a"
    assert tt.get_optimal_config("matmul", shape=(1024, 1024), dtype="f32", device=tt.device("cpu")) == "b"
    assert tt.get_optimal_config("matmul") is None
    assert tune.explain("matmul").count("rounds in random order") == 2


def test_the_last_race_counts_and_all_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for winner in "abc":
        tt.tune("x", list("abc"), lambda c, w=winner: 1.0 + (c != w))
    assert tt.get_optimal_config("x") == "c"
    assert [t.best.config for t in tune.history("x") if t.best] == ["'a'", "'b'", "'c'"]
    monkeypatch.setattr(tune_file, "MOST_OF_A_KEY", 2)
    tt.tune("x", list("abc"), lambda c: 1.0)
    assert len(tune.history("x")) == 2


def test_nothing_is_kept_where_that_is_not_wanted() -> None:
    assert tt.tune("x", [1], lambda c: 1.0, keep=False) == 1
    assert tune.history() == ()
    assert not tuned.path().exists()


@pytest.mark.parametrize("name", ["build", "version"])
def test_a_changed_library_or_version_forgets(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    tt.tune("x", [1], lambda c: 1.0)
    monkeypatch.setattr(tuned, name, lambda: "another")
    assert tt.get_optimal_config("x") is None
    tt.tune("x", [2], lambda c: 1.0)
    assert [t.candidates[0].config for t in tune.history()] == ["2"]


def test_a_damaged_file_is_reported_ignored_and_replaced(caplog: pytest.LogCaptureFixture) -> None:
    tt.tune("x", [1], lambda c: 1.0)
    tuned.path().write_text(tuned.path().read_text()[:-20])
    with caplog.at_level(logging.WARNING, "tritium"):
        assert tt.get_optimal_config("x") is None
    assert "is not used" in caplog.text
    tt.tune("x", [2], lambda c: 1.0)
    assert tt.get_optimal_config("x") == 2


def test_races_that_cannot_be_are_reported_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    tt.tune("x", [1], lambda c: 1.0)
    body = json.loads(tuned.path().read_text())["tuned"]
    body["tunings"][0]["candidates"][0]["status"] = "splendid"
    tuned.path().write_text(json.dumps(tuned.document(body)))
    assert tune.history() == ()
    assert "splendid" in caplog.text


def test_a_folder_that_cannot_be_written_is_reported_and_the_answer_stays(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (cache / "file").write_text("")
    monkeypatch.setenv("TRITIUM_CACHE", str(cache / "file"))
    assert tt.tune("x", [1, 2], lambda c: float(c)) == 1
    assert "it will be tuned again in the next process" in caplog.text
    assert tt.get_optimal_config("x") == 1


def test_processes_that_tune_at_once_lose_nothing(cache: Path) -> None:
    code = "import sys, tritium as tt; [tt.tune(f'{sys.argv[1]}-{i}', [1], lambda c: 1.0, rounds=1) for i in range(5)]"
    running = [subprocess.Popen([sys.executable, "-c", code, name]) for name in "abc"]
    assert [p.wait(timeout=60) for p in running] == [0, 0, 0]
    assert {t.op for t in tune.history()} == {f"{name}-{i}" for name in "abc" for i in range(5)}


# ---- words


def test_explain_shows_every_candidate_with_its_interval(clock: Callable[..., Clock]) -> None:
    c = clock({"a": 0.01, "b": 0.02, "far": 0.5})

    def fn(config: str) -> None:
        if config == "bad":
            raise ValueError("no such thing")
        c.run(config)

    tt.tune("x", ["b", "a", "bad", "far"], fn, shape=(3, 4))
    page = tune.explain("x", shape=(3, 4))
    lines = page.splitlines()
    assert lines[0] == "x (3x4)"
    assert [line.split()[0] for line in lines[3:7]] == ["'a'", "'b'", "'far'", "'bad'"]
    assert "10 ms … 10 ms" in lines[3]
    assert "dropped: after 5 rounds: at least 20 ms, the best at most 10 ms" in lines[4]
    assert "failed: ValueError: no such thing" in lines[6]
    assert "wall clock" in lines[7]


def test_explain_of_nothing_names_what_is_near() -> None:
    tt.tune("matmul", [1], lambda c: 1.0)
    with pytest.raises(
        ArgumentError, match=r"nothing was tuned under 'matmull' on this machine\. Did you mean 'matmul'"
    ):
        tune.explain("matmull")


def test_explain_shows_a_race_that_nobody_won() -> None:
    with pytest.raises(TuneError):
        tt.tune("x", [1], lambda c: 1 / 0)
    assert "failed: ZeroDivisionError: division by zero" in tune.explain("x")


# ---- again


def test_revalidate_tells_how_far_a_time_has_moved(clock: Callable[..., Clock]) -> None:
    c = clock({"a": 0.01, "b": 0.02, "c": 0.03})
    tt.tune("x", ["a", "b", "c"], c.run)
    c.took = {"a": 0.012, "b": 0.02}  # the third is not measured
    drift = tune.revalidate("x")
    assert drift.ratio == pytest.approx(1.2)
    assert drift.holds
    assert str(drift) == (
        "x: 'a' took 10 ms, takes 12 ms (12 ms … 12 ms): +20.0%. The runner-up 'b' takes 20 ms. The choice holds."
    )


def test_revalidate_tells_when_the_runner_up_wins(clock: Callable[..., Clock]) -> None:
    c = clock({"a": 0.01, "b": 0.02})
    tt.tune("x", ["a", "b"], c.run)
    c.took = {"a": 0.03, "b": 0.02}
    drift = tune.revalidate("x")
    assert not drift.holds
    assert "The choice no longer holds; tune again." in str(drift)


def test_revalidate_in_another_process_needs_the_function(clock: Callable[..., Clock]) -> None:
    c = clock({"a": 0.01, "b": 0.02})
    tt.tune("x", ["a", "b"], c.run)
    tune._functions.clear()
    with pytest.raises(ArgumentError, match="give its function as fn="):
        tune.revalidate("x")
    assert tune.revalidate("x", c.run).holds
    with pytest.raises(ArgumentError, match="nothing was tuned under 'y'"):
        tune.revalidate("y")


def test_revalidate_without_a_runner_up_says_so(clock: Callable[..., Clock]) -> None:
    c = clock({"a": 0.01})
    tt.tune("x", ["a"], c.run)
    assert "no runner-up" in str(tune.revalidate("x"))


def test_a_winner_that_no_longer_runs_is_an_error(clock: Callable[..., Clock]) -> None:
    c = clock({"a": 0.01, "b": 0.02})
    tt.tune("x", ["a", "b"], c.run)
    del c.took["a"]
    with pytest.raises(TuneError, match="'a' of 'x' no longer runs: KeyError"):
        tune.revalidate("x")


def test_clear_forgets_a_name_and_those_below_it() -> None:
    for name in ("kernel/add", "kernel/relu", "kernels"):
        tt.tune(name, [1], lambda c: 1.0)
    assert tune.clear("kernel") == 2
    assert {t.op for t in tune.history()} == {"kernels"}
    assert tune.clear() == 1
    assert tune.history() == ()


# ---- batches


def test_a_batch_that_was_tuned_is_known_to_the_next_process(cache: Path) -> None:
    assert tune.tune_batch("vectors", 16, lambda n: 1.0 + n / 100) == 16
    code = "import tritium as tt; print(tt.process_in_batches(lambda b: [len(b)] * len(b), range(20), op='vectors')[0])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "16\n"
    assert "batch/vectors" in tune.explain("batch/vectors")


# ---- what the runtime can choose


def race_of(default: str, seconds: dict[str, list[float]]) -> tuple[Tuning, dict[str, Any]]:
    best = min(seconds, key=lambda c: sorted(seconds[c])[len(seconds[c]) // 2])
    found = tuple(
        Candidate(repr(c), tuple(s), "best" if c == best else "slower" if s else "failed", "" if s else "OSError")
        for c, s in seconds.items()
    )
    return Tuning("x", "", "", "", found, "wall clock", 5, "", 0.0), {repr(c): c for c in seconds}


@pytest.mark.parametrize(
    ("seconds", "value", "why"),
    [
        ({"a": [1.0] * 5, "b": [2.0] * 5}, "a", "as shipped: the fastest"),
        ({"a": [2.0] * 5, "b": [1.0] * 5}, "b", "2.00 times as fast as 'a'"),
        ({"a": [2.0, 2, 2, 2, 0.9], "b": [1.0] * 5}, "a", "as shipped: 'b' is not clearly faster (2.00 times)"),
        ({"a": [1.02] * 5, "b": [1.0] * 5}, "a", "as shipped: 'b' is not clearly faster (1.02 times)"),
        ({"a": [], "b": [1.0] * 5}, "b", "'a' did not run: OSError"),
    ],
)
def test_what_is_shipped_stays_unless_another_is_clearly_faster(
    seconds: dict[str, list[float]], value: str, why: str
) -> None:
    if not seconds["a"]:
        made, objects = race_of("a", {"a": [9.0], "b": seconds["b"]})
        made = replace(made, candidates=(replace(made.candidates[0], seconds=(), reason="OSError"), made.candidates[1]))
    else:
        made, objects = race_of("a", seconds)
    assert tune_choices.decided(made, "a", objects) == (value, why)


def test_a_default_that_fails_late_gives_way_and_is_no_runner_up() -> None:
    calls: list[str] = []

    def fails_late(config: str) -> float:
        calls.append(config)
        if config == "a" and calls.count("a") > 4:
            raise ValueError("other bits")
        return {"a": 1.0, "b": 1.01, "c": 1.02}[config]

    made, objects = tune.run("x", ["a", "b", "c"], fails_late)
    assert len(made.candidates[0].seconds) == 2
    assert tune_choices.decided(made, "a", objects) == ("b", "'a' did not run: ValueError: other bits")
    assert [c.config for c in made.ranked] == ["'b'", "'c'"]
    tune_file.add(made)
    assert "failed: ValueError: other bits" in tune.explain("x")


@needs_native
def test_the_kernels_of_an_exact_row_are_candidates_once_each() -> None:
    found = tune_choices.kernels_of(ops.add, (Spec((64,)), Spec((64,))), {})
    assert next(iter(found)) == native.isa_base(native.isa())
    assert len({k.name for k in found.values()}) == len(found)
    assert list(found) == [k.name for k in found.values()]


@needs_native
def test_kernels_that_win_are_kept_and_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    if len(tune_choices.kernels_of(ops.add, (Spec((64,)), Spec((64,))), {})) < 2:
        pytest.skip("this machine has one instruction set")
    race = tune_choices.kernel_race(ops.add, (Spec((64,)), Spec((64,))), {})
    made = race.make()
    real = replace(race, make=lambda: lambda isa: (made(isa), 2.0 - (isa == "portable"))[1])
    done = tune_choices._run_race(real, quick=True)
    assert (done.value, done.changed) == ("portable", True)
    x = tt.ones(64)
    chosen = tt.device("cpu").backend.choose(ops.add, (x.spec, x.spec), {}, (x.layout, x.layout))
    assert chosen is not None
    assert chosen.name == "portable"
    assert (x + x).tolist() == [2.0] * 64
    tune.clear("kernel")
    chosen = tt.device("cpu").backend.choose(ops.add, (x.spec, x.spec), {}, (x.layout, x.layout))
    assert chosen is not None
    assert chosen.name == native.isa_base(native.isa())


@needs_native
def test_a_kernel_of_other_bits_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    specs = (Spec((8,)), Spec((8,)))
    kernels = tune_choices.kernels_of(ops.add, specs, {})
    wrong = tune_choices.kernels_of(ops.subtract, specs, {})
    both = {"right": next(iter(kernels.values())), "wrong": next(iter(wrong.values()))}
    call = tune_choices._kernel_runner(ops.add, specs, {}, both)
    call("right")
    with pytest.raises(ArgumentError, match="the kernel of wrong returns different bits"):
        call("wrong")


def test_names_that_cannot_be_tuned_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"'tilling' cannot be tuned; there are .*Did you mean 'tiling'?"):
        tune_choices.fill(["tilling"])
    with pytest.raises(ArgumentError, match="'tiling/add' cannot be tuned"):
        tune_choices.fill(["tiling/add"])
    with pytest.raises(ArgumentError, match="'ad' is not an op\\."):
        tune_choices.fill(["kernel/ad"])


def test_a_row_that_is_not_exact_says_that_it_has_no_choice() -> None:
    (done,) = tune_choices.fill(["kernel/exp"], quick=True)
    assert done.tuning is None
    assert "exact ops" in done.why or "no native library" in done.why


def only_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without other devices, whatever is installed."""
    monkeypatch.setattr(backends, "devices", lambda: [backends.Found("cpu", True, {})])


def test_one_device_is_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    only_the_cpu(monkeypatch)
    (done,) = tune_choices.fill(["device"], quick=True)
    assert (done.value, done.why) == ("cpu", "cpu is the only device here")


def test_devices_are_raced_and_the_choice_may_change_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    two_devices(monkeypatch)
    race = tune_choices.races(["device"], quick=True)[-1]
    assert race.configs == ("cpu", "other")
    done = tune_choices._run_race(replace(race, make=lambda: lambda d: 1.0 + (d == "cpu")), quick=True)
    assert done.value == "other"
    assert not tune_file.choices()["device"].exact
    assert "device" not in tuned.choices()


def two_devices(monkeypatch: pytest.MonkeyPatch, cost: Callable[[int], float] = lambda n: 1.0) -> None:
    """The CPU, and another whose products take so many times its time."""
    found = [backends.Found(name, True, {}) for name in ("cpu", "other")]
    monkeypatch.setattr(backends, "devices", lambda: found)
    monkeypatch.setattr(
        tune_choices, "_device_runner", lambda names, n: lambda d: n**3 * 1e-9 * (1.0 if d == "cpu" else cost(n))
    )


@pytest.mark.parametrize(
    ("cost", "said"),
    [
        (lambda n: 300 / n, r"3\.41 times as fast as 'cpu' .* 1024x1024 f32 .*, from about 300x300 on \(between 256x256 and 512x512\)"),
        (lambda n: 0.5, "at every size from 128x128 on"),
        (lambda n: 0.99 if n < 1024 else 0.5, "clearly from 1024x1024 on"),
    ],
)  # fmt: skip
def test_the_choice_of_a_device_says_from_which_size_on_and_where_that_was_measured(
    cost: Callable[[int], float], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_devices(monkeypatch, cost)
    tune_choices.fill(["device"])
    kept = tune_file.choices()["device"]
    assert kept.value == "other"
    assert re.search(said, kept.why)
    assert re.search(r"measured \d{4}-\d\d-\d\d on .*, without transfers", kept.why)


def test_devices_are_chosen_by_the_size_at_which_they_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    two_devices(monkeypatch, lambda n: 0.5 if n in (256, 512) else 2.0)
    tune_choices.fill(["device"])
    monkeypatch.setenv("TRITIUM_TUNED", "all")
    backends.retuned()
    tt.register("other", Null)
    try:
        shapes = [
            (127, 128),
            (128, 128),
            (255, 256),
            (256, 256),
            (3, 512, 200),
            (1024, 1023),
            (1024, 1024),
            (1 << 20, 9),
        ]
        chosen = [tt.default_device(size=s) for s in shapes]
        assert [str(c.device) for c in chosen] == ["cpu", "cpu", "cpu", "other", "other", "other", "cpu", "cpu"]
        assert re.search(
            r"from 262,144 elements on: 2\.00 times as fast as 'cpu' in .* 512x512 f32 .*; measured", chosen[5].why
        )
        assert re.search("from 1,048,576 elements on: as shipped: the fastest in .* 1024x1024", chosen[6].why)
        two_devices(monkeypatch, lambda n: 2.0)
        tune_choices.fill(["device"], quick=True)  # fewer sizes: those of the run before are gone
        backends.retuned()
        assert [n for n, _ in tuned.devices_by_size("matmul")] == [128**2, 512**2]
        assert {str(tt.default_device(size=s).device) for s in shapes} == {"cpu"}
    finally:
        tt.unregister("other")
        tune.clear()
    assert tuned.devices_by_size("matmul") == ()


def test_a_device_that_is_slower_at_the_largest_size_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    two_devices(monkeypatch, lambda n: 0.5 if n < 1024 else 2.0)
    tune_choices.fill(["device"])
    assert "device" not in tune_file.choices()


def test_the_default_device_follows_the_choice_and_its_reason_only_where_all_is_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two_devices(monkeypatch, lambda n: 0.5)
    tune_choices.fill(["device"])
    tt.register("other", Null)
    try:
        assert backends.default_device().device == "cpu"
        monkeypatch.setenv("TRITIUM_TUNED", "all")
        backends.retuned()
        chosen = backends.default_device()
        assert chosen.device == "other"
        assert chosen.why.startswith("tuned: 2.00 times as fast as 'cpu' in the product of two 1024x1024 f32 matrices")
    finally:
        tt.unregister("other")
        tune.clear()


@needs_native
@pytest.mark.parametrize("name", ["tiling", "storage", "threads", "kernel/negative"])
def test_every_target_runs(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(tune_choices, "WIDTH", 128)
    monkeypatch.setattr(tune_choices, "STREAMED_BYTES", 1 << 16)
    before = tt.get_num_threads()
    done = tune_choices.fill([name], quick=True)
    assert done
    for outcome in done:
        assert outcome.tuning is None or not [c for c in outcome.tuning.candidates if c.status == "failed"]
    assert tt.get_num_threads() == before
    again = tune_choices.revalidate([name], quick=True)
    assert len(again) == sum(o.tuning is not None for o in done)


@needs_native
def test_the_batch_of_a_product_is_measured_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_choices, "WIDTH", 128)
    (done,) = tune_choices.fill(["batch"], quick=True)
    assert tuned.choices()["batch/quantized_matmul"].value == done.value


def test_progress_goes_up(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    only_the_cpu(monkeypatch)
    monkeypatch.setattr(tune_choices, "WIDTH", 128)
    tune_choices.fill(["device", "batch"], quick=True, progress=lambda done, total, what: seen.append((done, total)))
    assert all(a <= b for a, b in pairwise(seen))
    assert seen == [(0, 2), (1, 2)]
