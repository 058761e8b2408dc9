"""The benchmark of CUDA where there is no GPU: what it asks for, how it judges, what it shows, and that a part may fail."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tritium as tt
from tritium.perf.tables.table import Table

BENCH = Path(__file__).parents[2] / "bench"
HAS_GPU = any(d.name.startswith("cuda") and d.available for d in tt.devices())

sys.path.insert(0, str(BENCH))
try:
    import cuda_report as report
finally:
    sys.path.remove(str(BENCH))

SECONDS = st.lists(st.floats(0.1, 1e4), min_size=1, max_size=9).map(lambda us: report.Samples(tuple(us)))


@pytest.fixture(name="bench")
def _bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module of another name: `cuda` may be a package of its own."""
    monkeypatch.syspath_prepend(str(BENCH))
    spec = importlib.util.spec_from_file_location("bench_cuda", BENCH / "cuda.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def samples(*us: float) -> Any:
    return report.Samples(us)


def cell(m: int = 1, n: int = 2560, k: int = 2560, **us: float) -> Any:
    names = {"bf16": report.BF16, "fp8": report.FP8, "ours": report.OURS}
    return report.Cell(n, k, m, {names[name]: samples(t, t, t) for name, t in us.items()}, "gemv(rows=8)")


# ---- what it asks for


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU here")
def test_without_a_gpu_it_says_what_is_needed() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH / "cuda.py"), "--quick"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert "bench/cuda.py needs an NVIDIA GPU" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--only", "tea"], "tea: there is no such part; there are exact, products"),
        (["--only", ","], "no part is named"),
        (["--shapes", "2560"], "'2560' is no shape"),
        (["--shapes", "0x4"], "'0x4' is no shape"),
        (["--batches", "1,two"], "are no batches"),
    ],
)
def test_a_wrong_argument_is_named(
    bench: ModuleType, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        bench.parsed(words)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_parts_run_in_their_own_order_and_once() -> None:
    assert report.chosen("model, exact,model", ("exact", "chain", "model")) == ("exact", "model")
    assert report.chosen(None, ("exact", "chain")) == ("exact", "chain")


def test_a_whole_run_has_all_shapes_and_batches(bench: ModuleType) -> None:
    whole, quick, own = (
        bench.parsed(words).options for words in ([], ["--quick"], ["--shapes", "64x32", "--batches", "3"])
    )
    assert (len(whole.shapes), whole.batches) == (7, (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048))
    assert set(quick.shapes) < set(whole.shapes)
    assert set(quick.batches) < set(whole.batches)
    assert (own.shapes, own.batches) == (((64, 32),), (3,))
    assert min(whole.rounds, quick.rounds) >= 7


def test_every_part_has_a_function(bench: ModuleType) -> None:
    for module, function in bench.PARTS.values():
        assert f"\ndef {function}(options: Options) -> Iterator[Shown]:" in (BENCH / f"{module}.py").read_text()


# ---- goals


@pytest.mark.parametrize(
    ("n", "k", "m", "least"),
    [
        (2560, 2560, 1, 4.0), (2560, 6912, 16, 1.9), (28672, 8192, 128, 1.1), (13824, 2560, 2048, 1.4),
        (4096, 4096, 2048, 2.0), (14336, 4096, 2048, 2.0), (2560, 2560, 64, None),
    ],
)  # fmt: skip
def test_what_is_asked_of_a_product_depends_on_its_sizes(n: int, k: int, m: int, least: float | None) -> None:
    assert report.least_times_bf16(n, k, m) == least


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(4.1, 4.5, "met"), (3.9, 4.5, "unsure"), (3.0, 3.9, "MISSED"), (4.0, 4.0, "met")]
)
def test_a_goal_is_judged_by_the_middle_of_the_values(low: float, high: float, verdict: str) -> None:
    assert report.Goal("times", (low + high) / 2, low, high, 4.0).verdict == verdict


