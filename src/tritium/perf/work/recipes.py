"""Cases, and the recipes by which a worker builds them: the same values and the same work for every candidate.

Values come from a seed and are never zeros; the expected answer is computed in float64 by NumPy.

    work.grid(["matmul", "add"], [(512, 512), (1024, 1024)], ["f32", "f16"])    ops x shapes x dtypes
    work.cases(ops.softmax)                                                     the samples of an op
    work.traced(model, tokens=1)                                                the calls of a network, and how often
    work.layouts(), work.dtypes()                                               one thing varied, all else equal
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np

import tritium as tt
from tritium.perf.records.case import Case, Context, Made, Recipe, UnsupportedError, Work
from tritium.perf.work import registry
from tritium.perf.work.libraries import (
    HALF,
    OWN,
    Library,
    floats,
    library_of,
    quantised_product,
    reference_functions,
    settled,
    wide,
)
from tritium.perf.work.operations import (
    MODEL_WORKLOADS,
    NAMES,
    OPERATIONS,
    ROUNDING,
    WEIGHTS,
    WORKLOADS,
    Operation,
    Shape,
    dtype_named,
    inputs,
    operation_named,
    refusal,
    work_of,
)

Data = np.ndarray[Any, Any]
LAYOUTS = ("contiguous", "transposed", "strided")
CHECKED = 1 << 16  # elements of an answer that are compared, spread over its rows
GROUP = 64  # columns that share a scale of int4 weights
PACKED = ("quantize", "dequantize")  # their arrays are packed, which NumPy does not have
WITH_TRANSFER = ", with transfer"  # ends the names of cases whose transfers are timed too


# ---- builders


def operation_names() -> list[str]:
    """Return every name `grid` accepts: the ops, their aliases, and the user's own benchmarks."""
    return [*NAMES, *_others()]


def refuses(operation: str, shape: Shape, dtype: str) -> str:
    """Return why an op cannot run on this shape and dtype; "" if it can."""
    if operation in registry.registered():
        return ""
    if (module := _workload_module(operation)) is not None:
        return module.refusal(operation, tuple(shape), dtype_named(dtype).name)
    return refusal(operation_named(operation, _others()), tuple(shape), dtype_named(dtype).name)


def _others() -> list[str]:
    return [*WORKLOADS, *MODEL_WORKLOADS, *registry.registered()]


def _workload_module(operation: str) -> Any:
    """Return the module that makes the cases of a workload, imported when one is named; None for an op."""
    if operation in WORKLOADS:
        from tritium.perf.work import workloads

        return workloads
    if operation in MODEL_WORKLOADS:
        from tritium.perf.work import whole_model

        return whole_model
    return None


def batched(operation: str, batch: int, shape: Shape) -> Shape | None:
    """Return the shape of an op with a batch of rows, sequences or items; None if it has no batch."""
    if operation in registry.registered():
        return None
    if (module := _workload_module(operation)) is not None:
        return module.batched(operation, batch, shape)
    row = operation_named(operation, _others())
    return None if row.batched is None else row.batched(batch, shape)


def transfers(operation: str) -> bool:
    """Return True if an op can be timed with its transfers: those of the table whose arrays NumPy has."""
    return operation in NAMES and NAMES[operation] not in PACKED and operation not in registry.registered()


def grid(
    operations: Sequence[str],
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[str] = ("f32",),
    *,
    devices: Sequence[str] = ("cpu",),
    threads: int | None = None,
    seed: int = 0,
    layouts: Sequence[str] = ("contiguous",),
    transfer: bool = False,
) -> list[Case]:
    """Return a case for every op, shape, dtype, device and layout. What an op refuses is left out: see `refuses`.

    `transfer`: the ops of the table, from NumPy arrays to NumPy arrays; see `with_transfer`.
    """
    cases: list[Case] = []
    for name in dict.fromkeys(operations):
        if name in registry.registered():
            cases += registry.cases(name, shapes, dtypes, devices=devices, threads=threads, seed=seed)
            continue
        if (module := _workload_module(name)) is not None:
            cases += module.cases(name, shapes, devices=devices, threads=threads, seed=seed)
            continue
        operation = operation_named(name, _others())
        for shape in shapes:
            for kind in dict.fromkeys(dtype_named(d).name for d in dtypes):
                if not refusal(operation, tuple(shape), kind):
                    for device in devices:
                        for layout in layouts:
                            cases.append(_case(operation, tuple(shape), kind, device, threads, seed, layout))
    if transfer:
        cases = [with_transfer(case) for case in cases if transfers(case.context.operation)]
    return list({case.name: case for case in cases}.values())


