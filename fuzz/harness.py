"""One harness for each reader: bytes in, nothing out; FormatError is the only exception a reader may raise.

Knows nothing of how inputs are made, counted or kept. What a reader accepts is checked too: values are ternary, scales
finite, views inside the file, and a second pass through the encoder changes nothing.
"""

from __future__ import annotations

import atexit
import os
import shutil
import struct
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import result_files

from tritium import io
from tritium.errors import FormatError
from tritium.families.config import Config
from tritium.io import codecs, gguf, safetensors
from tritium.io.dequantize import READABLE, dequantize
from tritium.io.model import names, opening as model, tokenizer

LIMIT_S = 1.0
SPARE = 64 << 20  # bytes a reader may use above twice its input
GROWTH = {  # times its input a reader may use
    "tokenizer": 4,  # a vocabulary is many small strings, each with a head of its own
    **dict.fromkeys(result_files.NAMES, 28),  # an empty array is 2 characters and a comma, and 64 bytes in memory
}
LARGE = 1 << 16  # items or bytes above which what was read is not unfolded
FLOATS = tuple(np.dtype(t) for t in ("<f4", "<f2", ml_dtypes.bfloat16, "<f8"))


# ---- containers


def read_gguf(data: bytes) -> None:
    file = gguf.parse(data)
    for key, value in file.metadata.values_by_key.items():
        if value.count <= LARGE:  # a list of numbers is many times its bytes, and only made when asked for
            _ = file.metadata[key]
    for name, t in file.tensors.items():
        assert len(file.data(name)) == t.nbytes
        assert t.offset + t.nbytes <= len(data)


def read_safetensors(data: bytes) -> None:
    file = safetensors.parse(data)
    for name, t in file.tensors.items():
        assert len(file.data(name)) == t.nbytes
        assert file.array(name).shape == t.shape


# ---- codecs: one byte for the rank, the sizes in 8 bytes each, then what the codec needs


def split(data: bytes) -> tuple[tuple[int, ...], memoryview]:
    """The shape an input asks for, and the bytes after it."""
    rank = data[0] % 5 if data else 0
    if len(data) < 1 + 8 * rank:
        return (), memoryview(b"")
    return struct.unpack_from(f"<{rank}q", data, 1), memoryview(data)[1 + 8 * rank :]


def check(t: codecs.Ternary, again: codecs.Ternary | None = None) -> None:
    """What was accepted is ternary and finite, and reads the same after a round trip."""
    values = t.values()
    assert values.shape == t.shape
    assert not values.size or (values.max() <= 1 and values.min() >= -1)
    assert np.isfinite(t.scale).all()
    t.simplified()
    assert t.dense().shape == t.shape
    if again is not None:
        assert again.shape == t.shape
        assert np.array_equal(again.codes, t.codes)
        assert np.array_equal(again.scale, t.scale)


def read_codec(name: str) -> Callable[[bytes], None]:
    codec: Any = getattr(codecs, name)

    def read(data: bytes) -> None:
        shape, body = split(data)
        t = codec.decode(body, shape)
        check(t, codec.decode(codec.encode(t), t.shape))

    return read


def read_hf(data: bytes) -> None:
    """After the shape: flags (inverted, dtype of the scale, how many scales) and the scales."""
    shape, body = split(data)
    flags = body[0] if len(body) else 0
    dtype, count = FLOATS[flags >> 1 & 3], (1, 0, 2, 3)[flags >> 3 & 3]
    end = 1 + count * dtype.itemsize
    scale = np.frombuffer(body[1:end], np.uint8).view(dtype) if len(body) >= end else np.zeros(1, np.float32)
    t = codecs.hf.decode(body[end:], shape, scale.astype(np.float32), inverted=bool(flags & 1))
    check(t, codecs.hf.decode(codecs.hf.encode(t), t.shape, t.scale))


MLX_HEAD = struct.Struct("<iBHHHH")  # group, dtype, shape of the scales, shape of the biases


