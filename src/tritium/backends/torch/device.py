"""The backend that torch carries out: a storage holds one torch tensor, kernels are torch's functions.

A torch tensor that is held never requires a gradient, so nothing here is recorded for autograd; those that leave or enter are
detached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

from tritium import dtype as dt, ops
from tritium.backends import Device, Kernel, Replay
from tritium.backends.reference import kernels as reference
from tritium.backends.torch import complexes, rows as torch_rows
from tritium.backends.torch.attention import write_places
from tritium.backends.torch.products import int8_is_exact
from tritium.backends.torch.space import Space, Value, dtype_of, look, part_of, store, write
from tritium.backends.values import missing
from tritium.backends.values.device import Memory, ValueBackend, a_layout, is_whole
from tritium.buffer import Array
from tritium.dtype import DType
from tritium.errors import DeviceError, DTypeError, ViewError
from tritium.layout import Layout, Shape
from tritium.op import Op, Spec, Specs

_UNSEEN = (None, None)  # the place of the view looked at last, and that view


class Block(Memory):
    """A torch tensor. Its memory is written in place while no clone shares it and nobody else could tell."""

    __slots__ = ()

    def copied(self) -> Any:
        copy = self.share()
        if self.value is not None:
            copy.put(self.value.clone(memory_format=torch.contiguous_format), self.shape or ())
        return copy

    def alone(self) -> Value:
        """The value, which lies row by row in memory of this handle's own."""
        if self.value is None:
            raise DeviceError(f"This memory of {self.device} has not been written yet; fill it first.")
        if self.sharers > 1 or not self.value.is_contiguous():
            self.put(self.value.clone(memory_format=torch.contiguous_format), self.shape or ())
        return self.value

    @property
    def address(self) -> int:
        if not self.device.backend.space.on_host:
            raise DeviceError(f"The memory of {self.device} has no address; copy it to the host with .to('cpu').")
        return self.alone().data_ptr()

    @property
    def begin(self) -> int:
        return self.alone().data_ptr()

    def export(self) -> int:
        """The address, for someone who may write there: from now on writes go into this memory."""
        address = self.address
        self.fixed = self.value.exported = True
        return address


