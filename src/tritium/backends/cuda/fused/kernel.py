"""Fusion groups on CUDA as one Triton kernel each, generated from the ops' `expr`.

A maker takes the output spec and the fusion group, and returns a function of torch tensors, as `elements.fused` does;
its results are new memory. torch and Triton are imported when a kernel is made.
"""

from __future__ import annotations

import hashlib
import importlib.util
import linecache
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import Any

from tritium import dtype as dt, ops
from tritium.backends.cuda.fused.code import FOLDS, WHOLE
from tritium.backends.cuda.fused.form import Strides
from tritium.backends.cuda.fused.text import Plan, plan
from tritium.backends.fusion import UnfitError
from tritium.dtype import DType
from tritium.fragment import Fragment, Step
from tritium.op import Op, Spec, outputs

Fn = Callable[..., Any]
Maker = Callable[..., Fn]

REMEMBERED = 1024  # plans and kernels
SINGLE = (*(row for row in WHOLE if row not in FOLDS), ops.gelu)  # that gain by themselves
SHORT = 4096  # CTAs of a launch that is over so soon that an early start is a gain: each CTA pays for the wait
OPTIONS = {"enable_fp_fusion": False, "enable_reflect_ftz": False}  # each operation is rounded, small numbers stay


# ---- whether, and by which kernel


@lru_cache(maxsize=REMEMBERED)
def planned(body: Fragment, strides: tuple[Strides, ...] | None = None) -> Plan | str:
    """Return the plan of a fusion group, or the reason why there is none."""
    try:
        return plan(body, strides)
    except UnfitError as why:
        return str(why)


def refuses(body: Fragment) -> str | None:
    """Return the reason why a fusion group is not one Triton kernel, or None if it is."""
    if not _has_triton():
        return "Triton is not installed; pip install triton"
    outcome = planned(body)
    return outcome if isinstance(outcome, str) else None


@lru_cache(maxsize=1)
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@lru_cache(maxsize=REMEMBERED)
def kernel(source: str) -> Any:
    """Return a Triton function of generated source. Triton reads the text of a function back: linecache keeps it."""
    import triton

    from tritium.backends.cuda import functions as cuda_functions, order as cuda_order

    file = f"<tritium fused {hashlib.sha256(source.encode()).hexdigest()[:16]}>"
    module = ModuleType(file.strip("<>").replace(" ", "_"))
    for names in (cuda_functions, cuda_order):
        module.__dict__.update({k: v for k, v in vars(names).items() if not k.startswith("_")})
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), module.__dict__)
    return triton.jit(module.fused)


# ---- calls


class _Launch:
    """One kernel on one device with its sizes bound; after the first call it bypasses Triton's own binding."""

    def __init__(self, p: Plan) -> None:
        self.fn, self.grid = kernel(p.source), (p.programs, 1, 1)
        self.tail = (*p.sizes, *p.constants)
        self.options = {"num_warps": p.warps, **OPTIONS} | ({"maxnreg": p.registers} if p.registers else {})
        self.ready: dict[int, Fn] = {}  # by device

    def __call__(self, device: int, stream: int, operands: tuple[Any, ...]) -> None:
        ready = self.ready.get(device)
        if ready is not None and _aligned(operands):
            ready(stream, operands)
            return
        early, asm = _abilities(device)
        early &= self.grid[0] <= SHORT
        tail, options = (*self.tail, early, asm), self.options | ({"launch_pdl": True} if early else {})
        compiled = self.fn[self.grid](*operands, *tail, **options)
        if _aligned(operands) and hasattr(compiled, "packed_metadata"):
            self.ready[device] = self._bound(compiled, tail)

    def _bound(self, compiled: Any, tail: tuple[Any, ...]) -> Fn:
        run, function, packed = compiled.run, compiled.function, compiled.packed_metadata
        x, y, z = self.grid

        def launch(stream: int, operands: tuple[Any, ...]) -> None:
            run(x, y, z, stream, function, packed, None, None, None, *operands, *tail)

        return launch


