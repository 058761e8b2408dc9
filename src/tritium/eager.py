"""Eager: the interpreter that runs every call immediately.

The native library replays the decisions made here while there are no watchers.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tritium import backends, buffer, dtype as dt, ops
from tritium.backends import Backend, Device, Kernel
from tritium.backends.reference.cast import number
from tritium.buffer import overlap
from tritium.dtype import DType
from tritium.errors import ArgumentError, DeviceError, DTypeError, ShapeError, ViewError, shown
from tritium.functions import asarray
from tritium.interop import adopt_foreign, is_foreign
from tritium.launch import counters, is_recorded, launch, launch_dynamic, launched, made_of
from tritium.layout import text
from tritium.op import SCALARS, Call, Decision, Kind, Op, Spec, Specs, eager, interpreter, outputs
from tritium.tensor import Tensor, wrap

Operand = Tensor | bool | int | float | complex | None


class Eager:
    """The interpreter that runs calls: decide, allocate, launch."""

    def emit(self, op: Op, inputs: tuple[Any, ...], attrs: dict[str, Any], out: Any, call: Call | None) -> Any:
        for x in (out, inputs[0] if inputs and op.kind is Kind.VIEW else None):
            if isinstance(x, Tensor) and x._is_lazy:  # a part of a lazy tensor is lazy, and so is what is written to it
                return x.storage.cell.trace.emit(op, inputs, attrs, out, None)
        xs = tuple(lift(x, op, i, inputs) for i, x in enumerate(inputs))
        device = place(op, xs, attrs, out)
        backend = device.backend
        decision = op.decide(tuple(spec_of(x) for x in xs), attrs)
        if op.kind is Kind.VIEW:
            return look(op, xs[0], attrs, out, call)
        ready = tuple(prepare(x, s, device) for x, s in zip(xs, decision.inputs, strict=True))
        if op.kind is Kind.DYNAMIC:
            return dynamic(op, backend, ready, attrs, out)
        attrs = {k: v for k, v in attrs.items() if k != "device"}
        if op.kind is Kind.SOURCE:
            attrs["dtype"] = decision.out.dtype
        kernel = backend.choose(op, decision.inputs, attrs, tuple(None if x is None else x.layout for x in ready))
        if kernel is None and op is not ops.empty:
            return lowered(op, device, decision, ready, attrs, out)
        if out is not None:
            return self.into(backend, kernel, op, decision, ready, attrs, out, xs, call)
        results = tuple(wrap(backend.new(s)) for s in outputs(decision.out))
        if kernel is not None:
            launch(backend, kernel, op, results if len(results) > 1 else results[0], ready, attrs)
        remember(op, device, kernel, decision, xs, attrs, call)
        return results if len(results) > 1 else results[0]

    def into(
        self, backend: Backend, kernel: Kernel | None, op: Op, decision: Decision, ready: tuple[Tensor | None, ...],
        attrs: dict[str, Any], out: Any, xs: tuple[Operand, ...], call: Call | None,
    ) -> Any:  # fmt: skip
        """Run with the result in the caller's memory."""
        check_count(op, decision.out, out)
        if isinstance(out, tuple):
            return self.into_several(backend, kernel, op, decision, ready, attrs, out)
        check_out(op, decision.out, out)
        shared = [overlap(out, x) for x in ready if x is not None] if backend.writes else []
        clear = not backend.writes or all(s == 0 or (s == 1 and op.inplace) for s in shared)
        if kernel is None or not clear or out.dtype is not decision.out.dtype:
            result = wrap(backend.new(decision.out))
            if kernel is not None:
                launch(backend, kernel, op, result, ready, attrs)
            return store(result, out, op)
        out.storage.own()
        launch(backend, kernel, op, out, ready, attrs)
        remember(op, backend.device, kernel, decision, xs, attrs, call)
        return out

    def into_several(
        self, backend: Backend, kernel: Kernel | None, op: Op, decision: Decision, ready: tuple[Tensor | None, ...],
        attrs: dict[str, Any], out: tuple[Tensor | None, ...],
    ) -> Any:  # fmt: skip
        """Run an op of several results with them in the caller's memory, or in new memory where None was given.

        An op that works in place writes them at once, the first over the first operand if it is the same memory."""
        for spec, o in zip(decision.out, out, strict=True):
            if o is not None:
                check_out(op, spec, o)
        if kernel is None or not op.inplace or not _are_apart(backend, decision, ready, out):
            results = self.emit(op, ready, attrs, None, None)
            return tuple(r if o is None else store(r, o, op) for r, o in zip(results, out, strict=True))
        to = tuple(wrap(backend.new(s)) if o is None else o for s, o in zip(decision.out, out, strict=True))
        for o in to:
            o.storage.own()
        launch(backend, kernel, op, to, ready, attrs)
        return to


