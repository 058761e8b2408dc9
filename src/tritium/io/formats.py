"""The formats that can be written: for each, the tensors of the file, and the configuration that goes with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from tritium.errors import FormatError
from tritium.escape import visible
from tritium.io import codecs, ggml
from tritium.io.model import names
from tritium.io.model.entry import FLOATS, Entry, ModelFile
from tritium.io.reader import fault
from tritium.io.safetensors import DTYPES, NAMES
from tritium.io.stream import Piece
from tritium.io.ternary import Array, Ternary, as_matrix, rows_at_a_time

BF16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Format:
    """A kind of file: its container, its codec for ternary weights, and the dtype its scales are rounded to."""

    name: str
    container: str
    doc: str
    codec: Any = None
    rounds: np.dtype[Any] | None = None
    tables: bool = True  # its engines look up rows of ternary tables; else embeddings and heads are written as floats


FORMATS = {
    f.name: f
    for f in (
        Format("i2_s", "gguf", "bitnet.cpp; 2 bits, one fp32 scale a tensor", codecs.i2_s, tables=False),
        Format("tq1_0", "gguf", "llama.cpp; 1.69 bits, fp16 scales", codecs.tq1_0, np.dtype("<f2")),
        Format("tq2_0", "gguf", "llama.cpp; 2.06 bits, fp16 scales", codecs.tq2_0, np.dtype("<f2")),
        Format("q2_0", "gguf", "llama.cpp since July 2026; 2.25 bits, fp16 scales", codecs.q2_0, np.dtype("<f2")),
        Format(
            "pq2_0",
            "gguf",
            "Prism's fork of llama.cpp; 2.13 bits, fp16 scales for 128 columns",
            codecs.pq2_0,
            np.dtype("<f2"),
        ),
        Format(
            "ptq1_0",
            "gguf",
            "Prism's fork of llama.cpp; 1.75 bits, fp16 scales for 128 columns",
            codecs.ptq1_0,
            np.dtype("<f2"),
        ),
        Format(
            "hf", "safetensors", "transformers; 2 bits, one scale a tensor, which multiplies", codecs.hf, tables=False
        ),
        Format("mlx", "safetensors", "MLX's own 2-bit form; exact, for mx.quantized_matmul", codecs.mlx),
        Format("f32", "safetensors", "plain numbers, value times scale", None, np.dtype("<f4")),
        Format("f16", "safetensors", "plain numbers, value times scale", None, np.dtype("<f2")),
        Format("bf16", "safetensors", "plain numbers, value times scale", None, BF16),
    )
}


TABLES = frozenset(("model.embed_tokens.weight", "lm_head.weight"))


@dataclass(frozen=True)
class Survey:
    """The result of a first pass over an entry."""

    entry: Entry
    ternary: bool
    scale: Array | None = None
    mlx_group: int = 0
    error: float = 0.0  # relative, of its scales after rounding


def survey(entry: Entry, to: Format) -> Survey:
    """Survey an entry: is it ternary, and how much do its scales change by rounding; raise where the format cannot hold it."""
    if entry.role == "maybe" and names.is_linear(entry.name, entry.arch) and to.codec is not None:
        t: Ternary | None = entry.ternary()  # raises where a projection is dense
    else:
        t = entry.find_ternary()
    if t is None:
        return Survey(entry, False)
    if not to.tables and entry.common in TABLES:
        return Survey(entry, False, t.scale)
    try:
        group = _fits(t, to)
    except FormatError as error:
        raise FormatError(f"{entry.where} cannot be {to.name}: {error}") from None
    stored = rounded(t, to).scale
    size = np.abs(t.scale.astype(np.float64))
    change = np.abs(stored.astype(np.float64) - t.scale) / np.where(size == 0, 1, size)
    return Survey(entry, True, t.scale, group, float(change.max(initial=0)))


def _fits(t: Ternary, to: Format) -> int:
    """Return MLX's group size, 0 for other formats; raise where the format cannot hold the shape or the scales."""
    if to.codec is not None:
        return int(to.codec.fits(t))
    if to.rounds == np.dtype("<f2"):
        codecs.to_f16(t.scale, to.name)
    return 0