class Torch(ValueBackend):
    """torch on one of its devices."""

    storage = Block

    def __init__(self, device: Device, place: str, space: type[Space] = Space) -> None:
        super().__init__(device)
        self.place = torch.device(place)
        self.space = space(self.place, self.doubt)
        self.has_f64 = self.space.has_f64
        self.kernels = torch_rows.kernels(self.space)
        self.has_complex = self.space.on_host
        self.complex_kernels = complexes.kernels(self.kernels) if self.has_complex else {}
        self.dynamic = torch_rows.DYNAMIC | ({ops.distinct: self._distinct} if self.space.on_host else {})
        self.missing = missing.TORCH if self.space.on_host else missing.GPU
        self._writes_cache = self.kernels[ops.update_cache][0]

    def listed(self, op: Op, specs: Specs) -> Sequence[Kernel]:
        """The kernels of a row for these operands, best first: complex numbers have their own."""
        if any(s is not None and s.dtype.is_complex for s in specs):
            return self.complex_kernels.get(op, ())
        return super().listed(op, specs)

    # -- values

    def blank(self, shape: Shape, t: DType) -> Value:
        return torch.empty(shape, dtype=self.space.twin(t), device=self.place)

    def reshape(self, value: Value, shape: Shape) -> Value:
        return value.reshape(shape)

    def strided(self, value: Value, layout: Layout) -> Value:
        return look(value, layout)

    def updated(self, value: Value, layout: Layout, part: Value) -> Value:
        return write(value, layout, part)

    def put(self, a: Array, value: Any) -> None:
        stored: Block = a.storage
        if stored.value is not None and stored.sharers > 1 and not is_whole(a):
            stored.alone()
        super().put(a, value)

    def run(self, kernel: Kernel, out: Any, ins: tuple[Array | None, ...], attrs: Mapping[str, Any]) -> None:
        """As ever, but a cache that is updated where it lies is not copied for a few tokens."""
        if kernel is self._writes_cache and self._in_place(out, *ins):
            value = out.storage.alone().reshape(out.shape)
            self.write_places(value, *(self.array(x) for x in ins[1:] if x is not None))
        else:
            super().run(kernel, out, ins, attrs)

    def _in_place(self, out: Array, x: Array | None, *others: Array | None) -> bool:
        """Return True if an op may write into its first operand: all of it is the result, and no other operand is read from there."""
        same = x is not None and x.storage is out.storage and is_whole(x) and is_whole(out)
        apart = not any(o is not None and (o.storage.fixed or o.storage is out.storage) for o in others)
        return same and apart and self.writes_places and out.size > 0 and out.storage.value is not None

    @property
    def writes_places(self) -> bool:
        """Return True if a few tokens can be written into a cache in place."""
        return self.space.on_host

    def write_places(self, cache: Value, values: Value, places: Value) -> None:
        write_places(cache, values, places)

    def replay(self, kernel: Kernel, out: Any, ins: Specs, attrs: Mapping[str, Any]) -> Replay | None:
        replay = None if kernel is self._writes_cache else super().replay(kernel, out, ins, attrs)
        return None if replay is None else replay._replace(look=self._seen)

    def _seen(self, a: Array) -> Any:
        """Return what `array` does of a view, in the common case without looking closer. One that is looked at again is kept with
        the value: making it costs more than many a call."""
        value, place = a.storage.value, (a.shape, a.strides, a.offset)
        before, known = getattr(value, "seen", _UNSEEN)
        if before == place and known is not None:
            return known
        if (
            value is None
            or a.dtype.is_packed
            or min(place[1], default=0) < 0
            or not a.size
            or not value.is_contiguous()
        ):
            return self.array(a)
        again = before == place
        base = value.detach() if again else value  # a view of the value itself would keep it alive for ever
        view = torch.as_strided(base, *place[:2], value.storage_offset() + a.offset)
        value.seen = place, view if again else None
        return view

    def owned(self, a: Array) -> None:
        if a.storage.sharers > 1:
            a.storage.alone()

    def overwrite(self, storage: Block, value: Value) -> None:
        store(storage.value, value)

    def from_host(self, data: np.ndarray[Any, Any], t: DType) -> Value:
        return self.space.array(data)

    def to_host(self, value: Value, t: DType) -> np.ndarray[Any, Any]:
        """A copy: the value may be written in place later."""
        here = value.cpu()
        if t is dt.bf16:
            return np.array(here.contiguous().view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
        return np.array(here.numpy(), order="C")

    def _distinct(self, x: Value, **attrs: Any) -> Any:
        return reference.DYNAMIC[ops.distinct](self.to_host(x, dtype_of(x)), **attrs)

    def is_true(self, value: Value) -> bool:
        return bool(value.any())

    def dtype_of(self, value: Value) -> DType:
        return dtype_of(value)

    def tiling(self, t: DType) -> DType:
        """Plain rows of codes: torch reads them with a shift and a mask."""
        return _ROW_BY_ROW.get(t, t)

    # -- tensors of the user's own

    def adopt(self, value: Value) -> Array:
        """An array on the memory of a torch tensor, with its strides: both see each other's writes."""
        if value.device.type != self.place.type or (value.device.index or 0) != (self.place.index or 0):
            raise DeviceError(
                f"A torch tensor on {value.device} is not memory of {self.device}; move it with t.to(…) first."
            )
        if value.layout is not torch.strided or value.is_quantized:
            raise DTypeError(f"A torch tensor of {value.layout} {value.dtype} is not plain numbers; give t.to_dense().")
        if value.is_neg() or value.is_conj():
            raise DTypeError(
                "A torch view that is negated when it is read has no memory of its own; give t.resolve_neg()."
            )
        spec, strides = Spec(tuple(value.shape), dtype_of(value)), tuple(value.stride())
        plain = value.detach()
        if plain.is_contiguous():
            array = self.hold(plain, spec)
        else:
            reach = 1 + sum((n - 1) * s for n, s in zip(spec.shape, strides, strict=True))
            flat = torch.as_strided(plain, (reach,), (1,), plain.storage_offset())
            under = self.hold(flat, Spec((reach,), spec.dtype))
            array = Array(under.storage, spec.dtype, spec.shape, strides, 0)
        array.storage.fixed = True
        return array

    def handed(self, a: Array) -> Value:
        """A torch tensor on the memory of an array: both see each other's writes."""
        if not a.size:
            return self.blank(a.shape, a.dtype)
        if min(a.strides, default=0) < 0:
            raise ViewError("torch has no reversed views; take a copy in the order you see: x.contiguous().torch().")
        self._fill(a)
        value = a.storage.alone()
        if value.is_inference() and not (
            a.storage.fixed or torch.is_inference_mode_enabled()
        ):  # autograd refuses those
            a.storage.put(value.clone(), a.storage.shape)
        a.storage.fixed = True
        return part_of(a.storage.value.detach(), a_layout(a))

    # -- waiting, and what torch's allocator tells

    def synchronize(self) -> None:
        if self.place.type == "mps":
            torch.mps.synchronize()

    def memory_stats(self) -> dict[str, int] | None:
        """None on the CPU: torch's allocator there keeps no statistics."""
        if self.place.type != "mps":
            return None
        active = torch.mps.current_allocated_memory()
        cached = torch.mps.driver_allocated_memory() - active
        return {"active_bytes": active, "cache_bytes": cached, "limit_bytes": torch.mps.recommended_max_memory()}

    def trim(self) -> int:
        if self.place.type != "mps":
            return 0
        before = torch.mps.driver_allocated_memory()
        torch.mps.empty_cache()
        return max(before - torch.mps.driver_allocated_memory(), 0)

    def limit(self, *, memory_bytes: int | None = None, cache_bytes: int | None = None) -> None:
        if self.place.type != "mps":
            raise DeviceError(f"{self.device}: torch's allocator on the CPU takes no limits; use those of the system.")
        if cache_bytes is not None:
            raise DeviceError(f"{self.device}: torch bounds all of its memory, not its cache; give memory_bytes.")
        if memory_bytes is not None:
            torch.mps.set_per_process_memory_fraction(memory_bytes / max(torch.mps.recommended_max_memory(), 1))

    def memory(self) -> tuple[int, int] | None:
        if self.place.type != "mps":
            return None
        return torch.mps.driver_allocated_memory(), torch.mps.recommended_max_memory()

    def describe(self) -> dict[str, str]:
        facts = {"torch": torch.__version__, "unit": self.place.type}
        if self.space.on_host:
            facts["threads"] = str(torch.get_num_threads())
        else:
            facts["tested"] = "not yet run on a Mac"
        exact = self.space.on_host and int8_is_exact()
        by = "torch's int8 products" if exact else "f32, split so that every sum is exact"
        return facts | {"kernels": f"{len(self.kernels)} rows; integer products by {by}"}


_ROW_BY_ROW = {dt.tern5: dt.tern2, dt.tern2_r64: dt.tern2, dt.tern5_r80: dt.tern2, dt.tern2_r16: dt.tern2,
               dt.i8_r16: dt.i8, dt.i4_r32: dt.i4}  # fmt: skip