def with_transfer(case: Case) -> Case:
    """Return the same case from host arrays to host arrays: both transfers are timed."""
    recipe = replace(case.recipe, arguments={**case.recipe.arguments, "transfer": True})
    return replace(
        case, name=f"{case.name}{WITH_TRANSFER}", recipe=recipe, context=replace(case.context, transfer="included")
    )


def _case(
    operation: Operation, shape: Shape, dtype: str, device: str, threads: int | None, seed: int, layout: str
) -> Case:
    """Return the case of one op, shape, dtype, device and layout."""
    words = [operation.name, "x".join(map(str, shape)), dtype]
    words += [layout] if layout != "contiguous" else []
    words += [f"on {device}"] if device != "cpu" else []
    arguments = {
        "operation": operation.name, "shape": list(shape), "dtype": dtype, "seed": seed, "threads": threads, "device": device,
        "layout": layout,
    }  # fmt: skip
    context = Context(operation.name, shape, dtype, device, threads=threads or 1)
    return Case(
        " ".join(words),
        Recipe("tritium.perf.work.recipes:operation", arguments),
        context,
        work_of(operation, shape, dtype),
    )


def layouts(
    operations: Sequence[str] = ("add", "sum", "matmul"),
    shapes: Sequence[Sequence[int]] = ((1024, 1024),),
    dtypes: Sequence[str] = ("f32",),
    **options: Any,
) -> list[Case]:
    """Return cases of the same op on row-major, column-major and strided memory (every other column)."""
    return grid(operations, shapes, dtypes, layouts=LAYOUTS, **options)


def dtypes(
    shapes: Sequence[Sequence[int]] = ((512, 512),),
    kinds: Sequence[str] = ("f32", "f16", "bf16", "i8", "tern2"),
    **options: Any,
) -> list[Case]:
    """Return cases of the same product with weights of each dtype: floats, and integers beside int8 activations."""
    return grid(["linear"], shapes, kinds, **options)


# ---- the recipe of an op


def operation(
    candidate: str,
    *,
    operation: str,
    shape: Sequence[int],
    dtype: str = "f32",
    seed: int = 0,
    threads: int | None = None,
    device: str = "cpu",
    layout: str = "contiguous",
    transfer: bool = False,
) -> Made:
    """Build one op on one candidate, for a worker to time."""
    row = operation_named(operation)
    sizes = tuple(shape)
    if reason := refusal(row, sizes, dtype):
        raise UnsupportedError(reason)
    library = library_of(candidate, device, threads)
    if dtype not in (*library.dtypes, *WEIGHTS):
        raise UnsupportedError(
            f"{library.name} does not compute in {dtype}: {library.notes.get('dtype', 'it has no such dtype')}."
        )
    if transfer:
        if not transfers(row.name):
            raise UnsupportedError(f"{row.name} has packed weights as its array, which NumPy does not have.")
        library = replace(library, back=partial(_host, library.back), wait=None, moves=True)
    data = inputs(row, sizes, dtype, seed)
    if row.name in MAKERS:
        if layout != "contiguous":
            raise UnsupportedError(f"{row.name} has packed weights, which have one layout only.")
        call = MAKERS[row.name](library, row, sizes, dtype, data)
        return _with_note(call, "activations in, the result out; weights stay") if transfer else call
    arrays = [laid(library, x, layout) for x in data]
    rows = spread(row, sizes)
    facts = (
        {"layout": layout, "checked parts": f"{len(rows)} of {row.result(sizes)[row.axis]}"}
        if rows is not None
        else {"layout": layout}
    )
    if dtype_named(dtype).numpy.name in HALF and "half" in library.notes:
        facts["note"] = library.notes["half"]
    call = Made(
        bound(library, library.function(row.name), arrays, data),
        wait=library.wait,
        answer=lambda result: picked(library.back(result), rows, row.axis),
        expected=lambda: right(row, data, rows),
        tolerance=ROUNDING[dtype] * row.slack,
        facts=facts,
    )
    return _with_note(call, "all inputs in, the result out") if transfer else call


