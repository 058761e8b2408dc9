"""A GPU as launches see it: what kernels are chosen by, which device is current, whether a graph is being captured."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import torch

from tritium import settings
from tritium.backends.cuda.capability import AMPERE, HOPPER

# Names of Gluon that our kernels use and not every Triton has, some under one of two names: of its language, of its module for Hopper, and
# of that module's copies.
LANGUAGE = ("num_warps", "thread_barrier or barrier")
COPIES = ("async_copy_global_to_shared or async_load", "async_copy_shared_to_global or async_store")
GLUON = ("fence_async_shared", "mbarrier", "tma", "warpgroup_mma", "warpgroup_mma_init", "warpgroup_mma_wait")

log = logging.getLogger("tritium")
Value = TypeVar("Value")


class Gpu(NamedTuple):
    """The facts that kernels are chosen by.

    Capability (0, 0): not an NVIDIA GPU, or the interpreter. early: kernels may start before the one in front of them
    is done.
    """

    capability: tuple[int, int]
    processors: int
    has_gluon: bool

    @property
    def bytes(self) -> bool:
        """Return True if Triton multiplies int8 on tensor cores: from Ampere on; the interpreter always does."""
        return self.capability >= AMPERE or self.capability == (0, 0)

    @property
    def early(self) -> bool:
        return self.capability >= HOPPER and settings.cuda_early()

    @property
    def starting(self) -> dict[str, bool]:
        """Return the launch options and constants of a kernel that can start early."""
        return {"EARLY": True, "launch_pdl": True} if self.early else {"EARLY": False}


@lru_cache
def gpu(device: torch.device) -> Gpu:
    if device.type != "cuda":
        return Gpu((0, 0), 1, False)
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:  # its numbers mean other GPUs, which do not speak NVIDIA's assembly
        return Gpu((0, 0), properties.multi_processor_count, False)
    return Gpu((properties.major, properties.minor), properties.multi_processor_count, has_gluon())


@lru_cache
def has_gluon() -> bool:
    """Return True if this Triton has what the kernels for Hopper are written in."""
    try:
        language = import_module("triton.experimental.gluon.language")
        hopper = import_module("triton.experimental.gluon.language.nvidia.hopper")
    except ImportError:
        return False
    missing = [
        name
        for module, names in ((language, LANGUAGE), (hopper, GLUON), (getattr(hopper, "tma", None), COPIES))
        for name in names
        if not any(hasattr(module, n) for n in name.split(" or "))
    ]
    if missing:
        version = import_module("triton").__version__
        log.warning(
            "Triton %s has no %s of Gluon, which the kernels for Hopper need: plain kernels are used, which are slower. "
            "Install the Triton that PyTorch was built with (3.6 and 3.9 have all).", version, ", ".join(missing),
        )  # fmt: skip
    return not missing


def current(x: torch.Tensor) -> AbstractContextManager[Any]:
    """Return a context in which the tensor's GPU is the current one."""
    if x.device.type != "cuda" or x.device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(x.device)


def make_apart(make: Callable[[], Value], device: torch.device) -> Value:
    """Return what `make` returns, run in a thread of its own.

    Memory that is kept must not come from the pool of a graph, from which torch allocates in a thread that is about to
    capture one.
    """
    if device.type != "cuda":
        return make()

    def run() -> Value:
        with torch.cuda.device(device):
            value = make()
            torch.cuda.current_stream(device).synchronize()
        return value

    torch.cuda.current_stream(device).synchronize()  # what it reads may be under way
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def capturing() -> bool:
    """Return True if launches go into a graph instead of running."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
