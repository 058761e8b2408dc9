"""The same ops in every library: arrays in and out, synchronisation, and a table of functions.

A library is imported when its candidate is built, in the process that measures it; each is called as its users call it, on
its own memory with its own alignment. Every table has the same names with the same meaning, so that one op is one name.

| names                                                              | arguments                                        |
|--------------------------------------------------------------------|--------------------------------------------------|
| add subtract multiply divide maximum matmul chain                  | a, b (chain: relu(a * b + a))                    |
| exp tanh sigmoid relu relu2 silu gelu gelu_tanh copy transpose     | x                                                |
| softmax rms_norm layer_norm                                        | x, and weights of the last axis                  |
| sum mean max                                                       | x, over all elements                             |
| linear                                                             | x [.., k], w [n, k]: x @ w.T                     |
| attention                                                          | q [b, t, h, d], k and v [b, kv heads, c, d]      |
| rope                                                               | x [b, t, h, d], cos and sin [t, d / 2]           |
| written                                                            | cache [b, h, c, d], new [b, t, h, d], start      |
| joined                                                             | arrays, one after another                        |
| quantize dequantize                                                | w (absmean, int8 codes); codes and scale         |
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from importlib import metadata, util
from typing import Any

import numpy as np

import tritium as tt
from tritium.errors import ArgumentError, DeviceError
from tritium.perf.records.case import UnsupportedError
from tritium.perf.words import nearest
from tritium.perf.work.operations import ALL

Fn = Callable[..., Any]
Data = np.ndarray[Any, Any]
EPS = 1e-5
HALF = ("float16", "bfloat16")
OWN = ("tritium", "tritium.compile", "reference")  # candidates that are Tritium itself
ALIASES = {
    "pytorch": "torch", "np": "numpy", "torch_compile": "torch.compile", "inductor": "torch.compile",
    "compiled": "tritium.compile", "tritium compiled": "tritium.compile", "tritium reference": "reference",
}  # fmt: skip


@dataclass(frozen=True)
class Library:
    """One candidate in this process."""

    name: str
    array: Callable[[Data], Any]
    back: Callable[[Any], Data]
    functions: Mapping[str, Fn]
    wait: Callable[[Any], Any] | None = None  # blocks until a result is computed
    compile: Callable[[Fn], Fn] = lambda fn: fn
    compiles: bool = False  # the timed function is compiled first
    strided: bool = True  # a view keeps its strides
    moves: bool = False  # the timed section begins and ends in NumPy's memory
    # empty(shape), clone(x), from_numpy, upload and dlpack of host arrays
    memory: Mapping[str, Fn] = field(default_factory=dict)
    device: str = "cpu"
    dtypes: tuple[str, ...] = ("f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64")
    # Remarks on how an op is done here.
    notes: Mapping[str, str] = field(default_factory=dict)

    def function(self, name: str) -> Fn:
        """Return this library's function for an op; raise UnsupportedError with the reason if it has none."""
        function = self.functions.get(name) or self.memory.get(name)
        if function is None:
            raise UnsupportedError(f"{self.name} has no {name}{self.notes.get(f'no {name}', '')}.")
        return self.compile(function) if self.compiles and name in self.functions else function


# ---- NumPy's names, which jax.numpy and mlx.core share


def softmax(xp: Any, x: Any) -> Any:
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


def rms_norm(xp: Any, x: Any, weight: Any) -> Any:
    return x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + EPS) * weight


def layer_norm(xp: Any, x: Any, weight: Any, bias: Any) -> Any:
    centred = x - xp.mean(x, axis=-1, keepdims=True)
    return centred / xp.sqrt(xp.mean(centred * centred, axis=-1, keepdims=True) + EPS) * weight + bias


