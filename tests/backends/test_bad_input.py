"""Bad input on devices whose own library keeps the memory: refused by name, and the device computes on as before.

A kernel that reads outside its operands would stop a GPU for the whole process, so each refusal is followed by work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tritium as tt
from other_devices import HERE
from tritium import nn
from tritium.errors import TritiumError

if not HERE:
    pytest.skip("needs torch or mlx: pip install torch, or mlx", allow_module_level=True)
pytestmark = pytest.mark.parametrize("device", HERE)


def ones(*shape: int, device: str, dtype: str = "f32") -> Any:
    return tt.ones(shape, dtype=dtype).to(device)


def index(*values: int, device: str) -> Any:
    return tt.asarray(np.array(values, dtype=np.int64)).to(device)


def layer(device: str) -> nn.BitLinear:
    weights = np.random.default_rng(0).standard_normal((64, 128), dtype=np.float32)
    return nn.BitLinear.from_float(tt.asarray(weights)).to(device)


BAD: dict[str, Callable[[str], Any]] = {
    "take above": lambda d: tt.take(ones(4, 3, device=d), index(0, 4, device=d)),
    "take far above": lambda d: tt.take(ones(4, 3, device=d), index(2**62, device=d)),
    "take below": lambda d: tt.take(ones(4, 3, device=d), index(-5, device=d)),
    "take from nothing": lambda d: tt.take(ones(0, 3, device=d), index(0, device=d)),
    "integer array": lambda d: ones(4, 3, device=d)[index(1, 9, device=d)],
    "two integer arrays": lambda d: ones(4, 3, device=d)[index(1, 2, device=d), index(0, 3, device=d)],
    "along an axis": lambda d: tt.take_along_axis(ones(2, 3, device=d), tt.asarray([[7], [0]]).to(d), axis=1),
    "element": lambda d: ones(4, 3, device=d)[4, 0],
    "matmul": lambda d: ones(4, 3, device=d) @ ones(4, 3, device=d),
    "broadcast": lambda d: ones(4, 3, device=d) + ones(4, 2, device=d),
    "other device": lambda d: ones(4, 3, device=d) + tt.ones((4, 3)),
    "layer width": lambda d: layer(d)(ones(2, 127, device=d)),
    "memory": lambda d: tt.zeros((2**24, 2**24), device=d),
    "memory of an op": lambda d: ones(2**20, 1, device=d) + ones(1, 2**24, device=d),
    "repeat": lambda d: tt.repeat(ones(4, device=d), 2**60),
    "reshape": lambda d: ones(4, 3, device=d).reshape((5, 3)),
    "device number": lambda d: tt.ones(3).to(f"{d}:97"),
    "bits": lambda d: ones(4, device=d, dtype="i32") << ones(4, device=d),
}


def work(device: str) -> None:
    """Compute something whose answer is known, through an op, a reduction and a ternary product."""
    x = tt.asarray(np.arange(12, dtype=np.float32).reshape(3, 4)).to(device)
    np.testing.assert_array_equal((x + x).to("cpu").numpy(), np.arange(12).reshape(3, 4) * 2)
    assert float(x.sum()) == 66
    product = layer(device)
    inputs = np.random.default_rng(1).standard_normal((5, 128), dtype=np.float32)
    near = layer("cpu")(tt.asarray(inputs)).numpy()
    np.testing.assert_allclose(product(tt.asarray(inputs).to(device)).to("cpu").numpy(), near, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_and_the_device_works_on(name: str, device: str) -> None:
    with pytest.raises(TritiumError) as error:
        BAD[name](device).to("cpu")
    assert len(str(error.value)) > 20
    work(device)


@pytest.mark.parametrize("rows", [0, 1, 65536, 70001])
def test_counts_beyond_a_grid_are_computed(rows: int, device: str) -> None:
    x = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2) % 7
    y = tt.asarray(x).to(device)
    np.testing.assert_array_equal((y * 2).to("cpu").numpy(), x * 2)
    np.testing.assert_array_equal(tt.sum(y, axis=1).to("cpu").numpy(), x.sum(1))


def test_values_that_are_not_numbers_stay_so(device: str) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1], dtype=np.float32)
    y = tt.asarray(x).to(device)
    np.testing.assert_array_equal((y + y).to("cpu").numpy(), x + x)
    work(device)
