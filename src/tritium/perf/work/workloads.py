"""Workloads of programs: a transformer layer with BitLinear in prefill or decode, and many items in batches.

Every candidate gets the same integers; libraries without ternary products multiply the floats they represent, which their
facts record. The expected answer is the same layer in float64: for Tritium with activations rounded to int8 as BitLinear
does, for others without.

Shapes: (tokens, width), (batch, tokens, width) or (batch, tokens, width, context). For `decode` the tokens are those in
the KV cache already, and one is decoded in each sequence. `batch_processing` takes (items, width) or (items, width, batch).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import tritium as tt
from tritium.errors import ShapeError
from tritium.perf.records.case import Case, Context, Made, Recipe, UnsupportedError, Work
from tritium.perf.work.libraries import EPS, OWN, Library, library_of, quantised_product, reference_functions
from tritium.perf.work.operations import drawn

Data = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Fn = Callable[..., Any]
SIZE = 64  # head_dim
BATCH = 32  # items in a batch


class Sizes(NamedTuple):
    """The sizes of one layer and one call of it."""

    batch: int
    tokens: int  # new ones of each sequence
    context: int  # tokens in the cache when the call is done
    width: int
    heads: int
    kv_heads: int
    inner: int

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Return the shapes of the weight matrices."""
        rows = (self.heads + 2 * self.kv_heads) * SIZE
        return {
            "qkv": (rows, self.width), "out": (self.width, self.heads * SIZE), "gate_up": (2 * self.inner, self.width),
            "down": (self.width, self.inner),
        }  # fmt: skip

    @property
    def parameters(self) -> int:
        """Return the number of weights."""
        return sum(n * k for n, k in self.matrices.values())


def refusal(name: str, shape: Shape, dtype: str) -> str:
    """Return why a workload cannot run on this shape and dtype; "" if it can."""
    if dtype != "f32":
        return f"{name} takes f32 tokens, not {dtype}"
    try:
        sizes_of(name, shape)
    except ShapeError as error:
        return str(error)
    return ""


