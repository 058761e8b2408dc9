"""What would save memory: each line names ops, tensors and lines of code, and the bytes it would save, computed from what was seen.

Knows nothing of how memory is heard. A saving of the peak is the peak less the peak of the same events without what would
be saved. Where nothing is found, nothing is said.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tritium import dtype as dt
from tritium.buffer import host
from tritium.machine.facts import bytes_text
from tritium.memory import Stats
from tritium.op import OPS, Kind, Spec
from tritium.quant import scale_of
from tritium.see.memory.leaks import tensors_in
from tritium.see.memory.records import Advice, Event, Priority

MOST = 10  # lines of a kind
LEAST = 1 << 10  # bytes; below it a line costs more to read than it saves
LEAST_IDLE = 1 << 20
OFTEN = 3  # allocations of a size at a line before they are called repeated
FLOATS = (dt.f64, dt.f32, dt.f16, dt.bf16)
Column = np.ndarray[Any, np.dtype[np.int64]]


class Life(NamedTuple):
    """A block from its allocation to its end, by the numbers of the events."""

    nbytes: int
    op: str
    site: str
    thread: str
    reused: bool
    born: int
    died: int | None  # None: alive
    died_site: str = ""
    died_thread: str = ""


@dataclass(frozen=True, eq=False)
class Seen:
    """What advice is drawn from: lives and changes on the CPU, since the oldest event that was kept."""

    lives: Sequence[Life]
    first: int  # the number of the oldest event that was kept
    changes: Column  # bytes by which each event since then changed what is alive
    base: int  # bytes alive before it
    peak: int
    peak_at: int  # the number of its event
    events: Sequence[Event]
    before: Stats
    after: Stats
    devices_bytes: Mapping[str, int]  # the peak of every device

    @property
    def whole(self) -> bool:
        """Whether no event was lost: else nobody knows what the peak would be without some of them."""
        return self.first <= 1


def advice(seen: Seen, model: Any = None) -> tuple[Advice, ...]:
    """All of it, what saves most first. `model`: an object whose float weights are looked at too."""
    found = [
        *temporaries(seen), *repeated(seen), *hidden_copies(seen), *round_trips(seen), *idle(seen),
        *(ternary(model, seen.peak) if model is not None else ()),
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda a: (-a.potential_savings, a.description)))


def priority(nbytes: int, of: int) -> Priority:
    """By the share of the whole that would be saved."""
    share = nbytes / of if of else 1.0
    return "high" if share >= 0.2 else "medium" if share >= 0.05 else "low"


# ---- the peak


def temporaries(seen: Seen) -> list[Advice]:
    """Tensors that die on a line of element by element ops while what that line made next, of their size, is alive.

    Only lines without which the peak would hardly fall are named.
    """
    if not seen.whole:
        return []
    groups = _overlaps(seen)
    relief = {key: _relief(seen, found) for key, found in groups.items()}
    least = _peak_with(seen, relief.values())
    saved = seen.peak - least
    if saved < LEAST:
        return []
    for key in sorted(relief, key=lambda k: k[1] * len(groups[k])):  # the smallest first: what hardly helps is left out
        rest = _peak_with(seen, [v for k, v in relief.items() if k != key])
        if rest - least <= max(LEAST, saved // 20):
            del relief[key]
    least = _peak_with(seen, relief.values())
    saved = seen.peak - least
    told = [_together(seen, site, nbytes, groups[site, nbytes]) for site, nbytes in relief]
    return [
        Advice(
            "temporaries",
            f"{'; '.join(sorted(told)[:MOST])}: alive together, and all but one die on that line. Written in place (out=, +=, "
            f"relu_()) or inside tt.compile, the peak would be {bytes_text(least)} instead of {bytes_text(seen.peak)}.",
            saved,
            "the peak",
            priority(saved, seen.peak),
        )
    ]


class Overlap(NamedTuple):
    """A block that could have been the one born at `after`, or never have been, had the ops worked in place."""

    life: Life
    after: int
    op: str


def _overlaps(seen: Seen) -> dict[tuple[str, int], list[Overlap]]:
    """By line and size; the largest sums only.

    A result of the line itself would not be needed from the next birth there: one pass makes the end result. What came
    from elsewhere would be written over by the last birth there before it dies.
    """
    births: dict[tuple[str, str, int], list[Life]] = defaultdict(list)
    for life in sorted(seen.lives, key=lambda x: x.born):
        if life.site and life.nbytes >= LEAST and _element_by_element(life.op):
            births[life.site, life.thread, life.nbytes].append(life)
    groups: dict[tuple[str, int], list[Overlap]] = defaultdict(list)
    for life in seen.lives:
        there = births.get((life.died_site, life.died_thread, life.nbytes), [])
        if life.died is None or not there:
            continue
        own = life.site == life.died_site and _element_by_element(life.op)
        at = bisect_right(there, life.born, key=_born) if own else bisect_left(there, life.died, key=_born) - 1
        if 0 <= at < len(there) and life.born < there[at].born < life.died:
            groups[life.died_site, life.nbytes].append(Overlap(life, there[at].born, there[at].op))
    largest = sorted(groups, key=lambda k: -k[1] * len(groups[k]))[: 2 * MOST]
    return {k: groups[k] for k in largest}


def _born(life: Life) -> int:
    return life.born


def _element_by_element(op: str) -> bool:
    row = OPS.get(op)
    return row is not None and row.kind is Kind.MAP


def _relief(seen: Seen, found: Iterable[Overlap], each: int | None = None) -> Column:
    """What would be alive less at each event, as changes; `each`: by so much, not by bytes."""
    out = np.zeros(len(seen.changes), np.int64)
    for life, after, _ in found:
        assert life.died is not None
        out[after - seen.first] -= each or life.nbytes
        out[life.died - seen.first] += each or life.nbytes
    return out


def _peak_with(seen: Seen, relief: Iterable[Column]) -> int:
    course = seen.base + np.cumsum(sum(relief, start=seen.changes))
    return int(max(seen.base, course.max(initial=0)))


def _together(seen: Seen, site: str, nbytes: int, found: Sequence[Overlap]) -> str:
    """In words: 3 tensors of 4 MiB at model.py:12 (add, multiply)."""
    most = 1 - int(np.cumsum(_relief(seen, found, 1)).min(initial=0))
    return f"{most} tensors of {bytes_text(nbytes)} at {site} ({', '.join(sorted({o.op for o in found}))})"


# ---- work that could be spared


def repeated(seen: Seen) -> list[Advice]:
    """The same size asked of the system again and again, because the pool does not keep blocks that large, or so many."""
    groups: dict[tuple[str, str, int], list[Life]] = defaultdict(list)
    for life in seen.lives:
        if not life.reused and life.nbytes >= LEAST:
            groups[life.op, life.site, life.nbytes].append(life)
    found = []
    for (op, site, nbytes), lives in groups.items():
        again = _born_after_a_death(lives)
        if again < OFTEN:
            continue
        saved, limit = again * nbytes, seen.after.limit
        if nbytes > limit:
            why = f"a block of {bytes_text(nbytes)} is more than the {bytes_text(limit)} the pool keeps idle"
            remedy = f"give the op an out=, or let the pool keep it: memory.configure(limit={nbytes * 2})"
        else:
            why = f"the pool, which keeps {bytes_text(limit)} idle, had given the block back"
            remedy = "give the op an out=, or raise memory.configure(limit=…)"
        found.append(
            Advice(
                "repeated",
                f"{again} of {len(lives)} allocations of {bytes_text(nbytes)} {_by(op)}at {site or 'an unknown line'} came from the "
                f"system though one of that size had just been freed: {why}; {remedy}.",
                saved,
                "memory mapped anew",
                priority(nbytes, seen.peak),
            )
        )
    return sorted(found, key=lambda a: -a.potential_savings)[:MOST]


def _born_after_a_death(lives: Sequence[Life]) -> int:
    """How many of them began when an earlier one had ended, each end counted once."""
    ends = sorted(life.died for life in lives if life.died is not None)
    count = 0
    for life in sorted(lives, key=lambda x: x.born):
        if count < len(ends) and ends[count] < life.born:
            count += 1
    return count


def hidden_copies(seen: Seen) -> list[Advice]:
    """Views that had to copy, by line."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for e in seen.events:
        if e.kind == "hidden":
            groups[e.op, e.site].append(e.nbytes)
    found = []
    for (op, site), sizes in groups.items():
        total = sum(sizes)
        times = f"{len(sizes)} times, {bytes_text(total)} in all" if len(sizes) > 1 else f"{bytes_text(total)}"
        found.append(
            Advice(
                "hidden copies",
                f"{op or 'a view'} at {site or 'an unknown line'} had to copy {times}: its input is no plain run of memory "
                f"(transposed, or cut out). Make it contiguous() once before, or reshape before it is transposed.",
                total,
                "copies",
                priority(max(sizes), seen.peak),
            )
        )
    return sorted(found, key=lambda a: -a.potential_savings)[:MOST]


