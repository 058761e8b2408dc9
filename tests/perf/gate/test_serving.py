"""Measuring servers: what is timed is what happened, two servers are judged as they are, and errors are told."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("h11", reason="needs the extra 'run'")

from markov import Model
from tritium.cli.bench import bench
from tritium.errors import ArgumentError, TritiumError
from tritium.perf.gate import serving
from tritium.perf.gate.serving import Client, Load, Round, Timing, Workload, measure
from tritium.serve.server import Server

QUICK = Workload(words=4, tokens=6)


def serve(step_s: float = 0.0, **options: Any) -> Server:
    return Server(Model(step_s=step_s), port=0, grace_s=5.0, **options)  # type: ignore[arg-type]


def test_prompts_are_the_same_for_the_same_number() -> None:
    w = Workload(words=20, shared=8)
    assert w.prompt(3) == w.prompt(3) != w.prompt(4)
    assert w.prompt(3).split()[:8] == w.prompt(4).split()[:8]
    assert len(w.prompt(3).split()) == 20


def test_no_prompt_comes_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that keeps prompts would be measured without reading the second one."""
    sent: list[int] = []

    class Deaf:
        url = model = ""

        def __init__(self, *args: Any) -> None:
            pass

    def run(client: Any, w: Any, rate: float, requests: int, concurrency: int, first: int = 0) -> serving.Round:
        sent.extend(range(first, first + requests))
        return serving.Round(1.0, ())

    monkeypatch.setattr(serving, "Client", Deaf)
    monkeypatch.setattr(serving, "run_round", run)
    serving.measure(["x"], rates=(1.0, 4.0, math.inf), requests=3, rounds=2)
    assert sent == list(range(27))


def test_one_server_is_measured() -> None:
    with serve(step_s=0.002) as s:
        report = measure([s.url], rates=[50.0, math.inf], requests=4, rounds=2, workload=QUICK)
    assert report.models == ("markov",)
    assert [(load.rate, len(load.rounds), len(load.timings)) for load in report.loads] == [
        (50.0, 2, 8),
        (math.inf, 2, 8),
    ]
    for timing in (t for load in report.loads for t in load.timings):
        assert not timing.error
        assert timing.tokens == 6
        assert timing.prompt_tokens > 4
        assert 0.002 <= timing.first_s <= timing.whole_s
        assert sum(timing.between_s) <= timing.whole_s - timing.first_s
    assert "first token" in report.page()
    assert json.loads(json.dumps(report.as_dict()))["loads"][0]["rows"]["throughput"].endswith("2 samples")


@pytest.mark.slow
def test_a_slower_server_is_told_from_a_faster_one_and_an_equal_one_is_not() -> None:
    with serve() as fast, serve(step_s=0.01) as slow:
        report = measure([fast.url, slow.url], rates=[math.inf], requests=2, rounds=11, workload=QUICK)
    judged = {c.metric: c.judged for c in report.comparisons}
    judged.pop("between tokens", None)  # of tokens that come joined there is no time between
    assert set(judged) == {"first token", "throughput", "goodput"}
    assert judged["throughput"].outcome == "SLOWER"
    assert judged["throughput"].ratio > 1.5
    same = measure_nothing(rounds=11)
    assert {c.judged.outcome for c in same} == {"EQUIVALENT"}


def measure_nothing(rounds: int) -> Any:
    """Compare a made-up load with itself."""
    from tritium.perf.gate.serving import _compare

    timing = Timing(0.1, 0.5, (0.1, 0.1), 3, 5)
    load = Load("a", 1.0, tuple(Round(1.0 + i / 100, (timing,) * 3) for i in range(rounds)))
    return _compare([load, load], Workload(), 0.05)


def test_good_answers_are_those_in_time() -> None:
    fast, slow, failed = (
        Timing(0.1, 0.5, (0.1,) * 4, 5, 1),
        Timing(0.9, 2.5, (0.4,) * 4, 5, 1),
        Timing(0, 1, (), 0, 0, error="x"),
    )
    for workload, good in [
        (Workload(), 2),
        (Workload(first_s=0.5), 1),
        (Workload(between_s=0.2), 1),
        (Workload(first_s=0.01), 0),
    ]:
        load = Load("a", 1.0, (Round(2.0, (fast, slow, failed)),))
        assert sum(t.is_good(workload) for t in load.timings) == good
        assert f"{good / 2:.4g} requests/s, {good} of 3 good" in load.rows(workload)["goodput"]
    assert load.rows(Workload())["errors"].startswith("1 of 3")


def test_errors_are_results() -> None:
    with serve(api_key="k") as s:
        with pytest.raises(TritiumError, match="does not list its models"):
            Client(s.url)
        assert "status 401" in Client(s.url, model="markov").ask(QUICK, 0).error
        assert not Client(f"{s.url}/v1/", "k").ask(QUICK, 0).error
    assert "Refused" in Client(s.url, model="markov").ask(QUICK, 0).error
    for wrong in ("ftp://a", "http://"):
        with pytest.raises(ArgumentError, match="no address"):
            Client(wrong, model="m")
    with pytest.raises(ArgumentError, match="rates above 0"):
        measure(["http://127.0.0.1"], rates=[0.0])


def test_the_command(tmp_path: Any) -> None:
    with serve() as s:
        options = [
            "serve",
            s.url,
            "--rates",
            "inf",
            "--requests",
            "2",
            "--rounds",
            "2",
            "-n",
            "3",
            "-p",
            "8",
            "--slo-first",
            "10s",
        ]
        result = CliRunner().invoke(bench, options)
        assert result.exit_code == 0, result.output
        assert "good: first token ≤ 10000 ms" in result.output
        as_json = CliRunner().invoke(bench, [*options, "--json"])
        assert json.loads(as_json.output)["models"] == ["markov"]
    assert CliRunner().invoke(bench, ["serve", "a", "b", "c"]).exit_code == 2
    assert "are no rates" in CliRunner().invoke(bench, ["serve", "a", "--rates", "0"]).output
