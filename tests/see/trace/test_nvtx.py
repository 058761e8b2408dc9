"""NVTX ranges: around every op while they are asked for, balanced, and otherwise nothing at all."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

import tritium as tt
from tritium import launch, recording
from tritium.eager import EAGER
from tritium.errors import PackageError, ShapeError
from tritium.see.trace import nvtx


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A stand-in for the nvtx package: what was pushed, and a "-" for every pop."""
    seen: list[str] = []
    monkeypatch.setitem(
        sys.modules, "nvtx", SimpleNamespace(push_range=seen.append, pop_range=lambda: seen.append("-"))
    )
    return seen


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    monkeypatch.setattr(nvtx, "_is_installed", lambda name: name not in packages)


def test_every_op_runs_inside_a_range_of_its_name(marks: list[str]) -> None:
    a = tt.ones((3, 4))
    a.exp()  # known to native replay from now on
    with nvtx.ranges():
        tt.add(a.exp(), a)
    assert marks == ["exp", "-", "add", "-"]


def test_the_ops_of_a_compiled_program_have_ranges_too(marks: list[str]) -> None:
    compiled = tt.compile(lambda x: tt.sum(x @ x, axis=0))
    a = tt.ones((4, 4))
    compiled(a)
    compiled(a)
    with nvtx.ranges():
        compiled(a)
    assert {"matmul", "sum"} <= set(marks)


def test_a_range_ends_when_its_op_fails(marks: list[str]) -> None:
    with nvtx.ranges(), pytest.raises(ShapeError):
        tt.add(tt.ones(3), tt.ones(4))
    assert marks.count("-") == len(marks) / 2


def test_scopes_have_ranges_around_those_of_their_ops(marks: list[str]) -> None:
    @tt.scope("inner\n")
    def inner() -> None:
        tt.ones(3).exp()

    with nvtx.ranges(), recording.Recorder(), tt.scope("outer"):
        inner()
    assert marks == ["outer", "inner\\n", "full", "-", "exp", "-", "-", "-"]
    assert recording.marker is None


def test_a_scope_that_fails_ends_its_range(marks: list[str]) -> None:
    with nvtx.ranges(), recording.Recorder(), pytest.raises(ShapeError), tt.scope("outer"):
        tt.add(tt.ones(3), tt.ones(4))
    assert marks.count("-") == len(marks) / 2


def test_nothing_stays_behind(marks: list[str]) -> None:
    watchers = launch.watchers
    with nvtx.ranges(), nvtx.ranges():
        tt.ones(3).exp()
    assert marks.count("exp") == 1
    assert not vars(EAGER)
    assert launch.watchers == watchers
    marks.clear()
    tt.ones(3).exp()
    assert not marks


def test_ranges_nobody_wants_are_not_set(marks: list[str]) -> None:
    with nvtx.ranges(False):
        tt.ones(3).exp()
    assert not marks


def test_it_is_said_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "nvtx", "torch")
    assert nvtx.available() == "neither the nvtx package nor torch is installed: pip install nvtx"
    with pytest.raises(PackageError, match="pip install nvtx"), nvtx.ranges():
        pass


@pytest.mark.parametrize("device", [True, False])
def test_torch_sets_ranges_where_it_has_a_device(monkeypatch: pytest.MonkeyPatch, device: bool) -> None:
    seen: list[str] = []
    marker = SimpleNamespace(range_push=seen.append, range_pop=lambda: None)
    torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: device, nvtx=marker))
    monkeypatch.setitem(sys.modules, "torch", torch)
    without(monkeypatch, "nvtx")
    assert bool(nvtx.available()) == (not device)
    if device:
        with nvtx.ranges():
            tt.ones(3).exp()
        assert "exp" in seen
    else:
        assert "no CUDA device" in nvtx.available()


def test_the_nvtx_package_is_enough(marks: list[str]) -> None:
    assert nvtx.available() == ""