@pytest.mark.parametrize(("low", "high", "verdict"), [(1.0, 1.5, "met"), (1.4, 1.6, "unsure"), (1.6, 2.0, "MISSED")])
def test_a_limit_is_judged_the_other_way_round(low: float, high: float, verdict: str) -> None:
    assert report.Goal("share", (low + high) / 2, low, high, 1.5, lower=True).verdict == verdict


@given(SECONDS, SECONDS, st.floats(0.1, 10))
def test_a_faster_product_is_never_judged_worse(theirs: Any, ours: Any, least: float) -> None:
    order = ["MISSED", "unsure", "met"]
    faster = report.Samples(tuple(us / 2 for us in ours.us))
    (now,), (better,) = (list(report.times("x", theirs, one, least)) for one in (ours, faster))
    assert order.index(better.verdict) >= order.index(now.verdict)
    assert now.low <= now.value <= now.high


@given(SECONDS, SECONDS)
def test_times_and_share_are_each_other_s_inverse(theirs: Any, ours: Any) -> None:
    (times,), (share,) = report.times("x", theirs, ours, 1), report.share("x", ours, theirs, 1)
    assert times.value * share.value == pytest.approx(1)
    assert times.low * share.high == pytest.approx(1)


def test_one_token_is_held_against_bf16_fp8_and_the_recorded_kernel() -> None:
    found = report.product_goals(cell(bf16=6.5, fp8=5.0, ours=1.6))
    assert [(g.what.partition(": ")[2].split(" (")[0], g.limit) for g in found] == [
        ("times bf16", 4.0),
        ("times fp8", 1.0),
        ("times Microsoft's kernel", 2.5),
    ]
    assert {g.verdict for g in found} == {"met"}


def test_no_batch_may_be_slower_than_fp8() -> None:
    (found,) = report.product_goals(cell(m=64, bf16=9, fp8=5, ours=5.5))
    assert (found.what, found.verdict) == ("2560×2560, batch 64: times fp8", "MISSED")


@pytest.mark.parametrize("said", ["not timed: WRONG", "not run: RuntimeError: no room"])
def test_a_product_that_is_wrong_or_absent_misses_its_goal(said: str) -> None:
    bad = report.Cell(2560, 2560, 128, {report.BF16: samples(7.0), report.OURS: said})
    (found,) = report.product_goals(bad)
    assert found.verdict == "MISSED"
    assert said in found.what


def test_a_peer_that_was_not_run_asks_for_nothing() -> None:
    found = report.product_goals(report.Cell(64, 64, 32, {report.FP8: "not run: refused", report.OURS: samples(1.0)}))
    assert found == []


# ---- tables


def test_a_table_shows_ratios_goals_and_the_kernel() -> None:
    shown = report.product_table(1, [cell(bf16=6.5, fp8=5.0, ours=1.6)])
    row = dict(zip(shown.heads, shown.rows[0], strict=True))
    assert row["n × k"] == "2560×2560"
    assert (row["× bf16"], row["goal of bf16"]) == ("4.06", "4 met")
    assert (row["× fp8"], row["goal of fp8"]) == ("3.12", "1 met")
    assert (row["_int_mm"], row["kernel"]) == ("-", "gemv(rows=8)")
    assert report.WHOLE in shown.heads
    assert report.WHOLE not in report.product_table(16, []).heads


def test_samples_show_their_median_and_their_middle_half() -> None:
    assert str(samples(1.0, 2.0, 3.0, 4.0, 100.0)) == "3 (2…4)"
    assert str(samples(5.0)) == "5 (5…5)"


def test_verdicts_are_counted() -> None:
    goals = [report.Goal("a", 2, 2, 2, 1), report.Goal("b", 2, 2, 2, 3), report.Goal("c", 2, 1, 4, 3)]
    assert report.goals_table(goals).below[-1] == "1 met, 1 unsure, 1 MISSED."


# ---- a run


