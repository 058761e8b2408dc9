"""The custom ops of the vLLM plugin: the numbers of Tritium's layers, whole under torch.compile, and refused without weights."""

from __future__ import annotations

import numpy as np
import pytest

import tritium as tt

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")

from tritium.torch.formulas import pack  # noqa: E402
from tritium.torch.ops import Packed  # noqa: E402
from tritium.vllm import products  # noqa: E402


@pytest.fixture
def layer() -> tt.nn.BitLinear:
    rng = np.random.default_rng(0)
    t, scale = rng.integers(-1, 2, (24, 64)).astype(np.int8), rng.uniform(0.5, 2, 24).astype(np.float32)
    products.keep("a layer", torch.from_numpy(t), torch.from_numpy(scale), 0, "token")
    return tt.nn.BitLinear.from_ternary(t, scale=scale)


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


@pytest.mark.parametrize("group", [0, 16])
def test_rows_of_packed_weights_are_those_of_the_table(group: int) -> None:
    rng = np.random.default_rng(2)
    t = torch.from_numpy(rng.integers(-1, 2, (12, 32)).astype(np.int8))
    scale = torch.from_numpy(rng.uniform(0.5, 2, (12, 2) if group else 12).astype(np.float16))
    table = Packed(pack(t), scale, None, 32, group, "token")
    ids = torch.tensor([[3, 0], [11, 3]])
    plain = tt.nn.BitLinear.from_ternary(t.numpy(), scale=scale.float().numpy(), group=group).dequantize().numpy()
    np.testing.assert_array_equal(products.dequantised_rows(table, ids).numpy(), plain[ids.numpy()])


def test_a_device_without_kernels_is_refused_by_name() -> None:
    with pytest.raises(tt.errors.DeviceError, match="a table is on meta"):
        products.keep("a table", torch.zeros((4, 8), dtype=torch.int8, device="meta"), torch.ones(4), 0, "token")


@pytest.mark.parametrize("group", [0, 64])
def test_ops_on_a_gpu_have_the_bits_of_the_layer_captured_and_compiled(group: int) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    rng = np.random.default_rng(3)
    t = rng.integers(-1, 2, (192, 256)).astype(np.int8)
    scale = rng.uniform(0.5, 2, (192, 4) if group else 192).astype(np.float16).astype(np.float32)
    products.keep("on a gpu", torch.from_numpy(t).cuda(), torch.from_numpy(scale).cuda(), group, "token")
    x = numbers(5, 256)
    wanted = tt.nn.BitLinear.from_ternary(t, scale=scale, group=group)(tt.asarray(x.numpy())).numpy()
    call = lambda x: products.bit_linear(x, "on a gpu", 192)
    with torch.inference_mode():
        moved = x.cuda()
        np.testing.assert_array_equal(call(moved).cpu().numpy(), wanted)
        np.testing.assert_array_equal(torch.compile(call, fullgraph=True)(moved).cpu().numpy(), wanted)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = call(moved)
        graph.replay()
        np.testing.assert_array_equal(y.cpu().numpy(), wanted)
        ids = torch.tensor([[3, 0], [191, 3]]).cuda()
        rows = products.take_rows(ids, "on a gpu", 256, moved[:0])
    table = tt.nn.BitLinear.from_ternary(t, scale=scale, group=group).dequantize().numpy()
    np.testing.assert_array_equal(rows.cpu().numpy(), table[ids.cpu().numpy()])


def test_a_layer_without_weights_is_named() -> None:
    with pytest.raises(tt.errors.ArgumentError, match="no weights were loaded for 'nothing'"):
        products.bit_linear(numbers(1, 64), "nothing", 24)
