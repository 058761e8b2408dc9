"""A subgraph as one value: the body of a `fused` op, frozen so that it can be an attribute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from tritium.dtype import DType
from tritium.layout import Layout
from tritium.op import SCALARS, Cost, Kind, Op, Spec, exact


class Step(NamedTuple):
    """One call. `inputs` are numbers of values: first the fragment's own inputs, then one value for each step."""

    op: Op
    inputs: tuple[int | None, ...]
    attrs: tuple[tuple[str, Any], ...]
    spec: Any  # Spec, or a tuple of Spec

    def __str__(self) -> str:
        args = ["none" if i is None else f"%{i}" for i in self.inputs]
        args += [f"{k}={value_text(v)}" for k, v in self.attrs]
        return f"{self.op.name}({', '.join(args)})"


@dataclass(frozen=True, eq=False)
class Fragment:
    """Inputs by spec, steps in order, and which values come out. Equal fragments are equal values."""

    inputs: tuple[Spec, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    _key: Any = field(init=False, repr=False)
    _hash: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        steps = tuple((s.op, s.inputs, exact(s.attrs), s.spec) for s in self.steps)
        object.__setattr__(self, "_key", (self.inputs, steps, self.outputs))
        object.__setattr__(self, "_hash", hash(self._key))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Fragment) and self._key == other._key)

    def spec(self, value: int) -> Any:
        """Return the spec of a value."""
        n = len(self.inputs)
        return self.inputs[value] if value < n else self.steps[value - n].spec

    @cached_property
    def out(self) -> Any:
        """Return the spec of the one result, or a tuple of several."""
        specs = tuple(self.spec(v) for v in self.outputs)
        return specs[0] if len(specs) == 1 else specs

    def numbered(self) -> Iterator[tuple[int, Step]]:
        """Yield every step with the number of the value it computes."""
        return enumerate(self.steps, len(self.inputs))

    def costs(self) -> Iterator[tuple[Step, Cost]]:
        """Yield every step that computes something, with its cost as a call of its own."""
        for s in self.steps:
            if s.op.kind not in (Kind.SOURCE, Kind.VIEW):
                specs = tuple(None if i is None else self.spec(i) for i in s.inputs)
                yield s, s.op.cost(s.spec, *specs, **dict(s.attrs))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names of the ops that compute something, in order."""
        return tuple(s.op.name for s in self.steps if s.op.name not in ("const", "item"))

    def __str__(self) -> str:
        lines = [f"%{v} = {s}" for v, s in self.numbered()]
        results = ", ".join(f"%{v}" for v in self.outputs)
        return "{" + "; ".join([*lines, f"return {results}"]) + "}"


def spec_text(spec: Any) -> str:
    """Return one spec, or a tuple of several, as text."""
    return str(spec) if isinstance(spec, Spec) else f"({', '.join(map(str, spec))})"


def value_text(value: Any) -> str:
    """Return an attribute as graphs print it, such that it can be parsed again."""
    if isinstance(value, (DType, Spec, Fragment)):
        return str(value)
    if type(value) is tuple:
        return f"({', '.join(map(value_text, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, complex):
        return f"complex({value.real!r}, {value.imag!r})"
    if isinstance(value, (*SCALARS, str, Layout)) or value is None:
        return repr(value)
    return repr(str(value))  # a device, by its name
