"""Memory of other libraries that may not be written: DLPack of both versions, and who is known to allow writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tritium as tt
from tritium import buffer
from tritium.errors import ViewError

needs_native = pytest.mark.skipif(buffer.native is None, reason="NumPy takes unversioned capsules as read-only")


def counted(n: int) -> np.ndarray[Any, Any]:
    return np.arange(n, dtype=np.float32)


class Producer:
    """An array of a library of its own, with the DLPack of an older or a newer version."""

    def __init__(self, data: np.ndarray[Any, Any], versioned: bool) -> None:
        self.data, self.versioned = data, versioned

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, *, max_version: Any = None, **options: Any) -> Any:
        return self.data.__dlpack__(max_version=max_version if self.versioned else None)


def producer(module: str, data: np.ndarray[Any, Any], versioned: bool) -> Producer:
    kind = type("Array", (Producer,), {"__module__": module})
    return kind(data, versioned)  # type: ignore[no-any-return]


WRITES: dict[str, Any] = {
    "in place": lambda x: x.add_(1),
    "+=": lambda x: x.__iadd__(1),
    "an item": lambda x: x.__setitem__(0, 5),
    "items": lambda x: x.__setitem__([0, 1], 5),
    "a mask": lambda x: x.__setitem__(x < 2, 5),
    "a view": lambda x: x[1:].copy_(5),
    "out=": lambda x: tt.multiply(x, 2, out=x),
    "out= of a view": lambda x: tt.add(tt.ones(2), 1, out=x[:2]),
    "donated": lambda x: tt.compile(lambda a: a.add_(1), donate=0)(x),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("module", ["jaxlib._jax", "tensorflow.python", "unknown.arrays"])
@pytest.mark.parametrize("take", [tt.from_dlpack, tt.asarray], ids=["from_dlpack", "asarray"])
def test_memory_that_may_not_be_written_is_not(take: Any, module: str, write: Any) -> None:
    data = counted(4)
    x = take(producer(module, data, versioned=False))
    for _ in range(3):  # calls seen before are replayed by native code
        with pytest.raises(ViewError, match=r"read-only.*clone"):
            write(x)
    assert data.tolist() == [0, 1, 2, 3]
    assert not x.numpy().flags.writeable
    assert x.address == data.ctypes.data
    y = x.clone()
    y += 1
    assert (y.tolist(), data.tolist()) == ([1, 2, 3, 4], [0, 1, 2, 3])


def test_a_versioned_capsule_says_whether_it_may_be_written() -> None:
    data = counted(4)
    x = tt.from_dlpack(producer("unknown.arrays", data, versioned=True))
    x += 1
    assert data.tolist() == [1, 2, 3, 4]
    data.flags.writeable = False
    for module in ("unknown.arrays", "torch"):
        with pytest.raises(ViewError, match="read-only"):
            tt.from_dlpack(producer(module, data, versioned=True)).add_(1)
    assert data.tolist() == [1, 2, 3, 4]


def test_arrays_of_an_immutable_library_are_read_only_whatever_the_capsule_says() -> None:
    data = counted(4)
    with pytest.raises(ViewError, match="read-only"):
        tt.from_dlpack(producer("jaxlib._jax", data, versioned=True)).add_(1)
    x = tt.from_dlpack(producer("jaxlib._jax", data, versioned=True), copy=True)
    x += 1
    assert data.tolist() == [0, 1, 2, 3]


@needs_native
def test_libraries_known_to_allow_writes_need_no_version() -> None:
    data = counted(4)
    x = tt.from_dlpack(producer("torch", data, versioned=False))
    x += 1
    assert data.tolist() == [1, 2, 3, 4]


def test_an_array_of_jax_is_not_written() -> None:
    jnp = pytest.importorskip("jax.numpy")
    theirs = jnp.zeros(4)
    for take in (tt.from_dlpack, tt.asarray):
        with pytest.raises(ViewError, match="read-only"):
            take(theirs).add_(1)
    assert theirs.tolist() == [0, 0, 0, 0]