@pytest.fixture(name="parts")
def _parts(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """Made up ones: what each shows, or the error it ends with."""
    shown: dict[str, list[Any]] = {}

    def run(name: str, options: Any) -> Any:
        for one in shown[name]:
            if isinstance(one, Exception):
                raise one
            yield one

    monkeypatch.setattr(bench, "absence", lambda: None)
    monkeypatch.setattr(bench, "facts", lambda: {"gpu": "made up", "driver": "1"})
    monkeypatch.setattr(bench, "run", run)
    return shown


def shown(title: str, *goals: Any) -> Any:
    return report.Shown(Table(title, ("a",), (("1",),)), goals, {"us": [1.0]})


def test_a_part_that_fails_is_told_and_the_others_run(
    bench: ModuleType, parts: dict[str, list[Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts |= {"exact": [shown("half"), RuntimeError("no room")], "host": [shown("whole")]}
    out = tmp_path / "made" / "out.json"
    assert bench.main(["--only", "exact,host", "--output", str(out)]) == 1
    said = capsys.readouterr()
    assert "whole" in said.out
    assert "failed: exact" in said.out
    assert "no room" in said.err
    kept = json.loads(out.read_text(encoding="utf-8"))
    assert kept["machine"]["gpu"] == "made up"
    assert kept["command"]
    assert kept["parts"]["exact"]["error"] == "RuntimeError: no room"
    assert [t["title"] for t in kept["parts"]["exact"]["tables"]] == ["half"]
    assert kept["parts"]["host"]["tables"][0]["found"] == {"us": [1.0]}


@pytest.mark.parametrize(("limit", "code"), [(1.0, 0), (3.0, 1)])
def test_a_missed_goal_is_the_exit_code(
    bench: ModuleType, parts: dict[str, list[Any]], capsys: pytest.CaptureFixture[str], limit: float, code: int
) -> None:
    parts["host"] = [shown("host", report.Goal("times", 2.0, 2.0, 2.0, limit))]
    assert bench.main(["--only", "host"]) == code
    assert ("MISSED" in capsys.readouterr().out.split("Goals")[1].split("\n\n")[1]) == bool(code)


# ---- launches back to back


@pytest.fixture(name="launches")
def _launches(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("torch", reason="products on CUDA need PyTorch: pip install torch triton")
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("cuda_launches")


def gpu(capability: tuple[int, int] = (9, 0), has_gluon: bool = True) -> Any:
    from tritium.backends.cuda.gpu import Gpu

    return Gpu(capability, 132, has_gluon)


def test_every_kernel_runs_back_to_back_at_every_shape(launches: ModuleType) -> None:
    from tritium.backends.cuda.linear import choice as cuda_tuned

    for n, k in launches.SHAPES:
        arms = launches.possible(n, k, gpu())
        assert {a.choice.kernel for a in arms if a.choice} == set(cuda_tuned.NAMES)
        assert {a.choice.get("split") > 1 for a in arms if a.choice and a.choice.kernel == "gemm_plain"} == {
            False,
            True,
        }
        spreads = [a.choice.get("spread") for a in arms if a.choice and a.choice.kernel == "wgmma"]
        assert {(s > 0) - (s < 0) for s in spreads} == {-1, 0, 1}
        assert [a.name for a in arms if a.choice is None] == [launches.CONTROL]
        plain = launches.possible(n, k, gpu((8, 0), False))
        assert {a.choice.kernel for a in plain if a.choice} == set(cuda_tuned.PLAIN)


@pytest.mark.parametrize("before", [None, "1"])
def test_early_starts_are_asked_for_during_a_part_of_a_run(
    launches: ModuleType, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    from tritium import settings

    monkeypatch.delenv("TRITIUM_CUDA_EARLY", raising=False)
    if before is not None:
        monkeypatch.setenv("TRITIUM_CUDA_EARLY", before)
    outside = settings.cuda_early()
    for level, meant in (("0", False), ("1", True)):
        with launches.starting(level):
            assert settings.cuda_early() == meant
    assert settings.cuda_early() == outside


def test_what_is_wanted_is_on_the_host_and_differs_from_launch_to_launch(launches: ModuleType) -> None:
    import torch

    o = launches.Operands(6, 40, 0, "cpu", launches=3, tokens=5)
    assert (o.sums.shape, o.sums.dtype, o.sums.device.type) == ((3, 5, 6), torch.int32, "cpu")
    for i in range(3):
        assert torch.equal(o.sums[i], (o.q[i].long() @ o.w[i].long().t()).int())
        assert torch.equal(o.totals[i], o.q[i].long().sum(1).int())
        assert not torch.equal(o.sums[i], o.sums[i - 1])


def test_a_device_that_errs_is_told_by_its_own_f64(launches: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    real, seen = torch.Tensor.cpu, list[int]()

    def erring(x: Any) -> Any:
        seen.append(1)
        return real(x) + (len(seen) == 2)

    monkeypatch.setattr(torch.Tensor, "cpu", erring)
    with pytest.raises(RuntimeError, match=r"different at 6 places.*take another one"):
        launches.Operands(3, 8, 0, "cpu", launches=1, tokens=2)


@pytest.mark.parametrize(
    ("got", "like"),
    [
        (100 + 7, "no total was taken away"), (250, "the sum of launch 0"), (100 + 7 - 30, "the total of launch 2 was taken away"),
        (100 ^ 8, "bit 3 differs"), (100 - (1 << 31), "bit 31 differs"), (105, ""),
    ],
)  # fmt: skip
def test_a_wrong_sum_is_held_against_what_may_have_made_it(launches: ModuleType, got: int, like: str) -> None:
    assert launches.likeness(got, 1, [250, 100, -40], [9, 7, 30]) == like
    assert launches.likeness(launches.POISON, 1, [250, 100, -40], [9, 7, 30]) == "not written"


def test_outputs_are_poisoned_and_compared_at_every_replay(launches: ModuleType) -> None:
    import torch

    o = launches.Operands(6, 40, 1, "cpu", launches=3, tokens=5)
    outputs = [torch.zeros((5, 6), dtype=torch.int32) for _ in range(3)]
    turns: list[bool] = []

    def replay() -> None:
        turns.append(all(bool((y == launches.POISON).all()) for y in outputs))
        for y, sums in zip(outputs, o.sums, strict=True):
            y.copy_(sums)
        if len(turns) == 3:
            outputs[2][4, 1] = launches.POISON
        if len(turns) > 3:
            outputs[1][0] ^= 1

    assert launches.watched(replay, outputs, o.sums, o.totals, 2) == (0, [])
    wrong, told = launches.watched(replay, outputs, o.sums, o.totals, 3)
    assert all(turns)
    assert (wrong, len(turns)) == (13, 5)
    assert told[0][:5] == (0, 2, 4, 1, launches.POISON)
    assert (told[0].wanted, told[0].total, told[0].like) == (int(o.sums[2, 4, 1]), int(o.totals[2, 4]), "not written")
    assert str(told[0]).startswith("replay 0, launch 2, row 4, column 1: got -1515870811, wanted ")
    assert [(m.replay, m.launch, m.row, m.column, m.like) for m in told[1:]] == [
        (1, 1, 0, c, "bit 0 differs") for c in range(3)
    ]


def test_half_of_the_launches_make_their_tokens_between_the_products(
    launches: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    o = launches.Operands(4, 16, 2, "cpu", launches=6, tokens=8)
    given: list[Any] = []
    monkeypatch.setattr(launches.cuda_ternary, "integers", lambda q, tiled: ("made", q.shape[0], tiled))
    monkeypatch.setattr(
        launches.cuda_ternary, "integer_product", lambda q, w, choice: given.append((q, w)) or torch.ones(1)
    )
    arm = next(a for a in launches.ARMS if a.name == "fragments")
    keep: list[Any] = []
    for call in launches.calls(arm, o, keep):
        call()
    assert [q for q, _ in given[:3]] == [("made", arm.m, True)] * 3
    assert all(torch.equal(q, made[: arm.m]) for (q, _), made in zip(given[3:], o.q[3:], strict=True))
    assert [w for _, w in given] == o.ternary
    assert len(keep) == 6


def test_wrong_elements_of_ours_miss_the_goal_and_those_of_torch_are_shown(launches: ModuleType) -> None:
    found = {("2560×2560", "gemv", "0"): 0, ("2560×2560", "gemv", "1"): 3, ("2560×2560", launches.CONTROL, "0"): 1}
    made = launches.shown(found, ("0", "1"), ["first"], 1000)
    assert made.table.heads == ("n × k", "kernel", "in turn", "early")
    assert made.table.rows == (("2560×2560", "gemv", "0", "3"), ("2560×2560", launches.CONTROL, "1", "-"))
    assert "1,000 compared on the host" in made.table.below[1]
    assert made.table.below[-1] == "first"
    assert [(g.value, g.verdict) for g in made.goals] == [(3.0, "MISSED")]
    assert json.loads(json.dumps(made.record))["wrong"][1] == ["2560×2560", "gemv", "1", 3]


# ---- how times are taken


@pytest.fixture(name="models")
def _models(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("torch", reason="models on CUDA need PyTorch: pip install torch triton")
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("cuda_models")


def test_models_have_rows_goals_and_records(models: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a model and a clock of the CPU: how it is measured on a GPU is the same."""
    from tritium.perf.meters.meter import EnergyMeter

    monkeypatch.setattr(models, "MODELS", {"kjv": models.Asked({1: 1.0}, 15.0)})
    monkeypatch.setattr(models, "RUNS", (1, 2))
    monkeypatch.setattr(models, "PROMPT", 8)
    monkeypatch.setattr(models, "DECODED", 4)
    monkeypatch.setattr(models, "meter", lambda: EnergyMeter(sensors=[]))
    monkeypatch.setattr(models, "random_model", lambda name, seed: tt.load())
    monkeypatch.setattr(models, "step_us", lambda *args: report.Samples((5.0, 6.0, 7.0)))
    (shown,) = models.model(report.Options())
    assert [row[:2] for row in shown.table.rows] == [("8", "1"), ("8", "2")]
    assert {row[-2:] for row in shown.table.rows} == {("-", "-")}
    assert [goal.verdict for goal in shown.goals] == ["MISSED"]
    assert [r["device_step_us"] for r in shown.record] == [(5.0, 6.0, 7.0)] * 2
    rows = importlib.import_module("cuda_results").model([shown.record])
    assert [row.labels[1:] for row in rows.rows] == [("8", "1"), ("8", "2")]
    assert set(rows.rows[0].figures) == {"step", "decode", "prefill"}


@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU of CUDA")
@pytest.mark.parametrize("batch", [1, 8, 40])
@pytest.mark.parametrize("family", ["qwen3", "bitnet"])
def test_decode_steps_have_the_logits_of_the_cpu(
    models: ModuleType, monkeypatch: pytest.MonkeyPatch, family: str, batch: int
) -> None:
    """Prompts of different lengths, one of them longer than a share of its keys; all kernels of a decode step."""
    make = importlib.import_module("make_model")
    shape = make.Shape(2, 512, 1024, 16, 8, 1000, 640, 128)
    grouped = make.Preset("qwen3", shape, tied=False, fields=make.QWEN)
    plain = make.Preset("bitnet", shape, "i2_s", 0, tables=False)
    monkeypatch.setitem(make.PRESETS, "small", grouped if family == "qwen3" else plain)
    made = models.random_model("small", 3)
    rng = np.random.default_rng(batch)
    prompts = [rng.integers(0, 1000, int(n)).tolist() for n in rng.integers(1, 12, batch)]
    prompts[-1] = rng.integers(0, 1000, 300).tolist()
    steps = []
    for network in (made.network, made.network.to("cpu")):
        session = models.Session(network, made.config, slots=batch, context=640)
        ids = [int(session.extend(i, prompt).argmax()) for i, prompt in enumerate(prompts)]
        picked = []
        for _ in range(3):
            picked.append(session.pick(list(range(batch)), ids))
            ids = picked[-1].ids
        steps.append(picked)
    on_gpu, on_cpu = steps
    assert [p.ids for p in on_gpu] == [p.ids for p in on_cpu]
    assert [p.logits for p in on_gpu] == [p.logits for p in on_cpu]


@pytest.mark.skipif(not HAS_GPU, reason="needs a GPU of CUDA")
@pytest.mark.parametrize("batch", [1, 8, 40])
def test_sequences_in_blocks_have_the_tokens_of_slots(
    models: ModuleType, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    """Prompts of very different lengths, which grow into new blocks while steps begin before the last one is looked at."""
    make = importlib.import_module("make_model")
    shape = make.Shape(2, 512, 1024, 16, 8, 1000, 640, 128)
    monkeypatch.setitem(make.PRESETS, "small", make.Preset("bitnet", shape, "i2_s", 0, tables=False))
    made = models.random_model("small", 3)
    rng, given = np.random.default_rng(batch), list(range(batch))
    prompts = [rng.integers(0, 1000, int(n)).tolist() for n in rng.choice([1, 5, 62, 63, 64, 65, 127, 128, 400], batch)]
    kind, runs = type(tt.device("cuda").backend), []
    for paged in (True, False):
        monkeypatch.setattr(kind, "pages_caches", paged)
        session = models.Session(made.network, made.config, slots=batch, context=640)
        assert session.grain == (64 if paged else 1)
        ids = [int(row.argmax()) for row in session.extend_all(given, prompts)]
        picked = []
        for _ in range(90):
            picked.append(session.pick(given, ids, ahead=True))
            ids = picked[-1].ids
        session.truncate(0, 1)
        runs.append((picked, session.step(given, ids).tolist()))
    assert runs[0] == runs[1]


def test_kernels_that_start_early_are_counted_from_the_end_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="kernels are profiled by PyTorch")
    monkeypatch.syspath_prepend(str(BENCH))
    profile = importlib.import_module("cuda_profile")
    monkeypatch.setattr(profile, "STEPS", 2)
    step = [
        profile.Launch("a", (1,), 0, 1000),
        profile.Launch("b", (2,), 500, 2000),
        profile.Launch("a", (1,), 2300, 3000),
    ]
    later = [k._replace(start=k.start + 10**6, end=k.end + 10**6) for k in step]
    rows = profile.summed([profile.with_gaps(part) for part in profile.apart(step + later)])
    shown = {(r["kernel"], r["launches"]): (r["alone"], r["own"], r["gaps"]) for r in rows}
    assert shown == {("a", 2): (1.7, 1.7, 0.3), ("b", 1): (1.0, 1.5, 0.0)}


@pytest.mark.parametrize("slowest_us", [3.0, 40.0])
def test_where_a_call_is_long_every_arm_settles_before_each_value(
    monkeypatch: pytest.MonkeyPatch, slowest_us: float
) -> None:
    pytest.importorskip("torch", reason="times of a GPU are taken by PyTorch")
    monkeypatch.syspath_prepend(str(BENCH))
    import cuda_timing

    taken: list[tuple[str, float]] = []

    class Called:
        def __init__(self, name: str, us: float) -> None:
            self.name, self.us = name, us

        def __call__(self) -> None:
            pass

    def device_ms(call: Any, times: int) -> float:
        taken.append((call.name, times * call.us / 1e3))
        return taken[-1][1]

    monkeypatch.setattr(cuda_timing, "device_ms", device_ms)
    found = cuda_timing.in_turn({"slow": Called("slow", slowest_us), "fast": Called("fast", 2.0), "none": "not run"}, 3)
    assert found["none"] == "not run"
    assert found["slow"].us == pytest.approx([slowest_us] * 3)
    assert found["fast"].us == pytest.approx([2.0] * 3)
    warm, rounds = taken[:6], taken[6:]
    assert {name for name, ms in warm if ms >= cuda_timing.WARM_MS / 2} == {"slow", "fast"}
    assert [ms >= cuda_timing.LEAST_MS for _, ms in rounds] == [True] * len(rounds)
    settles = [name for name, ms in rounds if ms >= cuda_timing.SETTLE_MS]
    assert settles == (["slow", "fast"] * 3 if slowest_us >= cuda_timing.LONG_US else [])
    assert len(rounds) == 6 + len(settles)


# ---- random shapes


@pytest.fixture(name="draws")
def _draws(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("cuda_draws")


@given(st.integers(0, 1000))
def test_draws_are_of_every_class_alike_and_within_their_bounds(seed: int) -> None:
    sys.path.insert(0, str(BENCH))
    try:
        draws = importlib.import_module("cuda_draws")
    finally:
        sys.path.remove(str(BENCH))
    drawn = draws.draws(20, seed)
    assert drawn == draws.draws(20, seed)
    assert [sum(low <= d.m <= high for d in drawn) for low, high in draws.CLASSES] == [4] * 5
    for draw in drawn:
        assert draw.n % 64 == draw.k % 64 == 0
        assert 1024 <= min(draw.n, draw.k) <= max(draw.n, draw.k) <= 32768


def test_sizes_are_log_uniform(draws: ModuleType) -> None:
    drawn = draws.draws(2000, 1)
    middle = sorted(d.n for d in drawn)[1000]
    assert 4700 < middle < 7000  # the geometric mean of 1,024 and 32,768 is 5,793
    assert {draws.Draw(64, 64, m).group for m in (1, 31, 32, 513, 8192)} == set(draws.CLASSES)


@pytest.mark.parametrize(
    ("only", "count", "parts"),
    [(None, 0, None), (None, 200, ("random",)), ("host", 0, ("host",)), ("host", 5, ("host", "random")), ("random", 5, ("random",))],
)  # fmt: skip
def test_random_shapes_are_a_part_on_request(bench: ModuleType, only: str | None, count: int, parts: Any) -> None:
    all_others = tuple(name for name in bench.PARTS if name != "random")
    assert bench.parts_of(only, count) == (parts or all_others)


@pytest.mark.parametrize(("only", "count"), [("random", 0), (None, -1)])
def test_random_shapes_need_their_number(bench: ModuleType, only: str | None, count: int) -> None:
    with pytest.raises(ValueError, match="--random-shapes"):
        bench.parts_of(only, count)


def test_a_draw_is_held_against_fp8_and_bf16_both_ways_and_the_class_by_its_median() -> None:
    taken = {
        report.BF16: 4.0,
        report.FP8: 3.0,
        report.FP8_WHOLE: 3.5,
        report.INT4: 2.0,
        report.OURS: 1.0,
        report.WHOLE: 4.0,
    }
    one = report.Cell(2560, 2560, 1, {name: samples(t, t, t) for name, t in taken.items()}, "gemv(rows=8)")
    slow = one._replace(taken=one.taken | {report.OURS: samples(3.0, 3.0, 3.0)})
    goals = {goal.what.partition(": ")[2]: goal for goal in report.random_goals(1, [one])}
    assert [goals[f"times {name}"].value for name in ("fp8", "bf16", "int4")] == [3, 4, 2]
    assert goals["times fp8, both quantise"].verdict == "MISSED"
    assert goals["times bf16, ours quantises"].verdict == "met"
    *_, median = report.random_goals(1, [one, slow, slow])
    assert (median.value, median.limit, median.verdict) == (1.0, 2.5, "MISSED")
    (wrong,) = report.random_goals(2, [one._replace(taken={report.OURS: "not timed: 3 WRONG"})])
    assert wrong.verdict == "MISSED"


def test_a_table_of_draws_begins_with_the_slowest_beside_fp8() -> None:
    cells = [cell(m, fp8=2.0, bf16=3.0, ours=ours) for m, ours in ((40, 1.0), (50, 4.0))]
    table = report.random_table(32, 512, cells)
    assert [row[0] for row in table.rows] == ["50", "40"]
    assert "× fp8: median 1.25, least 0.50, 1 of 2 below 1." in table.text()
