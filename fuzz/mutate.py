"""Inputs for the readers: nearly valid files built from scratch, and old ones changed where it hurts.

Knows nothing of harnesses or counting. Everything follows from the random generator given, so a run can be repeated.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import result_files

INTERESTING = (
    0, 1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000, 4095, 4096, 32767,
    32768, 65535, 65536, 1 << 20, (1 << 24) - 1, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 32) + 1,
    1 << 40, 1 << 60, 1 << 61, 1 << 62, (1 << 62) + 1, (1 << 63) - 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 32, (1 << 64) - 1,
)  # fmt: skip
MOST = 1 << 16  # bytes in an input
Rng = random.Random


def pick(rng: Rng, items: Sequence[Any]) -> Any:
    return items[int(rng.random() * len(items))]


# ---- bytes


def _flip(rng: Rng, b: bytearray) -> None:
    b[int(rng.random() * len(b))] ^= 1 << rng.getrandbits(3)


def _byte(rng: Rng, b: bytearray) -> None:
    b[int(rng.random() * len(b))] = pick(rng, (0, 1, 2, 3, 8, 9, 0x7F, 0x80, 0xFE, 0xFF, rng.getrandbits(8)))


def _number(rng: Rng, b: bytearray) -> None:
    """An interesting number over 1, 2, 4 or 8 bytes."""
    width = pick(rng, (1, 2, 4, 4, 8, 8))
    if len(b) >= width:
        at = int(rng.random() * (len(b) - width + 1))
        value = pick(rng, INTERESTING) & ((1 << 8 * width) - 1)
        b[at : at + width] = value.to_bytes(width, "little")


def _nudge(rng: Rng, b: bytearray) -> None:
    """A number of 8 bytes made a little larger or smaller."""
    if len(b) >= 8:
        at = int(rng.random() * (len(b) - 7))
        value = int.from_bytes(b[at : at + 8], "little") + pick(rng, (-32, -8, -1, 1, 8, 32))
        b[at : at + 8] = (value & ((1 << 64) - 1)).to_bytes(8, "little")


def _cut(rng: Rng, b: bytearray) -> None:
    at = int(rng.random() * len(b))
    del b[at : at + 1 + int(rng.random() * 16)]


def _truncate(rng: Rng, b: bytearray) -> None:
    del b[int(rng.random() * len(b)) :]


def _repeat(rng: Rng, b: bytearray) -> None:
    at = int(rng.random() * len(b))
    b[at:at] = b[at : at + 1 + int(rng.random() * 32)]


def _insert(rng: Rng, b: bytearray) -> None:
    b[int(rng.random() * len(b)) : 0] = rng.randbytes(1 + int(rng.random() * 8))


def _extend(rng: Rng, b: bytearray) -> None:
    b += bytes(pick(rng, (1, 2, 4, 8, 31, 32, 64)))


CHANGES: tuple[Callable[[Rng, bytearray], None], ...] = (
    _flip, _flip, _byte, _byte, _number, _number, _number, _nudge, _cut, _truncate, _repeat, _insert, _extend,
)  # fmt: skip


def change(rng: Rng, data: bytes) -> bytes:
    """One to four changes of the bytes."""
    b = bytearray(data)
    for _ in range(1 + int(rng.random() * rng.random() * 4)):
        if not b:
            b += rng.randbytes(8)
        pick(rng, CHANGES)(rng, b)
    return bytes(b[:MOST])


def splice(rng: Rng, a: bytes, b: bytes) -> bytes:
    """The beginning of one and the end of the other."""
    return (a[: int(rng.random() * (len(a) + 1))] + b[int(rng.random() * (len(b) + 1)) :])[:MOST]


# ---- GGUF


def gstring(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(raw)) + raw


NUMBER = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}


def gvalue(kind: int, value: Any) -> bytes:
    """A metadata value; a list is an array of this kind."""
    if isinstance(value, list):
        body = b"".join(map(gstring, value)) if kind == 8 else struct.pack(f"<{len(value)}{NUMBER[kind]}", *value)
        return struct.pack("<IIQ", 9, kind, len(value)) + body
    return struct.pack("<I", kind) + (gstring(value) if kind == 8 else struct.pack("<" + NUMBER[kind], value))


PAIRS: tuple[tuple[str | bytes, bytes], ...] = (
    *(("general.architecture", gvalue(8, a)) for a in (
        "llama", "llama", "bitnet", "bitnet-b1.58", "bitnet-25", "qwen3", "minicpm", "gemma3", "maple", "qwen35", "gpt2", "")),
    ("general.architecture", gvalue(0, [1, 2, 3])), ("general.architecture", gvalue(4, 1)),
    *(("general.alignment", gvalue(4, a)) for a in (8, 32, 64, 0, 1, 3, 48, 1 << 16, 1 << 31)),
    ("general.alignment", gvalue(10, 32)), ("general.alignment", gvalue(5, -32)), ("general.alignment", gvalue(8, "32")),
    ("general.alignment", gvalue(4, [32])), ("general.alignment", gvalue(6, 32.0)),
    *(("llama.attention.head_count", gvalue(4, n)) for n in (0, 1, 2, 4, 1 << 31)),
    ("llama.attention.head_count", gvalue(10, 1 << 62)), ("llama.attention.head_count", gvalue(5, -1)),
    ("llama.attention.head_count", gvalue(4, [2, 2])), ("llama.attention.head_count", gvalue(7, 1)),
    *(("llama.attention.head_count_kv", gvalue(4, n)) for n in (1, 2, 0)),
    ("bitnet-b1.58.embedding_length", gvalue(4, 4)), ("llama.rope.freq_base", gvalue(6, float("inf"))),
    ("llama.attention.layer_norm_rms_epsilon", gvalue(12, 1e-5)), ("llama.vocab_size", gvalue(10, (1 << 64) - 1)),
    ("tokenizer.ggml.model", gvalue(8, "gpt2")), ("tokenizer.ggml.model", gvalue(8, "gpt2")), ("tokenizer.ggml.model", gvalue(8, "llama")),
    ("tokenizer.ggml.tokens", gvalue(8, ["a", "b", "ab", "<s>"])), ("tokenizer.ggml.tokens", gvalue(8, ["a", "a"])),
    ("tokenizer.ggml.tokens", gvalue(0, [1, 2])), ("tokenizer.ggml.tokens", gvalue(8, [])), ("tokenizer.ggml.tokens", gvalue(8, "x")),
    ("tokenizer.ggml.token_type", gvalue(5, [1, 1, 1, 3])), ("tokenizer.ggml.token_type", gvalue(6, [float("nan")])),
    ("tokenizer.ggml.token_type", gvalue(8, ["1"])), ("tokenizer.ggml.merges", gvalue(8, ["a b"])), ("tokenizer.ggml.merges", gvalue(4, [1])),
    ("tokenizer.ggml.pre", gvalue(8, "llama-bpe")),
    ("tokenizer.chat_template", gvalue(8, "x")), ("tokenizer.ggml.pre", gvalue(4, 1)), ("tokenizer.ggml.bos_token_id", gvalue(4, 3)),
    ("tokenizer.ggml.bos_token_id", gvalue(10, 1 << 63)), ("tokenizer.ggml.add_bos_token", gvalue(7, 1)),
    ("tokenizer.ggml.add_bos_token", gvalue(7, 2)),
    ("prism.hadamard.x", gvalue(0, 1)), ("b", gvalue(7, [0, 1, 1])), ("b", gvalue(7, [0, 2])), ("n", gvalue(12, float("nan"))),
    ("k", struct.pack("<IIQ", 9, 9, 1) + gvalue(4, [1])), ("k", struct.pack("<IIQ", 9, 4, 1 << 62)), ("k", struct.pack("<IIQ", 9, 8, 1 << 61)),
    ("k", struct.pack("<IIQ", 9, 1, 1 << 32)), ("k", struct.pack("<I", 13)), ("k", struct.pack("<IQ", 8, (1 << 64) - 1)),
    ("k", gvalue(8, b"\xff\xfe")),
    (b"\xff", gvalue(0, 1)), ("", gvalue(1, -1)), ("\x1b[2J", gvalue(3, -1)), ("\u202e", gvalue(2, 1)), ("k" * 300, gvalue(11, -1)),
)  # fmt: skip
WORDS = (  # a tokenizer that can be carried over
    ("tokenizer.ggml.model", gvalue(8, "gpt2")), ("tokenizer.ggml.tokens", gvalue(8, ["a", "b", "ab", "<s>"])),
    ("tokenizer.ggml.token_type", gvalue(5, [1, 1, 1, 3])), ("tokenizer.ggml.merges", gvalue(8, ["a b"])),
)  # fmt: skip
TENSOR_NAMES: tuple[str | bytes, ...] = (
    *("blk.0.attn_q.weight blk.0.attn_k.weight blk.0.attn_v.weight blk.1.ffn_up.weight token_embd.weight output_norm.weight".split()),
    *("model.layers.0.self_attn.q_proj.weight direction.99999999999 blk.99999999.attn_q.weight blk.-1.attn_q.weight x".split()),
    "", b"\xff", "n" * 64, "n" * 300, "\x1b]0;x\x07",
)  # fmt: skip
# dims (K first), type id, bytes
SHAPES: tuple[tuple[tuple[int, ...], int, int], ...] = (
    ((4,), 0, 16), ((2, 2), 0, 16), ((8, 4), 0, 128), ((4, 4), 1, 32), ((4, 2), 30, 16), ((2, 2), 28, 32), ((), 0, 4), ((1, 1, 1, 4), 0, 16),
    ((0, 4), 0, 0), ((4, 0), 0, 0), ((0, 1 << 60), 0, 0), ((1 << 62, 0), 0, 0), ((128, 1), 36, 64), ((128, 4), 36, 160),
    ((64, 2), 36, 64), ((4, 4), 36, 36),
    ((256, 1), 34, 54), ((256, 2), 34, 108), ((256, 1), 35, 66), ((256, 4), 35, 264), ((64, 2), 42, 36), ((128, 1), 42, 36),
    ((128, 1), 42, 34),
    ((128, 2), 142, 68), ((32, 1), 8, 34), ((32, 2), 2, 36), ((256, 1), 14, 210), ((256, 1), 12, 144), ((32, 1), 39, 17), ((256, 2), 39, 96),
    ((64, 1), 40, 36), ((128, 1), 38, 64), ((64, 1), 134, 15), ((64, 1), 135, 20), ((128, 1), 143, 28), ((32, 1), 31, 18), ((4,), 26, 16),
    ((0,), 36, 32),
    ((1 << 31, 1 << 31), 0, 0), ((1 << 32, 1 << 32, 1 << 32, 1 << 32), 35, 0), ((1 << 63,), 24, 0), (((1 << 64) - 1, 1), 36, 32),
    ((3,), 35, 64), ((5, 5), 99, 32),
)  # fmt: skip
LEGAL = bytes(b if all((b >> 2 * i) & 3 != 3 for i in range(4)) else b & 0b10101010 for b in range(256))  # no code 3
PATTERNS = (lambda rng, n: b"\x55" * n, lambda rng, n: bytes(n), lambda rng, n: rng.randbytes(n),
            lambda rng, n: rng.randbytes(n).translate(LEGAL), lambda rng, n: struct.pack("<f", 0.5) * (n // 4 + 1))  # fmt: skip


def gguf(rng: Rng) -> bytes:
    """A GGUF file that is valid but for at most a few fields."""
    r = rng.random
    harm = r() < 0.6
    pairs = [pick(rng, PAIRS) for _ in range(int(r() * 5))]
    if r() < 0.1:
        pairs = list((dict(WORDS) | dict(pairs)).items())
    if not harm or r() < 0.7:
        pairs = list(dict(pairs).items())
    alignment = next((int.from_bytes(v[4:8], "little") for k, v in pairs if k == "general.alignment" and v[0] == 4), 32)
    alignment = alignment if 8 <= alignment <= 4096 and alignment & (alignment - 1) == 0 else 32
    rows, data, at = [], [], 0
    for _ in range(int(r() * 4)):
        dims, kind, size = pick(rng, SHAPES)
        rows.append([pick(rng, TENSOR_NAMES), dims, kind, at])
        body = (pick(rng, PATTERNS)(rng, size)[:size]).ljust(size + -size % alignment, b"\0")
        data.append(body)
        at += len(body)
    counts = [3, len(rows), len(pairs)]
    if harm:
        _harm_gguf(rng, counts, rows)
    head = [b"GGUF", struct.pack("<IQQ", *counts)]
    for key, value in pairs:
        head += [gstring(key), value]
    for name, dims, kind, offset in rows:
        head += [gstring(name), struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)]
    start = b"".join(head)
    out = start + bytes(-len(start) % alignment) + b"".join(data)
    if not harm:
        return out
    return out[: len(out) - int(r() * 40)] if r() < 0.2 else change(rng, out) if r() < 0.4 else out


def _harm_gguf(rng: Rng, counts: list[int], rows: list[Any]) -> None:
    r = rng.random
    if r() < 0.25:
        i = int(r() * 3)
        counts[i] = pick(rng, INTERESTING) & (0xFFFFFFFF if i == 0 else (1 << 64) - 1)
    if rows and r() < 0.5:
        row, what = pick(rng, rows), int(r() * 4)
        if what == 0:
            row[1] = tuple(pick(rng, INTERESTING) for _ in range(int(r() * 6)))
        elif what == 1:
            row[2] = pick(rng, (34, 35, 36, 37, 38, 39, 42, 99, 142, 1 << 31, (1 << 32) - 1))
        elif what == 2:
            row[3] = pick(rng, INTERESTING) // 32 * 32
        else:
            row[3] = max(row[3] + pick(rng, (-32, 32, 1, 8)), 0)


# ---- safetensors

ITEM = {"U8": 1, "I8": 1, "BOOL": 1, "F16": 2, "BF16": 2, "F32": 4, "U32": 4, "I64": 8, "F64": 8, "F8_E4M3": 1}
ROWS: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("model.layers.0.self_attn.q_proj.weight", "U8", (1, 8)), ("model.layers.0.self_attn.q_proj.weight_scale", "F32", (1,)),
    ("model.layers.0.self_attn.q_proj.weight_scale", "BF16", (1,)), ("model.layers.0.self_attn.q_proj.weight_scale", "U8", (1,)),
    ("model.layers.0.self_attn.q_proj.weight_scale", "F32", (2,)), ("model.layers.0.self_attn.q_proj.weight", "F32", (2, 2)),
    ("layer.weight", "U32", (2, 4)), ("layer.scales", "F32", (2, 2)), ("layer.biases", "F32", (2, 2)), ("layer.scales", "F16", (2, 1)),
    ("layer.biases", "F16", (2, 1)), ("layer.scales", "I64", ()), ("layer.biases", "BOOL", (0,)), ("weight", "U8", (1, 1)),
    ("weight_scale", "F16", (1,)),
    ("blk.0.attn_q.weight", "BF16", (2, 4)), ("a", "F64", (1, 1)), ("a", "F8_E4M3", (2, 3)), ("a", "BOOL", (3,)), ("e", "F32", (0, 4)),
    ("e.weight", "U8", (0, 4)), ("e.weight", "U8", (4, 0)), ("x.weight", "U32", (0, 0)), ("", "U8", ()), ("lm_head.weight", "F32", (4, 4)),
    ("h", "F32", (0, 1 << 62)), ("h", "U8", (1, 1, 1, 1, 1, 1, 1, 2)),
)  # fmt: skip
TOKENS = (
    "0", "1", "-1", "-0", "1.0", "1e3", "01", "9223372036854775807", "9223372036854775808", "18446744073709551616", "9" * 30, "null",
    "true", "NaN",
    "[]", "{}", "[[]]", '""', '"\\ud800"', '"\\u0000"', '"F32"', '"F4"', '"__metadata__"', "[0,0]", "[0,1]", "[1,0]", "[0,0,0]",
    "[4611686018427387904,4]",
    "[" * 40 + "]" * 40, '{"a":"b"}', '{"config":"{}"}', '{"config":"{\\"quantization_config\\":{\\"quant_method\\":\\"bitnet\\"}}"}',
    '{"config":"[[["}',
)  # fmt: skip


def safetensors(rng: Rng) -> bytes:
    """A safetensors file that is valid but for at most a few fields."""
    r = rng.random
    harm = r() < 0.6
    rows = [pick(rng, ROWS) for _ in range(int(r() * 5))]
    if r() < 0.3:
        first = pick(rng, (0, 6, 13))
        rows += ROWS[first : first + 3]
    if not harm or r() < 0.8:
        rows = list({row[0]: row for row in rows}.values())
    bad = int(r() * len(rows)) if harm and rows else -1
    head, data, at = [], [], 0
    for i, (name, dtype, shape) in enumerate(rows):
        size = ITEM[dtype]
        for d in shape:
            size *= d
        data.append(pick(rng, PATTERNS)(rng, size)[:size].ljust(size, b"\0"))
        fields = [("dtype", f'"{dtype}"'), ("shape", str(list(shape))), ("data_offsets", f"[{at},{at + size}]")]
        if i == bad:
            _harm_row(rng, fields, at, size)
        head.append(f'"{name}":{{' + ",".join(f'"{k}":{v}' for k, v in fields) + "}")
        at += size
    if r() < 0.3:
        head.insert(int(r() * (len(head) + 1)), f'"__metadata__":{pick(rng, TOKENS) if r() < 0.5 else TOKENS[-3]}')
    text = ("{" + pick(rng, (",", ",", ", ")).join(head) + "}").encode() + b" " * int(r() * 8)
    if harm and r() < 0.3:
        text = change(rng, text)
    size = len(text)
    if harm and r() < 0.15:
        size = pick(rng, (size - 1, size + 1, *INTERESTING)) & ((1 << 64) - 1)
    out = struct.pack("<Q", size) + text + b"".join(data)
    return change(rng, out) if harm and r() < 0.15 else out


def _harm_row(rng: Rng, fields: list[tuple[str, str]], at: int, size: int) -> None:
    i, what = int(rng.random() * 3), rng.random()
    if what < 0.4:
        fields[i] = fields[i][0], pick(rng, TOKENS)
    elif what < 0.6:
        a, b = at + pick(rng, (-1, 0, 1, 8)), at + size + pick(rng, (-1, 0, 1, 1 << 40))
        fields[2] = "data_offsets", f"[{a},{b}]"
    elif what < 0.7:
        del fields[i]
    elif what < 0.8:
        fields.append(fields[i])
    else:
        fields[1] = "shape", "[" + ",".join(str(pick(rng, INTERESTING)) for _ in range(int(rng.random() * 10))) + "]"


def either(rng: Rng) -> bytes:
    return gguf(rng) if rng.random() < 0.5 else safetensors(rng)


# ---- codecs


def shape(*dims: int) -> bytes:
    """The shape in front of a codec's bytes, as the harness reads it."""
    wrap = [(d + (1 << 63)) % (1 << 64) - (1 << 63) for d in dims]
    return struct.pack(f"<B{len(dims)}q", len(dims), *wrap)


