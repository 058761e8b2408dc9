"""NVTX ranges: names of ops and scopes in the traces of Nsight Systems and of other profilers of CUDA programs.

Knows nothing of our own profiles. While `ranges()` is entered every op, eager or in a compiled program, runs inside a
range of its name, and so does every scope while someone records; native replay pauses meanwhile. Otherwise nothing here runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from tritium import escape, launch, recording
from tritium.eager import EAGER
from tritium.errors import PackageError
from tritium.op import Op

HOW = "pip install nvtx"


class Marker(NamedTuple):
    """Who sets ranges: a push with a name, and a pop."""

    push_as_it_is: Callable[[str], Any]
    pop: Callable[[], Any]

    def push(self, name: str) -> None:
        self.push_as_it_is(escape.visible(name))


def available() -> str:
    """ "" where ranges can be set; otherwise why not."""
    found = _marker()
    return found if isinstance(found, str) else ""


def _marker() -> Marker | str:
    if _there("nvtx"):
        nvtx = import_module("nvtx")
        return Marker(nvtx.push_range, nvtx.pop_range)
    if not _there("torch"):
        return f"neither the nvtx package nor torch is installed: {HOW}"
    torch = import_module("torch")
    if not torch.cuda.is_available():
        return f"torch finds no CUDA device, and the nvtx package is not installed: {HOW}"
    return Marker(torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop)


def _there(package: str) -> bool:
    return package in sys.modules or find_spec(package) is not None


def _ranged(emit: Callable[..., Any], marker: Marker) -> Callable[..., Any]:
    """Runs a call as `emit` does, inside a range."""

    def inside(op: Op, *call: Any) -> Any:
        marker.push(op.name)
        try:
            return emit(op, *call)
        finally:
            marker.pop()

    return inside


def _unheard(event: launch.Event) -> None:
    """Listens only so that no call is replayed past the ranges."""


@contextmanager
def ranges(wanted: bool = True) -> Iterator[None]:
    """Set a range around every op of the process meanwhile; PackageError, with the reason, where none can be set."""
    if not wanted:
        yield
        return
    marker = _marker()
    if isinstance(marker, str):
        raise PackageError(f"no NVTX ranges: {marker}.")
    if "emit" in vars(EAGER):  # they are set already
        yield
        return
    launch.watch(_unheard)
    vars(EAGER)["emit"] = _ranged(EAGER.emit, marker)  # programs that someone watches are run by it too
    recording.marker = marker
    try:
        yield
    finally:
        recording.marker = None
        del vars(EAGER)["emit"]
        launch.unwatch(_unheard)
