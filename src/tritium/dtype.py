"""The dtypes, and the rule by which two of them are promoted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from tritium.arguments import checked
from tritium.errors import DTypeError, RangeError, nearest, shown


@dataclass(frozen=True, eq=False, slots=True)
class DType:
    """The storage format of an element: `block` elements along the last axis, of `rows` rows, share `nbytes` bytes."""

    name: str
    kind: str  # bool, signed, unsigned, float, complex, packed; weak kinds are of Python scalars
    block: int
    nbytes: int
    long_name: str
    code: int = -1  # its number in native code; -1: native code does not support it
    weak: bool = False
    rows: int = 1
    values: tuple[int, int] = (0, 0)  # packed: the smallest and the largest element

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"tritium.{self.name}"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DType):
            return self is other
        if isinstance(other, str):
            return _NAMES.get(other) is self
        candidate: Any = other
        if isinstance(candidate, np.dtype):
            return _FROM_NUMPY.get(candidate) is self
        return (
            isinstance(candidate, type)
            and issubclass(candidate, np.generic)
            and _FROM_NUMPY.get(np.dtype(candidate)) is self
        )

    def __hash__(self) -> int:
        return hash(self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype, (self.name,)

    @property
    def is_integer(self) -> bool:
        return self.kind in ("signed", "unsigned")

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_complex(self) -> bool:
        return self.kind == "complex"

    @property
    def real(self) -> DType:
        """Return the dtype of the real part: of a complex dtype a float dtype, of any other the dtype itself."""
        return _PARTS.get(self.name, self)

    @property
    def is_packed(self) -> bool:
        """Return True if several elements share bytes, so that only ops with support for it can read them."""
        return self.kind == "packed"

    @property
    def is_ternary(self) -> bool:
        return self.values == (-1, 1)

    @property
    def numpy(self) -> np.dtype[Any]:
        """Return the NumPy dtype of one element in memory; of a packed dtype, of one byte."""
        return _NUMPY[self.name]


bool_ = DType("bool", "bool", 1, 1, "bool", 0)
i8 = DType("i8", "signed", 1, 1, "int8", 1)
i16 = DType("i16", "signed", 1, 2, "int16", 2)
i32 = DType("i32", "signed", 1, 4, "int32", 3)
i64 = DType("i64", "signed", 1, 8, "int64", 4)
u8 = DType("u8", "unsigned", 1, 1, "uint8", 5)
u16 = DType("u16", "unsigned", 1, 2, "uint16", 6)
u32 = DType("u32", "unsigned", 1, 4, "uint32", 7)
u64 = DType("u64", "unsigned", 1, 8, "uint64", 8)
f16 = DType("f16", "float", 1, 2, "float16", 9)
bf16 = DType("bf16", "float", 1, 2, "bfloat16", 10)
f32 = DType("f32", "float", 1, 4, "float32", 11)
f64 = DType("f64", "float", 1, 8, "float64", 12)

# Pairs of floats, the real part first. Few native kernels compute with them: the reference does the rest, in NumPy.
c64 = DType("c64", "complex", 1, 8, "complex64", 21)
c128 = DType("c128", "complex", 1, 16, "complex128", 22)

# Packed along a row, the first element in the lowest bits or digits; the row is padded to whole bytes with zeros.
i4 = DType("i4", "packed", 2, 1, "int4", 13, values=(-8, 7))  # two's complement nibbles
tern2 = DType("tern2", "packed", 4, 1, "ternary2", 14, values=(-1, 1))  # 2-bit codes t + 1
tern5 = DType("tern5", "packed", 5, 1, "ternary5", 15, values=(-1, 1))  # base-3 digits t + 1: 1.6 bits a weight
# Tiles of rows x columns in the order a kernel reads them; backends/reference/packed.py says where each element is.
tern2_r64 = DType("tern2_r64", "packed", 64, 1024, "ternary2_r64", 16, rows=64, values=(-1, 1))
tern5_r80 = DType("tern5_r80", "packed", 64, 1024, "ternary5_r80", 17, rows=80, values=(-1, 1))
tern2_r16 = DType("tern2_r16", "packed", 16, 64, "ternary2_r16", 18, rows=16, values=(-1, 1))
i8_r16 = DType("i8_r16", "packed", 64, 1024, "int8_r16", 19, rows=16, values=(-128, 127))
i4_r32 = DType("i4_r32", "packed", 64, 1024, "int4_r32", 20, rows=32, values=(-8, 7))

PACKED = (i4, tern2, tern5, tern2_r64, tern5_r80, tern2_r16, i8_r16, i4_r32)
# The plain dtypes of real numbers, by their codes.
ALL = (bool_, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64)
SIGNED = (i8, i16, i32, i64)
UNSIGNED = (u8, u16, u32, u64)
FLOATS = (f16, bf16, f32, f64)
COMPLEX = (c64, c128)

# A Python scalar is weak: it takes the dtype of the tensor it meets, or the default of its own kind.
weak_bool = DType("bool scalar", "bool", 1, 1, "bool", weak=True)
weak_int = DType("int scalar", "signed", 1, 8, "int", weak=True)
weak_float = DType("float scalar", "float", 1, 8, "float", weak=True)
weak_complex = DType("complex scalar", "complex", 1, 16, "complex", weak=True)

DEFAULTS = {"bool": bool_, "signed": i64, "unsigned": u64, "float": f32, "complex": c64}

_NUMPY: dict[str, np.dtype[Any]] = {t.name: np.dtype(t.long_name) for t in (*ALL, *COMPLEX) if t is not bf16}
_NUMPY["bf16"] = np.dtype(ml_dtypes.bfloat16)
_FROM_NUMPY: dict[Any, DType] = {_NUMPY[t.name]: t for t in (*ALL, *COMPLEX)}
_NUMPY |= {t.name: np.dtype(np.uint8) for t in PACKED}
_NAMES: dict[str, DType] = {n: t for t in (*ALL, *COMPLEX, *PACKED) for n in (t.name, t.long_name)}
_NAMES |= {"half": f16, "float": f32, "double": f64, "int": i64, "long": i64, "short": i16, "char": i8, "byte": u8}
_NAMES |= {"complex": c64, "cfloat": c64, "cdouble": c128}
_PARTS = {"c64": f32, "c128": f64}


def dtype(value: Any) -> DType:
    """Return the dtype for a name ('f32', 'float32'), a NumPy dtype or type, a Python type, or a dtype itself."""
    try:
        return _dtype(value)
    except TypeError as error:  # the value has no hash, or is no dtype
        raise error if isinstance(error, DTypeError) else _not_a_dtype(value) from None


@lru_cache(maxsize=256)
def _dtype(value: Any) -> DType:
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value in _NAMES:
        return _NAMES[value]
    if value is bool:
        return bool_
    if value is int:
        return i64
    if value is float:
        return f32
    if value is complex:
        return c64
    if not isinstance(value, str) and value is not None:
        try:
            known = _FROM_NUMPY.get(np.dtype(value).newbyteorder("="))
        except Exception:  # of an object's own text or fields, which NumPy reads
            known = None
        if known is not None:
            return known
        try:
            name = str(value).removeprefix("torch.").removeprefix("mlx.core.")  # of a dtype of another library
        except Exception:
            name = ""
        if name in _NAMES:
            return _NAMES[name]
    raise _not_a_dtype(value)


def _not_a_dtype(value: Any) -> DTypeError:
    names = ", ".join(t.name for t in (*ALL, *COMPLEX, *PACKED[:3]))
    return DTypeError(f"{shown(value)} is not a dtype.{nearest(str(shown(value)), _NAMES)} Use one of {names}.")


def names() -> list[str]:
    return list(_NAMES)


def is_name(word: str) -> bool:
    return word in _NAMES


def of_scalar(value: Any) -> DType:
    """Return the weak dtype of a Python scalar."""
    if isinstance(value, bool):
        return weak_bool
    if isinstance(value, complex):
        return weak_complex
    return weak_int if isinstance(value, int) else weak_float


RANK = {"bool": 0, "unsigned": 1, "signed": 1, "float": 2, "complex": 3}


def complex_of(t: DType) -> DType:
    """Return the complex dtype whose parts hold the values of a dtype: c128 of f64 and c128, c64 of any other."""
    return c128 if t.real is f64 else c64


def _pair(a: DType, b: DType) -> DType:
    """Return the promotion of two dtypes. A weak one only counts by its kind, and only where that kind is the higher."""
    if a is b:
        return a
    if a.weak != b.weak:
        strong, weak = (b, a) if a.weak else (a, b)
        if RANK[weak.kind] <= RANK[strong.kind]:
            return strong
        return complex_of(strong) if weak.is_complex else DEFAULTS[weak.kind]
    if a.is_complex or b.is_complex:
        return c128 if f64 in (a.real, b.real) else c64
    if RANK[a.kind] != RANK[b.kind]:
        return a if RANK[a.kind] > RANK[b.kind] else b
    if a.kind == b.kind:
        if a.nbytes == b.nbytes:  # f16 and bf16 promote to f32
            return f32
        return a if a.nbytes > b.nbytes else b
    signed, unsigned = (a, b) if a.kind == "signed" else (b, a)
    if signed.nbytes > unsigned.nbytes:
        return signed
    if unsigned is u64:
        raise DTypeError(f"{a} and {b} have no common integer dtype; cast one of them with .to(dtype).")
    return SIGNED[UNSIGNED.index(unsigned) + 1]


@lru_cache(maxsize=4096)
def promote(*kinds: DType) -> DType:
    """Return the dtype in which these are computed together; all-weak promotes to the default of the highest kind."""
    if not kinds:
        raise DTypeError("No dtype was given; pass at least one tensor or dtype.")
    strong = [t for t in kinds if not t.weak]
    weak = [t for t in kinds if t.weak]
    result = strong[0] if strong else DEFAULTS[max(weak, key=lambda t: RANK[t.kind]).kind]
    for t in strong[1:] + weak:
        result = _pair(result, t)
    return result


def can_cast(source: DType, target: DType) -> bool:
    """Return True if source promotes to target, so that no value can be lost by kind or range."""
    try:
        return promote(source, target) is target
    except DTypeError:
        return False


def same_kind(source: DType, target: DType) -> bool:
    """Return True if NumPy's rule allows storing into an existing tensor: the kind may not fall (float to int, int to bool)."""
    return np.can_cast(_NUMPY[_plain(source)], _NUMPY[_plain(target)], "same_kind")


