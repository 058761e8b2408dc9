"""The choice of a kernel and its tile config for ternary or int8 weights and so many tokens: by a model of times, or by
rule.

On Hopper, ternary weights and more than a few tokens take the candidate that `cuda.linear.model` says is fastest;
`TABLE` is what was measured for fewer. Results of `tritium tune` on this GPU come before both, and those set by `use`
before these.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import NamedTuple

from tritium.backends.cuda.capability import AMPERE, HOPPER
from tritium.backends.cuda.linear import measured as cuda_measured, model
from tritium.backends.cuda.linear.spread import ALONG, UNEVEN, is_possible
from tritium.machine import tuned

PLAIN = "gemv_plain", "gemm_plain"  # run on every GPU, the second from Ampere on
ROOM = 226 * 1024  # bytes of shared memory of a multiprocessor, without barriers
SHARED = 198 * 1024  # of them for stages where results leave through registers: these need the rest on their way out
FEW_REGISTERS = 80  # of a thread, with which two CTAs fit on a multiprocessor
SOME_REGISTERS = 104, 136  # that a thread starts with and may have
FEWEST_STAGES, MOST_STAGES = 3, 6  # one is multiplied, one is freed, one arrives; more hide no more latency
TILES = (128, 0), (256, 0), (64, 1)  # rows of a tile, and whether warpgroups take whole tiles in turns
LARGE = 512  # tokens from which on more of them are more tiles of the same kind
FEW, SOME = 8, 16  # tokens: up to the first no tiles are tried, up to the second `fragments` is


class Choice(NamedTuple):
    """A kernel and its tile config; `str` shows both."""

    kernel: str
    config: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return f"{self.kernel}({', '.join(f'{name}={number}' for name, number in self.config)})"

    def get(self, name: str) -> int:
        return dict(self.config)[name]


class Case(NamedTuple):
    """A product: m tokens of k columns with n rows, of ternary codes or of int8; floats: tokens are not quantised
    yet.
    """

    n: int
    k: int
    m: int
    codes: bool = True
    floats: bool = False


NAMES = {
    "gemv": ("rows", "lanes", "across", "warps"),
    "fragments": ("tiles", "across", "beside", "groups", "ahead"),
    "wgmma": ("rows", "tokens", "bytes", "turns", "stages", "registers", "most", "spread"),
    "gemv_plain": ("rows", "words", "warps"),
    "gemm_plain": ("rows", "tokens", "bytes", "split", "warps", "stages"),
}


def choice(kernel: str, *numbers: int) -> Choice:
    """Return a choice with numbers in the order of `NAMES`.

    gemv: rows of a CTA; lanes and warps (across) along a row; warps. fragments: tiles of 16 rows for each of the warps
    beside each other; warps across the columns; groups of 8 tokens; blocks of weights ahead. wgmma: a tile's rows and
    tokens (a power of two, or two of them: 160 are 128 and 32); bytes of a row in a step; turns (each warpgroup has
    tiles of its own); stages; registers a thread starts with and may have; spread: 0 a CTA for each tile, above 0 so
    many CTAs on each multiprocessor, which take tiles in turns, those of the last round in halves or quarters of their
    tokens where each has a CTA, below 0 so many for each tile, which share its columns; ALONG: see
    `cuda.linear.spread`.
    """
    return Choice(kernel, tuple(zip(NAMES[kernel], numbers, strict=True)))


def parsed(text: str) -> Choice | None:
    """Return the choice that `str` shows, or None where the text names no kernel."""
    match = re.fullmatch(r"(\w+)\((\w+=-?\d+(?:, \w+=-?\d+)*)\)", text)
    if match is None or match[1] not in NAMES:
        return None
    pairs = [part.split("=") for part in match[2].split(", ")]
    return choice(match[1], *(int(n) for _, n in pairs)) if NAMES[match[1]] == tuple(n for n, _ in pairs) else None


def wide(k: int) -> int:
    """Return the columns as kernels see them: padded with zeros to whole blocks of 128, at least one."""
    return max(-(-k // 128), 1) * 128


def words(case: Case) -> int:
    """Return the 32-bit words of a row of weights."""
    return wide(case.k) // (16 if case.codes else 4)


# ---- what is possible


def _gemv_fits(case: Case, rows: int, lanes: int, across: int, warps: int) -> bool:
    """Return True if the words of a thread, its sums, and its part of a token of floats fit in registers.

    All words of a thread are in flight at once.
    """
    step = lanes * 4 * across
    count = -(-words(case) // step)
    threads = 32 * warps
    of_thread = rows * step // (threads * 4)
    if case.floats and (1 << (count * step - 1).bit_length()) * (16 if case.codes else 4) // threads >= 128:
        return False
    return of_thread >= 1 and of_thread * (count * 4 + (16 if case.codes else 4)) <= 150


def gemvs(case: Case) -> Iterator[Choice]:
    for warps in (1, 2, 4, 8):
        for across in (1, 2, 4, 8):
            for lanes in (8, 16, 32):
                step = lanes * 4 * across
                waste = -(-words(case) // step) * step / words(case)
                for each in (1, 2, 4):
                    rows = each * (32 // lanes) * (warps // across)
                    whole = across <= warps and 2 <= rows <= 64 and rows & (rows - 1) == 0
                    if whole and waste <= 1.25 and _gemv_fits(case, rows, lanes, across, warps):
                        yield choice("gemv", rows, lanes, across, warps)


def fragment_cuts(case: Case) -> Iterator[Choice]:
    blocks = wide(case.k) // 128
    need = -(-case.m // 8)
    for groups in (1, 2, 4):  # sums of more do not fit in registers
        if groups > 1 and groups // 2 >= need:
            continue
        for tiles in {1: (1, 2, 4), 2: (1, 2), 4: (1, 2)}[groups]:
            for across, beside in ((2, 1), (4, 1), (8, 1), (2, 2), (4, 2), (1, 4)):
                count = -(-blocks // across)
                if count * groups <= 512 and (blocks < across or count * across / blocks <= 1.25):
                    ahead = min(count, 24, max((176 - 16 * tiles * groups) // (4 * tiles), 4))  # words beside sums
                    yield choice("fragments", tiles, across, beside, groups, ahead)


def _registers(part: int, tokens: int, step: int) -> tuple[int, int]:
    """Return the registers a thread starts with and those a multiplying one may have.

    They follow from what it holds: sums, and of codes (step, else 0) those of a step and their four planes.
    """
    sums = part * tokens // 128
    held = sums + 5 * part * step // 512
    return (FEW_REGISTERS, 104) if sums <= 32 and held <= 72 else SOME_REGISTERS if held <= 88 else (168, 240)


def wgmmas(case: Case, processors: int = 132) -> Iterator[Choice]:
    """Yield every tile of rows and tokens, the latter near those of the case, with every distribution."""
    every = sorted({16, 32, 64, 128, *UNEVEN} | (set() if case.codes else {256}))  # 256 beside decoded planes spill
    sizes = [t for t in every if (t == 16 or _least(t) < case.m) and 4 * t >= min(case.m, 256)]
    for tokens, (rows, turns), step in itertools.product(sizes, TILES, (32, 64, 128) if case.codes else (128,)):
        if (step == 32 and (rows < 256 or tokens < 128)) or (turns and tokens not in (16, 32, 64)):
            continue  # too little to multiply between two barriers; with turns only small tiles were ever fastest
        tile = _tile(case, rows, tokens, step, turns)
        if tile is not None:
            tiles, steps = -(-case.n // rows) * -(-case.m // tokens), -(-words(case) * 4 // step)
            yield from (choice("wgmma", *tile, s) for s in spreads(tiles, steps, processors))


def _least(tokens: int) -> int:
    """Return the tokens of the next smaller tile: one that small leaves nothing of this one idle."""
    return max(t for t in (0, 16, 32, 64, 128, *UNEVEN) if t < tokens)


def _tile(case: Case, rows: int, tokens: int, step: int, turns: int) -> tuple[int, ...] | None:
    """Return all numbers of a choice of wgmma but the last, or None where so much does not fit in a multiprocessor.

    Two CTAs of few registers may share one, so they have fewer stages if that lets both fit.
    """
    part = rows if turns else rows // 2
    stage = rows * step + tokens * step * (4 if case.codes else 1)
    held = _registers(part, tokens, step if case.codes else 0)
    results = 2 * rows * tokens  # of two bytes, on their way out
    stages = (ROOM - results) // stage
    if stages < FEWEST_STAGES:
        stages = SHARED // stage
    beside = (ROOM // 2 - results) // stage
    if held[0] == FEW_REGISTERS and beside >= FEWEST_STAGES:
        stages = beside
    elif held[0] == FEW_REGISTERS:
        held = SOME_REGISTERS
    if part * tokens > 128 * 160 or stages < FEWEST_STAGES:
        return None
    return rows, tokens, step, turns, min(stages, MOST_STAGES), *held


def spreads(tiles: int, steps: int, processors: int) -> Iterator[int]:
    """Yield distributions: a CTA for each tile, one on every multiprocessor if there are more tiles, or several a
    tile.
    """
    yield 0
    if tiles > processors:
        yield 1
    if tiles > processors and 0 < 2 * (tiles % processors) <= processors and steps >= 4:
        yield ALONG
    yield from (-n for n in (2, 3, 4, 6, 8) if tiles * n <= 2 * processors and steps >= 2 * n)


def gemms(case: Case) -> Iterator[Choice]:
    most = min(max(1 << (case.m - 1).bit_length(), 16), 128)
    for rows, tokens in itertools.product((32, 64, 128), sorted({most, max(most // 2, 16)})):
        for step, split in itertools.product((32, 64, 128), (1, 2, 4, 8)):
            stage = step * (rows + tokens * (4 if case.codes else 1))
            for warps, stages in itertools.product((4, 8), (2, 3, 4)):
                if split <= -(-words(case) * 4 // step) and stage * stages <= SHARED:
                    yield choice("gemm_plain", rows, tokens, step, split, warps, stages)


def _is_old(capability: tuple[int, int]) -> bool:
    return (0, 0) < capability < AMPERE


def candidates(case: Case, capability: tuple[int, int], processors: int = 132) -> list[Choice]:
    """Return every choice worth measuring."""
    result: list[Choice] = []
    hopper = capability == HOPPER
    if case.m <= 8 or _is_old(capability):
        cuts = itertools.product((2, 4, 8, 16), (64, 128, 256), (2, 4, 8))
        result += [choice("gemv_plain", *numbers) for numbers in cuts]
        result += gemvs(case) if hopper else ()
    if case.m > 1 and not _is_old(capability):
        result += gemms(case)
        if hopper and case.codes and case.m <= 64:
            result += fragment_cuts(case)
        if hopper and case.m > 8:
            result += wgmmas(case, processors)
    return result


def shortlist(case: Case, capability: tuple[int, int], processors: int, most: int) -> list[Choice]:
    """Return the shipped choice and about `most` more, as many of every kernel.

    They have the least time by the model, or are the most similar to the usual ones.
    """
    first = shipped(case, capability, processors)
    near = (_nearest(case, TABLE) if capability == HOPPER else None) or first
    usual = _usual(case, processors) | {near.kernel: near} | {first.kernel: first}
    listed = [first, near]
    every = candidates(case, capability, processors)
    kernels = dict.fromkeys(c.kernel for c in every)
    for kernel in kernels:
        cuts = [c for c in every if c.kernel == kernel]
        modelled = {c: us for c in cuts if kernel == "wgmma" and (us := tile_us(case, c, processors)) is not None}
        if case.codes and modelled:
            listed += sorted(modelled, key=lambda c: modelled[c])[: most // len(kernels)]
        else:
            listed += sorted(cuts, key=partial(_unlike, usual.get(kernel, cuts[0])))[: most // len(kernels)]
    return list(dict.fromkeys(listed))


def _unlike(one: Choice, other: Choice) -> float:
    """Return the distance of two choices of a kernel: doublings, summed over their numbers; differences where one is
    not above 0.
    """
    pairs = [(a, b) for (_, a), (_, b) in zip(one.config, other.config, strict=True)]
    return sum(abs(math.log2(a / b)) if a > 0 and b > 0 else abs(a - b) for a, b in pairs)


# ---- what is chosen

TABLE = {shape: {m: choice(*cut) for m, cut in batches.items()} for shape, batches in cuda_measured.PRODUCTS.items()}
OF_FLOATS = {
    shape: {m: choice(*cut) for m, cut in batches.items()} for shape, batches in cuda_measured.OF_FLOATS.items()
}
_preferred: dict[Case, Choice] = {}
Measured = Mapping[tuple[int, int], Mapping[int, Choice]]  # of shapes (n, k) and batches


def use(choices: Mapping[Case, Choice]) -> None:
    """Prefer these choices where the case is the same. An empty mapping forgets all."""
    if not choices:
        _preferred.clear()
    _preferred.update(choices)


def choose(case: Case, capability: tuple[int, int], processors: int) -> Choice:
    """Return the choice for a case: one set by `use` or tuned here, else the fastest by the model.

    Else one measured near it, here or on Hopper, else by rule.
    """
    known = _preferred.get(case)
    if known is not None:
        return known
    here = tuned_here(capability, processors)
    known = here.get((case.n, case.k), {}).get(case.m) if _is_measured(case) else None
    return _chosen(case, capability, processors, here) if known is None else known


def shipped(case: Case, capability: tuple[int, int], processors: int) -> Choice:
    """Return the choice where nothing was tuned."""
    return _chosen(case, capability, processors, {})


# ---- what was tuned on this GPU


def tuned_cases(gpu: str) -> dict[Case, Choice]:
    """Return the tuned choices of a GPU."""
    choices = {Case(*sizes): parsed(str(record.value)) for sizes, record in tuned.products(gpu).items()}
    return {case: cut for case, cut in choices.items() if cut is not None}


def tuned_here(capability: tuple[int, int], processors: int) -> Measured:
    """Return the tuned choices of the GPU of this process that can run there."""
    table: dict[tuple[int, int], dict[int, Choice]] = {}
    for case, cut in tuned_cases(tuned.gpu(capability, processors)).items():
        if fits(case, cut) and (cut.kernel in PLAIN or capability == HOPPER):
            table.setdefault((case.n, case.k), {})[case.m] = cut
    return table


# ---- the nearest, and rules


def _is_measured(case: Case) -> bool:
    """Return True if such cases are in tables; others are chosen by rule."""
    return case.codes and not case.floats


def _chosen(case: Case, capability: tuple[int, int], processors: int, here: Measured) -> Choice:
    hopper = capability == HOPPER
    if hopper and case.m > FEW and _is_measured(case):
        return _fastest(case, processors)
    near = None
    if _is_measured(case):
        of_hopper: Measured = TABLE if hopper else {}
        near = _nearest(case, {s: {**of_hopper.get(s, {}), **here.get(s, {})} for s in (*of_hopper, *here)})
    elif case.codes and hopper:
        near = _nearest(case, OF_FLOATS)
    if near is not None:
        return near
    if hopper:
        return _by_rule(case, processors)
    return choice("gemv_plain", 8, 128, 4) if case.m <= 4 or _is_old(capability) else _tiles(case, processors)


def _fastest(case: Case, processors: int) -> Choice:
    """Return the candidate with the least time by the model."""
    times = {c: us for c in wgmmas(case, processors) if (us := tile_us(case, c, processors)) is not None}
    some = (_nearest(case, TABLE) or _usual(case, processors).get("fragments")) if case.m <= SOME else None
    if some is not None and some.kernel == "fragments":
        times[some] = model.few_tokens_us(case.n, case.k)
    return min(times, key=lambda c: times[c]) if times else _large(case, processors)


def tile_us(case: Case, c: Choice, processors: int) -> float | None:
    """Return the time of a choice of `wgmma` by the model, in µs; None where no such tile was measured."""
    rows, tokens, step, turns = (c.get(name) for name in ("rows", "tokens", "bytes", "turns"))
    tile = model.Tile(case.n, case.m, words(case) * 4, rows, tokens, step, turns, is_beside(c), c.get("spread"))
    return model.tile_us(tile, processors)


def is_beside(c: Choice) -> bool:
    """Return True if two programs of a choice of `wgmma` fit on a multiprocessor."""
    return c.get("registers") == FEW_REGISTERS


def _nearest(case: Case, table: Measured) -> Choice | None:
    """Return the choice measured for the next larger batch and the most similar shape that also fits this case."""
    for shape in sorted(table, key=lambda s: _apart(s[0], case.n) + _apart(s[1], case.k)):
        near = _of_batch(table[shape], case.m)
        if near is not None and fits(case, near):
            return near
    return None


def _of_batch(measured: Mapping[int, Choice], m: int) -> Choice | None:
    """Return that of the next larger batch, if it is at most four times as large; beyond the largest, that, if it is
    large.
    """
    largest = max(measured)
    batch = min((b for b in measured if m <= b <= 4 * m), default=largest if LARGE <= largest < m else None)
    return None if batch is None else measured[batch]


def _apart(measured: int, size: int) -> float:
    return abs(math.log(measured / max(size, 1)))


def fits(case: Case, c: Choice) -> bool:
    """Return True if a choice can run a case at all."""
    if c.kernel == "gemv":
        return case.m <= 8 and _gemv_fits(case, *(number for _, number in c.config))
    if c.kernel == "fragments":
        return case.codes and case.m <= 4096 and wide(case.k) // 128 <= 128 * c.get("across")
    if c.kernel == "gemv_plain":
        return case.m <= 65535  # a CTA for each token and some rows
    dealt = c.kernel != "wgmma" or is_possible(c.get("tokens"))
    return dealt and not case.floats


def _tiles(case: Case, processors: int) -> Choice:
    """Return a choice for every GPU. Where tiles are few, several CTAs share the columns of each."""
    tokens = min(max(1 << (case.m - 1).bit_length(), 16), 128)
    rows, step = 128 if case.n >= 8192 else 64, 64
    split = _parts(case, -(-case.n // rows) * -(-case.m // tokens), step, processors)
    return choice("gemm_plain", rows, tokens, step, split, 8 if rows * tokens > 8192 else 4, 3)


def _parts(case: Case, tiles: int, step: int, processors: int) -> int:
    """Return how many CTAs share a tile, so that all multiprocessors have some: each has two steps at least."""
    return max(min(processors // max(tiles, 1), -(-words(case) * 4 // step) // 2, 8), 1)


def _by_rule(case: Case, processors: int) -> Choice:
    """Return the choice on Hopper where nothing near was measured."""
    usual = _usual(case, processors)
    if case.m <= 2 or (case.m <= 8 and not case.codes):
        return usual.get("gemv", usual["gemv_plain"])
    return (usual.get("fragments") if case.m <= 64 and case.codes else None) or usual["wgmma"]


def _usual(case: Case, processors: int) -> dict[str, Choice]:
    """Return the choice of each kernel by rule, where there is one."""
    result = {
        "gemv_plain": choice("gemv_plain", 8, 128, 4),
        "gemm_plain": _tiles(case, processors),
        "wgmma": _large(case, processors),
    }
    even = [c for c in gemvs(case) if c.get("warps") in (2, 4, 8)]
    cuts = [c for c in fragment_cuts(case) if c.get("groups") * 8 >= min(case.m, 32)]
    if even:
        result["gemv"] = min(even, key=lambda c: _unevenness(case, c, processors))
    if cuts:
        result["fragments"] = min(cuts, key=lambda c: _unusual(case, c))
    return result


def _unevenness(case: Case, c: Choice, processors: int) -> float:
    """Return a number that is small with several CTAs on each multiprocessor, words in flight, and few idle lanes."""
    step = c.get("lanes") * 4 * c.get("across")
    count = -(-words(case) // step)
    waste = count * step / words(case)
    programs = -(-case.n // c.get("rows"))
    beside = 4 if case.floats else 16  # warps on each: where every CTA quantises the token, fewer are better
    return abs(math.log(programs * c.get("warps") / (beside * processors))) + abs(math.log(count / 4)) + 4 * (waste - 1)


def _unusual(case: Case, c: Choice) -> float:
    """Return a number that is small with few groups, and near four warps and 48 rows a CTA, as most measured fastest.

    Where rows are few, CTAs take fewer.
    """
    warps, rows = c.get("across") * c.get("beside"), 16 * c.get("tiles") * c.get("beside")
    return 4 * c.get("groups") + abs(math.log(warps / 4)) + abs(math.log(rows / min(max(case.n / 40, 16), 48)))


def _large(case: Case, processors: int) -> Choice:
    """Return persistent CTAs where there are many tiles; else several for each tile, as long as each has some steps."""
    tokens = min(max(1 << (case.m - 1).bit_length(), 16), 128)
    step = 64 if case.codes else 128
    tile = _tile(case, 128, tokens, step, 0)
    assert tile is not None
    tiles = -(-case.n // 128) * -(-case.m // tokens)
    split = _parts(case, tiles, step, processors)
    return choice("wgmma", *tile, 1 if tiles > processors else -split if split > 1 else 0)
