"""Ternary products of a GPU in a race: a candidate of other bits fails, whichever launch it was; what wins is kept and followed.

The file runs itself once more in Triton's interpreter, where graphs are calls one after another and their times are made up, and
once compiled where there is a GPU. Which of both Triton does is settled when it is imported, so it is not imported here.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import math
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest
from click.testing import CliRunner, Result

from tritium import backends
from tritium.backends import Absent, probes
from tritium.backends.cuda.linear import choice as cuda_tuned
from tritium.backends.cuda.linear.choice import Case, Choice, choice
from tritium.cli.root import cli
from tritium.errors import TuneError, install_command
from tritium.machine import tuned
from tritium.models.load import shipped
from tritium.perf.tune import choices as tune_choices, cuda as tune_cuda, file as tune_file, racing as tune
from triton_runs import INTERPRETED, MODE, in_both_modes, passes

ABSENT = probes.cuda_units()
runs = pytest.mark.skipif(not INTERPRETED, reason="runs in Triton's interpreter")
on_cuda = pytest.mark.skipif(
    MODE != "compiled" or isinstance(ABSENT, Absent),
    reason=f"needs a GPU of CUDA: {ABSENT.why}" if isinstance(ABSENT, Absent) else "runs where Triton compiles",
)
GPU = "NVIDIA One, torch 9.9, triton 3.3"
CASE = Case(20, 130, 2)
RIGHT, OTHER = choice("gemv_plain", 8, 128, 4), choice("gemv_plain", 16, 128, 4)
SPLIT = choice("gemm_plain", 32, 16, 32, 2, 4, 3)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TRITIUM_CACHE", str(tmp_path))
    monkeypatch.delenv("TRITIUM_TUNED", raising=False)
    backends.retuned()
    yield tmp_path
    monkeypatch.undo()
    backends.retuned()


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: pip install torch triton")
@in_both_modes
def test_all_of_this_where_triton_is(mode: str) -> None:
    if mode == "compiled" and isinstance(ABSENT, Absent):
        pytest.skip(f"needs a GPU of CUDA: {ABSENT.why}")
    passes(__file__, mode)


# ---- where there is no GPU


@pytest.mark.skipif(not isinstance(ABSENT, Absent), reason="there is a GPU")
def test_without_a_gpu_the_race_is_listed_with_the_reason() -> None:
    (race,) = tune_choices.races(["cuda"])
    assert race.op == "cuda/product"
    assert race.absent.startswith("there is no GPU of CUDA: ")
    (done,) = tune_choices.fill(["cuda/product"], sizes=[(64, 64)])
    assert (done.tuning, done.why) == (None, race.absent)
    assert tune_file.choices() == {}
    assert tune_choices.revalidate(["cuda"]) == []


def test_without_triton_the_race_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "cuda_units", lambda: ("0",))
    monkeypatch.setattr(tune_cuda, "find_spec", lambda name: None)
    assert tune_cuda.absence() == f"Triton is not installed; {install_command('cuda')}"


def test_gpus_that_cannot_be_told_apart_are_not_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "cuda_units", lambda: ("0", "1"))
    monkeypatch.setattr(tune_cuda, "find_spec", lambda name: "there")
    monkeypatch.setattr(tune_cuda, "gpu", lambda: "")
    assert "CUDA_VISIBLE_DEVICES" in tune_cuda.absence()


# ---- cases


def test_cases_are_those_of_the_reference_model_those_given_and_those_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_cuda, "gpu", lambda: GPU)
    whole, quick = tune_cuda.cases(False), tune_cuda.cases(True)
    assert len(whole) == 20
    assert set(quick) < set(whole)
    assert tune_cuda.cases(False, [(8, 9)], [3, 4]) == [Case(8, 9, 3), Case(8, 9, 4)]
    assert {c.m for c in tune_cuda.cases(True, [(8, 9)])} == set(tune_cuda.QUICK_BATCHES)
    tune_file.choose({tuned.product_key(8, 9, 3, gpu): tuned.Choice(str(RIGHT), "") for gpu in (GPU, "another")})
    assert tune_cuda.cases(False) == [*whole, Case(8, 9, 3)]
    assert tune_cuda.cases(True) == quick


def test_the_sizes_of_a_model_are_those_of_its_joined_layers() -> None:
    assert tune_cuda.sizes_of(shipped()) == ((512, 256), (256, 256), (1536, 256), (256, 768))


# ---- a race in the interpreter


class Calls:
    """In place of a graph: what its calls gave, written again by each replay, which takes as long as it is said of the choice."""

    made: ClassVar[list[Calls]] = []
    choices: ClassVar[list[Choice]] = []  # of every call so far
    took: ClassVar[Callable[[Choice], float]] = staticmethod(lambda c: 0.001)

    def __init__(self, calls: Any) -> None:
        self.results = [call() for call in calls]
        self.values = [y.clone() for y in self.results]
        self.choice, self.replays = self.choices[-1], 0
        self.made.append(self)

    def seconds(self, times: int) -> float:
        self.replays += 1
        for y, value in zip(self.results, self.values, strict=True):
            y.copy_(value)
        return times * type(self).took(self.choice) * len(self.results)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that is the CPU, and two launches a graph."""
    import torch

    import interpreted  # noqa: F401

    monkeypatch.setattr(Calls, "made", [])
    monkeypatch.setattr(Calls, "choices", [])
    product = tune_cuda.Contest._product

    def watched(self: Any, c: Choice, at: int) -> Any:
        Calls.choices.append(c)
        return product(self, c, at)

    monkeypatch.setattr(tune_cuda.Contest, "_product", watched)
    monkeypatch.setattr(tune_cuda, "Replay", Calls)
    monkeypatch.setattr(tune_cuda, "absence", lambda: "")
    monkeypatch.setattr(tune_cuda, "_torch_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(tune_cuda, "_cache_bytes", lambda: 0)
    monkeypatch.setattr(tuned, "gpu", lambda capability, processors: GPU)
    for name, number in (("LAUNCHES", 2), ("JOBS", 1), ("MOST", 3), ("QUICK_MOST", 2)):
        monkeypatch.setattr(tune_cuda, name, number)


@runs
def test_a_contest_tells_the_seconds_of_one_product(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Calls, "took", staticmethod(lambda c: 0.25 if c == RIGHT else 0.5))
    contest = tune_cuda.Contest(CASE, [str(RIGHT), str(OTHER)])
    assert [contest(str(c)) for c in (RIGHT, OTHER, RIGHT)] == [0.25, 0.5, 0.25]
    assert [len(made.results) for made in Calls.made] == [2, 2]


@runs
def test_a_sample_is_long_enough(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Calls, "took", staticmethod(lambda c: 1e-5))
    contest = tune_cuda.Contest(CASE, [str(RIGHT)])
    assert contest(str(RIGHT)) == pytest.approx(1e-5)
    assert contest._ready[str(RIGHT)][1] == 100


@runs
@pytest.mark.parametrize("cold", [0, 1 << 16])
def test_weights_are_so_many_that_they_are_cold(here: None, monkeypatch: pytest.MonkeyPatch, cold: int) -> None:
    monkeypatch.setattr(tune_cuda, "_cache_bytes", lambda: cold)
    contest = tune_cuda.Contest(Case(64, 512, 1), [str(RIGHT)])
    assert len(contest._weights) == (2 if not cold else math.ceil(2 * cold / (64 * 128 + 64 * 4)))


@runs
@pytest.mark.parametrize("launch", [0, 1])
def test_a_candidate_that_is_wrong_in_one_launch_has_failed(
    here: None, monkeypatch: pytest.MonkeyPatch, launch: int
) -> None:
    product = tune_cuda.Contest._product

    def wrong(self: Any, c: Choice, at: int) -> Any:
        y = product(self, c, at)
        if c == OTHER and at == launch:
            y[1, 3] += 1
        return y

    monkeypatch.setattr(tune_cuda.Contest, "_product", wrong)
    contest = tune_cuda.Contest(CASE, [str(RIGHT), str(OTHER)])
    contest(str(RIGHT))
    with pytest.raises(TuneError, match="1 of 80 results have different bits, in 1 of 2 launches"):
        contest(str(OTHER))


@runs
def test_what_a_kernel_leaves_out_is_seen_and_so_is_another_zero(here: None) -> None:
    contest = tune_cuda.Contest(CASE, [str(RIGHT)])
    contest(str(RIGHT))
    (made,) = Calls.made
    made.values = made.results  # nothing is written
    with pytest.raises(TuneError, match="80 of 80 results"):
        contest(str(RIGHT))
    contest._right = [y * 0.0 for y in contest._right]
    made.values = [-right.abs() for right in contest._right]
    with pytest.raises(TuneError, match="results have different bits"):
        contest(str(RIGHT))


@runs
def test_one_that_cannot_be_built_and_one_that_is_late_say_so(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    product = tune_cuda.Contest._product

    def refused(self: Any, c: Choice, at: int) -> Any:
        if c == OTHER:
            raise MemoryError("no room for 9 stages\nand more")
        return product(self, c, at)

    monkeypatch.setattr(tune_cuda.Contest, "_product", refused)
    contest = tune_cuda.Contest(CASE, [str(RIGHT), str(OTHER)])
    assert contest(str(RIGHT)) == 0.001
    with pytest.raises(TuneError, match=r"MemoryError: no room for 9 stages$"):
        contest(str(OTHER))
    monkeypatch.setattr(tune_cuda, "COMPILE_S", 0.0)
    contest = tune_cuda.Contest(CASE, [str(RIGHT), *(str(choice("gemv_plain", 8, n, 4)) for n in (16, 32, 64))])
    with pytest.raises(TuneError, match="it was not compiled within 0 s"):
        contest("gemv_plain(rows=8, words=64, warps=4)")


# ---- kept, followed, shown


def run(*args: str) -> Result:
    done = CliRunner().invoke(cli, ["tune", *args])
    assert done.exit_code == 0, done.output
    return done


@runs
def test_what_wins_is_kept_and_followed_and_the_rest_too(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from tritium.backends.cuda.linear import ternary as cuda_ternary

    asked = {m: (Case(20, 130, m), *tune_cuda._gpu_properties()) for m in (1, 2)}
    listed = {m: tune_cuda.candidates(case, True) for m, (case, *_) in asked.items()}
    monkeypatch.setattr(Calls, "took", staticmethod(lambda c: 0.001 if str(c) == listed[2][1] else 0.002))
    first, second = (cuda_ternary.choose(20, 130, m, (0, 0)) for m in (1, 2))
    done = tune_choices.fill(["cuda"], quick=True, sizes=[(20, 130)], batches=[1, 2])
    assert [o.changed for o in done] == [listed[2][1] in listed[1], True]
    assert [o.race.title for o in done] == [f"cuda/product {m}x130,20x130 tern2" for m in (1, 2)]
    kept = tune_file.choices()
    assert kept[f"cuda/product/20x130x2/{GPU}"].value == listed[2][1] != str(second)
    assert set(kept) == {f"cuda/product/20x130x{m}/{GPU}" for m in (1, 2)}  # near cases follow what stayed, too
    assert str(cuda_tuned.choose(*asked[2])) == listed[2][1]
    assert str(cuda_ternary.choose(20, 130, 2, (0, 0))) == listed[2][1]  # though it was asked before
    assert tune.clear("cuda") == 2
    assert [cuda_ternary.choose(20, 130, m, (0, 0)) for m in (1, 2)] == [first, second]


@runs
def test_nothing_is_kept_where_nothing_ran(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(tune_cuda.Contest, "_product", refused)
    (done,) = tune_choices.fill(["cuda"], quick=True, sizes=[(20, 130)], batches=[1])
    assert done.why == "nothing ran"
    assert tune_file.choices() == {}


@runs
def test_the_command_tunes_lists_explains_measures_again_and_forgets(
    here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune_cuda, "SIZES", ((8, 128),))
    monkeypatch.setattr(tune_cuda, "BATCHES", (1,))
    text = run("--sizes", "20x130", "--batches", "1,2").output
    assert "cuda/product 2x130,20x130 tern2" in text
    assert "It took " in text
    text = run("--list").output
    assert "cuda/product 1x128,8x128 tern2" in text
    assert text.count("UTC") == 2
    assert "not tuned: as shipped" in text
    page = run("--explain", "cuda/product").output
    assert f"cuda/product (2x130,20x130, tern2, {GPU})" in page
    assert "'gemv_plain(rows=8, words=128, warps=4)'" in page
    assert "seconds the function returned" in page
    assert run("--revalidate", "--op", "cuda").output.count("The choice holds.") == 2
    rows = json.loads(run("--list", "--json").output)["choices"]
    assert Counter(r["followed"] for r in rows) == {True: 2}
    assert run("--clear", "--op", "cuda/product").output.startswith("2 races forgotten")
    assert tune_file.choices() == {}


def test_a_graph_keeps_what_its_calls_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="graphs are torch's: pip install torch")
    monkeypatch.setattr(torch, "cuda", MagicMock())

    class Held:
        pass

    held = Held()
    alive = weakref.ref(held)
    replay = tune_cuda.Replay([lambda held=held: [held.__class__.__name__]])
    del held
    gc.collect()
    assert alive() is not None  # its address stands in the graph
    assert replay.results == [["Held"]]
    del replay
    gc.collect()
    assert alive() is None


# ---- on a GPU


@on_cuda
@pytest.mark.parametrize("m", [1, 8, 128])
def test_a_race_on_this_gpu(m: int) -> None:
    from tritium.backends.cuda.linear import ternary as cuda_ternary

    (done,) = tune_choices.fill(["cuda"], quick=True, sizes=[(2560, 2560)], batches=[m])
    assert done.tuning is not None
    assert done.tuning.source == "seconds the function returned"
    assert not [c for c in done.tuning.candidates if "different bits" in c.reason]
    ran = [c for c in done.tuning.candidates if c.seconds]
    assert len(ran) > 1
    assert all(1e-7 < s < 1e-2 for c in ran for s in c.seconds)
    assert str(cuda_ternary.choose(2560, 2560, m)) == done.value