def _with_note(call: Made, transfer: str) -> Made:
    """Return the call with a fact on what is transferred."""
    return replace(call, facts={**call.facts, "transfer": transfer})


def bound(library: Library, fn: Callable[..., Any], arrays: Sequence[Any], hosts: Sequence[Data]) -> Callable[[], Any]:
    """Return the timed function: on arrays that exist; or, where the library moves them, from the host and back.

    `hosts` are the first arrays in NumPy. The others are weights, which stay on the device.
    """
    if not library.moves:
        return partial(fn, *arrays)
    stay, enter, back = arrays[len(hosts) :], _entrance(library, hosts), library.back

    def call() -> Any:
        return back(fn(*map(enter, hosts), *stay))

    return call


def _entrance(library: Library, hosts: Sequence[Data]) -> Callable[[Data], Any]:
    """Return the cheapest way from NumPy's memory into a library: shared memory if possible."""
    is_foreign_bf16 = library.name not in OWN and any(x.dtype.name == "bfloat16" for x in hosts)
    if library.name == "numpy" or is_foreign_bf16:
        return library.array
    return library.memory.get("from_numpy") or library.memory["upload"]


def _host(back: Callable[[Any], Data], x: Any) -> Data:
    """Return a value as a NumPy array."""
    return x if isinstance(x, np.ndarray) else back(x)


def laid(library: Library, x: Data, layout: str) -> Any:
    """Return the values as an array of the library in this layout."""
    if layout == "contiguous" or x.ndim < 2:
        return library.array(x)
    if not library.strided:
        raise UnsupportedError(f"{library.name} decides the layout of its arrays itself.")
    if layout == "transposed" and x.ndim == 2:
        return library.array(np.ascontiguousarray(x.T)).T
    if layout == "strided":
        return library.array(np.repeat(x, 2, axis=-1))[..., ::2]
    raise UnsupportedError(
        f"the layout {layout!r} of {x.ndim} dimensions is not known; there are {', '.join(LAYOUTS)}."
    )