def rounded(t: Ternary, to: Format) -> Ternary:
    """Return the same weights with the scales rounded as the format stores them."""
    if to.rounds is None:
        return t
    return Ternary(t.codes, t.shape, t.scale.astype(to.rounds).astype(np.float32), t.group)


# ---- GGUF


def gguf_pieces(surveys: list[Survey], model: ModelFile, to: Format, arch: names.Arch | None) -> list[Piece]:
    """Return the tensors of a GGUF file. Those that are not ternary keep their type; vectors become F32, which ggml's norms need."""
    return [_gguf_ternary(f, model, to, arch) if f.ternary else _gguf_plain(f.entry, model, arch) for f in surveys]


def _gguf_ternary(f: Survey, model: ModelFile, to: Format, arch: names.Arch | None) -> Piece:
    e, (rows, columns) = f.entry, _orders(f.entry, model, arch)

    def chunks() -> Iterator[Array]:
        t = e.ternary() if rows is None else e.ternary().take(rows)
        try:
            ordered = t if columns is None else t.take_columns(columns)
        except FormatError as error:
            raise FormatError(
                f"{e.where} cannot be {to.name}: {error} Write mlx or f32, which keep their order."
            ) from None
        yield to.codec.encode(ordered)

    return Piece(_gguf_name(e, model), e.shape, to.name.upper(), to.codec.nbytes(as_matrix(e.shape)), chunks)


def _gguf_plain(e: Entry, model: ModelFile, arch: names.Arch | None) -> Piece:
    if e.role == "ternary":  # a table of a format whose engines have no ternary ones
        kind = "F16" if _exact(e.ternary().scale, DTYPES["F16"]) else "F32"
        return _cast(e, _gguf_name(e, model), kind)
    if model.gguf is not None:
        return Piece(e.name, e.shape, e.stored, e.nbytes, lambda: [e.raw()])
    wide = len(e.shape) < 2 or names.is_wide(e.name, arch)
    kind = "F32" if wide and e.stored in FLOATS else e.stored
    if kind not in ggml.BY_NAME or kind not in DTYPES:
        raise fault(
            e.where,
            f"dtype {e.stored}",
            "one that GGUF has (F32, F16, BF16, F64, I8 to I64)",
            "Leave it out or cast it.",
        )
    shift = 0.0 if names.has_raw_norms(model.entries) else e.shift
    orders, exponent = _orders(e, model, arch), names.is_exponent(e.name, arch)
    changed = shift or exponent or any(order is not None for order in orders)
    change = partial(_as_gguf, orders=orders, shift=shift, exponent=exponent) if changed else None
    piece = _cast(e, _gguf_name(e, model), kind, change)
    if not names.is_squeezed(e.name, arch):
        return piece
    return replace(piece, shape=tuple(n for n in piece.shape if n != 1))


def _as_gguf(values: Array, orders: tuple[Array | None, Array | None], shift: float, exponent: bool) -> Array:
    """Return a whole plain tensor as GGUF stores it."""
    rows, columns = orders
    values = values if rows is None else values[rows]
    values = values if columns is None else values[:, columns]
    if exponent:
        return -np.exp(values.astype(np.float32))
    return values.astype(np.float32) + np.float32(shift) if shift else values


def _gguf_name(e: Entry, model: ModelFile) -> str:
    name = e.name if model.gguf is not None else names.to_gguf(e.name, e.arch) or e.name
    if len(name.encode()) > 63:
        raise fault(e.where, f"a name of {len(name.encode())} bytes", "at most 63, ggml's limit", "Rename the tensor.")
    return name


def _orders(e: Entry, model: ModelFile, arch: names.Arch | None) -> tuple[Array | None, Array | None]:
    """Return the orders of rows and columns that the architecture has in GGUF: of Q and K, and of delta nets; None: as they are."""
    if arch is None or not e.shape:
        return None, None
    if model.gguf is not None:
        if e.heads:
            return names.interleave(e.shape[0], e.heads), None
        rows, columns = (None if o is None else np.argsort(o) for o in (e.rows, e.columns))
        return rows, columns
    if not arch.interleaved:
        return names.head_order(e.name, e.shape, model.config, arch)
    n_heads = model.config.get("num_attention_heads")
    heads = names.heads_of(e.name, e.shape[0], n_heads, model.config.get("num_key_value_heads", n_heads))
    return (names.interleave(e.shape[0], heads) if heads else None), None


