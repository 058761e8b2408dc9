"""The functions that ops are written with, in Triton: those that `expr` names, and those of ops without one.

Elements of f16 and bf16 come as f32; integers wrap; a function of floats is the one of CUDA's own library, in the
precision of its argument. Names of Python are shadowed on purpose: they are those of the op table.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from tritium.backends.cuda.keys import fix_cache_keys

ROUND = tl.constexpr(12582912.0)  # 1.5 * 2**23: a small number that it is added to has no room for a fraction
ROUND_BITS = tl.constexpr(0x4B400000)

# ---- arithmetic


@triton.jit
def divide(a, b):
    """Return a / b rounded to nearest: Triton's own / of f32 is not."""
    if a.dtype.is_fp32():
        q = tl.div_rn(a, b)
    else:
        q = a / b
    return q


@triton.jit
def negative(x):
    """Return -x; Triton's own - subtracts x from 0, which loses the sign of a zero."""
    if x.dtype.is_floating():
        y = x * -1.0
    else:
        y = 0 - x
    return y


@triton.jit
def maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def floor_divide(a, b):
    """Return floor(a / b).

    An integer divided by 0 gives 0, by -1 it changes its sign. Of floats, one infinity makes it the quotient itself.
    """
    if a.dtype.is_floating():
        q = divide(a, b)
        left = libdevice.fmod(a, b)
        whole = divide(a - left, b)
        whole = tl.where((left != 0) & ((b < 0) != (left < 0)), whole - 1, whole)
        down = tl.floor(whole)
        down = tl.where(whole - down > 0.5, down + 1, down)
        down = tl.where(whole == 0, libdevice.copysign(whole * 0, q), down)
        q = tl.where((b == 0) | (isinf(a) != isinf(b)), q, down)
    elif a.dtype.is_int_signed():
        safe = tl.where((b == 0) | (b == -1), 1, b).to(b.dtype)
        q = a // safe
        left = a - q * safe
        q = tl.where((left != 0) & ((left < 0) != (safe < 0)), q - 1, q)
        q = tl.where(b == -1, 0 - a, tl.where(b == 0, 0, q)).to(a.dtype)
    else:
        q = tl.where(b == 0, 0, a // tl.where(b == 0, 1, b).to(b.dtype)).to(a.dtype)
    return q


@triton.jit
def remainder(a, b):
    """Return a modulo b, with the sign of b; an integer modulo 0 is 0. What is added to a float is added in f64."""
    if a.dtype.is_floating():
        left = libdevice.fmod(a, b)
        turned = (left.to(tl.float64) + b.to(tl.float64)).to(a.dtype)
        left = tl.where((left != 0) & ((left < 0) != (b < 0)), turned, left)
        left = tl.where(left == 0, libdevice.copysign(left, b), left)
    elif a.dtype.is_int_signed():
        safe = tl.where((b == 0) | (b == -1), 1, b).to(b.dtype)
        left = a - (a // safe) * safe
        left = tl.where((left != 0) & ((left < 0) != (safe < 0)), left + safe, left)
        left = tl.where((b == 0) | (b == -1), 0, left).to(a.dtype)
    else:
        left = tl.where(b == 0, 0, a % tl.where(b == 0, 1, b).to(b.dtype)).to(a.dtype)
    return left


@triton.jit
def bitwise_left_shift(a, b):
    inside = (b >= 0) & (b < a.dtype.primitive_bitwidth)
    return tl.where(inside, a << tl.where(inside, b, 0).to(a.dtype), 0).to(a.dtype)


@triton.jit
def bitwise_right_shift(a, b):
    inside = (b >= 0) & (b < a.dtype.primitive_bitwidth)
    moved = a >> tl.where(inside, b, 0).to(a.dtype)
    return tl.where(inside, moved, tl.where(a < 0, -1, 0)).to(a.dtype)


# ---- signs, and whole numbers


@triton.jit
def abs(x):
    return tl.abs(x)


@triton.jit
def sign(x):
    result = (x > 0).to(x.dtype) - (x < 0).to(x.dtype)
    return tl.where(x != x, x, result)


@triton.jit
def copysign(a, b):
    return libdevice.copysign(a, b)


@triton.jit
def signbit(x):
    if x.dtype.is_fp64():
        bits = x.to(tl.int64, bitcast=True)
    else:
        bits = x.to(tl.int32, bitcast=True)
    return bits < 0


@triton.jit
def isinf(x):
    if x.dtype.is_floating():
        result = tl.abs(x) == float("inf")
    else:
        result = x != x
    return result


@triton.jit
def isfinite(x):
    if x.dtype.is_floating():
        result = tl.abs(x) < float("inf")
    else:
        result = x == x
    return result


@triton.jit
def ceil(x):
    if x.dtype.is_floating():
        x = tl.ceil(x)
    return x


@triton.jit
def floor(x):
    if x.dtype.is_floating():
        x = tl.floor(x)
    return x


@triton.jit
def trunc(x):
    if x.dtype.is_floating():
        x = libdevice.trunc(x)
    return x


@triton.jit
def rint(x):
    if x.dtype.is_floating():
        x = libdevice.rint(x)
    return x


@triton.jit
def nearest(x):
    """Return the int32 nearest to an f32 below 2**22 in magnitude, halves to even: what ROUND leaves in the lowest
    bits.
    """
    return (x + ROUND).to(tl.int32, bitcast=True) - ROUND_BITS


@triton.jit
def where(condition, a, b):
    return tl.where(condition, a, b)


@triton.jit
def nextafter(a, b):
    return libdevice.nextafter(a, b)


# ---- of real numbers


@triton.jit
def sqrt(x):
    if x.dtype.is_fp32():
        y = tl.sqrt_rn(x)
    else:
        y = tl.sqrt(x)
    return y


@triton.jit
def hypot(a, b):
    """Return sqrt(a² + b²): f32 through f64, where nothing overflows; an infinity wins over NaN."""
    if a.dtype.is_fp32():
        x, y = a.to(tl.float64), b.to(tl.float64)
        result = tl.sqrt(x * x + y * y).to(tl.float32)
        result = tl.where(tl.maximum(tl.abs(a), tl.abs(b)) == float("inf"), float("inf"), result)
    else:
        result = libdevice.hypot(a, b)
    return result


@triton.jit
def logaddexp(a, b):
    """Return log(e^a + e^b); equal infinities have no difference."""
    apart = tl.where(a == b, 0.0, tl.abs(a - b))
    return maximum(a, b) + libdevice.log1p(libdevice.exp(apart * -1.0))


@triton.jit
def _reciprocal(x, ASM: tl.constexpr):
    """Return 1 / x of a normal number, off by one bit at most; an exact quotient takes six instructions more."""
    if ASM:
        y = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        y = 1.0 / x
    return y


@triton.jit
def _exp2(x, ASM: tl.constexpr):
    """Return 2**x where the result is a normal number: subnormals are flushed."""
    if ASM:
        y = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    else:
        y = tl.exp2(x)
    return y


@triton.jit
def gelu(x, ASM: tl.constexpr):
    if x.dtype.is_fp32():
        y = _gelu(x, ASM)
    else:
        y = x * libdevice.normcdf(x)
    return y


@triton.jit
def _gelu(x, ASM: tl.constexpr):
    """Return gelu(x) as on the CPU, in f32: max(x, 0) - y * Phi(-y) with y = |x|.

    Phi(-y) = e^(-y*y/2) * P(t) / (y + 4), t = (y - 4) / (y + 4). CUDA's own normcdf takes nearly twice as many
    instructions, more than fit into the time in which an element is loaded and stored.
    """
    y = tl.minimum(tl.abs(x), 13.27)  # here the power below is 0
    u = y * _reciprocal(y + 4.0, ASM)
    t = tl.fma(u, 2.0, -1.0)
    p = tl.fma(t, -0.0001324320101, 0.0001783737626)
    p = tl.fma(p, t, 0.00156958933)
    p = tl.fma(p, t, -0.003512079848)
    p = tl.fma(p, t, -0.00752500388)
    p = tl.fma(p, t, 0.06040376524)
    p = tl.fma(p, t, -0.1865234859)
    p = tl.fma(p, t, 0.3871369038)
    p = tl.fma(p, t, -0.6078965866)
    p = tl.fma(p, t, 0.7552851354)
    square = y * y
    lost = tl.fma(y, y, -square)
    k = tl.fma(square, -0.72134752, ROUND + 127.0)
    n = k - (ROUND + 127.0)
    rest = tl.fma(n, -4.24388880e-4, tl.fma(n, 1.38671875, square)) + lost  # e^(-rest / 2) is left beside 2^n
    power = (k.to(tl.int32, bitcast=True) << 23).to(tl.float32, bitcast=True)
    tail = u * p * _exp2(rest * -0.72134752, ASM) * power
    return tl.where(x < 0.0, x * 0.0, x) - tail  # of -inf NaN, as by the definition


@triton.jit
def gelu_tanh(x):
    """Return x * (1 + tanh(u)) / 2 without the cancellation: 1 + tanh(u) is 2 / (1 + exp(-2u))."""
    u = (x + x * x * x * 0.044715) * 1.5957691216057308
    return divide(x, 1.0 + libdevice.exp(u * -1.0))


@triton.jit
def pow(a, b):
    return libdevice.pow(a, b)


@triton.jit
def atan2(a, b):
    return libdevice.atan2(a, b)


@triton.jit
def exp(x):
    return libdevice.exp(x)


@triton.jit
def expm1(x):
    return libdevice.expm1(x)


@triton.jit
def log(x):
    return libdevice.log(x)


@triton.jit
def log1p(x):
    return libdevice.log1p(x)


@triton.jit
def log2(x):
    return libdevice.log2(x)


@triton.jit
def log10(x):
    return libdevice.log10(x)


@triton.jit
def sin(x):
    return libdevice.sin(x)


@triton.jit
def cos(x):
    return libdevice.cos(x)


@triton.jit
def tan(x):
    return libdevice.tan(x)


@triton.jit
def asin(x):
    return libdevice.asin(x)


@triton.jit
def acos(x):
    return libdevice.acos(x)


@triton.jit
def atan(x):
    return libdevice.atan(x)


@triton.jit
def sinh(x):
    return libdevice.sinh(x)


@triton.jit
def cosh(x):
    return libdevice.cosh(x)


@triton.jit
def tanh(x):
    return libdevice.tanh(x)


@triton.jit
def asinh(x):
    return libdevice.asinh(x)


@triton.jit
def acosh(x):
    return libdevice.acosh(x)


@triton.jit
def atanh(x):
    return libdevice.atanh(x)


@triton.jit
def erf(x):
    return libdevice.erf(x)


# ---- casts


@triton.jit
def whole(x, low: tl.constexpr, end: tl.constexpr, least: tl.constexpr, most: tl.constexpr, to: tl.constexpr):
    """Cast a float to an integer: towards 0, clamped to [least, most]; NaN is 0. low is least, end is most + 1, as
    floats.
    """
    above, below = x >= end, x < low
    inside = tl.where(above | below | (x != x), x * 0, x)
    inside = tl.where(inside == inside, inside, 0.0)
    if to.is_int_unsigned() and to.primitive_bitwidth == 64:
        result = inside.to(tl.uint64)
    else:
        result = inside.to(tl.int64).to(to)
    result = tl.where(above, tl.full((), most, to), result)
    return tl.where(below, tl.full((), least, to), result)


@triton.jit
def odd(x):
    """Return f64 as f32 rounded to odd, so that rounding once more, to a half float, equals rounding once."""
    near = x.to(tl.float32)
    back = near.to(tl.float64)
    bits = near.to(tl.int32, bitcast=True) - (tl.abs(back) > tl.abs(x)).to(tl.int32)
    return (bits | (back != x).to(tl.int32)).to(tl.float32, bitcast=True)


fix_cache_keys(globals())
