"""What bench/cuda.py holds its figures against, and how it shows them: samples in, verdicts and tables out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median, quantiles
from typing import Any, NamedTuple

from tritium.perf.tables.table import Table

SHAPES = ((2560, 2560), (13824, 2560), (2560, 6912), (4096, 4096), (14336, 4096), (8192, 8192), (28672, 8192))
BATCHES, QUICK_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048), (1, 16, 128, 2048)
ROUNDS, QUICK_ROUNDS = 9, 7  # of all arms in turn
BF16, FP8, INT8, OURS, WHOLE = "torch bf16", "torch fp8", "_int_mm", "tritium", "tritium, floats in"
FP8_WHOLE, INT4 = "torch fp8, floats in", "torch int4"
TIMES_BF16 = {1: 4.0, 16: 1.9, 128: 1.1, 2048: 1.4}  # by tokens
LARGE, TIMES_BF16_LARGE = 4096, {2048: 2.0}  # where n and k are at least so large
TIMES_FP8 = 1.0  # at every batch
# µs of Microsoft's BitNet kernel for one token, recorded on an H200: it is not run here.
RECORDED_US = dict(zip(SHAPES, (5.1, 9.0, 10.7, 7.2, 13.2, 14.5, 40.2), strict=True))
TIMES_RECORDED = 2.5
MEDIAN_FP8 = {1: 2.5, 32: 1.15}  # of random shapes, by the fewest tokens of their class
TIMES_INT4 = 1.5  # at one token
GROUP_TIMES, GROUP_FEW, GROUP_TIMES_MANY = (
    1.15,
    256,
    1.4,
)  # of groups of 128 beside none, at most: up to so many tokens, and above
CHAIN_US = 270.0  # at most
TIMES_TORCH, REPLAY_US, HOST_TIMES_MM = 1.5, 10.0, 1.2  # at most, of the host's time


class Options(NamedTuple):
    """What was asked of a run."""

    quick: bool = False
    shapes: tuple[tuple[int, int], ...] = SHAPES
    batches: tuple[int, ...] = BATCHES
    seed: int = 0
    jobs: int = 1  # threads or processes that compile kernels before they are timed
    random_shapes: int = 0  # draws of the part `random`

    @property
    def rounds(self) -> int:
        return QUICK_ROUNDS if self.quick else ROUNDS


class Samples(NamedTuple):
    """Microseconds of a call, one value for each round."""

    us: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.us)

    @property
    def middle(self) -> tuple[float, float]:
        """Between which half of the values lie."""
        if len(self.us) < 2:
            return self.us[0], self.us[0]
        low, _, high = quantiles(self.us, n=4, method="inclusive")
        return low, high

    def __str__(self) -> str:
        low, high = self.middle
        return f"{self.median:.4g} ({low:.4g}…{high:.4g})"


Taken = Samples | str  # a string says why nothing was taken


class Goal(NamedTuple):
    """A figure beside what it should be."""

    what: str
    value: float
    low: float
    high: float
    limit: float
    lower: bool = False  # less is better

    @property
    def verdict(self) -> str:
        """Met where half of the values are, missed where none of those is."""
        worst, best = (self.high, self.low) if self.lower else (self.low, self.high)
        if worst <= self.limit if self.lower else worst >= self.limit:
            return "met"
        return "unsure" if (best <= self.limit if self.lower else best >= self.limit) else "MISSED"

    @property
    def row(self) -> tuple[str, ...]:
        sign = "≤" if self.lower else "≥"
        between = f"{self.value:.3g} ({self.low:.3g}…{self.high:.3g})"
        return self.what, between, f"{sign} {self.limit:g}", self.verdict

    def record(self) -> dict[str, Any]:
        return self._asdict() | {"verdict": self.verdict}


class Shown(NamedTuple):
    """Part of what a part found: for people, against goals, and every sample for a file."""

    table: Table
    goals: tuple[Goal, ...] = ()
    record: Any = None


def times(what: str, theirs: Taken, ours: Taken, least: float) -> Iterator[Goal]:
    """How many times faster ours is, beside what it should be at least; nothing where one of both was not taken."""
    if isinstance(theirs, Samples) and isinstance(ours, Samples):
        (a, b), (c, d) = theirs.middle, ours.middle
        yield Goal(what, theirs.median / ours.median, a / d, b / c, least)


def share(what: str, ours: Taken, theirs: Taken, most: float) -> Iterator[Goal]:
    """How many times theirs ours takes, beside what it should be at most."""
    if isinstance(theirs, Samples) and isinstance(ours, Samples):
        (a, b), (c, d) = ours.middle, theirs.middle
        yield Goal(what, ours.median / theirs.median, a / d, b / c, most, lower=True)


def at_most(what: str, ours: Taken, most: float) -> Iterator[Goal]:
    if isinstance(ours, Samples):
        yield Goal(what, ours.median, *ours.middle, most, lower=True)


# ---- products


class Cell(NamedTuple):
    """One shape at one batch."""

    n: int
    k: int
    m: int
    taken: Mapping[str, Taken]
    kernel: str = ""

    @property
    def shape(self) -> str:
        return f"{self.n}×{self.k}"

    def record(self) -> dict[str, Any]:
        taken = {name: t.us if isinstance(t, Samples) else t for name, t in self.taken.items()}
        return {"n": self.n, "k": self.k, "tokens": self.m, "kernel": self.kernel, "us": taken}


def least_times_bf16(n: int, k: int, m: int) -> float | None:
    """How many times bf16 is asked for; None where nothing is."""
    large = min(n, k) >= LARGE and m in TIMES_BF16_LARGE
    return TIMES_BF16_LARGE[m] if large else TIMES_BF16.get(m)


def product_goals(cell: Cell) -> list[Goal]:
    where = f"{cell.shape}, batch {cell.m}"
    ours = cell.taken.get(OURS, "")
    if not isinstance(ours, Samples):  # a product that is wrong or absent is no product
        return [Goal(f"{where}: {ours or 'not run'}", 1.0, 1.0, 1.0, 0.0, lower=True)]
    found: list[Goal] = []
    if (least := least_times_bf16(cell.n, cell.k, cell.m)) is not None:
        found += times(f"{where}: times bf16", cell.taken.get(BF16, ""), ours, least)
    found += times(f"{where}: times fp8", cell.taken.get(FP8, ""), ours, TIMES_FP8)
    recorded = RECORDED_US.get((cell.n, cell.k))
    if cell.m == 1 and recorded is not None:
        found += times(f"{where}: times Microsoft's kernel (recorded)", Samples((recorded,)), ours, TIMES_RECORDED)
    return found


def product_table(m: int, cells: Sequence[Cell]) -> Table:
    """All shapes at one batch."""
    arms = [BF16, FP8, INT8, OURS, *([WHOLE] if m == 1 else [])]
    heads = ("n × k", *arms, "× bf16", "goal of bf16", "× fp8", "goal of fp8", "kernel")
    rows = []
    for cell in cells:
        by_goal = {goal.what.partition(": times ")[2]: goal for goal in product_goals(cell)}
        ratios: list[str] = []
        for name, arm in (("bf16", BF16), ("fp8", FP8)):
            goal = by_goal.get(name)
            ratios.append(ratio_text(cell.taken.get(arm, ""), cell.taken.get(OURS, "")))
            ratios.append("-" if goal is None else f"{goal.limit:g} {goal.verdict}")
        rows.append((cell.shape, *(text(cell.taken.get(arm, "-")) for arm in arms), *ratios, cell.kernel))
    return Table(f"Products, {m} token{'s' * (m > 1)}: µs", heads, tuple(rows), frozenset(heads[1:-1]))


# ---- random shapes


def random_goals(low: int, cells: Sequence[Cell]) -> Iterator[Goal]:
    """What is asked of the draws of a class: each at least fp8 and bf16, both ways, and the median of all."""
    for cell in cells:
        where, taken = f"{cell.shape}, batch {cell.m}", cell.taken
        ours, whole = taken.get(OURS, ""), taken.get(WHOLE, "")
        if not isinstance(ours, Samples):
            yield Goal(f"{where}: {ours or 'not run'}", 1.0, 1.0, 1.0, 0.0, lower=True)
            continue
        yield from times(f"{where}: times fp8", taken.get(FP8, ""), ours, TIMES_FP8)
        yield from times(f"{where}: times bf16", taken.get(BF16, ""), ours, TIMES_FP8)
        yield from times(f"{where}: times fp8, both quantise", taken.get(FP8_WHOLE, ""), whole, TIMES_FP8)
        yield from times(f"{where}: times bf16, ours quantises", taken.get(BF16, ""), whole, TIMES_FP8)
        if cell.m == 1:
            yield from times(f"{where}: times int4", taken.get(INT4, ""), ours, TIMES_INT4)
    ratios = ratios_of(cells, FP8, OURS)
    if low in MEDIAN_FP8 and ratios:
        middle = median(ratios)
        yield Goal(f"batches from {low} on: median times fp8", middle, middle, middle, MEDIAN_FP8[low])


def ratios_of(cells: Iterable[Cell], theirs: str, ours: str) -> list[float]:
    """Return theirs / ours of the draws where both were timed."""
    pairs = [(cell.taken.get(theirs, ""), cell.taken.get(ours, "")) for cell in cells]
    return [a.median / b.median for a, b in pairs if isinstance(a, Samples) and isinstance(b, Samples)]


def random_table(low: int, high: int, cells: Sequence[Cell]) -> Table:
    """The draws of one class, the slowest beside fp8 first; medians and the least of each ratio below."""
    arms = [arm for arm in (BF16, FP8, INT4, OURS, FP8_WHOLE, WHOLE) if any(arm in cell.taken for cell in cells)]
    pairs = {
        "× bf16": (BF16, OURS),
        "× fp8": (FP8, OURS),
        "× int4": (INT4, OURS),
        "× fp8, both quantise": (FP8_WHOLE, WHOLE),
    }
    pairs = {name: pair for name, pair in pairs.items() if pair[0] in arms}
    heads = ("tokens", "n × k", *(f"{arm}, µs" for arm in arms), *pairs, "kernel")
    rows = []
    for cell in sorted(cells, key=lambda c: (ratios_of([c], FP8, OURS) or [0.0])[0]):
        ratios = (ratio_text(cell.taken.get(a, ""), cell.taken.get(b, "")) for a, b in pairs.values())
        rows.append((str(cell.m), cell.shape, *(text(cell.taken.get(arm, "-")) for arm in arms), *ratios, cell.kernel))
    below = [""]
    for name, pair in pairs.items():
        if ratios_found := ratios_of(cells, *pair):
            below.append(
                f"{name}: median {median(ratios_found):.2f}, least {min(ratios_found):.2f}, "
                f"{sum(r < 1 for r in ratios_found)} of {len(ratios_found)} below 1."
            )
    title = f"Random shapes, {low} token{'s' * (low > 1)}" + (f" to {high}" if high > low else "")
    return Table(title, heads, tuple(rows), frozenset(heads[2:-1]), tuple(below))


# ---- words


def text(taken: Taken) -> str:
    return str(taken) if isinstance(taken, Samples) else taken or "-"


def ratio_text(theirs: Taken, ours: Taken) -> str:
    both = isinstance(theirs, Samples) and isinstance(ours, Samples)
    return f"{theirs.median / ours.median:.2f}" if both else "-"


def goals_table(goals: Iterable[Goal]) -> Table:
    found = tuple(goals)
    counted = {word: sum(g.verdict == word for g in found) for word in ("met", "unsure", "MISSED")}
    said = ", ".join(f"{n} {word}" for word, n in counted.items())
    heads = ("goal", "measured", "asked", "")
    return Table("Goals", heads, tuple(g.row for g in found), frozenset(heads[1:3]), ("", f"{said}."))


def chosen(names: str | None, known: Sequence[str]) -> tuple[str, ...]:
    """The parts asked for, in their own order; ValueError names what is unknown."""
    asked = known if names is None else [name.strip() for name in names.split(",") if name.strip()]
    if unknown := sorted(set(asked) - set(known)):
        raise ValueError(f"{', '.join(unknown)}: there is no such part; there are {', '.join(known)}")
    if not asked:
        raise ValueError(f"no part is named; there are {', '.join(known)}")
    return tuple(name for name in known if name in asked)


def shapes_of(words: str) -> tuple[tuple[int, int], ...]:
    """ "2560x2560,4096x4096" as (n, k)."""
    found = []
    for word in words.split(","):
        n, x, k = word.strip().lower().replace("×", "x").partition("x")
        if not (x and n.isdigit() and k.isdigit() and int(n) > 0 and int(k) > 0):
            raise ValueError(f"{word.strip()!r} is no shape; write them as 2560x2560,4096x4096")
        found.append((int(n), int(k)))
    return tuple(found)


def batches_of(words: str) -> tuple[int, ...]:
    """ "1,16" as numbers of tokens."""
    found = [word.strip() for word in words.split(",")]
    if not all(word.isdigit() and int(word) > 0 for word in found):
        raise ValueError(f"{words!r} are no batches; write them as 1,16,128")
    return tuple(map(int, found))
