"""A GGUF file as a model: the codec of each tensor, and the order of its rows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tritium.escape import visible
from tritium.io import codecs, ggml, gguf
from tritium.io.dequantize import dequantize
from tritium.io.model import names
from tritium.io.model.entry import FLOATS, Entry, ModelFile, role_of
from tritium.io.model.supported import transform_in_gguf
from tritium.io.reader import fault
from tritium.io.ternary import Array, as_matrix


def read(path: Path, view: memoryview, variant: str | None, ternarise: bool) -> ModelFile:
    """Read the model in a GGUF file."""
    file = gguf.parse(view)
    name = gguf.scalar(file.metadata, "general.architecture")
    name = name if isinstance(name, str) else ""
    arch = names.ARCHS.get(name)
    masters = ternarise or name.startswith("bitnet")
    sizes = names.sizes_of_heads(file.metadata, arch)
    entries = {t.name: _entry(path.name, file, t, arch, variant, masters, sizes) for t in file.tensors.values()}
    if names.has_raw_norms(entries):
        entries = {n: replace(e, shift=names.norm_shift(n, arch)) for n, e in entries.items()}
    only = ", ".join(names.ARCHS)
    beliefs = (
        []
        if arch
        else [
            f"architecture {visible(name)!r} is not one of {only}: it can only be written as GGUF, or as plain tensors"
        ]
    )
    beliefs += sorted({t.why for t in file.tensors.values() if t.why})
    if any(e.stored == "I2_S" for e in entries.values()):
        beliefs.append(
            f"I2_S in {'64-value blocks of ARM builds: requested' if variant == 'arm64' else '128-value blocks, as in all official files'}"
        )
    return ModelFile(
        path=path,
        container="gguf",
        entries=entries,
        metadata=file.metadata,
        config={},
        arch=arch,
        beliefs=tuple(beliefs),
        gguf=file,
    ).refuse(transform_in_gguf(file.metadata, file.tensors))


def _entry(
    where: str, file: gguf.GgufFile, t: gguf.GgufTensor, arch: names.Arch | None, variant: str | None, masters: bool,
    sizes: dict[str, Any],
) -> Entry:  # fmt: skip
    kind, shape = t.type.name, t.shape
    raw = partial(file.data, t.name)
    refused = f"{kind} is not read: {t.type.refused}." if t.type.refused else ""
    readers: dict[str, Any] = {}
    if kind in codecs.GGUF:
        codec: Any = codecs.i2_s_arm64 if kind == "I2_S" and variant == "arm64" else codecs.GGUF[kind]
        readers["decode"] = lambda: codec.decode(raw(), as_matrix(shape))
        readers["decode_rows"] = lambda rows: codec.decode_rows(raw(), as_matrix(shape), rows)
        readers["scale"] = lambda: codec.stored_scales(raw())
    elif kind in FLOATS:
        readers["numbers"] = lambda: _plain(raw(), FLOATS[kind], shape)
    elif not refused:
        readers["numbers"] = lambda: dequantize(kind, raw(), shape)
        if len(shape) > 1 and t.nbytes:
            n, k = as_matrix(shape)
            row = t.nbytes // n
            readers["some"] = lambda r: dequantize(kind, raw()[r.start * row : r.stop * row], (r.stop - r.start, k))
    role = "ternary" if kind in ggml.TERNARY else role_of(t.name, shape, kind, masters, arch)
    rows, columns = (None if o is None else np.argsort(o) for o in names.head_order(t.name, shape, sizes, arch))
    return Entry(
        rows=rows, columns=columns, name=t.name, shape=shape, stored=kind, nbytes=t.nbytes, offset=t.offset, file=where,
        role=role, refused=refused, why=t.why, raw=raw, heads=_heads(file, t, arch), arch=arch, **_exponents(t.name, arch, readers),
    )  # fmt: skip


def _exponents(name: str, arch: names.Arch | None, readers: dict[str, Any]) -> dict[str, Any]:
    """Return the readers of a tensor; x where the file stores -exp(x)."""
    if not names.is_exponent(name, arch) or "numbers" not in readers:
        return readers
    numbers = readers["numbers"]

    def read() -> Array:
        values = numbers().astype(np.float32)
        if not (values < 0).all():
            raise fault(f"tensor {visible(name)!r}", "a number that is not negative", "-exp(x) for each head")
        return np.log(-values)

    return {"numbers": read}


def _heads(file: gguf.GgufFile, t: gguf.GgufTensor, arch: names.Arch | None) -> int:
    if arch is None or not arch.interleaved or not t.shape:
        return 0
    counts = (gguf.scalar(file.metadata, f"{arch.gguf}.attention.{key}") for key in ("head_count", "head_count_kv"))
    return names.heads_of(t.name, t.shape[0], *counts)


def _plain(raw: memoryview, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    data = np.frombuffer(raw, np.uint8) if len(raw) else np.empty(0, np.uint8)
    return data.view(dtype).reshape(shape)
