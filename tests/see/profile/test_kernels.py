"""Kernels of a GPU in a profile: traces of torch's profiler become lanes of streams, with the calls that launched them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tritium as tt
from made_profiles import ADD, MATMUL, SCOPE, made
from tritium.errors import PackageError
from tritium.see.profile import kernels, page
from tritium.see.profile.critical import critical_path
from tritium.see.profile.kernels import Work, add_kernels, read_trace
from tritium.see.profile.op_table import kernel_rows, rows, used_lanes
from tritium.see.profile.profile import Profile, load_profile
from tritium.see.timelines.gaps import find_gaps
from tritium.see.trace.timeline import Timeline

BASE = 1_700_000_000_000_000_000


def event(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": args}


TRACE = {
    "baseTimeNanoseconds": BASE,
    "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
        event("cuda_runtime", "cudaLaunchKernel", 10.5, 2, correlation=1),
        event("kernel", "gemv", 14, 30.25, device=0, stream=7, correlation=1, grid=[4, 1, 1], block=[128, 1, 1]),
        event("gpu_memcpy", "Memcpy HtoD", 50, 5, device=1, stream=9, correlation=2, bytes=64),
        event("cpu_op", "aten::mm", 1, 90),
    ],
}


def test_a_trace_gives_kernels_copies_and_their_launches() -> None:
    assert read_trace(TRACE) == [
        Work("gemv", "cuda", 7, BASE + 14_000, 30_250, "grid [4, 1, 1], block [128, 1, 1]", BASE + 10_500),
        Work("Memcpy HtoD", "cuda:1", 9, BASE + 50_000, 5_000, "bytes 64", None),
    ]
    assert read_trace({}) == []


def with_kernels(*works: Work) -> Timeline:
    """A scope with two calls on a thread, each of which returns before its kernel has run."""
    host = made((SCOPE, 0, 900), (MATMUL, 100, 50), (ADD, 200, 50), total=1000)
    return add_kernels(host, works, BASE)


def work(name: str, start: int, elapsed: int, launched: int | None, stream: int = 7) -> Work:
    return Work(name, "cuda", stream, BASE + start, elapsed, "", None if launched is None else BASE + launched)


def test_each_stream_has_a_lane_and_each_kernel_the_innermost_call_around_its_launch() -> None:
    t = with_kernels(
        work("a", 160, 300, 120), work("b", 460, 100, 210), work("c", 600, 10, 400), work("d", 5, 1, None, 9)
    )
    assert t.lanes == ("thread 0", "cuda stream 7", "cuda stream 9")
    named = [(t.whats[t.what[call]].name, t.whats[t.what[kernel]].name) for call, kernel in t.launches]
    assert sorted(named) == [("add", "b"), ("matmul", "a"), ("step", "c")]
    assert used_lanes(t).tolist() == [0]
    assert {r.name for r in rows(t)} == {"matmul", "add"}
    assert [(r.name, r.count, r.own_ns, r.share) for r in kernel_rows(t)][:2] == [
        ("a", 1, 300, 0.3),
        ("b", 1, 100, 0.1),
    ]


def test_kernels_that_overlap_on_a_stream_lie_beside_each_other() -> None:
    t = with_kernels(work("a", 100, 50, None), work("b", 140, 50, None), work("c", 160, 50, None))
    assert t.lanes == ("thread 0", "cuda stream 7", "cuda stream 7, beside 1")
    on = {t.whats[t.what[i]].name: t.lanes[t.lane[i]] for i in range(len(t))}
    assert (on["a"], on["b"], on["c"]) == ("cuda stream 7", "cuda stream 7, beside 1", "cuda stream 7")


def test_a_launch_that_two_threads_may_have_made_belongs_to_none() -> None:
    host = made((MATMUL, 0, 100), (ADD, 0, 100, 1), total=1000)
    assert add_kernels(host, [work("a", 200, 10, 50)], BASE).launches == ()
    assert add_kernels(host, [], BASE) is host


def test_the_critical_path_goes_over_to_the_stream_and_gaps_wait_for_calls() -> None:
    host = made((MATMUL, 100, 50), (ADD, 200, 50), total=1000)
    t = add_kernels(host, [work("a", 160, 300, 120), work("b", 200_000, 100, 210)], BASE)
    path = critical_path(t)
    assert path.lanes == ("thread 0", "cuda stream 7")
    assert dict(path.parts) == {"matmul": 50, "a": 300, "b": 100}
    waits = [gap for gap in find_gaps(t, least_ns=1) if t.lanes[gap.lane] == "cuda stream 7"]
    assert any("the device begins what it was given" in gap.reason for gap in waits)
    assert t.elapsed_total_ns == 200_100  # work that ended after the last call is part of the run


def test_a_profile_with_kernels_comes_back_from_its_file_and_shows_them(tmp_path: Path) -> None:
    t = with_kernels(work("gemv<16>", 160, 300, 120), work("gemv<16>", 460, 100, 210))
    p = Profile(t)
    again = load_profile(p.save(tmp_path / "p.json")).timeline
    assert (again.launches, again.lanes, again.whats) == (t.launches, t.lanes, t.whats)
    assert "GPU kernel" in p.text()
    assert "gemv<16>" in p.text()
    assert "GPU kernel" in p.markdown()
    assert "GPU kernels" in p.html()
    assert "gemv&lt;16&gt;" in p.html()
    assert page.kernel_table(made((MATMUL, 0, 100)), 5, made((MATMUL, 0, 100)).elapsed_ns) is None


def test_without_torch_or_a_gpu_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(kernels, "find_spec", lambda name: None)
    with pytest.raises(PackageError, match="torch is not installed"):
        tt.profile(kernels=True)
    none = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", none)
    with pytest.raises(PackageError, match="no CUDA device"):
        tt.profile(kernels=True)