def sizes_of(name: str, shape: Shape) -> Sizes:
    """Return the sizes that a shape means."""
    least = 2 if name == "batch_processing" else 1
    if not 2 <= len(shape) <= (3 if name == "batch_processing" else 4) or any(n < 1 for n in shape):
        raise ShapeError(
            f"{name} takes (tokens, width), (batch, tokens, width) or (batch, tokens, width, context), given {shape}."
        )
    if name == "batch_processing":
        batch, tokens, width, context = shape[2] if len(shape) == 3 else BATCH, shape[0], shape[1], 0
    else:
        batch, tokens, width = (1, *shape) if len(shape) == 2 else shape[:3]
        context = shape[3] if len(shape) == 4 else tokens
    if width % SIZE:
        raise ShapeError(f"{name}: the width must be a multiple of {SIZE}, given {width}.")
    if name == "decode":
        tokens, context = 1, max(context, tokens)
    if context < tokens and least == 1:
        raise ShapeError(f"{name}: {tokens} tokens are more than the context of {context}.")
    heads = width // SIZE
    inner = -(-8 * width // 3 // SIZE) * SIZE  # as Llama has it
    return Sizes(batch, tokens, context, width, heads, heads // 4 if heads % 4 == 0 else heads, inner)


def batched(name: str, batch: int, shape: Shape) -> Shape:
    """Return the shape with this many sequences; for batch processing, with this many items at a time."""
    if name == "batch_processing":
        return *shape[:2], batch
    return batch, *(shape if len(shape) == 2 else shape[1:])


# ---- builders


def workloads(
    *,
    width: int = 1024,
    tokens: int = 64,
    context: int = 256,
    batch: int = 8,
    items: int = 256,
    devices: Sequence[str] = ("cpu",),
    threads: int | None = None,
    seed: int = 0,
) -> list[Case]:
    """Return cases of prefill, decode, decode of several sequences at once, and batch processing."""
    options: dict[str, Any] = {"devices": devices, "threads": threads, "seed": seed}
    return [
        *cases("prefill", [(1, tokens, width)], **options),
        *cases("decode", [(1, context, width), (batch, context, width)], **options),
        *cases("batch_processing", [(items, width, BATCH)], **options),
    ]


def cases(
    name: str,
    shapes: Sequence[Sequence[int]],
    *,
    devices: Sequence[str] = ("cpu",),
    threads: int | None = None,
    seed: int = 0,
) -> list[Case]:
    """Return a case of a workload for each shape it accepts."""
    listed = []
    for shape in map(tuple, shapes):
        if refusal(name, shape, "f32"):
            continue
        s = sizes_of(name, shape)
        for device in devices:
            arguments = {"workload": name, "shape": list(shape), "seed": seed, "threads": threads, "device": device}
            label = f"{name} {'x'.join(map(str, shape))}" + (f" on {device}" if device != "cpu" else "")
            context = Context(
                name, shape, "f32", device, batch=s.batch, sequence_length=s.context or None, parameters=_parameters(name, s),
                threads=threads or 1,
            )  # fmt: skip
            listed.append(
                Case(label, Recipe("tritium.perf.work.workloads:workload", arguments), context, _work(name, s, 2))
            )
    return listed


def _parameters(name: str, s: Sizes) -> int:
    """Return the number of weights that a workload reads."""
    return 3 * s.inner * s.width if name == "batch_processing" else s.parameters


def _work(name: str, s: Sizes, bits: int) -> Work:
    """Return the work of a call: weights are read once (batch processing: once per batch) at this many bits each."""
    parameters = _parameters(name, s)
    if name == "batch_processing":
        calls = -(-s.tokens // s.batch)
        activations = 4 * s.tokens * s.width
        return Work(
            2 * parameters * s.tokens,
            calls * parameters * bits // 8 + activations,
            activations,
            bits < 8,
            s.tokens,
            "item",
        )
    tokens = s.batch * s.tokens
    pairs = s.tokens * (s.context - s.tokens) + s.tokens * (s.tokens + 1) // 2
    flops = 2 * parameters * tokens + 4 * s.batch * s.heads * SIZE * pairs
    cache = 2 * 4 * s.batch * s.kv_heads * s.context * SIZE
    return Work(
        flops, parameters * bits // 8 + cache + 4 * tokens * s.width, 4 * tokens * s.width, bits < 8, tokens, "token"
    )


# ---- values


class Angles(NamedTuple):
    """The rotation of each pair of a head at each position, as the parts of `tt.nn` take it."""

    cos: Any
    sin: Any


class Values(NamedTuple):
    """The values that every candidate gets."""

    x: Data  # [batch, tokens, width]; of batch processing [items, width]
    integers: dict[str, Data]
    scale: dict[str, Data]
    norms: tuple[Data, Data]
    cos: Data  # [tokens, SIZE / 2]
    sin: Data
    k: Data  # [batch, kv heads, context, SIZE]
    v: Data


def values(name: str, s: Sizes, seed: int) -> Values:
    """Return random weights and tokens; the KV cache is full except for the new tokens, whose positions are overwritten."""
    rng = np.random.default_rng(seed)
    matrix_names = ("gate_up", "down") if name == "batch_processing" else tuple(s.matrices)
    integers = {
        n: drawn(s.matrices[n], partial(rng.integers, -1, 1, dtype=np.int8, endpoint=True)) for n in matrix_names
    }
    scale = {n: np.float32((2 / 3 * integers[n].shape[1]) ** -0.5) for n in matrix_names}
    norms = rng.uniform(0.5, 1.5, (2, s.width)).astype(np.float32)
    shape = (s.tokens, s.width) if name == "batch_processing" else (s.batch, s.tokens, s.width)
    rotations = np.arange(s.context - s.tokens, s.context)[:, None] * 10000.0 ** -(np.arange(0, SIZE, 2) / SIZE)
    cache = (2, s.batch, s.kv_heads, max(s.context, 1), SIZE)
    k, v = drawn(cache, partial(rng.standard_normal, dtype=np.float32))
    x = rng.standard_normal(shape, np.float32)
    cos, sin = np.cos(rotations).astype(np.float32), np.sin(rotations).astype(np.float32)
    return Values(x, integers, {n: np.asarray(f) for n, f in scale.items()}, (norms[0], norms[1]), cos, sin, k, v)


# ---- the layer, in terms of any library


def layer(f: Mapping[str, Fn], linear: Callable[[str, Any], Any], s: Sizes, operands: Sequence[Any]) -> Any:
    """Return attention and MLP, each on its norm and added to the residual. `linear(name, x)` multiplies by a matrix."""
    x, n1, n2, cos, sin, k, v = operands
    batch, tokens, start = s.batch, s.tokens, s.context - s.tokens
    flat = x.reshape(batch * tokens, s.width)
    qkv = linear("qkv", f["rms_norm"](flat, n1))
    q_end, k_end = s.heads * SIZE, (s.heads + s.kv_heads) * SIZE
    q = f["rope"](qkv[:, :q_end].reshape(batch, tokens, s.heads, SIZE), cos, sin)
    new = f["rope"](qkv[:, q_end:k_end].reshape(batch, tokens, s.kv_heads, SIZE), cos, sin)
    keys = f["written"](k, new, start)
    cached_values = f["written"](v, qkv[:, k_end:].reshape(batch, tokens, s.kv_heads, SIZE), start)
    y = f["attention"](q, keys, cached_values).reshape(batch * tokens, s.heads * SIZE)
    flat = flat + linear("out", y)
    return (flat + mlp(f, linear, s, f["rms_norm"](flat, n2))).reshape(batch, tokens, s.width)


def mlp(f: Mapping[str, Fn], linear: Callable[[str, Any], Any], s: Sizes, x: Any) -> Any:
    """Return the gated MLP."""
    gate_and_up = linear("gate_up", x)
    return linear("down", f["relu2"](gate_and_up[:, : s.inner]) * gate_and_up[:, s.inner :])


# ---- recipes


def workload(
    candidate: str,
    *,
    workload: str,
    shape: Sequence[int],
    seed: int = 0,
    threads: int | None = None,
    device: str = "cpu",
) -> Made:
    """Build one workload on one candidate."""
    if reason := refusal(workload, tuple(shape), "f32"):
        raise UnsupportedError(reason)
    s = sizes_of(workload, tuple(shape))
    library = library_of(candidate, device, threads)
    data = values(workload, s, seed)
    own = library.name in OWN
    if workload == "batch_processing":
        call = _own_batches(library, s, data) if own else _peer_batches(library, s, data)
    else:
        call = _own_layer(library, s, data) if own else _peer_layer(library, s, data)
    facts = (
        {"weights": "tern2", "activations": "int8"} if own else {"weights": "tern2 dequantised to f32 before timing"}
    )
    return Made(
        call, library.wait, library.back, lambda: right(workload, s, data, own), 0.02 if own else 2e-4,
        facts | {"parameters": _parameters(workload, s)}, None if own else _work(workload, s, 32),
    )  # fmt: skip


def right(name: str, s: Sizes, data: Values, rounded: bool) -> Data:
    """Return the expected answer in float64, with or without activations rounded to int8."""
    exact = {n: t * float(data.scale[n]) for n, t in data.integers.items()}

    def linear(matrix: str, x: Data) -> Data:
        if rounded:
            return quantised_product(x, data.integers[matrix], data.scale[matrix])
        return np.asarray(x @ exact[matrix].T)

    f = reference_functions()
    wide = [a.astype(np.float64) for a in (data.x, *data.norms, data.cos, data.sin, data.k, data.v)]
    if name == "batch_processing":
        return np.asarray(mlp(f, linear, s, wide[0]))
    return np.asarray(layer(f, linear, s, wide))


def _own_layer(library: Library, s: Sizes, data: Values) -> Callable[[], Any]:
    """Build a layer of tt.nn."""
    linears = _bitlinears(library, data)
    norms = [tt.nn.RMSNorm(library.array(n), EPS) for n in data.norms]
    attention = tt.nn.Attention(linears["qkv"], linears["out"], tt.nn.RoPE(SIZE), heads=s.heads, kv_heads=s.kv_heads)
    block = tt.nn.Block(norms[0], attention, norms[1], tt.nn.MLP(linears["gate_up"], linears["down"]))
    places = library.array(np.asarray([[i, s.context - s.tokens, s.tokens] for i in range(s.batch)], np.int32))
    rotations = [library.array(np.broadcast_to(a, (s.batch, *a.shape)).copy()) for a in (data.cos, data.sin)]
    x, kv = library.array(data.x.copy()), library.array(np.concatenate([data.k, data.v], axis=1))

    def run(x: Any, cos: Any, sin: Any, places: Any, kv: Any) -> Any:
        angles: Any = Angles(cos, sin)
        return block(x, angles, tt.nn.KVCache(kv), places)

    call: Fn = tt.compile(run, donate="kv") if library.compiles else run
    return partial(call, x, *rotations, places, kv)


def _bitlinears(library: Library, data: Values) -> dict[str, Any]:
    """Return the BitLinear layers by name."""
    return {
        n: tt.nn.BitLinear(tt.quant.from_integers(t, data.scale[n]).to(library.device))
        for n, t in data.integers.items()
    }


def _peer_layer(library: Library, s: Sizes, data: Values) -> Callable[[], Any]:
    """Build the layer with another library."""
    f = library.functions
    weights = [library.array(m) for m in _floats(data)]
    names = list(data.integers)

    def run(weights: Any, data: Any) -> Any:
        by_name = dict(zip(names, weights, strict=True))
        return layer(f, lambda matrix, x: f["linear"](x, by_name[matrix]), s, data)

    call: Fn = library.compile(run) if library.compiles else run
    rest = (data.x, *data.norms, data.cos, data.sin, data.k.copy(), data.v.copy())
    return partial(call, weights, [library.array(a) for a in rest])


def _floats(data: Values) -> list[Data]:
    """Return the weights as float matrices."""
    return [t * data.scale[n] for n, t in data.integers.items()]


def _own_batches(library: Library, s: Sizes, data: Values) -> Callable[[], Any]:
    """Build batch processing with tt.nn."""
    linears = _bitlinears(library, data)
    block = tt.nn.MLP(linears["gate_up"], linears["down"])
    call = tt.compile(lambda x: block(x)) if library.compiles else block
    return partial(tt.process_in_batches, call, library.array(data.x), s.batch)


def _peer_batches(library: Library, s: Sizes, data: Values) -> Callable[[], Any]:
    """Build batch processing with another library."""
    f = library.functions
    gate_up, down = (library.array(m) for m in _floats(data))
    x = library.array(data.x)

    def run(x: Any, gate_up: Any, down: Any) -> Any:
        return mlp(f, lambda matrix, y: f["linear"](y, gate_up if matrix == "gate_up" else down), s, x)

    call = library.compile(run) if library.compiles else run

    def batches() -> Any:
        return f["joined"]([call(x[a : a + s.batch], gate_up, down) for a in range(0, s.tokens, s.batch)])

    return batches
