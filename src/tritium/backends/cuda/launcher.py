"""Compiled kernels launched without Triton's Python: parameters are packed once, a call writes two addresses and
launches.

`launcher.c` is built when it is first needed, by the C compiler with which Triton builds its own launchers, and kept
in Triton's cache. Where it cannot be built, or a kernel has parameters of another kind, `prepared` returns None and
says why in the log; the caller launches through Triton, which takes the host longer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from importlib import import_module, resources
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

log = logging.getLogger("tritium")

DRIVER = "libcuda.so.1"
LANES = 32  # threads of a warp
KINDS = {
    "i1": "i", "i8": "i", "i16": "i", "i32": "i", "u1": "i", "u8": "i", "u16": "i", "u32": "i", "i64": "l", "u64": "l", "fp32": "f",
}  # fmt: skip
Parameter = tuple[str, Any]


class Launch(NamedTuple):
    """One launch: the compiled kernel, its grid and all of its arguments in order."""

    compiled: Any
    grid: tuple[int, ...]
    arguments: list[Any]


class UnknownParameterError(Exception):
    """A kernel has a parameter of a kind that the launcher cannot pack."""


@lru_cache
def native() -> Any:
    """Return the module of `launcher.c` with the driver open, or None where it cannot be built or there is no driver."""
    try:
        build = import_module("triton.runtime.build")
        nvidia = import_module("triton.backends.nvidia.driver")
        source = resources.files(__package__).joinpath("launcher.c").read_text()
        module = build.compile_module_from_src(src=source, name="tritium_launcher", include_dirs=nvidia.include_dirs)
        module.open_driver(DRIVER)
    except Exception as error:  # a missing compiler, header or driver: whatever it is, launches go through Triton
        log.warning(
            "kernels are launched through Triton, which takes the host longer: %s: %s", type(error).__name__, error
        )
        return None
    return module


def prepared(launches: Iterable[Launch], source: int, target: int, device: int) -> Any:
    """Return a plan, whose `launch(input address, result address, stream)` launches all kernels, or None where it
    cannot be made.

    source, target: the addresses of input and result in the recorded arguments.
    """
    module = native()
    if module is None:
        return None
    try:
        steps = tuple(_step(launch, source, target, module.encode) for launch in launches)
        return module.Plan(device, steps)
    except (UnknownParameterError, AttributeError, KeyError, TypeError, ValueError) as error:
        log.info("kernels are launched through Triton: %s", error)
        return None


def quick(
    index: int, tensors: dict[str, torch.Tensor | None], plans: dict[Any, tuple[Any, ...]]
) -> Callable[[torch.Tensor, dict[str, Any]], torch.Tensor | None] | None:
    """Return a function that launches the plan of a module's call, or None without a native module.

    It takes the input and the parameters of the module.

    The function returns None where its caller must take the slow way. It checks all that decides whether a module in
    eval runs the same kernels as before: the tensors and their version counters, gradients, what watches torch's
    operations, the GPU and its stream. plans: by shape and dtype of the input, stream and thread: (plan, shape,
    strides, dtype of the result).
    """
    module = native()
    if module is None:
        return None
    c = torch._C
    functions = (
        torch.is_grad_enabled,
        c._cuda_getDevice,
        c._cuda_getCurrentRawStream,
        c._dynamo.guards._empty_strided_cuda,
        c._cuda_isCurrentStreamCapturing,
        c._are_functorch_transforms_active,
        c._get_tracing_state,
        partial(torch.is_autocast_enabled, "cuda"),
    )
    quick_call = module.Quick(
        index, torch.Tensor, tuple(tensors), tuple(tensors.values()), functions, plans, forward_ad
    )
    call: Callable[[torch.Tensor, dict[str, Any]], torch.Tensor | None] = quick_call.call
    return call


def _step(launch: Launch, source: int, target: int, encode: Callable[..., bytes]) -> tuple[Any, ...]:
    """Return a launch as `Plan` takes it: function, grid, threads, shared memory, early start, parameters."""
    compiled, metadata = launch.compiled, launch.compiled.metadata
    if metadata.num_ctas != 1 or metadata.launch_cooperative_grid:
        raise UnknownParameterError("it runs in clusters, or all at once")
    if metadata.global_scratch_size or metadata.profile_scratch_size:
        raise UnknownParameterError("it has memory of its own for each launch")
    parameters = tuple(_parameters(launch, source, target, encode))
    grid = (*launch.grid, 1, 1)[:3]
    return compiled.function, grid, LANES * metadata.num_warps, metadata.shared, bool(metadata.launch_pdl), parameters


def _parameters(launch: Launch, source: int, target: int, encode: Callable[..., bytes]) -> Iterable[Parameter]:
    """Yield the parameters of a kernel in order: those of its signature that are no constants, then two addresses of no scratch."""
    kinds = list(launch.compiled.src.signature.values())
    maps = iter(launch.compiled.metadata.tensordesc_meta or ())
    if len(kinds) != len(launch.arguments):
        raise UnknownParameterError(f"it takes {len(kinds)} arguments, of which {len(launch.arguments)} are known")
    for kind, value in zip(kinds, launch.arguments, strict=True):
        if kind == "constexpr":
            continue
        if not isinstance(kind, str):
            raise UnknownParameterError("it takes a tuple")
        if kind.startswith("tensordesc"):
            yield from _descriptor(value, next(maps), source, target, encode)
        elif kind.startswith("*"):
            yield _address(value, source, target)
        elif kind in KINDS:
            yield KINDS[kind], value
        else:
            raise UnknownParameterError(f"it takes a number of type {kind}")
    yield from (("p", 0), ("p", 0))


def _address(value: torch.Tensor, source: int, target: int) -> Parameter:
    address = value.data_ptr()
    return ("s" if address == source else "t" if address == target else "p"), address


def _descriptor(
    value: Any, meta: dict[str, Any], source: int, target: int, encode: Callable[..., bytes]
) -> Iterable[Parameter]:
    """Yield a tensor map, and the sizes and strides of its tensor as the kernel also takes them."""
    if meta["fp4_padded"] or value.padding != "zero" or value.base.data_ptr() == source:
        raise UnknownParameterError("a tensor map of its input, of halves of bytes, or filled up with other than zeros")
    host_types = import_module("triton.backends.nvidia.driver").TMA_DTYPE_DEVICE_TO_HOST
    base, shape, strides = value.base.data_ptr(), tuple(map(int, value.shape)), tuple(map(int, value.strides))
    elements = meta["elem_size"], host_types[meta["elem_type"]]
    yield (
        "n" if base == target else "m",
        encode(base, meta["swizzle"], *elements, tuple(meta["block_size"]), shape, strides),
    )
    yield from (("i", size) for size in shape)
    yield from (("l", stride) for stride in strides)
