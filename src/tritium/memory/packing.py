"""Many small tensors in one buffer."""

from __future__ import annotations

from collections.abc import Iterable

from tritium import ops
from tritium.arguments import checked_except
from tritium.buffer import ALIGNMENT
from tritium.errors import ArgumentError, DeviceError, shown
from tritium.tensor import Tensor


@checked_except("tensors")
def pack(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Copy the tensors one after another into one buffer, each at a 64-byte boundary: views of it."""
    sources: list[Tensor] = []
    for t in tensors if isinstance(tensors, Iterable) and getattr(tensors, "ndim", 1) != 0 else [tensors]:
        if not isinstance(t, Tensor):  # before the next one is read: there may be very many
            raise ArgumentError(
                f"pack: a list of tensors is needed, given {shown(t)}; tt.asarray makes a tensor of another array."
            )
        sources.append(t)
    if not sources:
        return []
    places = {t.device for t in sources}
    if len(places) > 1:
        raise DeviceError(f"pack: tensors are on {', '.join(map(str, places))}; move them to one device first.")
    starts, end = [], 0
    for t in sources:
        starts.append(end)
        end += -(-t.nbytes // ALIGNMENT) * ALIGNMENT
    storage = sources[0].device.backend.allocate(end)
    out = []
    for t, start in zip(sources, starts, strict=True):
        part = Tensor(storage, t.dtype, t.shape, t.spec.strides, start // t.dtype.nbytes * t.dtype.rows * t.dtype.block)
        out.append(ops.copy(t, out=part))
    return out