def _plain(t: DType) -> str:
    return "f16" if t is bf16 else t.name  # NumPy's own table does not know bf16


def check_fits(value: bool | int | float | complex, t: DType) -> None:
    """Raise unless a Python number can be stored without changing its kind or leaving the range of an integer."""
    if t is bool_ and not isinstance(value, complex) and value in (0, 1):
        return
    if RANK[of_scalar(value).kind] > RANK[t.kind]:
        raise DTypeError(
            f"{shown(value)} cannot be stored in {t} without losing its kind; give or cast to a dtype that holds it."
        )
    if (t.is_float or t.is_complex) and isinstance(value, int) and not -(1 << 1024) < value < (1 << 1024):
        raise RangeError(f"{shown(value)} is outside {t}; no float holds it.")
    if t.is_integer and not isinstance(value, complex):
        info = iinfo(t)
        if not info.min <= value <= info.max:
            raise RangeError(f"{shown(value)} is outside {t} ({info.min} to {info.max}); cast to a wider dtype.")


def is_dtype(t: DType, kind: Any) -> bool:
    """Return True if `t` is of a kind of the array API standard: a dtype, a kind's name, or a tuple of these."""
    if isinstance(kind, tuple):
        return any(is_dtype(t, k) for k in kind)
    if isinstance(kind, DType):
        return t is kind
    members = {
        "bool": (bool_,),
        "signed integer": SIGNED,
        "unsigned integer": UNSIGNED,
        "integral": SIGNED + UNSIGNED,
        "real floating": FLOATS,
        "complex floating": COMPLEX,
        "numeric": SIGNED + UNSIGNED + FLOATS + COMPLEX,
    }
    if not isinstance(kind, str) or kind not in members:
        raise DTypeError(f"{shown(kind)} is not a kind of dtype. Use a dtype or one of {', '.join(members)}.")
    return t in members[kind]


