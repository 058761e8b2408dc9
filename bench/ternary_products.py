"""The products that bench/ternary.py compares: one matrix in as many copies as it takes to be cold, for each library.

Libraries are imported where used.
"""

from __future__ import annotations

import importlib.util
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from typing import Any

Array = Any
Call = Callable[[], Any]
SCALE = 0.03125
FLOAT, INT8 = 1e-3, 4e-2  # how far from float64 an answer may be, relative to its norm
BASE = "tritium"
MOST_COPIES = 1024  # a matrix so small that these fit the caches is not cold


@dataclass(frozen=True)
class Product:
    """One library's product of one matrix, in as many copies as it takes to be cold."""

    copies: Sequence[Callable[[Any], Any]]
    nbytes: int  # of one copy's weights; 0: not known
    tolerance: float
    array: Callable[[Array], Any] = lambda x: x
    finish: Callable[[Any], Any] | None = None  # makes a lazy result happen
    quiet: Callable[[], None] | None = None
    kernel: Callable[[int], str] | None = None
    exact: bool = False

    def call(self, x: Array) -> Call:
        """A call on the next copy each time."""
        of, given, finish = cycle(self.copies).__next__, self.array(x), self.finish
        if finish:
            return lambda: finish(of()(given))
        return lambda: of()(given)


