"""The ops every candidate can run: their inputs, the work of one call, and their dtypes.

The names of all other work are here too (`WORKLOADS`, `MODEL_WORKLOADS`, `MEMORY_ACTS`, `TRANSFER_ACTS`), so that naming it does not import
what makes it.

Knows nothing of libraries: their functions and the expected answers are in `libraries`.

Shapes. Products take (m, k, n), or (m, k) for a square matrix [k, k], or (n,) for three equal sizes. `attention` takes
(tokens, width), (batch, tokens, width) or (batch, tokens, width, context): head_dim is 64, and the queries are the last
tokens of the context. All others take any shape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

import tritium as tt
from tritium.errors import ArgumentError, ShapeError
from tritium.perf.records.case import Work
from tritium.perf.words import nearest

Shape = tuple[int, ...]
Data = np.ndarray[Any, Any]
FLOATS = ("f32", "f64", "f16", "bf16")
INTEGERS = ("i8", "i16", "i32", "i64")
WEIGHTS = ("i8", "i4", "tern2", "tern5")
PERIOD = 1_000_003
HEAD = 64  # head_dim of attention

# Tolerance for rounding, relative to the largest value of an answer.
ROUNDING = {"f64": 1e-13, "f32": 1e-5, "f16": 2e-3, "bf16": 2e-2} | dict.fromkeys(
    (*INTEGERS, "i4", "tern2", "tern5"), 0.0
)


def dtype_named(name: Any) -> tt.DType:
    """Return the dtype of a name, of a DType or of a NumPy dtype."""
    return tt.result_type(name)  # of one argument: its dtype


@dataclass(frozen=True)
class Operation:
    """One op: inputs, work, result and dtypes."""

    name: str
    doc: str
    shapes: Callable[[Shape], list[Shape]]  # of the inputs, from the shape of the case
    flops: Callable[[Shape], int]
    result: Callable[[Shape], Shape]
    dtypes: tuple[str, ...] = FLOATS
    along: tuple[int | None, ...] = (0,)  # of each input: the axis that corresponds to `axis` of the result
    axis: int = 0
    slack: float = 1.0  # times the rounding of the dtype
    sums: bool = False  # adds up many terms: f16 and bf16 accumulate in f32
    aliases: tuple[str, ...] = ()
    item: str = "element"
    items: Callable[[Shape], int] = prod
    weights: str = ""  # the packed dtype of the last input, if the op fixes it
    batched: Callable[[int, Shape], Shape] | None = None  # the shape with a batch of rows or sequences; None: no batch


def _same(count: int) -> Callable[[Shape], list[Shape]]:
    """Return a function that repeats the shape for each input."""
    return lambda shape: [shape] * count


def _columns(count: int) -> Callable[[Shape], list[Shape]]:
    """Return a function for x and vectors along its last axis."""
    return lambda shape: [shape, *([shape[-1:]] * count)]


def mkn(shape: Shape) -> tuple[int, int, int]:
    """Return the three sizes of a product."""
    if len(shape) == 1:
        return shape[0], shape[0], shape[0]
    if len(shape) == 2:
        return shape[0], shape[1], shape[1]
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    raise ShapeError(f"A product takes (n,), (m, k) or (m, k, n), given {shape}.")


def rows_of(batch: int, shape: Shape) -> Shape:
    """Return the shape with this many rows; for a product, through the same matrix."""
    if len(shape) == 3:
        return batch, *shape[1:]
    return batch, shape[-1]


def sequences_of(batch: int, shape: Shape) -> Shape:
    """Return the shape with this many sequences; a shape of three or four has a batch already, which is replaced."""
    return batch, *(shape if len(shape) == 2 else shape[1:])


def bthd(shape: Shape) -> tuple[int, int, int, int, int]:
    """Return batch, tokens, heads, head_dim and context of an attention."""
    if not 2 <= len(shape) <= 4:
        raise ShapeError(
            f"attention takes (tokens, width), (batch, tokens, width) or (batch, tokens, width, context), given {shape}."
        )
    batch, tokens, width = (1, *shape) if len(shape) == 2 else shape[:3]
    context = shape[3] if len(shape) == 4 else tokens
    head_dim = HEAD if width % HEAD == 0 else width
    if context < tokens:
        raise ShapeError(f"attention: {tokens} tokens are more than the context of {context}.")
    return batch, tokens, max(1, width // head_dim), head_dim, context


def _attention_shapes(shape: Shape) -> list[Shape]:
    """Return the shapes of queries, keys and values."""
    batch, tokens, heads, head_dim, context = bthd(shape)
    cache = (batch, heads, context, head_dim)
    return [(batch, tokens, heads, head_dim), cache, cache]


def _attention_flops(shape: Shape) -> int:
    """Return the flops of causal attention: keys after a query are not counted."""
    batch, tokens, heads, head_dim, context = bthd(shape)
    pairs = tokens * (context - tokens) + tokens * (tokens + 1) // 2
    return 4 * batch * heads * head_dim * pairs


def _product_shapes(transposed: bool) -> Callable[[Shape], list[Shape]]:
    """Return a function for the shapes of a product, the second one transposed or not."""

    def shapes(shape: Shape) -> list[Shape]:
        m, k, n = mkn(shape)
        return [(m, k), (n, k) if transposed else (k, n)]

    return shapes


def _product_result(shape: Shape) -> Shape:
    m, _, n = mkn(shape)
    return m, n


def _attention_result(shape: Shape) -> Shape:
    return bthd(shape)[:4]


def _maps(
    names: str, arity: int, flops: int, doc: str, dtypes: tuple[str, ...] = FLOATS, **options: Any
) -> list[Operation]:
    """Return element-wise ops."""
    return [
        Operation(name, doc.format(name), _same(arity), lambda s: flops * prod(s), lambda s: s, dtypes, (0,) * arity, **options)
        for name in names.split()
    ]  # fmt: skip


def _reductions(
    names: str, doc: str, dtypes: tuple[str, ...] = (*FLOATS, *INTEGERS), **options: Any
) -> list[Operation]:
    """Return reductions over all elements."""
    return [
        Operation(name, doc.format(name), _same(1), prod, lambda s: (), dtypes, (None,), **options)
        for name in names.split()
    ]


def _products(name: str, doc: str, transposed: bool, **options: Any) -> Operation:
    """Return a matrix product."""
    return Operation(
        name, doc, _product_shapes(transposed), lambda s: 2 * prod(mkn(s)), _product_result, along=(0, None),
        item="row", items=lambda s: mkn(s)[0], batched=rows_of, **options,
    )  # fmt: skip


def _square(shape: Shape) -> Shape:
    """Return the shape of a transposed matrix."""
    if len(shape) != 2:
        raise ShapeError(f"A matrix (rows, columns) is needed, given {shape}.")
    return shape[1], shape[0]


ALL = [
    *_maps("add subtract", 2, 1, "{} element by element", (*FLOATS, *INTEGERS)),
    *_maps("multiply", 2, 1, "{} element by element", (*FLOATS, *INTEGERS), aliases=("mul",)),
    *_maps("divide", 2, 1, "{} element by element"),
    *_maps("maximum", 2, 1, "{} element by element", (*FLOATS, *INTEGERS)),
    *_maps("chain", 2, 3, "relu(a * b + a)", aliases=("elementwise", "element_wise")),
    *_maps("exp tanh sigmoid", 1, 1, "{} element by element"),
    *_maps("relu relu2", 1, 1, "{} element by element"),
    *_maps("silu", 1, 4, "x * sigmoid(x)", aliases=("swish",)),
    *_maps("gelu gelu_tanh", 1, 8, "{} element by element (gelu: exact, gelu_tanh: by tanh)", slack=2),
    *_maps("copy", 1, 0, "the elements in new memory", (*FLOATS, *INTEGERS), slack=0),
    Operation("transpose", "rows become columns, in new memory", _same(1), lambda s: 0, _square, (*FLOATS, *INTEGERS), (None,), slack=0),
    Operation("softmax", "along the last axis", _same(1), lambda s: 5 * prod(s), lambda s: s, sums=True, batched=rows_of),
    Operation("rms_norm", "along the last axis", _columns(1), lambda s: 4 * prod(s), lambda s: s, along=(0, None), slack=4, sums=True,
              batched=rows_of),
    Operation("layer_norm", "along the last axis", _columns(2), lambda s: 8 * prod(s), lambda s: s, along=(0, None, None), slack=4,
              sums=True, batched=rows_of),
    *_reductions("sum", "{} of all elements", slack=100, sums=True, aliases=("reduce", "reduction")),
    *_reductions("mean", "{} of all elements", FLOATS, slack=100, sums=True),
    *_reductions("max", "{} of all elements", slack=0),
    _products("matmul", "x [m, k] @ w [k, n]", False, sums=True, aliases=("matrix_multiply", "gemm", "mm")),
    _products("linear", "x [m, k] @ w [n, k].T, weights of any dtype", True, dtypes=("f32", "f16", "bf16", *WEIGHTS), sums=True),
    _products("bitlinear", "a linear layer with ternary weights and int8 activations", True, dtypes=("f32", "f16", "bf16"),
              aliases=("bit_linear",), weights="tern2"),
    Operation("attention", "causal attention over a context", _attention_shapes, _attention_flops, _attention_result,
              ("f32", "f16", "bf16"), (2, 1, 1), 2, 4, sums=True, item="token", items=lambda s: bthd(s)[0] * bthd(s)[1],
              batched=sequences_of),
    Operation("quantize", "absmean ternary weights and their scale", lambda s: [s], lambda s: 4 * prod(s), lambda s: s,
              ("f32", "f16", "bf16"), (None,), aliases=("quantization", "quantize_ternary"), weights="tern2"),
    Operation("dequantize", "floats from ternary weights and their scale", lambda s: [s], prod, lambda s: s, ("f32",), (None,),
              aliases=("dequantization",), weights="tern2"),
]  # fmt: skip
OPERATIONS: dict[str, Operation] = {o.name: o for o in ALL}
NAMES: dict[str, str] = {name: o.name for o in ALL for name in (o.name, *o.aliases)}
WORKLOADS = {
    "transformer_layer": "prefill of one layer",
    "prefill": "prefill of one layer",
    "decode": "one decode step of one layer for each sequence",
    "batch_processing": "an MLP over many items in batches",
}  # cases in `work.workloads`
MODEL_WORKLOADS = {
    "model_prefill": "the packaged model reads a prompt",
    "model_decode": "the packaged model generates tokens after a prompt",
}  # cases in `work.whole_model`
MEMORY_ACTS = ("allocate", "clone", "write", "reuse")  # cases of memory in `work.moves`
TRANSFER_ACTS = ("from_numpy", "upload", "download", "dlpack")  # cases of transfers in `work.moves`


def operation_named(name: str, others: Sequence[str] = ()) -> Operation:
    """Return the op of a name or alias; raise ArgumentError with the nearest one otherwise."""
    if name not in NAMES:
        known = [*NAMES, *others]
        raise ArgumentError(f"{name!r} is no op.{nearest(name, known)} There are {', '.join([*OPERATIONS, *others])}.")
    return OPERATIONS[NAMES[name]]


def refusal(operation: Operation, shape: Shape, dtype: str) -> str:
    """Return why the op cannot run on this shape and dtype; "" if it can."""
    if dtype not in operation.dtypes:
        return f"{operation.name} takes {', '.join(operation.dtypes)}, not {dtype}"
    if not shape or any(n < 1 for n in shape):
        return f"{operation.name}: every size must be 1 or more, given {shape}"
    if operation.name in ("quantize", "dequantize", "transpose") and len(shape) != 2:
        return f"{operation.name} takes a matrix (rows, columns), given {shape}"
    try:
        operation.shapes(shape)
    except ShapeError as error:
        return str(error)
    return ""


def kinds(operation: Operation, dtype: str) -> list[str]:
    """Return the dtype of each input: packed weights come last, beside f32 (or half) activations."""
    count = len(operation.along)
    if dtype in WEIGHTS and operation.name == "linear":
        return ["f32", dtype]
    if operation.name == "bitlinear":
        return [dtype, operation.weights]
    if operation.name == "dequantize":
        return [operation.weights]
    return [dtype] * count


def work_of(operation: Operation, shape: Shape, dtype: str) -> Work:
    """Return the work of one call: arithmetic, and every byte that must be read or written once."""
    dtypes = kinds(operation, dtype)
    read = sum(tt.Spec(s, dtype_named(t)).nbytes for s, t in zip(operation.shapes(shape), dtypes, strict=True))
    out = tt.f32 if dtype in WEIGHTS or operation.name == "dequantize" else dtype_named(dtype)
    if operation.name == "quantize":
        out = dtype_named(operation.weights)
    written = tt.Spec(operation.result(shape), out).nbytes
    integer = operation.name in ("linear", "bitlinear") and dtypes[-1] in WEIGHTS
    return Work(operation.flops(shape), read, written, integer, operation.items(shape), operation.item)


def drawn(shape: Shape, draw: Callable[..., Any]) -> Data:
    """Return random values. Beyond a million and three they repeat: a prime, so that no two rows are equal."""
    size = prod(shape)
    return np.asarray(draw(size)).reshape(shape) if size <= PERIOD else np.resize(draw(PERIOD), shape)


def inputs(operation: Operation, shape: Shape, dtype: str, seed: int) -> list[Data]:
    """Return random values for every input, the same for every candidate; never zeros. Packed weights are their integers."""
    rng = np.random.default_rng(seed)
    out: list[Data] = []
    for s, kind in zip(operation.shapes(shape), kinds(operation, dtype), strict=True):
        t = dtype_named(kind)
        if t.is_packed or (kind == "i8" and dtype == "i8" and operation.name == "linear"):
            low, high = t.values if t.is_packed else (-127, 127)
            out.append(drawn(s, partial(rng.integers, low, high, dtype=np.int8, endpoint=True)))
        elif t.is_integer:
            out.append(drawn(s, partial(rng.integers, -10, 10, dtype=t.numpy, endpoint=True)))
        else:
            precision: Any = np.float64 if kind == "f64" else np.float32
            out.append(drawn(s, partial(rng.standard_normal, dtype=precision)).astype(t.numpy, copy=False))
    if operation.name == "divide":
        out[1] = np.abs(out[1]) + out[1].dtype.type(1)
    return out
