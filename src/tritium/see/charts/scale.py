"""Linear and logarithmic scales with round ticks, and amounts with their unit.

A scale covers its data, maps finite values to finite positions, and can be inverted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tritium.errors import ArgumentError
from tritium.perf import amounts

LEAST, MOST = 1e-280, 1e280  # magnitudes beyond are clipped
FLAT = 1e-9  # a span that is a smaller share of its values counts as empty
NEAR = 1.6  # ratios all nearer to 1 have ticks in per cent
MULTIPLES = ((1, 2, 5), (1, 3), (1,))  # of powers of ten, for the ticks of a log axis: the densest that fits
MINUS = "−"
Prefixes = tuple[tuple[float, str], ...]
SI: Prefixes = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
SMALL: Prefixes = ((1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
# The unit of an axis: the largest of these that is not above the largest tick.
UNITS: dict[str, Prefixes] = {
    "s": tuple((factor, f"{letter}s") for factor, letter in SMALL if factor <= 1),
    "J": tuple((factor, f"{letter}J") for factor, letter in SMALL),
    "W": tuple((factor, f"{letter}W") for factor, letter in SMALL),
    "B": ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")),
    "B/s": tuple((factor, f"{letter}B/s") for factor, letter in SI),
    "FLOP/s": tuple((factor, f"{letter}FLOP/s") for factor, letter in SI),
    "OP/s": tuple((factor, f"{letter}OP/s") for factor, letter in SI),
    "1/s": tuple((factor, f"{letter}/s") for factor, letter in SI),
    "FLOP/B": ((1.0, "FLOP/B"),),
    "": SI,
}
QUANTITIES = {
    "s": "time", "J": "energy", "W": "power", "B": "memory", "B/s": "bytes moved a second", "FLOP/s": "arithmetic speed",
    "OP/s": "arithmetic speed", "1/s": "calls a second", "FLOP/B": "arithmetic intensity", "%": "per cent", "°C": "temperature",
}  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """A mapping from values (low … high) to positions (start … end), and back."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    log: bool = False

    def position(self, value: float) -> float:
        """Return the position of a value; values beyond the ends are clipped."""
        low, high, x = self._linear(self.low), self._linear(self.high), self._linear(value)
        share = min(max((x - low) / (high - low), 0.0), 1.0)
        return self.start + share * (self.end - self.start)

    def value(self, position: float) -> float:
        """Return the value at a position."""
        share = (position - self.start) / (self.end - self.start)
        low, high = self._linear(self.low), self._linear(self.high)
        x = low + share * (high - low)
        return 10.0**x if self.log else x

    def _linear(self, value: float) -> float:
        if self.log:
            return math.log10(min(max(value, LEAST), MOST))
        return min(max(value, -MOST), MOST)


def finite(value: float | None) -> float | None:
    """Return the value as a float; None where it is None, infinite or NaN."""
    return float(value) if value is not None and math.isfinite(value) else None


def finite_all(values: Iterable[float | None]) -> list[float]:
    return [v for v in map(finite, values) if v is not None]


def linear(
    values: Iterable[float], start: float, end: float, *, count: int = 5, unit: str = "", zero: bool = True
) -> Scale:
    """Return a linear scale with about `count` round ticks, from 0 where `zero` is true. No values: 0 … 1."""
    clipped = [min(max(v, -MOST), MOST) for v in values] or [0.0]
    low, high = min(clipped), max(clipped)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    largest = max(abs(low), abs(high))
    if high - low <= FLAT * largest or high - low < LEAST:
        pad = largest * 0.05 if largest > LEAST else 0.5
        low, high = (low, high + 2 * pad) if zero else (low - pad, high + pad)
    factor = _prefix_of(max(abs(low), abs(high)), unit)[0]
    step = nice((high - low) / factor / max(count, 1)) * factor
    first, last = _floor(low / step), -_floor(-high / step)
    ticks = tuple(i * step for i in range(first, last + 1))
    return Scale(min(low, ticks[0]), max(high, ticks[-1]), start, end, ticks)