def gelu_tanh(xp: Any, x: Any) -> Any:
    return 0.5 * x * (1 + xp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def sigmoid(xp: Any, x: Any) -> Any:
    return 1 / (1 + xp.exp(-x))


def relu2(xp: Any, x: Any) -> Any:
    positive = xp.maximum(x, 0)
    return positive * positive


def attention(xp: Any, q: Any, k: Any, v: Any) -> Any:
    """Return causal attention; the queries are the last of the keys, several heads share a KV head."""
    batch, tokens, heads, size = q.shape
    shared, capacity = k.shape[1:3]
    grouped = xp.moveaxis(q, 1, 2).reshape(batch, shared, heads // shared * tokens, size)
    scores = (grouped @ xp.moveaxis(k, 2, 3)) * (1 / math.sqrt(size))
    if tokens > 1:
        scores = scores.reshape(batch, heads, tokens, capacity)
        scores = xp.where(xp.tri(tokens, capacity, capacity - tokens, dtype=bool), scores, -math.inf)
        scores = scores.reshape(batch, shared, -1, capacity)
    y = softmax(xp, scores) @ v
    return xp.moveaxis(y.reshape(batch, heads, tokens, size), 1, 2)


def rope(xp: Any, x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    one, two = x[..., :half], x[..., half:]
    cos, sin = cos[:, None, :], sin[:, None, :]
    return xp.concatenate([one * cos - two * sin, two * cos + one * sin], axis=-1)


def quantize(xp: Any, w: Any) -> tuple[Any, Any]:
    """Return absmean ternary codes, one per byte, and their scale."""
    scale = xp.maximum(xp.mean(xp.abs(w)), 1e-5)
    return xp.clip(xp.round(w / scale), -1, 1).astype(xp.int8), scale


def _extend_cache(xp: Any, cache: Any, new: Any, start: int) -> Any:
    """Return the cache with new tokens: arrays that cannot be written are concatenated."""
    return xp.concatenate([cache[:, :, :start], xp.moveaxis(new, 1, 2)], axis=2)


def _common(xp: Any) -> dict[str, Fn]:
    return {
        "add": xp.add, "subtract": xp.subtract, "multiply": xp.multiply, "divide": xp.divide, "maximum": xp.maximum,
        "matmul": xp.matmul, "exp": xp.exp, "tanh": xp.tanh, "sum": xp.sum, "mean": xp.mean, "max": xp.max,
        "chain": lambda a, b: xp.maximum(a * b + a, 0), "relu": lambda x: xp.maximum(x, 0), "relu2": partial(relu2, xp),
        "sigmoid": partial(sigmoid, xp), "silu": lambda x: x * sigmoid(xp, x), "gelu_tanh": partial(gelu_tanh, xp),
        "softmax": partial(softmax, xp), "rms_norm": partial(rms_norm, xp), "layer_norm": partial(layer_norm, xp),
        "linear": lambda x, w: x @ w.T, "attention": partial(attention, xp), "rope": partial(rope, xp),
        "written": partial(_extend_cache, xp), "joined": xp.concatenate, "quantize": partial(quantize, xp),
        "dequantize": lambda q, scale: q * scale,
    }  # fmt: skip


# ---- NumPy


def _wide(fn: Fn) -> Fn:
    """Return the function computing f16 and bf16 in f32 and rounding once: NumPy's own sums and products of them are slow or inexact."""

    def wide(*xs: Any) -> Any:
        kind = xs[0].dtype
        if kind.name not in HALF:
            return fn(*xs)
        return fn(*(x.astype(np.float32) if x.dtype.name in HALF else x for x in xs)).astype(kind)

    return wide


def _write_cache(cache: Any, new: Any, start: int) -> Any:
    cache[:, :, start : start + new.shape[1]] = new.swapaxes(1, 2)
    return cache


def _erf() -> Fn | None:
    try:
        from scipy.special import erf
    except ImportError:
        return None
    function: Fn = erf
    return function


def numpy_functions() -> dict[str, Fn]:
    """Return the functions of NumPy by the names of the table."""
    functions = _common(np) | {
        "copy": np.copy, "transpose": lambda x: np.ascontiguousarray(x.T), "written": _write_cache,
        "quantize": lambda w: quantize(np, w.astype(np.float32) if w.dtype.name in HALF else w),
        "dequantize": lambda q, scale: np.multiply(q, scale, dtype=np.float32),
    }  # fmt: skip
    if (erf := _erf()) is not None:
        root = math.sqrt(0.5)
        functions["gelu"] = lambda x: x * (1 + erf(x * x.dtype.type(root))) * x.dtype.type(0.5)
    return functions | {o.name: _wide(functions[o.name]) for o in ALL if o.sums}


def use_numpy(device: str, threads: int | None) -> Library:
    """Return NumPy as a library."""
    _only_cpu("numpy", device)
    if threads is not None:
        import threadpoolctl

        threadpoolctl.threadpool_limits(limits=threads)
    note = "NumPy computes halves in f32 and rounds once; both casts are timed"
    return Library(
        "numpy", array=lambda x: x, back=np.asarray, functions=numpy_functions(),
        memory={"empty": partial(np.empty, dtype=np.float32), "clone": np.copy, "upload": np.array, "dlpack": np.from_dlpack},
        notes={"half": note, "no gelu": ": it has no erf (pip install scipy; gelu_tanh needs none)"},
    )  # fmt: skip


def _only_cpu(name: str, device: str) -> None:
    if device != "cpu":
        raise UnsupportedError(f"{name} computes on the CPU only, not on {device}.")


_EXACT_ERF = np.frompyfunc(math.erf, 1, 1)


def reference_functions() -> dict[str, Fn]:
    """Return the definitions that answers are checked against, on float64 (or int64) arrays."""
    exact = {"gelu": lambda x: 0.5 * x * (1 + np.asarray(_EXACT_ERF(x * math.sqrt(0.5)), np.float64))}
    return numpy_functions() | {"dequantize": lambda q, scale: q * scale} | exact


def wide(x: Data) -> Data:
    """Return the values in the type that answers are computed in: int64 of whole numbers, else float64."""
    return x.astype(np.int64) if x.dtype.kind in "iub" else x.astype(np.float64)


def floats(integers: Data, scale: Data) -> Data:
    """Return the float matrix that integers and their scales represent."""
    if scale.ndim == 2:
        scale = np.repeat(scale, integers.shape[1] // scale.shape[1], axis=1)
    return integers * (scale[:, None] if scale.ndim == 1 else scale)


def quantised_product(x: Data, w: Data, scale: Data) -> Data:
    """Return what a layer with int8 activations must compute: tokens rounded to 127 steps in f32, whole sums, then the scales."""
    single = x.astype(np.float32)
    largest = np.maximum(np.abs(single).max(axis=-1, keepdims=True), np.float32(1e-5))
    q = np.rint(single * (np.float32(127) / largest)).astype(np.float64)
    return np.asarray(q @ floats(w, scale.astype(np.float64)).T * (largest / np.float32(127)).astype(np.float64))


# ---- torch


def _torch_attention(torch: Any, q: Any, k: Any, v: Any) -> Any:
    tokens, capacity = q.shape[1], k.shape[2]
    mask = None
    if 1 < tokens < capacity:
        mask = torch.ones(tokens, capacity, dtype=torch.bool, device=q.device).tril(capacity - tokens)
    y = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(1, 2), k, v, attn_mask=mask, is_causal=tokens > 1 and mask is None, enable_gqa=q.shape[2] != k.shape[1]
    )  # fmt: skip
    return y.transpose(1, 2)


def _torch_rope(torch: Any, x: Any, cos: Any, sin: Any) -> Any:
    one, two = x.chunk(2, dim=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)


def _torch_quantize(torch: Any, w: Any) -> tuple[Any, Any]:
    scale = w.abs().mean().clamp_min(1e-5)
    return (w / scale).round_().clamp_(-1, 1).to(torch.int8), scale


def torch_functions(torch: Any) -> dict[str, Fn]:
    """Return the functions of torch by the names of the table."""
    call = torch.nn.functional
    return {
        "add": torch.add, "subtract": torch.sub, "multiply": torch.mul, "divide": torch.div, "maximum": torch.maximum,
        "matmul": torch.matmul, "exp": torch.exp, "tanh": torch.tanh, "sum": torch.sum, "mean": torch.mean, "max": torch.max,
        "chain": lambda a, b: torch.relu(a * b + a), "relu": torch.relu, "relu2": lambda x: torch.relu(x).square(),
        "sigmoid": torch.sigmoid, "silu": call.silu, "gelu": call.gelu, "gelu_tanh": partial(call.gelu, approximate="tanh"),
        "softmax": partial(torch.softmax, dim=-1), "linear": call.linear,
        "rms_norm": lambda x, w: call.rms_norm(x, w.shape, w, EPS), "layer_norm": lambda x, w, b: call.layer_norm(x, w.shape, w, b, EPS),
        "attention": partial(_torch_attention, torch), "rope": partial(_torch_rope, torch), "written": _torch_write_cache,
        "joined": torch.cat, "copy": torch.clone, "transpose": lambda x: x.T.contiguous(), "quantize": partial(_torch_quantize, torch),
        "dequantize": lambda q, scale: q * scale,
    }  # fmt: skip


def _torch_write_cache(cache: Any, new: Any, start: int) -> Any:
    cache[:, :, start : start + new.shape[1]] = new.transpose(1, 2)
    return cache


def use_torch(device: str, threads: int | None) -> Library:
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    try:
        target = torch.device(device)
        torch.empty(1, device=target)
    except (RuntimeError, AssertionError) as error:
        raise UnsupportedError(f"torch {torch.__version__} cannot use {device}: {str(error).splitlines()[0]}") from None

    def array(x: Data) -> Any:
        if x.dtype.name == "bfloat16":
            return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).to(target, copy=True)
        return torch.from_numpy(x).to(target, copy=True)

    def back(x: Any) -> Data:
        x = x.cpu()
        return np.asarray((x.float() if x.dtype is torch.bfloat16 else x).numpy())

    waits = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}.get(target.type)
    return Library(
        "torch", array, back, torch_functions(torch), wait=waits and (lambda x: waits()), compile=torch.compile,
        memory={
            "empty": partial(torch.empty, device=target), "clone": torch.clone, "from_numpy": torch.from_numpy,
            "upload": partial(torch.tensor, device=target), "dlpack": torch.from_dlpack,
        },
    )  # fmt: skip


def use_torch_compile(device: str, threads: int | None) -> Library:
    return replace(use_torch(device, threads), name="torch.compile", compiles=True)


# ---- jax


def use_jax(device: str, threads: int | None) -> Library:
    import jax
    from jax import numpy as jnp

    kinds = {"cuda": "gpu", "mps": "METAL"}
    try:
        target = jax.devices(kinds.get(device, device))[0]
    except RuntimeError as error:
        raise UnsupportedError(f"jax {jax.__version__} cannot use {device}: {str(error).splitlines()[0]}") from None
    functions = _common(jnp) | {
        "relu": jax.nn.relu, "sigmoid": jax.nn.sigmoid, "silu": jax.nn.silu, "softmax": jax.nn.softmax,
        "gelu": partial(jax.nn.gelu, approximate=False), "gelu_tanh": jax.nn.gelu, "copy": jnp.copy,
        "transpose": jnp.transpose,
    }  # fmt: skip
    return Library(
        "jax", array=lambda x: jax.device_put(x, target), back=np.asarray, wait=jax.block_until_ready, compile=jax.jit,
        functions=functions, compiles=True, strided=False,
        memory={"clone": jnp.copy, "upload": partial(jnp.array, device=target), "dlpack": jnp.from_dlpack},
        dtypes=("f32", "f16", "bf16", "i8", "i16", "i32"),
        notes={"dtype": "jax keeps 64-bit numbers in 32 bits unless jax_enable_x64 is set"},
    )  # fmt: skip


# ---- mlx


def use_mlx(device: str, threads: int | None) -> Library:
    import mlx.core as mx
    from mlx import nn

    target = {"cpu": mx.cpu, "mlx": mx.gpu, "gpu": mx.gpu, "metal": mx.gpu, "cuda": mx.gpu}.get(device)
    if target is None or (target == mx.gpu and not _mlx_gpu(mx)):
        raise UnsupportedError(f"mlx cannot use {device} here.")
    mx.set_default_device(target)
    functions = _common(mx) | {
        "softmax": partial(mx.softmax, axis=-1, precise=True), "sigmoid": mx.sigmoid, "silu": nn.silu, "gelu": nn.gelu,
        "gelu_tanh": nn.gelu_approx, "relu": nn.relu, "rms_norm": partial(mx.fast.rms_norm, eps=EPS),
        "layer_norm": partial(mx.fast.layer_norm, eps=EPS), "attention": partial(_mlx_attention, mx), "copy": mx.array,
        "transpose": lambda x: mx.contiguous(mx.transpose(x)),
    }  # fmt: skip

    def array(x: Data) -> Any:
        return mx.array(x.astype(np.float32)).astype(mx.bfloat16) if x.dtype.name == "bfloat16" else mx.array(x)

    def wait(x: Any) -> Any:
        mx.eval(x)
        mx.synchronize()

    return Library(
        "mlx", array, lambda x: np.array(x.astype(mx.float32)) if x.dtype == mx.bfloat16 else np.array(x), functions,
        wait=wait, compile=mx.compile, memory={"clone": mx.array, "upload": array}, dtypes=("f32", "f16", "bf16", "i8", "i16", "i32", "i64"),
        notes={"dtype": "mlx computes in f32 at most"},
    )  # fmt: skip


def _mlx_gpu(mx: Any) -> bool:
    return bool(mx.is_available(mx.gpu)) if hasattr(mx, "is_available") else bool(mx.metal.is_available())


def _mlx_attention(mx: Any, q: Any, k: Any, v: Any) -> Any:
    scale, mask = 1 / math.sqrt(q.shape[-1]), "causal" if q.shape[1] > 1 else None
    y = mx.fast.scaled_dot_product_attention(mx.swapaxes(q, 1, 2), k, v, scale=scale, mask=mask)
    return mx.swapaxes(y, 1, 2)


# ---- Tritium itself


def tensors_in(x: Any) -> list[tt.Tensor]:
    """Return the tensors of a result: a tensor, or a tuple, list, dict or record of them."""
    if isinstance(x, tt.Tensor):
        return [x]
    if is_dataclass(x):  # quantised weights
        x = [getattr(x, f.name) for f in fields(x)]
    parts = x.values() if isinstance(x, dict) else x if isinstance(x, (tuple, list)) else ()
    return [t for part in parts for t in tensors_in(part)]


def settled(x: Any) -> Any:
    """Return the value once all its tensors are computed: lazy devices compute now, asynchronous ones are synchronised."""
    tensors = tensors_in(x)
    if tensors and tensors[0].device.type != "cpu":  # a call on the CPU is complete when it returns
        tensors[0].device.backend.settle(tensors)
    return x


def tritium_functions() -> dict[str, Fn]:
    """Return Tritium's functions by the names of the table."""
    return {
        **{o.name: getattr(tt, o.name) for o in ALL if hasattr(tt, o.name)},
        "chain": lambda a, b: tt.relu(a * b + a), "gelu_tanh": partial(tt.gelu, approximate="tanh"), "rope": tt.rope,
        "rms_norm": partial(tt.rms_norm, eps=EPS), "layer_norm": partial(tt.layer_norm, eps=EPS),
        "transpose": lambda x: tt.copy(tt.matrix_transpose(x)), "quantize": tt.quantize_ternary,
    }  # fmt: skip


def _tritium_memory(target: Any) -> dict[str, Fn]:
    shared: dict[str, Fn] = {"from_numpy": tt.from_numpy, "dlpack": tt.from_dlpack} if target.type == "cpu" else {}
    return shared | {
        "empty": partial(tt.empty, device=target), "clone": lambda x: x.clone(),
        "upload": partial(tt.asarray, device=target, copy=True),
    }  # fmt: skip


def use_tritium(device: str, threads: int | None) -> Library:
    if threads is not None:
        tt.set_num_threads(threads)
    try:
        target = tt.device(device)
    except DeviceError as error:
        raise UnsupportedError(str(error)) from None

    def array(x: Data) -> Any:
        return settled(tt.asarray(x, device=target, copy=True))  # before the clock starts

    backend, tensor = target.backend, tt.Tensor

    def wait(x: Any) -> None:
        backend.settle((x,) if type(x) is tensor else tensors_in(x))

    def back(x: Any) -> Data:
        return (x if not x.dtype.is_packed else tt.repack(x, "i8")).to("cpu").numpy()

    reason = f" on {target}: its memory is not NumPy's"
    return Library(
        "tritium", array, back, tritium_functions(), compile=tt.compile, memory=_tritium_memory(target), device=str(target),
        wait=None if target.type == "cpu" else wait, notes={"no from_numpy": reason, "no dlpack": reason},
    )  # fmt: skip


def use_compiled(device: str, threads: int | None) -> Library:
    return replace(use_tritium(device, threads), name="tritium.compile", compiles=True)


def use_reference(device: str, threads: int | None) -> Library:
    """Return Tritium's reference kernels in NumPy: the process must have been started without the native library."""
    if "isa" in tt.device("cpu").backend.describe():  # of the native kernels
        raise UnsupportedError(
            "reference: this process has loaded the native library; start it with TRITIUM_PURE=1, as the contender 'reference' does."
        )
    _only_cpu("reference", device)
    return replace(use_tritium("cpu", threads), name="reference")


LIBRARIES: dict[str, Callable[[str, int | None], Library]] = {
    "tritium": use_tritium, "tritium.compile": use_compiled, "reference": use_reference, "numpy": use_numpy,
    "torch": use_torch, "torch.compile": use_torch_compile, "jax": use_jax, "mlx": use_mlx,
}  # fmt: skip


# ---- by name


@dataclass(frozen=True)
class Peer:
    """Another library that can do the same work."""

    name: str
    module: str  # import name
    package: str  # name on PyPI
    usual: bool = True  # measured by default
    why_not: str = ""  # reason for not being measured by default

    def absence(self) -> str:
        """Return why it cannot be used here, with the remedy; "" if it can."""
        try:
            spec = util.find_spec(self.module)
        except ModuleNotFoundError:  # the parent package is absent
            spec = None
        extra = "[cpu]" if self.name == "mlx" and sys.platform == "linux" else ""
        return "" if spec is not None else f"{self.name} is not installed: pip install {self.package}{extra}"

    def version(self) -> str:
        """Return the version of its package; "" if it is not installed."""
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return ""


PEERS = {
    p.name: p
    for p in (
        Peer("numpy", "numpy", "numpy"),
        Peer("torch", "torch", "torch"),
        Peer("torch.compile", "torch", "torch", False, "it compiles every case in every process"),
        Peer("jax", "jax", "jax"),
        Peer("mlx", "mlx.core", "mlx"),
    )
}


def library_of(candidate: str, device: str = "cpu", threads: int | None = None) -> Library:
    """Return the library of a candidate, ready in this process; UnsupportedError gives the reason if it cannot be."""
    name, _, own_device = candidate.partition(":")
    name = ALIASES.get(name, name)
    if name not in LIBRARIES or (own_device and name != "tritium"):
        raise ArgumentError(
            f"{candidate!r} is no candidate.{nearest(candidate, LIBRARIES)} There are {', '.join(LIBRARIES)}."
        )
    if name in PEERS and (absence := PEERS[name].absence()):
        raise UnsupportedError(absence)
    return LIBRARIES[name](own_device or device, threads)