def spread(row: Operation, shape: Shape) -> Data | None:
    """Return the rows (of attention: heads) of an answer that are compared: enough to detect errors, few enough to be quick. None: all."""
    result = row.result(shape)
    if row.along[0] is None or not result:
        return None
    length = result[row.axis]
    count = min(length, max(2, CHECKED * length // prod(result)))
    return np.unique(np.linspace(0, length - 1, count).astype(np.int64))


def picked(x: Data, parts: Data | None, axis: int | None = 0) -> Data:
    """Return these parts of an array along an axis."""
    return np.atleast_1d(x) if parts is None or axis is None else np.take(x, parts, axis)


def right(row: Operation, data: list[Data], rows: Data | None) -> Data:
    """Return the expected answer in float64 (integers: int64)."""
    operands = [wide(picked(x, rows, axis)) for x, axis in zip(data, row.along, strict=True)]
    with np.errstate(all="ignore"):
        return np.atleast_1d(reference_functions()[row.name](*operands))


# ---- weights that are integers


def scales(dtype: str, shape: Shape, seed: int = 1) -> Data:
    """Return random scales near 0.02: one for ternary weights, one for each row of i8, for each group of i4."""
    n, k = shape
    shape_of_scales = {"i8": (n,), "i4": (n, k // GROUP) if k % GROUP == 0 else (n,)}.get(dtype, ())
    return np.random.default_rng(seed).uniform(0.01, 0.03, shape_of_scales).astype(np.float32)


def _linear(library: Library, row: Operation, shape: Shape, dtype: str, data: list[Data]) -> Made:
    """Build x @ w.T: Tritium multiplies the integers, others the floats they represent."""
    x, w = data
    kind = row.weights or dtype
    rows = spread(row, shape)
    if kind not in WEIGHTS:
        return _float_linear(library, row, x, w, rows, ROUNDING[dtype])
    scale = scales(kind, w.shape)
    if library.name not in OWN:
        matrix = floats(w, scale).astype(x.dtype)
        product = _float_linear(library, row, x, matrix, rows, max(ROUNDING["f32"], ROUNDING.get(dtype, 0.0)))
        product.facts = {
            "weights": f"{kind} dequantised to {dtype_named(x.dtype).name} before timing",
            "bytes of weights": matrix.nbytes,
        }
        plain = work_of(OPERATIONS["linear"], shape, dtype_named(x.dtype).name)
        product.work = Work(plain.flops, plain.read, plain.written, False, plain.items, plain.item)
        return product
    group = GROUP if scale.ndim == 2 else 0
    make: Any = tt.nn.BitLinear if dtype_named(kind).is_ternary else tt.nn.QuantLinear
    layer = make(tt.quant.from_integers(w, scale, group=group, dtype=kind).to(library.device))
    settled([layer.weight.data, layer.weight.scale])
    ready = library.array(x)
    call = library.compile(lambda y: layer(y)) if library.compiles else layer
    tolerance = max(ROUNDING["f32"], ROUNDING.get(dtype, 0.0))
    return Made(
        bound(library, call, [ready], [x]), library.wait, lambda result: picked(library.back(result), rows),
        lambda: quantised_product(picked(x, rows), w, scale), tolerance,
        {"weights": kind, "bytes of weights": layer.nbytes, "kernel": layer.kernel(shape[0], dtype_named(x.dtype))},
    )  # fmt: skip


def _float_linear(library: Library, row: Operation, x: Data, w: Data, rows: Data | None, tolerance: float) -> Made:
    """Build x @ w.T in floats."""
    call = bound(library, library.function("linear"), [library.array(x), library.array(w)], [x])
    return Made(
        call, library.wait, lambda result: picked(library.back(result), rows),
        lambda: wide(picked(x, rows)) @ wide(w).T, tolerance, {"weights": dtype_named(w.dtype).name},
    )  # fmt: skip


def _quantize(library: Library, row: Operation, shape: Shape, dtype: str, data: list[Data]) -> Made:
    """Build absmean ternary quantisation. Elements within rounding of the edge between two codes are not checked."""
    (w,) = data
    rows = np.unique(np.linspace(0, shape[0] - 1, min(shape[0], max(2, CHECKED // shape[1]))).astype(np.int64))

    @cache
    def sure() -> tuple[Data, Data]:
        scale = max(float(np.abs(wide(w)).mean()), 1e-5)
        part = wide(w[rows]) / scale
        return np.clip(np.rint(part), -1, 1) * scale, np.abs(np.abs(part) - 0.5) > 0.02

    def answer(result: Any) -> Data:
        codes, scale = library.back(result[0]), float(library.back(result[1]))
        return np.asarray((codes[rows].astype(np.float64) * scale)[sure()[1]])

    storage = "2 bits a weight" if library.name in OWN else "a byte a weight, not packed"
    other = Work(4 * prod(shape), w.nbytes, prod(shape) + 4, False, prod(shape), "element")
    return Made(
        partial(library.function("quantize"), library.array(w)), library.wait, answer, lambda: sure()[0][sure()[1]],
        10 * ROUNDING[dtype], {"stored as": storage}, work=None if library.name in OWN else other,
    )  # fmt: skip


def _dequantize(library: Library, row: Operation, shape: Shape, dtype: str, data: list[Data]) -> Made:
    """Build dequantisation of ternary weights."""
    (w,) = data
    scale = scales("tern2", w.shape)
    own = library.name in OWN
    codes = library.array(w)
    if own:
        codes = settled(tt.repack(codes, "tern2"))
    return Made(
        partial(library.function("dequantize"), codes, library.array(scale)), library.wait, library.back,
        lambda: wide(w) * float(scale), ROUNDING["f32"], {"stored as": "2 bits a weight" if own else "a byte a weight, not packed"},
        work=None if own else Work(prod(shape), w.nbytes, 4 * prod(shape), False, prod(shape), "element"),
    )  # fmt: skip


Maker = Callable[[Library, Operation, Shape, str, list[Data]], Made]
MAKERS: dict[str, Maker] = {"linear": _linear, "bitlinear": _linear, "quantize": _quantize, "dequantize": _dequantize}