def _are_apart(
    backend: Backend, decision: Decision, ready: tuple[Tensor | None, ...], out: tuple[Tensor | None, ...]
) -> bool:
    """Return True if results share no memory with operands or each other, but for the first, which may be the first operand."""
    if any(o is not None and o.dtype is not spec.dtype for spec, o in zip(decision.out, out, strict=True)):
        return False
    if not backend.writes:
        return True
    for i, o in enumerate(out):
        for x in (*ready, *out[:i]):
            if o is not None and x is not None and overlap(o, x) > (1 if i == 0 and x is ready[0] else 0):
                return False
    return True


EAGER = Eager()
eager.append(EAGER)
if buffer.native is not None:
    buffer.native.setup(Tensor, backends.device("cpu"), interpreter, (DType, Device))
    if (api := getattr(sys.modules.get("numpy._core.multiarray"), "_ARRAY_API", None)) is not None:
        buffer.native.numpy_setup(api, np.ndarray, tuple(kind.numpy for kind in dt.ALL), dt.ALL)
else:
    buffer.Storage.device = backends.device("cpu")


def lift(x: Any, op: Op, index: int = 0, others: tuple[Any, ...] = ()) -> Operand:
    """Return an operand as a tensor, a scalar or, where it is optional, None; arrays of NumPy and other libraries are viewed in
    place, on the device of the other operands where that is one of the array's own library."""
    op.check_given(x, index)
    if x is None or isinstance(x, (Tensor, *SCALARS)):
        return x._computed(f"{op.name}: the value") if isinstance(x, Tensor) else x
    if isinstance(x, np.generic):
        return x.item() if x.dtype.kind in "biufc" else _refuse(x, op)
    if isinstance(x, np.ndarray):
        return asarray(x)
    if is_foreign(x):
        there = next((t.storage.device for t in others if isinstance(t, Tensor) and not t.is_traced), None)
        return adopt_foreign(x, there)
    return _refuse(x, op)


def _refuse(x: Any, op: Op) -> Any:
    raise ArgumentError(
        f"{op.name}: {type(x).__name__} is not a tensor or a number; make a tensor with tritium.tensor(…)."
    )


def spec_of(x: Operand) -> Spec | None:
    if x is None:
        return None
    return Spec(x.shape, x.dtype) if isinstance(x, Tensor) else Spec((), dt.of_scalar(x))


def place(op: Op, xs: tuple[Operand, ...], attrs: dict[str, Any], out: Any) -> Device:
    """Return the one device of a call."""
    device: Device | None = None
    outs = out if isinstance(out, tuple) else (out,)
    for x in (*xs, *outs):
        if isinstance(x, Tensor):
            here = x.storage.device
            if device is not None and here is not device:
                raise DeviceError(
                    _apart(op, device, here, next((o.device for o in outs if isinstance(o, Tensor)), device))
                )
            device = here
    for o in outs:
        if o is not None and not isinstance(o, Tensor):
            raise ArgumentError(f"{op.name}: out must be a tensor, given {type(o).__name__}.")
    if device is not None:
        return device
    if op.kind is Kind.SOURCE and attrs.get("device") is None:
        result = op.decide(tuple(spec_of(x) for x in xs), attrs).out
        return backends.device_for(None, max(spec.size for spec in outputs(result)))
    return backends.device(attrs.get("device"))


def _apart(op: Op, one: Device, other: Device, to: Device) -> str:
    """Return the message for tensors of two devices; the call runs on that of the memory it writes, else on the first."""
    array = "" if to.type == "cpu" else f" (a NumPy array with tritium.tensor(a, device={str(to)!r}))"
    return f"{op.name}: tensors are on {one} and {other}; move one with .to({str(to)!r}){array}: transfers are never hidden."


