"""The tensor types of ggml and its forks: the possible meanings of an id, their sizes, and the types that are not decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tritium.io.reader import align, fault, product


@dataclass(frozen=True)
class Type:
    """One meaning of a type id. `fork` is the program that defined it; `refused`, why it is not decoded."""

    id: int
    name: str
    block: int  # values in a block; K must be a multiple
    size: int  # bytes in a block
    fork: str = "mainline"
    refused: str = ""
    # Bytes of a tensor of n values in rows of k, where they do not follow from the blocks.
    tensor_bytes: Callable[[int, int], int] | None = None
    ternary: bool = False
    file_type: int = 0  # general.file_type of a file whose weights have this type; 0: none is written

    def nbytes(self, dims: Sequence[int], part: str) -> int | None:
        """Return the bytes of a tensor with these dims (K first, as in the file); None where they do not fit the blocks."""
        n, k = product(dims, part), dims[0] if dims else 1
        if k % self.block:
            return None
        return self.tensor_bytes(n, k) if self.tensor_bytes else n // self.block * self.size


def _tl2(n: int, k: int) -> int:
    m = n // k if k else 0
    return align(max(k - 256, 0) * m // 3 * 5 // 8 + min(k, 256) * m // 2 * 4 // 8, 32) + 32


_KERNEL_TILES = "its tiles depend on kernel_config.ini of the build that wrote it, which the file does not carry"
_RECONVERT = "convert the original checkpoint again to I2_S, or read the I2_S file of the same model"
_IK = "it belongs to ik_llama.cpp alone; make I2_S, TQ1_0 or TQ2_0 from the original checkpoint"
_REMOVED = "this repacked layout was removed from llama.cpp; requantise the original checkpoint"

TYPES: dict[int, tuple[Type, ...]] = {}
for _type in (
    Type(0, "F32", 1, 4), Type(1, "F16", 1, 2), Type(30, "BF16", 1, 2), Type(28, "F64", 1, 8),
    Type(24, "I8", 1, 1), Type(25, "I16", 1, 2), Type(26, "I32", 1, 4), Type(27, "I64", 1, 8),
    Type(2, "Q4_0", 32, 18), Type(3, "Q4_1", 32, 20), Type(6, "Q5_0", 32, 22), Type(7, "Q5_1", 32, 24),
    Type(8, "Q8_0", 32, 34), Type(9, "Q8_1", 32, 36), Type(10, "Q2_K", 256, 84), Type(11, "Q3_K", 256, 110),
    Type(12, "Q4_K", 256, 144), Type(13, "Q5_K", 256, 176), Type(14, "Q6_K", 256, 210), Type(15, "Q8_K", 256, 292),
    Type(16, "IQ2_XXS", 256, 66), Type(17, "IQ2_XS", 256, 74), Type(18, "IQ3_XXS", 256, 98), Type(19, "IQ1_S", 256, 50),
    Type(20, "IQ4_NL", 32, 18), Type(21, "IQ3_S", 256, 110), Type(22, "IQ2_S", 256, 82), Type(23, "IQ4_XS", 256, 136),
    Type(29, "IQ1_M", 256, 56),
    Type(34, "TQ1_0", 256, 54, ternary=True, file_type=36), Type(35, "TQ2_0", 256, 66, ternary=True, file_type=37),
    Type(31, "Q4_0_4_4", 32, 18, "old", _REMOVED), Type(32, "Q4_0_4_8", 32, 18, "old", _REMOVED),
    Type(33, "Q4_0_8_8", 32, 18, "old", _REMOVED),
    # 40 is bitnet.cpp's number
    Type(36, "I2_S", 1, 0, "bitnet.cpp", tensor_bytes=lambda n, k: n // 4 + 32, ternary=True, file_type=40),
    Type(36, "IQ4_NL_4_4", 32, 18, "old", _REMOVED),
    Type(37, "I8_S", 1, 1, "bitnet.cpp", "it holds activations of bitnet.cpp, not weights"),
    Type(38, "TL1", 1, 0, "bitnet.cpp", f"{_KERNEL_TILES}; {_RECONVERT}", lambda n, k: n // 4 + 32, ternary=True),
    Type(39, "MXFP4", 32, 17), Type(39, "TL2", 1, 0, "bitnet.cpp", f"{_KERNEL_TILES}; {_RECONVERT}", _tl2, ternary=True),
    Type(40, "NVFP4", 64, 36), Type(41, "Q1_0", 128, 18),
    Type(42, "Q2_0", 64, 18, ternary=True, file_type=41), Type(42, "PQ2_0", 128, 34, "Prism", ternary=True),
    Type(134, "IQ1_BN", 64, 13, "ik_llama.cpp", _IK, lambda n, k: n // 64 * 13 + (n // k if k else 0) * 2, ternary=True),
    Type(135, "IQ2_BN", 64, 16, "ik_llama.cpp", _IK, lambda n, k: n // 64 * 16 + (n // k if k else 0) * 4, ternary=True),
    # the numbers of file types are those that llama-quantize of Prism's fork lists
    Type(142, "PQ2_0", 128, 34, "Prism", ternary=True, file_type=141),
    Type(143, "PTQ1_0", 128, 28, "Prism", ternary=True, file_type=143),
):  # fmt: skip
    TYPES[_type.id] = (*TYPES.get(_type.id, ()), _type)

BY_NAME = {
    t.name: t for meanings in TYPES.values() for t in meanings
}  # PQ2_0 has two ids and is written as the later, 142
TERNARY = frozenset(t.name for t in BY_NAME.values() if t.ternary)  # including those that are not decoded
FILE_TYPE = {t.name: t.file_type for t in BY_NAME.values() if t.file_type}


@dataclass(frozen=True)
class Choice:
    """The meaning chosen for a type id, its bytes, and the reason where there were several."""

    type: Type
    nbytes: int
    why: str = ""


def resolve(type_id: int, dims: Sequence[int], arch: str, span: int, alignment: int, part: str) -> Choice:
    """Return the meaning of a type id, chosen by the id, the architecture and the bytes up to the next tensor.

    Forks use the same ids for different layouts; only the byte length distinguishes them reliably.
    """
    meanings = TYPES.get(type_id)
    if meanings is None:
        raise fault(
            part, f"type id {type_id}", f"one of {', '.join(map(str, sorted(TYPES)))}",
            "Either the file is damaged or its type is newer than this reader.",
        )  # fmt: skip
    sizes = [(meaning, meaning.nbytes(dims, part)) for meaning in meanings]
    if len(meanings) == 1:
        meaning, size = sizes[0]
        if size is None:
            raise fault(
                part, f"rows of {dims[0] if dims else 1} values in {meaning.name}", f"a multiple of {meaning.block}"
            )
        return Choice(meaning, size)
    padded = align(span, alignment)
    fitting = [(meaning, size) for meaning, size in sizes if size is not None and align(size, alignment) == padded]
    if not fitting:
        known = ", ".join(f"{meaning.name} {'no fit' if size is None else size}" for meaning, size in sizes)
        raise fault(
            part,
            f"type id {type_id} with {span} bytes up to the next tensor",
            f"the bytes of a known meaning ({known})",
        )
    ours = "bitnet.cpp" if arch.startswith("bitnet") else "mainline"
    meaning, size = min(fitting, key=lambda pair: pair[0].fork != ours)
    others = ", ".join(r.name for r in meanings if r is not meaning)
    reason = f"its byte length fits {meaning.name}"
    if len(fitting) > 1:
        reason += f", and so {meaning.fork}'s meaning was chosen for architecture {arch or 'unknown'!r}"
    assert size is not None
    return Choice(meaning, size, f"id {type_id} also means {others} elsewhere; {reason}")
