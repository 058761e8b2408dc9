"""What tests of native tapes share."""

from __future__ import annotations

from typing import Any

import numpy as np

import tritium as tt
from tritium import ops
from tritium.backends.cpu import tape
from tritium.backends.reference.fused import constant
from tritium.buffer import native
from tritium.dtype import DType
from tritium.fragment import Fragment, Step
from tritium.op import Kind, Op, Spec, outputs
from tritium.testing import laid


def filled(spec: Spec) -> Any:
    return tt.full(spec.shape, 1, dtype=spec.dtype)


def one_by_one(body: Fragment, data: list[Any], isa: str) -> list[np.ndarray[Any, Any]] | None:
    """Every step by its own native kernel; None where one has none."""
    values: list[Any] = [tt.tensor(np.ascontiguousarray(x)) for x in data]
    for step in body.steps:
        attrs = dict(step.attrs)
        xs = [None if i is None else values[i] for i in step.inputs]
        if step.op is ops.const:
            values.append(tt.tensor(constant(attrs["value"], step.spec)))
        elif step.op is ops.item:
            values.append(xs[0][attrs["index"]])
        elif step.op.kind is Kind.VIEW:
            values.append(tt.tensor(xs[0].numpy().reshape(step.spec.shape)))
        else:
            name = "gelu_tanh" if attrs.get("approximate") == "tanh" else step.op.name
            kernel = native.kernel(name, isa)
            last = next(x.dtype.code for x in reversed(xs) if x is not None)
            if kernel is None or last not in kernel.dtypes:
                return None
            made = tuple(filled(s) for s in outputs(step.spec))
            several = not isinstance(step.spec, Spec)
            kernel(*xs, out=made if several else made[0], **attrs)
            values.append(made if several else made[0])
    return [values[v].numpy() for v in body.outputs]


def by_tape(body: Fragment, data: list[Any], isa: str, how: str = "contiguous") -> list[np.ndarray[Any, Any]]:
    call = tape.native_call(body, isa)
    assert not isinstance(call, str), call
    kernel, attrs = call
    made = tuple(filled(body.spec(v)) for v in body.outputs)
    kernel(*(laid(x, how) for x in data), out=made if len(made) > 1 else made[0], **attrs)
    return [m.numpy() for m in made]


def same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """All NaNs are one."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    equal = np.ascontiguousarray(a).view(unsigned) == np.ascontiguousarray(b).view(unsigned)
    if a.dtype.kind in "iub":
        return bool(equal.all())
    return bool((equal | (np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64)))).all())


def check(body: Fragment, data: list[Any], isa: str, *hows: str) -> bool:
    """By each layout the bits of the steps; False where a step has no kernel."""
    want = one_by_one(body, data, isa)
    for how in (hows or ("contiguous",)) if want is not None else ():
        for i, (g, w) in enumerate(zip(by_tape(body, data, isa, how), want or (), strict=True)):
            assert same_bits(g, w), f"output {i} of {body}, {how}\n{tape.listing(body)}\n{g}\n{w}"
    return want is not None


class Body:
    """A fragment written step by step."""

    def __init__(self, *inputs: Spec) -> None:
        self.inputs, self.steps = inputs, list[Step]()

    def spec(self, v: int) -> Any:
        return self.inputs[v] if v < len(self.inputs) else self.steps[v - len(self.inputs)].spec

    def __call__(self, op: Op, *xs: int | float | None, **attrs: Any) -> int:
        args = [
            self._const(x, next(self.spec(y).dtype for y in reversed(xs) if isinstance(y, int)))
            if isinstance(x, float)
            else x
            for x in xs
        ]
        attrs = op.complete(attrs)
        out = op.rule(*(None if a is None else self.spec(a) for a in args), **attrs)
        out = out.out if hasattr(out, "out") else out
        self.steps.append(Step(op, tuple(args), tuple(attrs.items()), out))
        return len(self.inputs) + len(self.steps) - 1

    def _const(self, value: float, t: DType) -> int:
        self.steps.append(Step(ops.const, (), (("value", value), ("dtype", t)), Spec((), t)))
        return len(self.inputs) + len(self.steps) - 1

    def item(self, v: int, index: int) -> int:
        self.steps.append(Step(ops.item, (v,), (("index", index),), self.spec(v)[index]))
        return len(self.inputs) + len(self.steps) - 1

    def done(self, *outputs: int) -> Fragment:
        return Fragment(tuple(self.inputs), tuple(self.steps), outputs)