def round_trips(seen: Seen) -> list[Advice]:
    """The same number of bytes sent to another device and fetched back, again and again."""
    groups: dict[tuple[str, str, int], list[Event]] = defaultdict(list)
    for e in seen.events:
        if e.kind == "transfer":
            groups[e.device, e.to, e.nbytes].append(e)
    found = []
    for (source, target, nbytes), there in groups.items():
        back = groups.get((target, source, nbytes), [])
        pairs = min(len(there), len(back))
        if source > target or pairs < 2:  # each pair once; a single return is how a result comes home
            continue
        sites = ", ".join(sorted({e.site for e in (*there, *back) if e.site})[:3])
        saved = 2 * pairs * nbytes
        found.append(
            Advice(
                "round trips",
                f"{bytes_text(nbytes)} went from {source} to {target} and back {pairs} times{f' at {sites}' if sites else ''}: "
                f"keep it on one of them until the last op that needs it; that spares {bytes_text(saved)} of transfers.",
                saved,
                "transfers",
                priority(nbytes, max(seen.devices_bytes.values(), default=0)),
            )
        )
    return sorted(found, key=lambda a: -a.potential_savings)[:MOST]


def idle(seen: Seen) -> list[Advice]:
    """Idle blocks of sizes nobody asked for while we looked."""
    asked = {c.size: c.hits + c.misses for c in seen.before.classes}
    unused = [c for c in seen.after.classes if c.free and c.hits + c.misses == asked.get(c.size, 0)]
    in_classes = sum(c.size * c.free for c in seen.after.classes)
    large = seen.after.pooled_bytes - in_classes  # blocks of any size are listed under size 0
    saved = sum(c.size * c.free for c in unused) + (large if any(c.size == 0 for c in unused) else 0)
    if saved < LEAST_IDLE:
        return []
    blocks = sum(c.free for c in unused)
    return [
        Advice(
            "idle",
            f"the pool keeps {blocks} idle block{'s' * (blocks != 1)} ({bytes_text(saved)}) of sizes that were not asked for "
            f"while memory was tracked: memory.trim() gives idle memory back to the system.",
            saved,
            "idle memory",
            priority(saved, seen.after.current_block_bytes + seen.after.pooled_bytes),
        )
    ]


# ---- weights


def ternary(model: Any, peak: int) -> list[Advice]:
    """Float matrices that would be smaller in two bits a weight, and whether their values would stay the same."""
    found = []
    for path, w in tensors_in(model):
        if w.dtype not in FLOATS or w.ndim != 2 or getattr(w.storage, "device", None) is None:
            continue
        spec = Spec(w.shape, w.dtype)
        packed = Spec(w.shape, dt.tern2).nbytes + 4  # and a scale
        saved = spec.nbytes - packed
        if saved < LEAST:
            continue
        same = str(w.storage.device) == "cpu" and scale_of(host(w)) is not None
        kept = "its values stay as they are" if same else "its values change: train or fine-tune with BitLinear"
        found.append(
            Advice(
                "ternary",
                f"{path or 'the tensor'} {spec} takes {bytes_text(spec.nbytes)}; as tern2 with a scale {bytes_text(packed)}. It holds "
                f"{'only -s, 0 and s' if same else 'more than -s, 0 and s'}: {kept}.",
                saved,
                "weights",
                priority(saved, max(peak, spec.nbytes)),
            )
        )
    return sorted(found, key=lambda a: -a.potential_savings)[:MOST]


def _by(op: str) -> str:
    return f"by {op} " if op else ""