def log(values: Iterable[float], start: float, end: float, *, count: int = 6, unit: str = "") -> Scale:
    """Return a log scale for the values above 0; its ends are 1, 2 or 5 times a power of ten, of bytes powers of two."""
    clipped = [min(max(v, LEAST), MOST) for v in values if v > 0] or [1.0, 10.0]
    if unit == "B":
        return _doubling(min(clipped), max(clipped), start, end, count)
    low, high = _round_down(min(clipped)), _round_up(max(clipped))
    if high / low < 1.9:
        low, high = _round_down(low * 0.99), _round_up(high * 1.01)
    return Scale(low, high, start, end, _log_ticks(low, high, count), log=True)


def _doubling(least: float, most: float, start: float, end: float, count: int) -> Scale:
    """Return a log scale in powers of two: 1 KiB, 4 KiB, 16 KiB …, with as many ticks as fit."""
    first, last = math.floor(math.log2(least) + FLAT), math.ceil(math.log2(most) - FLAT)
    if first == last:
        first, last = first - 1, last + 1
    steps = (m * 10**p for p in itertools.count() for m in (1, 2, 4))
    every = next(step for step in steps if last // step + -first // step <= max(count, 2))
    powers = [p for p in range(first, last + 1) if p % every == 0]
    ticks = tuple(2.0**p for p in (powers if len(powers) >= 2 else (first, last)))
    return Scale(2.0**first, 2.0**last, start, end, ticks, log=True)


def ratio(values: Iterable[float], start: float, end: float, *, count: int = 7) -> Scale:
    """Return a log scale for ratios that includes 1: ticks in per cent where all are near 1, else multiples."""
    clipped = [*(min(max(v, LEAST), MOST) for v in values if v > 0), 1.0]
    low, high = min(clipped), max(clipped)
    if max(high, 1 / low) >= NEAR:
        decades = log([low, high], start, end, count=count)
        return Scale(decades.low, decades.high, start, end, tuple(sorted({*decades.ticks, 1.0})), log=True)
    step = nice(max(high - low, 0.02) / max(count - 1, 1))
    first = min(_floor((low - 1) / step), -1)
    last = max(-_floor((1 - high) / step), 1)
    ticks = tuple(1 + i * step for i in range(first, last + 1))
    return Scale(ticks[0], ticks[-1], start, end, ticks, log=True)


def nice(raw: float) -> float:
    """Return the least of 1, 2, 5 and 10 times a power of ten that is not below `raw`."""
    power = math.floor(math.log10(raw))
    share = raw / 10.0**power
    return float(next((m for m in (1, 2, 5) if share <= m * (1 + FLAT)), 10)) * 10.0**power


def _floor(x: float) -> int:
    """Return the floor; a value that is an integer up to rounding counts as one."""
    near = round(x)
    return near if abs(x - near) <= FLAT * max(abs(x), 1) else math.floor(x)


def _round_down(value: float) -> float:
    power = math.floor(math.log10(value) + FLAT)
    share = value / 10.0**power
    return float(next((m for m in (5, 2, 1) if share >= m * (1 - FLAT)), 1)) * 10.0**power


def _round_up(value: float) -> float:
    return nice(value)


def _log_ticks(low: float, high: float, count: int) -> tuple[float, ...]:
    first, last = math.floor(math.log10(low) + FLAT), math.ceil(math.log10(high) - FLAT)
    powers = range(first, last + 1)
    for multiples in MULTIPLES:
        ticks = [m * 10.0**p for p in powers for m in multiples]
        ticks = [t for t in ticks if low * (1 - FLAT) <= t <= high * (1 + FLAT)]
        if 2 <= len(ticks) <= count + 1:
            return tuple(ticks)
    every = max(math.ceil(len(powers) / max(count, 2)), 1)
    decades = tuple(10.0**p for p in powers if p % every == 0 and low * (1 - FLAT) <= 10.0**p <= high * (1 + FLAT))
    return decades if len(decades) >= 2 else (low, high)


# ---- texts


def amount(value: float, unit: str) -> str:
    """Return a value with three digits and the unit that suits it."""
    if value < 0:
        return MINUS + amount(-value, unit)
    if unit == "s":
        return amounts.seconds_text(value) if 1e-12 <= value < 1e8 else f"{_digits(value)} s"
    if unit == "×":
        return ratio_text(value)
    if unit not in UNITS:
        return f"{_digits(value)} {unit}".rstrip()
    factor, name = _prefix_of(value, unit)
    if value and value / factor < 0.001:
        return f"{_digits(value)} {_base(unit)}".rstrip()
    gap = "" if name in ("T", "G", "M", "k", "") and unit == "" else " "
    return f"{_digits(value / factor)}{gap}{name}".rstrip()


def _digits(value: float) -> str:
    if value and not 1e-4 <= value < 1e6:
        mantissa, _, power = f"{value:.1e}".partition("e")
        return f"{mantissa.removesuffix('.0')}e{int(power)}"
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def ratio_text(value: float) -> str:
    """Return a ratio as text: 1.04×, 23×, 0.012×."""
    return f"{value:.2f}×" if 0.1 <= value < 9.995 else f"{_digits(value)}×"


def change_text(value: float) -> str:
    """Return a ratio as a change in per cent; as a multiple where that would mislead."""
    if not 0.5 <= value < 2:
        return ratio_text(value)
    percent = 100 * (value - 1)
    sign = "+" if percent >= 0.05 else MINUS if percent <= -0.05 else "±"
    return f"{sign}{abs(percent):.1f} %"


def tick_texts(scale: Scale, unit: str) -> tuple[str, ...]:
    """Return a text for each tick: one unit for all of a linear axis, the unit that suits each of a log axis."""
    if unit == "×":
        return tuple(_multiple(t) for t in scale.ticks)
    if unit == "change":
        near = max(scale.high, 1 / scale.low) < NEAR * NEAR and not _is_decade(scale)
        return tuple(_percent(t) if near else _multiple(t) for t in scale.ticks)
    if scale.log:
        return tuple(amount(t, unit) for t in scale.ticks)
    factor, name = _prefix_of(max(abs(t) for t in scale.ticks), unit)
    step = (scale.ticks[1] - scale.ticks[0]) / factor
    decimals = max(0, -math.floor(math.log10(step) + FLAT)) if step > 0 else 0
    gap = "" if unit == "" else " "
    return tuple(
        "0"
        if abs(t) < FLAT * factor * step
        else f"{t / factor:.{min(decimals, 12)}f}{gap}{name}".replace("-", MINUS).rstrip()
        for t in scale.ticks
    )


def _is_decade(scale: Scale) -> bool:
    """Return True if the ticks of a ratio are multiples, not per cent."""
    return max(scale.ticks) >= NEAR or min(scale.ticks) <= 1 / NEAR


def _multiple(value: float) -> str:
    return f"{value:.6g}×" if 1e-4 <= value < 1e6 else f"{_digits(value)}×"


def _percent(value: float) -> str:
    percent = round(100 * (value - 1), 6)
    return "0" if percent == 0 else f"{percent:+.6g} %".replace("-", MINUS)


def _prefix_of(largest: float, unit: str) -> tuple[float, str]:
    """Return the factor and the name of the largest prefixed unit not above a value."""
    prefixes = UNITS.get(unit, ((1.0, unit),))
    return next(((factor, name) for factor, name in prefixes if largest >= factor * (1 - FLAT)), prefixes[-1])


def _base(unit: str) -> str:
    return next((name for factor, name in UNITS[unit] if factor == 1.0), unit)


def quantity(unit: str) -> str:
    """Return the quantity that this unit measures."""
    return QUANTITIES.get(unit, unit)


def spaced(centres: Sequence[float], widths: Sequence[float], gap: float = 8.0) -> list[int]:
    """Return the indexes of the centred labels that fit without touching: the first, then each that has room."""
    if len(centres) != len(widths):
        raise ArgumentError("spaced: a width for each label is needed.")
    chosen: list[int] = []
    for i in sorted(range(len(centres)), key=lambda i: centres[i]):
        if not chosen or centres[i] - widths[i] / 2 >= centres[chosen[-1]] + widths[chosen[-1]] / 2 + gap:
            chosen.append(i)
    return chosen
