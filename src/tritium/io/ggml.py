"""The tensor types of ggml and its forks: what an id may mean, how many bytes that takes, and which are refused.

Knows nothing of containers or bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tritium.io.reader import align, fault, product


@dataclass(frozen=True)
class Type:
    """One meaning of a type id. `fork` says whose it is; `refused`, why it is not decoded."""

    id: int
    name: str
    block: int  # values in a block; K must be a multiple
    size: int  # bytes in a block
    fork: str = "mainline"
    refused: str = ""
    whole: Callable[[int, int], int] | None = (
        None  # bytes of a tensor of n values in rows of k, where blocks do not say it
    )
    ternary: bool = False
    file_type: int = 0  # general.file_type of a file whose weights have this type; 0: none is written

    def nbytes(self, dims: Sequence[int], part: str) -> int | None:
        """Bytes of a tensor with these dims (K first, as the file has them); None when they do not fit the blocks."""
        n, k = product(dims, part), dims[0] if dims else 1
        if k % self.block:
            return None
        return self.whole(n, k) if self.whole else n // self.block * self.size


def _tl2(n: int, k: int) -> int:
    m = n // k if k else 0
    return align(max(k - 256, 0) * m // 3 * 5 // 8 + min(k, 256) * m // 2 * 4 // 8, 32) + 32


_OPAQUE = "its tiles depend on kernel_config.ini of the build that wrote it, which the file does not carry"
_AGAIN = "convert the original checkpoint again to I2_S, or read the I2_S file of the same model"
_IK = "it belongs to ik_llama.cpp alone; make I2_S, TQ1_0 or TQ2_0 from the original checkpoint"
_GONE = "this repacked layout was removed from llama.cpp; requantise the original checkpoint"

TYPES: dict[int, tuple[Type, ...]] = {}
for _row in (
    Type(0, "F32", 1, 4), Type(1, "F16", 1, 2), Type(30, "BF16", 1, 2), Type(28, "F64", 1, 8),
    Type(24, "I8", 1, 1), Type(25, "I16", 1, 2), Type(26, "I32", 1, 4), Type(27, "I64", 1, 8),
    Type(2, "Q4_0", 32, 18), Type(3, "Q4_1", 32, 20), Type(6, "Q5_0", 32, 22), Type(7, "Q5_1", 32, 24),
    Type(8, "Q8_0", 32, 34), Type(9, "Q8_1", 32, 36), Type(10, "Q2_K", 256, 84), Type(11, "Q3_K", 256, 110),
    Type(12, "Q4_K", 256, 144), Type(13, "Q5_K", 256, 176), Type(14, "Q6_K", 256, 210), Type(15, "Q8_K", 256, 292),
    Type(16, "IQ2_XXS", 256, 66), Type(17, "IQ2_XS", 256, 74), Type(18, "IQ3_XXS", 256, 98), Type(19, "IQ1_S", 256, 50),
    Type(20, "IQ4_NL", 32, 18), Type(21, "IQ3_S", 256, 110), Type(22, "IQ2_S", 256, 82), Type(23, "IQ4_XS", 256, 136),
    Type(29, "IQ1_M", 256, 56),
    Type(34, "TQ1_0", 256, 54, ternary=True, file_type=36), Type(35, "TQ2_0", 256, 66, ternary=True, file_type=37),
    Type(31, "Q4_0_4_4", 32, 18, "old", _GONE), Type(32, "Q4_0_4_8", 32, 18, "old", _GONE),
    Type(33, "Q4_0_8_8", 32, 18, "old", _GONE),
    # 40 is bitnet.cpp's number
    Type(36, "I2_S", 1, 0, "bitnet.cpp", whole=lambda n, k: n // 4 + 32, ternary=True, file_type=40),
    Type(36, "IQ4_NL_4_4", 32, 18, "old", _GONE),
    Type(37, "I8_S", 1, 1, "bitnet.cpp", "it holds activations of bitnet.cpp, not weights"),
    Type(38, "TL1", 1, 0, "bitnet.cpp", f"{_OPAQUE}; {_AGAIN}", lambda n, k: n // 4 + 32, ternary=True),
    Type(39, "MXFP4", 32, 17), Type(39, "TL2", 1, 0, "bitnet.cpp", f"{_OPAQUE}; {_AGAIN}", _tl2, ternary=True),
    Type(40, "NVFP4", 64, 36), Type(41, "Q1_0", 128, 18),
    Type(42, "Q2_0", 64, 18, ternary=True, file_type=41), Type(42, "PQ2_0", 128, 34, "Prism", ternary=True),
    Type(134, "IQ1_BN", 64, 13, "ik_llama.cpp", _IK, lambda n, k: n // 64 * 13 + (n // k if k else 0) * 2, ternary=True),
    Type(135, "IQ2_BN", 64, 16, "ik_llama.cpp", _IK, lambda n, k: n // 64 * 16 + (n // k if k else 0) * 4, ternary=True),
    Type(142, "PQ2_0", 128, 34, "Prism", ternary=True),
    Type(143, "PTQ1_0", 128, 28, "Prism", "it belongs to Prism's fork alone; use the Q2_0 file of the same model", ternary=True),
):  # fmt: skip
    TYPES[_row.id] = (*TYPES.get(_row.id, ()), _row)

BY_NAME = {t.name: t for row in reversed(TYPES.values()) for t in row}
TERNARY = frozenset(t.name for t in BY_NAME.values() if t.ternary)  # those that are refused as well
FILE_TYPE = {t.name: t.file_type for t in BY_NAME.values() if t.file_type}


@dataclass(frozen=True)
class Choice:
    """Which meaning of an id was taken, its bytes, and why where there was a choice."""

    type: Type
    nbytes: int
    why: str = ""


def resolve(type_id: int, dims: Sequence[int], arch: str, span: int, alignment: int, part: str) -> Choice:
    """The meaning of a type id, from the id, the architecture and the bytes up to the next tensor.

    Forks gave the same ids to different layouts; only the byte length tells them apart for sure.
    """
    rows = TYPES.get(type_id)
    if rows is None:
        raise fault(
            part, f"type id {type_id}", f"one of {', '.join(map(str, sorted(TYPES)))}",
            "Either the file is damaged or its type is newer than this reader.",
        )  # fmt: skip
    sizes = [(row, row.nbytes(dims, part)) for row in rows]
    if len(rows) == 1:
        row, size = sizes[0]
        if size is None:
            raise fault(part, f"rows of {dims[0] if dims else 1} values in {row.name}", f"a multiple of {row.block}")
        return Choice(row, size)
    padded = align(span, alignment)
    fitting = [(row, size) for row, size in sizes if size is not None and align(size, alignment) == padded]
    if not fitting:
        known = ", ".join(f"{row.name} {'no fit' if size is None else size}" for row, size in sizes)
        raise fault(
            part,
            f"type id {type_id} with {span} bytes up to the next tensor",
            f"the bytes of a known meaning ({known})",
        )
    ours = "bitnet.cpp" if arch.startswith("bitnet") else "mainline"
    row, size = min(fitting, key=lambda pair: pair[0].fork != ours)
    others = ", ".join(r.name for r in rows if r is not row)
    reason = f"its byte length fits {row.name}"
    if len(fitting) > 1:
        reason += f", and so {row.fork}'s meaning was taken for architecture {arch or 'unknown'!r}"
    assert size is not None
    return Choice(row, size, f"id {type_id} also means {others} elsewhere; {reason}")
