"""The custom ops of the vLLM plugin: the numbers of Tritium's layers, whole under torch.compile, and refused without weights."""

from __future__ import annotations

import numpy as np
import pytest

import tritium as tt

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")

from tritium.vllm import products  # noqa: E402


@pytest.fixture
def layer() -> tt.nn.BitLinear:
    rng = np.random.default_rng(0)
    made = tt.nn.BitLinear.from_ternary(rng.integers(-1, 2, (24, 64)), scale=rng.uniform(0.5, 2, 24).astype(np.float32))
    products.keep("a layer", made)
    return made


def numbers(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(1).normal(size=shape).astype(np.float32))


def test_an_op_has_the_bits_of_its_layer(layer: tt.nn.BitLinear) -> None:
    x = numbers(5, 64)
    np.testing.assert_array_equal(products.bit_linear(x, "a layer", 24).numpy(), layer(tt.asarray(x.numpy())).numpy())
    half = products.bit_linear(x.bfloat16(), "a layer", 24)
    wanted = layer(tt.asarray(x.bfloat16().float().numpy())).numpy()
    assert half.dtype is torch.bfloat16
    np.testing.assert_array_equal(half.float().numpy(), torch.from_numpy(wanted.copy()).bfloat16().float().numpy())


def test_ops_say_the_shapes_that_they_return(layer: tt.nn.BitLinear) -> None:
    torch.library.opcheck(products.bit_linear, (numbers(5, 64), "a layer", 24))
    torch.library.opcheck(products.take_rows, (torch.tensor([3, 0, 23]), "a layer", 64, numbers(0)))
    torch.library.opcheck(products.rms_norm, (numbers(5, 64), numbers(64), 1e-5))


def test_rows_of_a_table_are_its_weights(layer: tt.nn.BitLinear) -> None:
    rows = products.take_rows(torch.tensor([3, 0, 23]), "a layer", 64, numbers(0))
    np.testing.assert_array_equal(rows.numpy(), layer.dequantize().numpy()[[3, 0, 23]])


def test_a_layer_without_weights_is_named() -> None:
    with pytest.raises(tt.errors.ArgumentError, match="no weights were loaded for 'nothing'"):
        products.bit_linear(numbers(1, 64), "nothing", 24)