@dataclass
class Matrix:
    """The weights of one shape, and how many copies of so many bytes are cold."""

    n: int
    k: int
    cold: int
    t: Array = field(init=False)

    def __post_init__(self) -> None:
        import numpy as np

        self.t = np.random.default_rng(0).integers(-1, 2, (self.n, self.k), dtype=np.int8)

    def floats(self) -> Array:
        import numpy as np

        return self.t.astype(np.float32) * np.float32(SCALE)

    def copies(self, nbytes: int) -> int:
        return min(self.cold // nbytes + 1, MOST_COPIES)


def twin(layer: Any) -> Any:
    """The same layer on other memory."""
    import tritium as tt

    weight = replace(layer.weight, data=tt.copy(layer.weight.data), scale=tt.copy(layer.weight.scale))
    return type(layer)(weight, activations=layer.activations)


def use_tritium(m: Matrix, threads: int, storage: str = "tern2") -> dict[str, Product]:
    import tritium as tt

    tt.set_num_threads(threads)
    layer = tt.nn.BitLinear.from_ternary(m.t, scale=SCALE, storage=storage)
    layers = [layer, *(twin(layer) for _ in range(m.copies(layer.nbytes) - 1))]
    name = BASE if storage == "tern2" else f"{BASE} {storage}"
    return {name: Product(layers, layer.nbytes, INT8, tt.asarray, kernel=layer.kernel, exact=True)}


def use_groups(m: Matrix, threads: int, group: int, activations: str = "token") -> dict[str, Product]:
    """The same weights with an f16 scale for each group of columns, all of them SCALE: a power of two, so that results have
    the bits of one scale for all; not with a scale for each group of activations too.
    """
    import numpy as np

    import tritium as tt

    tt.set_num_threads(threads)
    scale = np.full((m.n, -(-m.k // group)), SCALE, np.float16)
    layer = tt.nn.BitLinear.from_ternary(m.t, scale=scale, group=group, activations=activations)
    layers = [layer, *(twin(layer) for _ in range(m.copies(layer.nbytes) - 1))]
    name = f"{BASE} g{group}" if activations == "token" else f"{BASE} g{group} both"
    exact = activations == "token"
    return {name: Product(layers, layer.nbytes, INT8, tt.asarray, kernel=layer.kernel, exact=exact)}


def use_kernels(m: Matrix, threads: int) -> dict[str, Product]:
    """The same layer on every native kernel of this machine, called through tritium's kernel objects."""
    import tritium as tt
    from tritium.buffer import native

    (base,) = use_tritium(m, threads).values()
    found, results = {BASE: base}, {}

    def run(kernel: Any, layer: Any, x: Any) -> Any:
        y = results.get(x.shape)
        if y is None:
            y = results[x.shape] = tt.empty((x.shape[0], m.n))
        kernel(x, layer.weight.data, layer.weight.scale, None, group=0, out=y)
        return y

    for isa in native.isas() if native is not None else ():
        if (kernel := native.kernel("quantized_matmul", isa)) is not None:
            copies = [partial(run, kernel, layer) for layer in base.copies]
            name = f"{kernel.isa} kernel"
            found[name] = Product(
                copies, base.nbytes, INT8, tt.asarray, kernel=lambda _, isa=kernel.isa: isa, exact=True
            )
    return found


def use_numpy(m: Matrix, threads: int) -> dict[str, Product]:
    import numpy as np

    w = m.floats()
    copies = [w, *(w.copy() for _ in range(m.copies(w.nbytes) - 1))]
    return {"numpy f32": Product([partial(lambda w, x: np.matmul(x, w.T), w) for w in copies], w.nbytes, FLOAT)}


def use_torch(m: Matrix, threads: int) -> dict[str, Product]:
    import torch
    from torch.nn.functional import linear

    torch.set_num_threads(threads)
    w = torch.from_numpy(m.floats())
    many = [w, *(w.clone() for _ in range(m.copies(w.nbytes) - 1))]
    found = {
        "torch f32": Product([partial(lambda w, x: linear(x, w), w) for w in many], w.nbytes, FLOAT, torch.from_numpy)
    }

    def quantised(w: Any, x: Any) -> Any:  # activations in int8, one scale a token; weights in int8
        amax = x.abs().amax(dim=-1, keepdim=True)
        q = torch.round(x * (127 / amax)).to(torch.int8)
        return torch._int_mm(q, w.t()).to(torch.float32) * (amax * (SCALE / 127))

    w8 = torch.from_numpy(m.t)
    many8 = [w8.clone() for _ in range(m.copies(w8.nbytes))]
    found["torch _int_mm"] = Product([partial(quantised, w) for w in many8], w8.nbytes, INT8, torch.from_numpy)
    return found


def torch_layer(weight: Any) -> Any:
    """torch's int8 linear with dynamic activations, on oneDNN where torch has it."""
    import torch

    if "onednn" in torch.backends.quantized.supported_engines:
        torch.backends.quantized.engine = "onednn"
    layer = torch.ao.nn.quantized.dynamic.Linear(weight.shape[1], weight.shape[0], bias_=False)
    layer.set_weight_bias(weight, None)
    return layer


def use_torch_int8(m: Matrix, threads: int) -> dict[str, Product]:
    import torch

    torch.set_num_threads(threads)
    weight = torch.quantize_per_tensor(torch.from_numpy(m.floats()), SCALE, 0, torch.qint8)
    layers = [torch_layer(weight) for _ in range(m.copies(m.n * m.k))]
    return {"torch int8": Product(layers, m.n * m.k, INT8, torch.from_numpy)}


def use_torch_int4(m: Matrix, threads: int) -> dict[str, Product]:
    """KleidiAI's int4, one scale a row; elsewhere than on ARM torch has only a slow stand-in for it."""
    import numpy as np
    import torch

    if platform.machine() not in ("aarch64", "arm64"):
        return {}
    torch.set_num_threads(threads)
    codes = (m.t + 8).astype(np.uint8)
    pairs = torch.from_numpy(codes[:, 1::2] << 4 | codes[:, ::2])
    scales = torch.full((m.n, 1), SCALE)
    packed = torch.ops.aten._dyn_quant_pack_4bit_weight(pairs, scales, None, m.k, m.k, m.n)
    many = [packed.clone() for _ in range(m.copies(packed.nbytes))]

    def product(w: Any, x: Any) -> Any:
        return torch.ops.aten._dyn_quant_matmul_4bit(x, w, m.k, m.k, m.n)

    return {"torch int4": Product([partial(product, w) for w in many], packed.nbytes, INT8, torch.from_numpy)}


def use_mlx(m: Matrix, threads: int) -> dict[str, Product]:
    """2 bits and a scale and offset per 64: codes 0, 1, 2 times s minus s are the ternary weights, exactly."""
    import mlx.core as mx
    import numpy as np

    mx.set_default_device(mx.cpu)
    codes = (m.t + 1).astype(np.uint32).reshape(m.n, m.k // 16, 16)
    words = (codes << (2 * np.arange(16, dtype=np.uint32))).sum(-1).astype(np.uint32)
    scale, offset = (mx.full((m.n, m.k // 64), value) for value in (SCALE, -SCALE))
    nbytes = words.nbytes + scale.nbytes + offset.nbytes
    many = [(mx.array(words), scale + 0, offset + 0) for _ in range(m.copies(nbytes))]
    mx.eval(many)

    def product(w: Any, x: Any) -> Any:
        return mx.quantized_matmul(x, *w, transpose=True, group_size=64, bits=2)

    finish = lambda y: mx.eval(y) or y
    return {"mlx 2-bit": Product([partial(product, w) for w in many], nbytes, FLOAT, mx.array, finish)}


def peer_products(path: str, m: Matrix, batch: int, threads: int) -> dict[str, Product]:
    """The candidates of a module given by its path; they hold and rotate their own weights."""
    module = sys.modules.get(f"peer:{path}")
    if module is None:
        spec = importlib.util.spec_from_file_location(f"peer:{path}", path)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    quiet = getattr(module, "quiet", None)
    found = module.candidates(m.n, m.k, batch, threads)
    return {name: Product([call], 0, INT8, quiet=quiet) for name, call in found.items()}


Maker = Callable[[Matrix, int], dict[str, Product]]
LIBRARIES: dict[str, Maker] = {
    "tritium": use_tritium,
    "tern5": partial(use_tritium, storage="tern5"),
    "numpy": use_numpy,
    "torch": use_torch,
    "torch-int8": use_torch_int8,
    "torch-int4": use_torch_int4,
    "mlx": use_mlx,
}


def head_products(w: Array, cold: int, threads: int, notes: list[str]) -> dict[str, Product]:
    """An output head: float weights [n, k] kept as int8 rows with a scale each, and torch's float and int8 ones."""
    import numpy as np

    import tritium as tt

    n, k = w.shape
    tt.set_num_threads(threads)
    layer = tt.nn.QuantLinear.from_float(w, "int8")
    layers = [layer, *(twin(layer) for _ in range(cold // layer.nbytes))]
    found = {BASE: Product(layers, layer.nbytes, INT8, tt.asarray, kernel=layer.kernel)}
    try:
        import torch
        from torch.nn.functional import linear
    except ImportError as error:
        notes.append(f"torch is not installed ({error})")
        return found
    torch.set_num_threads(threads)
    many = [torch.from_numpy(w), *(torch.from_numpy(w.copy()) for _ in range(cold // w.nbytes))]
    calls = [partial(lambda w, x: linear(x, w), of) for of in many]
    found["torch f32"] = Product(calls, w.nbytes, FLOAT, torch.from_numpy)
    scales = torch.from_numpy(np.abs(w).max(axis=1).astype(np.float64) / 127)
    weight = torch.quantize_per_channel(many[0], scales, torch.zeros(n, dtype=torch.int64), 0, torch.qint8)
    made = [torch_layer(weight) for _ in range(cold // (n * k) + 1)]
    return found | {"torch int8": Product(made, n * k, INT8, torch.from_numpy)}