def prepare(x: Operand, spec: Spec | None, device: Device) -> Tensor | None:
    """Return an operand in the dtype the op computes in."""
    if x is None or spec is None:
        return None
    if isinstance(x, Tensor):
        return x if x.dtype is spec.dtype else ops.astype(x, spec.dtype)
    return constant(bool(x) if spec.dtype is dt.bool_ else x, spec.dtype, device)


def constant(value: bool | int | float | complex, kind: DType, device: Device) -> Tensor:
    """Return a 0-d tensor of a Python number."""
    if buffer.native is not None and device.type == "cpu":
        tensor: Tensor | None = buffer.native.number(value, kind)
        if tensor is not None:
            return tensor
    dt.check_fits(value, kind)
    array = device.backend.new(Spec((), kind))
    device.backend.upload(number(value, kind), array)
    return wrap(array)


def look(op: Op, x: Any, attrs: dict[str, Any], out: Any, call: Call | None) -> Tensor:
    """Return a view of x, or of a copy where its layout allows no view (counted as hidden)."""
    if out is not None:
        raise ArgumentError(f"{op.name}: a view has no out=; copy it with ops.copy(…, out=…).")
    assert op.view is not None
    if not isinstance(x, Tensor):
        raise ArgumentError(f"{op.name}: a tensor is needed, given {shown(x)}.")
    seen = op.view(x.layout, **attrs)
    if seen is None:
        counters.hidden(x.nbytes)
        x = ops.copy(x)
        seen = op.view(x.layout, **attrs)
        assert seen is not None
        call = None
    result = Tensor(x.storage, x.dtype, *seen)
    if call is not None and call[0] and isinstance(call[0][0], Tensor):
        op.remember_view(*call, result)
    return result


def dynamic(op: Op, backend: Backend, xs: tuple[Tensor | None, ...], attrs: dict[str, Any], out: Any) -> Any:
    """Run an op whose kernel allocates its own memory."""
    if out is not None:
        raise ArgumentError(f"{op.name}: the size of the result depends on values, so out= cannot be used.")
    if op not in backend.dynamic:
        raise no_kernel(op, backend.device, tuple(spec_of(x) for x in xs))
    result = launch_dynamic(backend, op, xs, attrs)
    return tuple(adopt(f, backend) for f in result) if isinstance(result, tuple) else adopt(result, backend)


def adopt(data: Any, backend: Any) -> Tensor:
    """Return as a tensor the result of a kernel that allocates its own memory: a NumPy array or a value of the device's library."""
    spec = made_of(data, backend)
    if not isinstance(data, np.ndarray):
        return wrap(backend.hold(data, spec))
    array = backend.new(spec)
    backend.upload(data, array)
    return wrap(array)


def lowered(
    op: Op, device: Device, decision: Decision, xs: tuple[Tensor | None, ...], attrs: dict[str, Any], out: Any
) -> Any:
    """Run an op without a kernel here by the ops it lowers to; f16 and bf16 in f32, rounded once, as kernels do."""
    if op.lower is None:
        raise no_kernel(op, device, decision.inputs)
    half = (dt.f16, dt.bf16)
    result = op.lower(*(ops.astype(x, dt.f32) if x is not None and x.dtype in half else x for x in xs), **attrs)
    if result.dtype is not decision.out.dtype:
        result = ops.astype(result, decision.out.dtype)
    return result if out is None else store(result, out, op)


def no_kernel(op: Op, device: Device, specs: Specs) -> DeviceError:
    operands = ", ".join(str(s) for s in specs if s is not None)
    why = device.backend.missing.get(op, "")
    if device.type == "cpu":
        remedy = "An op has its values in tritium/backends/reference/kernels.py (docs/add-an-op.md)."
    elif operands:
        remedy = "It runs on cpu; move the tensors with .to('cpu')."
    else:
        remedy = f"It runs on cpu; create the tensor there and move it with .to({str(device)!r})."
    context = f"{op.name} has no kernel on {device}{' for ' + operands if operands else ''}"
    return DeviceError(f"{context}{': ' + why if why else ''}. {remedy}")