_BYTE = [(q * 256 + 242) // 243 for q in range(243)]
DIGITS = bytes(_BYTE[b % 243] for b in range(256))
DIGITS_4 = bytes(_BYTE[b % 81 * 3] for b in range(256))


def _flat(block: int) -> Callable[[Rng, int, int], bytes]:
    return lambda rng, n, k: rng.randbytes(n * k // 4).translate(LEGAL) + struct.pack("<f", rng.random()) + bytes(28)


def _blocks(block: int, before: bool, table: bytes = LEGAL) -> Callable[[Rng, int, int], bytes]:
    size = block // 4

    def make(rng: Rng, n: int, k: int) -> bytes:
        out = []
        for _ in range(n * k // block):
            d = struct.pack("<e", pick(rng, (0.5, 0.5, 1.0, 0.0, -0.25)))
            body = rng.randbytes(size).translate(table)
            out += [d, body] if before else [body, d]
        return b"".join(out)

    return make


def _digits(block: int) -> Callable[[Rng, int, int], bytes]:
    five, four = 3 * block // 16, block // 64

    def make(rng: Rng, n: int, k: int) -> bytes:
        out = []
        for _ in range(n * k // block):
            out += [rng.randbytes(five).translate(DIGITS), rng.randbytes(four).translate(DIGITS_4), b"\x00\x38"]
        return b"".join(out)

    return make


# values and bytes of a block of each type that is dequantised, in the order of the reader
QUANTISED = (
    (32, 34), (32, 18), (32, 20), (32, 22), (32, 24), (256, 84), (256, 110), (256, 144), (256, 176), (256, 210), (32, 18), (256, 136),
    (32, 17), (64, 36), (128, 18),
)  # fmt: skip


def _quantised(rng: Rng, n: int, k: int) -> bytes:
    kind = int(rng.random() * len(QUANTISED))
    block, size = QUANTISED[kind]
    return bytes([kind]) + rng.randbytes(n * k // block * size)


def _hf(rng: Rng, n: int, k: int) -> bytes:
    flags = pick(rng, (0, 1, 1, 2, 4, 6, 8, 16, 31))
    width, count = (4, 2, 2, 8)[flags >> 1 & 3], (1, 0, 2, 3)[flags >> 3 & 3]
    scale = pick(rng, (b"\0\0\0\x3f", b"\0\x38", b"\0\0", b"\xff\xff", b"\0\0\x80\x7f", rng.randbytes(4)))
    return (
        bytes([flags]) + scale.ljust(width * count, b"\0")[: width * count] + rng.randbytes(n * k // 4).translate(LEGAL)
    )


def _mlx(rng: Rng, n: int, k: int) -> bytes:
    group, kind = pick(rng, (128, 64, 32, 32)), pick(rng, (0, 0, 1, 2, 3))
    while k % group and group > 32:
        group //= 2
    code = ("f", "e", "", "d")[kind]
    count = n * (k // group)
    one, minus = (
        struct.pack("<" + code, v) if code else v for v in ((1.5, -1.5) if code else (b"\xc0\x3f", b"\xc0\xbf"))
    )
    head = struct.pack("<iBHHHH", group, kind, n & 0xFFFF, k // group & 0xFFFF, n & 0xFFFF, k // group & 0xFFFF)
    return head + one * count + minus * count + rng.randbytes(n * k // 4).translate(LEGAL)


NUMBERS = (
    (0.0, 0.5, -0.5), (1.0, -1.0, 0.0), (0.1, 0.2, -0.3), (0.0, -0.0), (1.0, float("nan")), (float("inf"), 1.0), (6e-8, 65504.0),
)  # fmt: skip


def _floats(rng: Rng, n: int, k: int) -> bytes:
    kind, count = rng.getrandbits(2), n * k
    code = ("f", "e", "", "d")[kind]
    if not code or rng.random() < 0.2:
        return bytes([kind]) + rng.randbytes(count * (4, 2, 2, 8)[kind])
    values = pick(rng, NUMBERS)
    return bytes([kind]) + struct.pack(f"<{count}{code}", *(pick(rng, values) for _ in range(count)))


# block of K, multiple of N, maker
LAYOUTS: dict[str, tuple[int, int, Callable[[Rng, int, int], bytes]]] = {
    "i2_s": (128, 1, _flat(128)), "i2_s_arm64": (64, 1, _flat(64)), "tq2_0": (256, 1, _blocks(256, False)), "tq1_0": (256, 1, _digits(256)),
    "q2_0": (64, 1, _blocks(64, True)), "pq2_0": (128, 1, _blocks(128, True)),
    "ptq1_0": (128, 1, _digits(128)), "hf": (3, 4, _hf), "mlx": (32, 1, _mlx),
    "floats": (1, 1, _floats), "dequantize": (256, 1, _quantised),
}  # fmt: skip


def codec(name: str) -> Callable[[Rng], bytes]:
    block, rows, make = LAYOUTS[name]

    def build(rng: Rng) -> bytes:
        r = rng.random
        n, k = (
            rows * pick(rng, (0, 1, 1, 1, 1, 2, 2, 3, 5)),
            block * pick(rng, (0, 1, 1, 1, 1, 2, 2, 3, 8 if block < 64 else 1)),
        )
        body, harm = make(rng, n, k), r()
        if harm < 0.5:
            return shape(n, k) + body
        if harm < 0.6:
            return shape(*(pick(rng, INTERESTING) for _ in range(int(r() * 5)))) + body
        if harm < 0.7:
            return (
                shape(
                    *pick(
                        rng,
                        ((k, n), (-n, -k), (n, k + 1), (n + 1, k), (1, n * k), (n * k, 1), (0, pick(rng, INTERESTING))),
                    )
                )
                + body
            )
        if harm < 0.8:
            return shape(n, k) + pick(rng, (body[:-1], body + b"\0", body[:-32], body + bytes(32), b""))
        return shape(n, k) + change(rng, body) if harm < 0.9 else change(rng, shape(n, k) + body)

    return build


# ---- JSON

LEAVES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 4, 3.5, 1e300, float("inf"), float("nan"), 10**400, 1 << 31, 1 << 63, "", "x", "a b", "\ud800", "\0",
    "..", "/etc/passwd",
    "a.safetensors", "bitnet", "bitlinear", "autobitlinear", "llama", "BPE", [], {}, [[]], [None], ["x"], {"a": {}}, [1, 2], {"": 0},
    "\x1b[2J", 1e-320, "nan", "1e999", "-1",
)  # fmt: skip
KEYS = (
    "architectures model_type hidden_act hidden_size num_attention_heads num_key_value_heads head_dim rope_theta rope_parameters"
    " rope_scaling rope_type rms_norm_eps vocab_size quantization_config quant_method linear_class modules_to_not_convert"
    " quantization bits group_size layer weight_bits weight_map metadata total_size model vocab merges added_tokens id content"
    " special type pre_tokenizer pretokenizers pattern Regex use_regex byte_fallback x.weight add_bos_token chat_template"
    " max_position_embeddings"
).split()


@lru_cache(4096)
def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def edit(rng: Rng, value: Any, depth: int = 0, keys: Sequence[str] = KEYS) -> Any:
    """The same JSON with one place changed; the rest is shared, not copied."""
    r = rng.random()
    if isinstance(value, dict) and value and (r < 0.7 or not depth):
        key, what = pick(rng, list(value)), rng.random()
        if what < 0.65:
            return value | {key: edit(rng, value[key], depth + 1, keys)}
        if what < 0.75:
            return {k: v for k, v in value.items() if k != key}
        return value | {pick(rng, keys): pick(rng, (value[key], pick(rng, LEAVES)))}
    if isinstance(value, list) and value and r < 0.7:
        i = int(rng.random() * len(value))
        return pick(
            rng,
            (
                [*value[:i], edit(rng, value[i], depth + 1, keys), *value[i + 1 :]],
                value[:i] + value[i + 1 :],
                [*value, value[i]],
            ),
        )
    return pick(rng, LEAVES) if r < 0.9 else {pick(rng, keys): value} if r < 0.95 else [value]


def text(rng: Rng, data: bytes, keys: Sequence[str] = KEYS) -> bytes:
    """JSON changed as a tree, or as bytes; of two files with a zero byte between, one of them."""
    body, zero, side = data.partition(b"\0")
    beside = bool(zero) and rng.random() < 0.3
    out = _tree(rng, side if beside else body, keys)
    if out is None or rng.random() < 0.25:
        return change(rng, data)
    return body + zero + out if beside else out + zero + side


def _tree(rng: Rng, data: bytes, keys: Sequence[str]) -> bytes | None:
    """JSON, or one line of JSON among others, with some places changed; None where it is neither."""
    found = _parsed(data)
    if found is None:
        lines = data.split(b"\n")
        at = int(rng.random() * len(lines))
        line = _tree(rng, lines[at], keys) if len(lines) > 1 else None
        return None if line is None else b"\n".join([*lines[:at], line, *lines[at + int(rng.random() < 0.9) :]])
    for _ in range(1 + int(rng.random() * 3)):
        found = edit(rng, found, keys=keys)
    out = json.dumps(found).encode()[:MOST]
    if rng.random() < 0.05:
        out = out.replace(b":", pick(rng, (b":[", b"::", b':{"a":', b":" + b"[" * 2000)), 1)
    return out


# ---- the whole


def _edit_result(rng: Rng, value: Any) -> Any:
    return edit(rng, value, keys=result_files.KEYS)


BUILDERS: dict[str, Callable[[Rng], bytes]] = {
    "gguf": gguf, "gguf_model": gguf, "safetensors": safetensors, "hf_model": safetensors,
    "inspect": either, "convert": either, **{name: codec(name) for name in LAYOUTS},
    "journal": lambda rng: result_files.build_journal(rng, _edit_result),
    "results": lambda rng: result_files.build_results(rng, _edit_result),
}  # fmt: skip
FIRST = 5  # seeds at the front of the pool, which are valid
TEXTS = ("config", "index", "tokenizer")


def make(rng: Rng, reader: str, pool: Sequence[bytes]) -> bytes:
    """The next input: half built from scratch where there is a builder, the rest from those kept."""
    r = rng.random()
    build = BUILDERS.get(reader)
    if build and r < 0.55:
        return build(rng)
    valid = 2 if reader in result_files.NAMES else FIRST if reader in TEXTS else len(pool)
    old = pick(rng, pool[:valid] if r < 0.4 else pool)
    if r > 0.93:
        return splice(rng, old, build(rng) if build and r < 0.97 else pick(rng, pool))
    if reader in result_files.NAMES:
        return text(rng, old, result_files.KEYS)
    return text(rng, old) if reader in TEXTS else change(rng, old)
