"""NVTX ranges: names of ops and scopes in the traces of Nsight Systems and of other profilers of CUDA programs.

Independent of Tritium's own profiles. While `ranges()` is entered every op, eager or in a compiled program, runs inside a
range of its name, and so does every scope while a recorder runs; native replay pauses meanwhile. Otherwise there is no
overhead.
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
    """The functions of an NVTX binding: push a named range, and pop it."""

    push_raw: Callable[[str], Any]
    pop: Callable[[], Any]

    def push(self, name: str) -> None:
        self.push_raw(escape.visible(name))


def available() -> str:
    """Return "" if ranges can be set, otherwise the reason why not."""
    marker = _marker()
    return marker if isinstance(marker, str) else ""


def _marker() -> Marker | str:
    if _is_installed("nvtx"):
        nvtx = import_module("nvtx")
        return Marker(nvtx.push_range, nvtx.pop_range)
    if not _is_installed("torch"):
        return f"neither the nvtx package nor torch is installed: {HOW}"
    torch = import_module("torch")
    if not torch.cuda.is_available():
        return f"torch finds no CUDA device, and the nvtx package is not installed: {HOW}"
    return Marker(torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop)


def _is_installed(package: str) -> bool:
    return package in sys.modules or find_spec(package) is not None


def _add_range(emit: Callable[..., Any], marker: Marker) -> Callable[..., Any]:
    """Return a function that calls `emit` inside a range."""

    def inside(op: Op, *call: Any) -> Any:
        marker.push(op.name)
        try:
            return emit(op, *call)
        finally:
            marker.pop()

    return inside


def _ignore(event: launch.Event) -> None:
    """Ignore an event; registered so that no call is replayed natively, outside a range."""


@contextmanager
def ranges(enabled: bool = True) -> Iterator[None]:
    """Set a range around every op of the process meanwhile; PackageError, with the reason, if none can be set."""
    if not enabled:
        yield
        return
    marker = _marker()
    if isinstance(marker, str):
        raise PackageError(f"no NVTX ranges: {marker}.")
    if "emit" in vars(EAGER):  # already set
        yield
        return
    launch.watch(_ignore)
    vars(EAGER)["emit"] = _add_range(EAGER.emit, marker)  # also runs watched programs
    recording.marker = marker
    try:
        yield
    finally:
        recording.marker = None
        del vars(EAGER)["emit"]
        launch.unwatch(_ignore)