def check_count(op: Op, specs: Any, out: Any) -> None:
    """Raise unless out is one tensor for an op of one result, or a tuple of as many tensors as there are results."""
    several = not isinstance(specs, Spec)
    if several != isinstance(out, tuple) or (several and len(out) != len(specs)):
        needed = f"a tuple of {len(specs)} tensors" if several else "one tensor"
        actual = f"a tuple of {len(out)}" if isinstance(out, tuple) else "one tensor"
        raise ArgumentError(f"{op.name}: out must be {needed}, given {actual}.")


def check_out(op: Op, spec: Spec, out: Tensor) -> None:
    if out.shape != spec.shape:
        raise ShapeError(
            f"{op.name}: the result has shape {text(spec.shape)}, but out is {out.spec}; give one of that shape."
        )
    if not dt.same_kind(spec.dtype, out.dtype):
        raise DTypeError(
            f"{op.name}: the result is {spec.dtype}, which cannot be stored in {out.dtype} without losing its kind; "
            f"cast the tensor first: x.to({spec.dtype.name!r}), or the value: .to({out.dtype.name!r})."
        )
    if any(s == 0 and n > 1 for n, s in zip(out.shape, out.strides, strict=True)):
        raise ViewError(
            f"{op.name}: {out.spec} repeats its memory (it was expanded), so it cannot be written; "
            f"write to its .contiguous() copy."
        )


def store(value: Tensor, out: Tensor, op: Op) -> Tensor:
    """Copy a finished result into the caller's memory, in its dtype."""
    check_out(op, value.spec, out)
    row = ops.copy if value.dtype is out.dtype else ops.astype
    attrs = {} if row is ops.copy else {"dtype": out.dtype, "copy": True}
    backend = out.device.backend
    kernel = backend.choose(row, (value.spec,), attrs, (value.layout,))
    if kernel is None:
        raise no_kernel(row, out.device, (value.spec,))
    out.storage.own()
    launch(backend, kernel, row, out, (value,), attrs)
    return out


def remember(
    op: Op,
    device: Device,
    kernel: Kernel | None,
    decision: Decision,
    xs: tuple[Operand, ...],
    attrs: dict[str, Any],
    call: Call | None,
) -> None:
    """Let native code replay this call: no operand needed a cast. A kernel in Python is called from there."""
    if call is None or buffer.native is None:
        return
    if any(s.dtype.code < 0 for s in outputs(decision.out)):
        return  # native code allocates no such elements
    backend = device.backend
    there = None if kernel is None else backend.replay(kernel, decision.out, decision.inputs, attrs)
    if there is None and device.type != "cpu":
        return
    is_native = kernel is not None and isinstance(kernel.fn, buffer.native.Kernel)
    scalars = []
    for x, s in zip(xs, decision.inputs, strict=True):
        if isinstance(x, Tensor) and s is not None and x.dtype is not s.dtype:
            return
        scalars.append(-1 if s is None or x is None or isinstance(x, Tensor) else s.dtype.code)
    args, kwargs = call
    if not kwargs.keys().isdisjoint(op.inputs):
        return  # native code finds operands by their place
    outs = outputs(decision.out)
    kinds, shapes = zip(*((s.dtype, s.shape) for s in outs), strict=True)
    result_types = (kinds, shapes) if len(kinds) > 1 else (kinds[0], shapes[0])
    if there is not None:
        dtypes = tuple(None if s is None else s.dtype for s in decision.inputs)
        op.remember_there(args, kwargs, *result_types, dtypes, device, there)
        return
    if kernel is None:
        op.remember(args, kwargs, None, *result_types, tuple(scalars), attrs)
        return
    if op.varies is not None and is_native:  # a seed may be any u64; any other number is an element of the result
        fits = dt.u64 if op.varies == "seed" else outs[0].dtype
        op.remember(args, kwargs, kernel.fn, *result_types, (), attrs, None, number=fits.code)
        if op.varies == "seed":
            return  # rarely seen twice
    any_shape = len(outs) == 1 and not backend.chooses_by_shape(op)
    if not (any_shape and op.variadic) or is_recorded():  # a call of any operands serves these too, without a span
        description = launched(op, kernel.name, device, decision.inputs, outs, attrs)
        op.remember(args, kwargs, kernel.fn, *result_types, tuple(scalars), attrs, description)
    if any_shape:
        op.remember(args, kwargs, kernel.fn, *result_types, tuple(scalars), attrs, None, any_shape=True)