class FloatInfo(NamedTuple):
    """Limits of a float dtype."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


class IntInfo(NamedTuple):
    """Limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


@checked
def finfo(of: Any) -> FloatInfo:
    """Return the limits of a float dtype, or of a tensor's dtype; of a complex dtype, those of its parts."""
    return _finfo(dtype(getattr(of, "dtype", of)).real)


@lru_cache(maxsize=64)
def _finfo(t: DType) -> FloatInfo:
    if not t.is_float:
        raise DTypeError(f"finfo needs a float dtype, given {t}; use iinfo for integers.")
    info: Any = ml_dtypes.finfo(t.numpy)  # type: ignore[no-untyped-call]
    return FloatInfo(t.nbytes * 8, float(info.eps), float(info.max), float(info.min), float(info.smallest_normal), t)


@checked
def iinfo(of: Any) -> IntInfo:
    """Return the limits of an integer dtype, or of a tensor's dtype."""
    return _iinfo(dtype(getattr(of, "dtype", of)))


@lru_cache(maxsize=64)
def _iinfo(t: DType) -> IntInfo:
    if not t.is_integer:
        raise DTypeError(f"iinfo needs an integer dtype, given {t}; use finfo for floats.")
    info = np.iinfo(t.numpy)
    return IntInfo(t.nbytes * 8, int(info.max), int(info.min), t)