def _cast(e: Entry, name: str, kind: str, change: Callable[[Array], Array] | None = None) -> Piece:
    """Return a plain tensor cast to a dtype, in bounded chunks; whole where it is changed first."""
    dtype = DTYPES[kind]
    size = int(np.prod(e.shape, dtype=object)) * dtype.itemsize

    def chunks() -> Iterator[Array]:
        for part in e.chunks() if change is None else [e.array()]:
            values = part if change is None else change(part)
            with np.errstate(over="ignore"):
                out = values.astype(dtype)
            if dtype.itemsize == 2 and np.isinf(out).any() and not np.isinf(values).any():
                raise fault(e.where, "numbers beyond the range of fp16", "at most 65504", "Write bf16 or f32.")
            yield out

    return Piece(name, e.shape, kind, size, chunks)


# ---- safetensors


def one_dtype(surveys: list[Survey], model: ModelFile, to: Format) -> str:
    """Return the dtype for scales and all other numbers of a model, "" for a file that is not a model: that of the embeddings
    (BF16 or F16 where they are ternary) if it holds every norm and scale exactly, else F32. Libraries multiply them with each
    other and reject mixed dtypes."""
    if to.codec is None:
        return NAMES[to.rounds] if to.rounds is not None else ""
    if not model.config and model.arch is None:
        return ""
    plain = [f.entry for f in surveys if f.scale is None and (f.entry.stored in FLOATS or f.entry.stored not in DTYPES)]
    widest = max(plain, key=lambda e: e.nbytes, default=None)
    tables = any(f.scale is not None and f.entry.common in TABLES for f in surveys)
    for kind in ("BF16", "F16") if tables or widest is None else (widest.stored,):
        if kind not in ("F16", "BF16"):
            return "F32"
        scales = all(_exact(f.scale, DTYPES[kind]) for f in surveys if f.scale is not None)
        if scales and all(_exact(part, DTYPES[kind]) for e in plain if e.stored != kind for part in e.chunks()):
            return kind
    return "F32"


def _exact(a: Array, dtype: np.dtype[Any]) -> bool:
    flat = a.reshape(-1)
    with np.errstate(over="ignore"):
        return all(np.array_equal(flat[r].astype(dtype).astype(a.dtype), flat[r]) for r in rows_at_a_time(flat.size, 1))


def safetensors_pieces(surveys: list[Survey], model: ModelFile, to: Format, dtype: str) -> list[Piece]:
    """Return the tensors of a safetensors file, under Hugging Face's names; `dtype` is that of one_dtype."""
    scales = [f.scale for f in surveys if f.scale is not None]
    scale = dtype or ("BF16" if all(_exact(s, BF16) for s in scales) else "F32")
    group = min((f.mlx_group for f in surveys if f.ternary), default=0)
    out: list[Piece] = []
    for f in surveys:
        name = f.entry.name if model.gguf is None else names.to_hf(f.entry.name, f.entry.arch) or f.entry.name
        if not f.ternary:
            # norms of some families are stored less 1 there, and as they multiply in GGUF
            shift = names.norm_shift(name, model.arch) - f.entry.shift if model.gguf is not None else 0.0
            change = partial(_as_gguf, orders=(None, None), shift=-shift, exponent=False) if shift else None
            piece = _cast(f.entry, name, _plain_kind(f.entry, dtype), change)
            squeezed = model.gguf is not None and len(piece.shape) == 2 and names.is_squeezed(name, model.arch)
            out.append(replace(piece, shape=(piece.shape[0], 1, piece.shape[1])) if squeezed else piece)
        elif to.codec is codecs.hf:
            out += _hf_pair(f, name, scale)
        elif to.codec is codecs.mlx:
            out += _mlx_triple(f, name, scale, group)
        else:
            out.append(_dense(f.entry, name, to))
    return out


