"""The operations every candidate can be asked for: their inputs, the work of one call, and which dtypes they take.

The names of all other work are here too (`WORKLOADS`, `HELD`, `MOVED`), so that naming it does not import what makes it.

Knows nothing of libraries: what each calls the operation, and what the right answer is, stands in `libraries`.

Shapes. Products take (m, k, n), or (m, k) for a square matrix [k, k], or (n,) for three equal sizes. `attention` takes
(tokens, width), (batch, tokens, width) or (batch, tokens, width, context): heads of 64 columns, and the queries are the last
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
HEAD = 64  # columns of a head of attention

# What rounding may do to an answer, as a part of its largest value.
ROUNDING = {"f64": 1e-13, "f32": 1e-5, "f16": 2e-3, "bf16": 2e-2} | dict.fromkeys(
    (*INTEGERS, "i4", "tern2", "tern5"), 0.0
)


def dtype_named(name: Any) -> tt.DType:
    """Return the dtype of a name, of a DType or of a NumPy dtype."""
    return tt.result_type(name)  # of one dtype: the public name for reading it


@dataclass(frozen=True)
class Operation:
    """One name, and what stands behind it."""

    name: str
    doc: str
    shapes: Callable[[Shape], list[Shape]]  # of the inputs, from the shape a person names
    flops: Callable[[Shape], int]
    result: Callable[[Shape], Shape]
    dtypes: tuple[str, ...] = FLOATS
    along: tuple[int | None, ...] = (0,)  # of each input: the axis that is `axis` of the result, part by part
    axis: int = 0
    slack: float = 1.0  # times the rounding of the dtype
    sums: bool = False  # adds up many terms: with half floats the sums are wider
    aliases: tuple[str, ...] = ()
    item: str = "element"
    items: Callable[[Shape], int] = prod
    weights: str = ""  # the packed dtype of the last input, where the operation itself says so
    batched: Callable[[int, Shape], Shape] | None = (
        None  # the shape with so many rows or sequences; None: it has no batch
    )


def _same(count: int) -> Callable[[Shape], list[Shape]]:
    return lambda shape: [shape] * count


def _columns(count: int) -> Callable[[Shape], list[Shape]]:
    """x, and vectors along its last axis."""
    return lambda shape: [shape, *([shape[-1:]] * count)]


def mkn(shape: Shape) -> tuple[int, int, int]:
    """The three sizes of a product."""
    if len(shape) == 1:
        return shape[0], shape[0], shape[0]
    if len(shape) == 2:
        return shape[0], shape[1], shape[1]
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    raise ShapeError(f"A product takes (n,), (m, k) or (m, k, n), given {shape}.")


def rows_of(batch: int, shape: Shape) -> Shape:
    """So many rows, of the width a shape has; of a product, through the same matrix."""
    if len(shape) == 3:
        return batch, *shape[1:]
    return batch, shape[-1]


def sequences_of(batch: int, shape: Shape) -> Shape:
    """So many sequences; a shape of three or four has a batch already, which is replaced."""
    return batch, *(shape if len(shape) == 2 else shape[1:])


def bthd(shape: Shape) -> tuple[int, int, int, int, int]:
    """Batch, tokens, heads, size of a head and context of an attention."""
    if not 2 <= len(shape) <= 4:
        raise ShapeError(
            f"attention takes (tokens, width), (batch, tokens, width) or (batch, tokens, width, context), given {shape}."
        )
    batch, tokens, width = (1, *shape) if len(shape) == 2 else shape[:3]
    context = shape[3] if len(shape) == 4 else tokens
    size = HEAD if width % HEAD == 0 else width
    if context < tokens:
        raise ShapeError(f"attention: {tokens} tokens are more than the context of {context}.")
    return batch, tokens, max(1, width // size), size, context


def _attention_shapes(shape: Shape) -> list[Shape]:
    batch, tokens, heads, size, context = bthd(shape)
    kept = (batch, heads, context, size)
    return [(batch, tokens, heads, size), kept, kept]


def _attention_flops(shape: Shape) -> int:
    """Keys a query may see: what lies ahead of it is not counted."""
    batch, tokens, heads, size, context = bthd(shape)
    seen = tokens * (context - tokens) + tokens * (tokens + 1) // 2
    return 4 * batch * heads * size * seen


def _product_shapes(turned: bool) -> Callable[[Shape], list[Shape]]:
    def shapes(shape: Shape) -> list[Shape]:
        m, k, n = mkn(shape)
        return [(m, k), (n, k) if turned else (k, n)]

    return shapes


def _product_result(shape: Shape) -> Shape:
    m, _, n = mkn(shape)
    return m, n


def _attention_result(shape: Shape) -> Shape:
    return bthd(shape)[:4]


def _maps(
    names: str, arity: int, flops: int, doc: str, dtypes: tuple[str, ...] = FLOATS, **more: Any
) -> list[Operation]:
    return [
        Operation(name, doc.format(name), _same(arity), lambda s: flops * prod(s), lambda s: s, dtypes, (0,) * arity, **more)
        for name in names.split()
    ]  # fmt: skip


def _wholes(names: str, doc: str, dtypes: tuple[str, ...] = (*FLOATS, *INTEGERS), **more: Any) -> list[Operation]:
    return [
        Operation(name, doc.format(name), _same(1), prod, lambda s: (), dtypes, (None,), **more)
        for name in names.split()
    ]


def _products(name: str, doc: str, turned: bool, **more: Any) -> Operation:
    return Operation(
        name, doc, _product_shapes(turned), lambda s: 2 * prod(mkn(s)), _product_result, along=(0, None),
        item="row", items=lambda s: mkn(s)[0], batched=rows_of, **more,
    )  # fmt: skip


def _square(shape: Shape) -> Shape:
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
    *_maps("copy", 1, 0, "the elements at another place", (*FLOATS, *INTEGERS), slack=0),
    Operation("transpose", "rows become columns, in new memory", _same(1), lambda s: 0, _square, (*FLOATS, *INTEGERS), (None,), slack=0),
    Operation("softmax", "along the last axis", _same(1), lambda s: 5 * prod(s), lambda s: s, sums=True, batched=rows_of),
    Operation("rms_norm", "along the last axis", _columns(1), lambda s: 4 * prod(s), lambda s: s, along=(0, None), slack=4, sums=True,
              batched=rows_of),
    Operation("layer_norm", "along the last axis", _columns(2), lambda s: 8 * prod(s), lambda s: s, along=(0, None, None), slack=4,
              sums=True, batched=rows_of),
    *_wholes("sum", "{} of all elements", slack=100, sums=True, aliases=("reduce", "reduction")),
    *_wholes("mean", "{} of all elements", FLOATS, slack=100, sums=True),
    *_wholes("max", "{} of all elements", slack=0),
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
    "transformer_layer": "one layer reads a prompt",
    "prefill": "one layer reads a prompt",
    "decode": "one layer decodes a token for each sequence",
    "batch_processing": "an MLP over many items, some at a time",
}  # cases of `work.workloads`
HELD = ("allocate", "clone", "write", "reuse")  # cases of memory in `work.moves`
MOVED = ("from_numpy", "upload", "download", "dlpack")  # cases of transfers in `work.moves`


def operation_named(name: str, others: Sequence[str] = ()) -> Operation:
    """The operation of a name or alias; an error with the nearest one otherwise."""
    if name not in NAMES:
        known = [*NAMES, *others]
        raise ArgumentError(
            f"{name!r} is no operation.{nearest(name, known)} There are {', '.join([*OPERATIONS, *others])}."
        )
    return OPERATIONS[NAMES[name]]


def refusal(operation: Operation, shape: Shape, dtype: str) -> str:
    """Why the operation cannot be done on this shape and dtype; nothing when it can."""
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
    """The dtype in which each input is held: packed weights come last, beside f32 (or half) activations."""
    count = len(operation.along)
    if dtype in WEIGHTS and operation.name == "linear":
        return ["f32", dtype]
    if operation.name == "bitlinear":
        return [dtype, operation.weights]
    if operation.name == "dequantize":
        return [operation.weights]
    return [dtype] * count


def work_of(operation: Operation, shape: Shape, dtype: str) -> Work:
    """What one call does: arithmetic, and every byte that must be read or written once."""
    held = kinds(operation, dtype)
    read = sum(tt.Spec(s, dtype_named(t)).nbytes for s, t in zip(operation.shapes(shape), held, strict=True))
    out = tt.f32 if dtype in WEIGHTS or operation.name == "dequantize" else dtype_named(dtype)
    if operation.name == "quantize":
        out = dtype_named(operation.weights)
    written = tt.Spec(operation.result(shape), out).nbytes
    integer = operation.name in ("linear", "bitlinear") and held[-1] in WEIGHTS
    return Work(operation.flops(shape), read, written, integer, operation.items(shape), operation.item)


def drawn(shape: Shape, draw: Callable[..., Any]) -> Data:
    """Random values. Very many are the same million and three again: a prime, so that no two rows are alike."""
    size = prod(shape)
    return np.asarray(draw(size)).reshape(shape) if size <= PERIOD else np.resize(draw(PERIOD), shape)


def inputs(operation: Operation, shape: Shape, dtype: str, seed: int) -> list[Data]:
    """Random values for every input, the same for every candidate; never zeros. Packed weights are their integers."""
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
            wide: Any = np.float64 if kind == "f64" else np.float32
            out.append(drawn(s, partial(rng.standard_normal, dtype=wide)).astype(t.numpy, copy=False))
    if operation.name == "divide":
        out[1] = np.abs(out[1]) + out[1].dtype.type(1)
    return out