def _abilities(device: int) -> tuple[bool, bool]:
    """Return whether kernels of a device may start early, and whether they may use inline PTX; -1: Triton's
    interpreter.
    """
    import torch

    from tritium.backends.cuda.gpu import gpu

    facts = gpu(torch.device("cpu") if device < 0 else torch.device("cuda", device))
    return facts.early, facts.capability > (0, 0)


def _aligned(operands: tuple[Any, ...]) -> bool:
    """Return True if all addresses are multiples of 16 bytes, as compiled kernels assume."""
    bits = 0
    for x in operands:
        bits |= x.data_ptr()
    return not bits & 15


class Runner:
    """A fusion group on tensors. Kernels for non-contiguous inputs are cached by strides."""

    def __init__(self, out: Any, body: Fragment) -> None:
        import torch

        self.torch, self.body = torch, body
        self.several = not isinstance(out, Spec)
        self.specs = [(s.shape, getattr(torch, s.dtype.long_name)) for s in outputs(out)]
        self.launches: dict[tuple[Strides, ...] | None, _Launch] = {None: self._launch(None)}

    def _launch(self, strides: tuple[Strides, ...] | None) -> _Launch:
        outcome = planned(self.body, strides)
        if isinstance(outcome, str):
            raise UnfitError(f"{self.body} is not one kernel: {outcome}.")
        return _Launch(outcome)

    def __call__(self, *xs: Any) -> Any:
        torch, device = self.torch, xs[0].device
        results = tuple([torch.empty(shape, dtype=t, device=device) for shape, t in self.specs])
        strides = None
        for x in xs:
            if not x.is_contiguous():
                strides = tuple(x.stride() for x in xs)
                break
        launch = self.launches.get(strides)
        if launch is None:
            launch = self.launches[strides] = self._launch(strides)
        if device.type != "cuda":  # Triton's interpreter
            launch(-1, 0, (*xs, *results))
        elif device.index == torch.cuda.current_device():
            launch(device.index, torch._C._cuda_getCurrentRawStream(device.index), (*xs, *results))
        else:
            with torch.cuda.device(device):
                launch(device.index, torch._C._cuda_getCurrentRawStream(device.index), (*xs, *results))
        return results if self.several else results[0]


def maker(out: Any, body: Fragment) -> Fn:
    """Return a function of torch tensors that runs a fusion group as one kernel; UnfitError says why it cannot."""
    return Runner(out, body)


def fused(otherwise: Maker) -> Maker:
    """Return the maker of the op `fused`: one kernel where it can be written, else `otherwise`."""

    def make(out: Any, body: Fragment) -> Fn:
        return maker(out, body) if refuses(body) is None else otherwise(out, body=body)

    return make


def single(op: Op, otherwise: Maker) -> Maker:
    """Return the maker of one op by the same kernels; `otherwise` where they do not take the operands."""

    def make(out: Any, **attrs: Any) -> Fn:
        known: dict[Any, Fn] = {}
        pairs = tuple(attrs.items())

        def run(*xs: Any) -> Any:
            key = tuple([None if x is None else (x.dtype, x.shape) for x in xs])
            fn = known.get(key)
            if fn is None:
                body = _body(op, out, pairs, xs)
                if refuses(body) is None:
                    whole = maker(out, body)
                    fn = known[key] = lambda *operands: whole(*[x for x in operands if x is not None])
                else:
                    fn = known[key] = otherwise(out, **attrs)
            return fn(*xs)

        return run

    return make


def _body(op: Op, out: Any, attrs: tuple[tuple[str, Any], ...], xs: tuple[Any, ...]) -> Fragment:
    """Return one op as a fusion group."""
    present = [x for x in xs if x is not None]
    specs = tuple(Spec(tuple(x.shape), _dtype(x)) for x in present)
    places = iter(range(len(present)))
    inputs = tuple(None if x is None else next(places) for x in xs)
    n = len(specs)
    steps = [Step(op, inputs, attrs, out)]
    if isinstance(out, Spec):
        return Fragment(specs, tuple(steps), (n,))
    steps += [Step(ops.item, (n,), (("index", k),), s) for k, s in enumerate(out)]
    return Fragment(specs, tuple(steps), tuple(range(n + 1, n + 1 + len(out))))


def _dtype(x: Any) -> DType:
    return dt.dtype(str(x.dtype).removeprefix("torch."))