def _plain_kind(e: Entry, dtype: str) -> str:
    if e.refused:
        raise fault(e.where, e.stored, "numbers", e.refused)
    stored = e.stored if e.stored in DTYPES else "F32"
    return dtype if dtype and stored in FLOATS else stored


def _dense(e: Entry, name: str, to: Format) -> Piece:
    assert to.rounds is not None
    dtype = to.rounds

    def chunks() -> Iterator[Array]:
        t = e.ternary()
        for r in rows_at_a_time(*t.shape):
            yield t.dense(r).astype(dtype)

    return Piece(name, e.shape, NAMES[dtype], prod(e.shape) * dtype.itemsize, chunks)


def _beside(name: str, part: str) -> str:
    return (name.removesuffix(".weight") + "." if name.endswith(".weight") else name + ".") + part


def _hf_pair(f: Survey, name: str, scale: str) -> list[Piece]:
    e = f.entry
    if len(e.shape) != 2:
        raise fault(
            e.where,
            f"a stack of shape {list(e.shape)}",
            "a matrix",
            "hf holds no stacks: write a GGUF format, mlx or f32.",
        )
    n, k = e.shape
    name = name if name.endswith("weight") else f"{name}.weight"
    body = Piece(name, (n // 4, k), "U8", n * k // 4, lambda: [codecs.hf.encode(e.ternary())])
    stored = np.asarray(f.scale).reshape(1).astype(DTYPES[scale])
    return [body, Piece(_beside(name, "weight_scale"), (1,), scale, stored.nbytes, lambda: [stored])]


def _mlx_triple(f: Survey, name: str, scale: str, group: int) -> list[Piece]:
    e, dtype = f.entry, DTYPES[scale]
    *lead, k = e.shape
    name = name if name.endswith("weight") else f"{name}.weight"
    cached: list[codecs.Affine] = []  # the three pieces are written one after another, from one encoding

    def affine() -> codecs.Affine:
        if not cached:
            cached.append(codecs.mlx.encode(e.ternary(), group))
        return cached[0]

    def last() -> list[Array]:
        out = affine().biases.astype(dtype)
        cached.clear()
        return [out]

    columns = k // group
    parts: list[tuple[str, tuple[int, ...], str, Callable[[], Any]]] = [
        (name, (*lead, k // 16), "U32", lambda: [affine().words]),
        (_beside(name, "scales"), (*lead, columns), scale, lambda: [affine().scales.astype(dtype)]),
        (_beside(name, "biases"), (*lead, columns), scale, last),
    ]
    return [Piece(p, shape, kind, prod(shape) * DTYPES[kind].itemsize, chunks) for p, shape, kind, chunks in parts]


def config_for(model: ModelFile, to: Format, surveys: list[Survey], dtype: str) -> dict[str, Any]:
    """Return config.json of the result: the source's, or one from its GGUF keys, with the quantisation it now has."""
    if model.gguf is not None:
        tied = not any(e.common == "lm_head.weight" for e in model.entries.values())
        config = names.config_from_gguf(model.metadata, model.arch, tied) if model.arch else {}
    else:
        config = dict(model.config)
    old = config.pop("quantization_config", None)
    old = old if isinstance(old, dict) else {}
    for key in ("quantization", "auto_map"):  # auto_map names Python files, which are not carried over
        config.pop(key, None)
    if to.codec is codecs.hf:
        options = {k: old[k] for k in ("modules_to_not_convert", "use_rms_norm", "rms_norm_eps") if k in old}
        quantization = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"}
        config["quantization_config"] = quantization | options
    elif to.codec is codecs.mlx:
        group = min((f.mlx_group for f in surveys if f.ternary), default=64)
        config["quantization"] = {"group_size": group, "bits": 2}
    if dtype:
        config["torch_dtype"] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[dtype]
    return config


def unknown(to: str) -> FormatError:
    """Return the error for an unknown format."""
    return FormatError(
        f"convert: {visible(to)!r} is not a format that can be written; use one of {', '.join(FORMATS)}."
    )