def read_mlx(data: bytes) -> None:
    shape, body = split(data)
    if len(body) < MLX_HEAD.size:
        body = memoryview(bytes(MLX_HEAD.size))
    group, kind, *sizes = MLX_HEAD.unpack_from(body)
    dtype, at, both = FLOATS[kind & 3], MLX_HEAD.size, []
    for n, k in (sizes[:2], sizes[2:]):
        n = (
            min(n, (len(body) - at) // (k * dtype.itemsize)) if k else n
        )  # as the container would: no more than is there
        end = at + n * k * dtype.itemsize
        both.append(np.frombuffer(body[at:end], np.uint8).view(dtype).astype(np.float32).reshape(n, k))
        at = end
    t = codecs.mlx.decode(body[at:], shape, both[0], both[1], group)
    affine = codecs.mlx.encode(t, group)
    check(t, codecs.mlx.decode(affine.words.view(np.uint8), t.shape, affine.scales, affine.biases, group))


def read_floats(data: bytes) -> None:
    """After the shape: the dtype and the numbers, of which a container never gives fewer than the shape needs."""
    shape, body = split(data)
    dtype = FLOATS[(body[0] if len(body) else 0) & 3]
    numbers = np.frombuffer(body[1:], np.uint8)
    size = 1
    for d in shape:
        size *= d
    if not 0 <= size * dtype.itemsize <= len(numbers) or min(shape, default=0) < 0:
        shape = (1, len(numbers) // dtype.itemsize)
        size = shape[1]
    if max(shape, default=0) > codecs.EMPTY:
        shape, size = (0, 0), 0
    w = numbers[: size * dtype.itemsize].view(dtype).reshape(shape)
    t = codecs.floats.decode(w)
    again = codecs.floats.encode(t) if t.shape[0] * t.shape[1] else None
    check(t)
    assert again is None or np.isfinite(again).all()


def read_dequantize(data: bytes) -> None:
    """After the shape: one byte for the type, and its blocks."""
    shape, body = split(data)
    kind = READABLE[(body[0] if len(body) else 0) % len(READABLE)]
    values = dequantize(kind, body[1:], shape)
    assert values.shape == shape
    assert values.dtype == np.float32


# ---- whole models, from files in a folder of their own


@cache
def folder(name: str) -> Path:
    """A folder in memory where there is one; it goes when the process ends."""
    root = os.environ.get("FUZZ_TMP") or ("/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    made = Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-", dir=root))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


@cache
def written(path: Path) -> int:
    """A file that stays open, for one input after another: opening and closing it cost as much as reading many a model."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)


def store(path: Path, data: bytes) -> Path:
    """The file with these bytes and no others."""
    file = written(path)
    os.pwrite(file, data, 0)
    os.ftruncate(file, len(data))
    return path


OPEN: Callable[..., model.ModelFile] = model.open.__wrapped__  # type: ignore[attr-defined]  # arguments are no input of ours


def visit(m: model.ModelFile, seen: set[Any] | None = None) -> None:
    """Everything of a model is read; an entry that cannot be must say so properly. seen: where the bytes of tensors are always the
    same, what was decided of an entry before; only an entry of which something else was decided is read."""
    for e in m.entries.values():
        if seen is not None:
            how = (e.name, e.stored, e.role, e.shape, e.nbytes, e.shift, e.refused, e.arch, m.inverted)
            if how in seen:
                continue
            seen.add(how)
        for call in (e.find_ternary, e.array, e.scale or e.raw):
            if call == e.array and e.nbytes > LARGE:
                continue  # fp32 is 16 times the packed bytes: the result, not the reading, takes that memory
            try:
                found = call()
            except FormatError:
                continue
            if isinstance(found, codecs.Ternary) and e.nbytes <= LARGE:
                check(found)
    assert m.nbytes >= 0
    _ = m.named


def read_gguf_model(data: bytes) -> None:
    """A GGUF file opened as a model, its tokenizer and configuration read."""
    path = store(folder("gguf") / "model.gguf", data)
    m = OPEN(path, variant="arm64" if data and data[-1] & 1 else None)
    visit(m)
    tokenizer.from_gguf(m.metadata)
    if m.arch:
        config = names.config_from_gguf(m.metadata, m.arch, tied=False)
        with suppress(FormatError):  # a file may be read that cannot be run
            Config.from_hf(config | {"vocab_size": 8})


def read_hf_model(data: bytes) -> None:
    """A lone safetensors file opened as a model."""
    path = store(folder("hf") / "model.safetensors", data)
    visit(OPEN(path, variant=("multiply", "divide", None)[data[-1] % 3] if data else None))


def named_file(where: str, data: bytes) -> Path:
    """The input in a file whose name says what its first bytes say."""
    return store(folder(where) / ("model.gguf" if data[:4] == gguf.MAGIC else "model.safetensors"), data)


def read_inspect(data: bytes) -> None:
    """`tritium inspect` of a GGUF or safetensors file."""
    io.inspect(named_file("inspect", data), deep=True).as_dict()


def read_convert(data: bytes) -> None:
    """`tritium convert` of a GGUF or safetensors file into the format its last byte names, and `tritium verify` of the two."""
    to = list(io.FORMATS)[data[-1] % len(io.FORMATS)] if data else "f32"
    source = named_file("convert", data)
    target = source.with_name("out.gguf" if io.FORMATS[to].container == "gguf" else "out.safetensors")
    io.convert(source, target, to=to, overwrite=True, variant="multiply")
    io.verify(source, target, variant="multiply")


def weights() -> bytes:
    """A small model with one tensor of each kind that a configuration gives a meaning to."""
    rows = {
        "model.layers.0.self_attn.q_proj.weight": ("U8", (1, 8), b"\x55" * 8),
        "model.layers.0.self_attn.q_proj.weight_scale": ("F32", (1,), struct.pack("<f", 0.5)),
        "model.layers.0.mlp.up_proj.weight": ("F32", (2, 2), struct.pack("<4f", 1, -1, 0, 1)),
        "layer.weight": ("U32", (1, 4), b"\x55" * 16),
        "layer.scales": ("F32", (1, 2), struct.pack("<2f", 1, 2)),
        "layer.biases": ("F32", (1, 2), struct.pack("<2f", -1, -2)),
        "model.embed_tokens.weight": ("F16", (2, 2), bytes(8)),
    }
    head, at = [], 0
    for name, (dtype, shape, raw) in rows.items():
        head.append(f'"{name}":{{"dtype":"{dtype}","shape":{list(shape)},"data_offsets":[{at},{at + len(raw)}]}}')
        at += len(raw)
    text = ("{" + ",".join(head) + "}").encode()
    return struct.pack("<Q", len(text)) + text + b"".join(raw for _, _, raw in rows.values())


SEEN: set[Any] = set()  # entries of the one file beside every config.json


def read_config(data: bytes) -> None:
    """config.json beside a model."""
    where = folder("config")
    if not (where / "model.safetensors").exists():
        (where / "model.safetensors").write_bytes(weights())
    store(where / "config.json", data)
    m = OPEN(where)
    visit(m, SEEN)
    if m.arch:
        with suppress(FormatError):
            Config.from_hf(m.config)
        names.config_to_gguf(m.config, m.arch)


def read_index(data: bytes) -> None:
    """model.safetensors.index.json of a model in two files."""
    where = folder("index")
    if not (where / "b.safetensors").exists():
        for name in ("a", "c"):
            (where / f"{name}.safetensors").write_bytes(weights())
        text = b'{"x.weight":{"dtype":"F32","shape":[0,4],"data_offsets":[0,0]}}'
        (where / "b.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
        (where / "link.safetensors").symlink_to("/etc/hostname")
    store(where / "model.safetensors.index.json", data)
    visit(OPEN(where))


def read_tokenizer(data: bytes) -> None:
    """tokenizer.json, and after a zero byte tokenizer_config.json."""
    body, _, side = data.partition(b"\0")
    where = folder("tokenizer-config" if side else "tokenizer")
    (where / "tokenizer.json").write_bytes(body)
    if side:
        (where / "tokenizer_config.json").write_bytes(side)
    tokenizer.to_gguf(where, {"vocab_size": 4, "bos_token_id": 0, "eos_token_id": [1]})


READERS: dict[str, Callable[[bytes], None]] = {
    "gguf": read_gguf,
    "safetensors": read_safetensors,
    **{name: read_codec(name) for name in ("i2_s", "i2_s_arm64", "tq2_0", "tq1_0", "q2_0", "pq2_0", "ptq1_0")},
    "hf": read_hf,
    "mlx": read_mlx,
    "floats": read_floats,
    "dequantize": read_dequantize,
    "gguf_model": read_gguf_model,
    "hf_model": read_hf_model,
    "inspect": read_inspect,
    "convert": read_convert,
    "config": read_config,
    "index": read_index,
    "tokenizer": read_tokenizer,
    **result_files.readers(folder),
}


# ---- judging one input


@dataclass(frozen=True)
class Verdict:
    """What one execution did. `fault` is empty when all is well, else crash, hang or memory."""

    outcome: str  # "ok", or the name of the exception
    where: str  # file:line that raised
    cpu_s: float
    peak: int  # bytes, 0 where not measured
    fault: str
    text: str = ""


def origin(error: BaseException) -> str:
    """file:line of the innermost frame in the package, else of the innermost frame."""
    found, tb = "?", error.__traceback__
    inner = ""
    while tb is not None:
        file = Path(tb.tb_frame.f_code.co_filename)
        found = f"{file.name}:{tb.tb_lineno}"
        inner = found if "tritium" in file.parts else inner
        tb = tb.tb_next
    return inner or found


def fair(error: FormatError) -> bool:
    """A complaint a person can read: one line of bearable length, without control characters from the file."""
    text = str(error)
    return text.isprintable() and 0 < len(text) < 4096


def room(reader: str, data: bytes) -> int:
    """The bytes of memory a reader may use for this input."""
    return GROWTH.get(reader, 2) * len(data) + SPARE


def judge(reader: str, data: bytes, *, memory: bool = True) -> Verdict:
    """Runs one input with a clock (again when it was slow: another program may have been in the way), then counting memory."""
    outcome, where, text, cpu_s = "ok", "", "", 0.0
    for again in range(3):
        start = time.process_time()
        try:
            READERS[reader](data)
        except Exception as error:
            outcome, where, text = type(error).__name__, origin(error), str(error)[:300]
            if isinstance(error, FormatError) and not fair(error):
                outcome = "unfair message"
        spent = time.process_time() - start
        cpu_s = min(cpu_s, spent) if again else spent
        if cpu_s <= LIMIT_S:
            break
    peak = peak_of(reader, data) if memory else 0
    fault = "" if outcome in ("ok", "FormatError") else "crash"
    if cpu_s > LIMIT_S:
        fault = fault or "hang"
    if peak > room(reader, data) or outcome == "MemoryError":
        fault = "memory"
    return Verdict(outcome, where, cpu_s, peak, fault, text)


def peak_of(reader: str, data: bytes) -> int:
    """The most memory Python and NumPy held at once while reading an input, in bytes."""
    tracemalloc.start()
    try:
        READERS[reader](data)
    except Exception:
        pass  # judged by its first run
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak
