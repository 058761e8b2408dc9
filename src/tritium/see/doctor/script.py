"""What a program does that costs speed: a table of checks of what was seen while it ran.

Knows nothing of how it was watched (`see.doctor.watch`), nor of the machine. One check measures: batches of the program's own
costliest small product.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import prod

import numpy as np

from tritium import memory, ops
from tritium.batching.batches import BatchSize, advise_batch
from tritium.dtype import f32, tern2
from tritium.functions import randn
from tritium.machine.facts import bytes_text, seconds_text
from tritium.op import Spec, Specs
from tritium.see.doctor.checks import Check, Finding, Levels, Severity, graded
from tritium.see.doctor.watch import LEAST_WEIGHTS, SMALL_NS, Calls, Chains, Copied, Strided, Ternary

LEAST_ALLOCATIONS = 100
LEAST_CALLS = 20  # of one kind, before its spread or its batch means something
POOL: Levels = (
    ("warning", 0.5),
    ("note", 0.2),
)  # of allocations that went to the system though blocks had been given back
COPIED: Levels = (("warning", 1 << 20), ("note", 1))  # bytes of hidden copies
MOVED: Levels = (("problem", 0.25), ("warning", 0.05), ("note", 0.0))  # of the run, spent in transfers
SPREAD: Levels = (("warning", 0.5), ("note", 0.2))  # width of the middle half of the times, of their median
SHARE = 0.02  # of the run: what takes less is not worth a word
CHAINED: Levels = (("warning", 0.2), ("note", 0.02))  # of the run, in chains of small calls
ROWS = 8  # a batch of so few is looked at
BATCH_ROWS = 64  # and measured beside up to so many
DENSE_SHARE = 0.3  # of the run, in products with f32 weights


def pool(before: memory.Stats, after: memory.Stats) -> Finding:
    asked, misses = after.allocations - before.allocations, after.misses - before.misses
    if asked < LEAST_ALLOCATIONS:
        return Finding("fine", f"{max(asked, 0)} allocations: too few for the pool to matter")
    blocks = sum(c.live + c.free for c in after.classes) - sum(c.live + c.free for c in before.classes)
    again = max(0, misses - max(0, blocks))  # taken from the system though such a block had been given back to it
    told = (
        f"{1 - misses / asked:.0%} of {asked} allocations came from the pool; {misses} from the system, {again} of them for "
        f"blocks that had been given back; it keeps at most {bytes_text(after.limit)} idle"
    )
    severity = graded(again / asked, POOL)
    if severity == "fine":
        grown = " (the misses are tensors that are alive or kept for reuse)" if misses > asked / 2 else ""
        return Finding("fine", f"the pool serves what it can{grown}", told)
    return Finding(
        severity, "memory goes back to the system and is taken again", told,
        f"tt.memory.configure(limit={2 * after.limit}); fewer new tensors: out=, x.add_(y), @tt.compile",
    )  # fmt: skip


def copies(found: Sequence[Copied]) -> list[Finding]:
    if not found:
        return [Finding("fine", "no hidden copy")]
    out = []
    for c in sorted(found, key=lambda c: -c.nbytes)[:5]:
        out.append(Finding(
            graded(c.nbytes, COPIED), f"{c.op} copies behind your back at {c.site}",
            f"{c.count} time{'s' * (c.count > 1)}, {bytes_text(c.nbytes)} in all: the view cannot show such a layout",
            f"copy once, outside the loop: x = x.contiguous(); or {c.op} before the transpose or slice",
        ))  # fmt: skip
    return out


def transfers(found: tuple[int, int, int], seconds: float) -> Finding:
    count, nbytes, ns = found
    if not count:
        return Finding("fine", "nothing moved between devices")
    share = ns / 1e9 / seconds if seconds else 0.0
    told = f"{count} transfers, {bytes_text(nbytes)}, {seconds_text(ns / 1e9)}: {share:.0%} of the run"
    severity: Severity = graded(share, MOVED) if count >= LEAST_CALLS else "note"
    return Finding(
        severity, "tensors move between devices", told,
        "move inputs once, before the loop: x = x.to(device); bring back only the result",
    )  # fmt: skip


def unsteady(calls: Sequence[Calls], seconds: float) -> list[Finding]:
    counted = [c for c in calls if len(c.elapsed_ns) >= LEAST_CALLS and c.total_ns >= SHARE * seconds * 1e9]
    out = []
    for c in counted:
        low, middle, high, late = np.quantile(c.elapsed_ns, (0.25, 0.5, 0.75, 0.95)).tolist()
        spread = (high - low) / middle if middle else 0.0
        severity = graded(spread, SPREAD)
        if severity != "fine":
            told = (
                f"{len(c.elapsed_ns)} calls: half between {seconds_text(low / 1e9)} and {seconds_text(high / 1e9)}, 5 % from "
                f"{seconds_text(late / 1e9)} on"
            )
            out.append((spread, Finding(
                severity, f"times of {c} vary by {spread:.0%}", told,
                "see the findings on the machine; compare two versions by tritium compare, not by one run of each",
            )))  # fmt: skip
    out.sort(key=lambda found: -found[0])
    if out:
        return [finding for _, finding in out[:3]]
    return [Finding("fine", f"times of repeated calls are steady ({len(counted)} kinds of call were repeated enough)")]


def small_calls(found: Chains | None, eager_calls: int, seconds: float) -> Finding:
    if found is None or found.calls < LEAST_CALLS:
        return Finding("fine", "no chains of small calls that one pass could replace")
    share = found.elapsed_ns / 1e9 / seconds if seconds else 0.0
    told = (
        f"{found.calls} of {eager_calls} calls outside compiled functions take less than {seconds_text(SMALL_NS / 1e9)} and work on "
        f"the result before ({' → '.join(found.names[:6])}, {found.times} times): {seconds_text(found.elapsed_ns / 1e9)}, "
        f"{share:.0%} of the run; one pass over each would move about {bytes_text(found.saved_bytes)} less"
    )
    severity = graded(share, CHAINED)
    if severity == "fine":
        return Finding("fine", "chains of small calls take little time", told)
    return Finding(
        severity, "many small calls follow one another; compiled they would be one", told,
        "@tt.compile above the function that holds them; fn.explain(x) tells what was fused",
    )  # fmt: skip


def recompiled(found: tuple[int, int]) -> Finding:
    called, made = found
    told = f"{made} program{'s' * (made != 1)} made for {called} call{'s' * (called != 1)} of compiled functions"
    if made < LEAST_CALLS or 2 * made < called:
        return Finding("fine", told)
    return Finding(
        "warning", "compiled functions compile again and again", told,
        "pass numbers that change as tensors; pad or bucket shapes that change; fn.cache_info() tells",
    )  # fmt: skip


def layouts(found: Sequence[Strided], calls: Sequence[Calls], seconds: float) -> list[Finding]:
    if not found:
        return [Finding("fine", "operands lie row by row (the first call of each kind was looked at)")]
    out = []
    for s in found[:5]:
        alike = [c for c in calls if c.op.name == s.op and _fits(s.inputs, c.inputs)]
        total = sum(c.total_ns for c in alike) / 1e9
        share = total / seconds if seconds else 0.0
        told = f"{s.spec} with strides {s.strides}; {sum(len(c.elapsed_ns) for c in alike)} calls of its kind, {share:.0%} of the run"
        out.append(Finding(
            "warning" if share > 0.1 else "note", f"{s.op} is given memory with gaps at {s.site}", told,
            "x = x.contiguous() once, where it is used more than once",
        ))  # fmt: skip
    return out


def _fits(seen: Specs, recorded: Specs) -> bool:
    """Whether these are operands of one kind of call; a number (None) is recorded as a tensor without axes."""
    return len(seen) == len(recorded) and all(s is None or s == r for s, r in zip(seen, recorded, strict=True))


def weights(found: Sequence[Ternary], calls: Sequence[Calls], seconds: float) -> list[Finding]:
    out = []
    for t in found[:5]:
        packed = Spec(t.spec.shape, tern2).nbytes
        out.append(Finding(
            "warning", f"the f32 weights of {t.op} at {t.site} are ternary",
            f"{t.spec}: every value is -{t.scale:.4g}, 0 or {t.scale:.4g} ({t.zeros:.0%} zeros): {bytes_text(t.spec.nbytes)} for what "
            f"{bytes_text(packed)} hold",
            f"layer = tt.nn.BitLinear.from_ternary(tt.sign({'w.T' if t.op == 'matmul' else 'w'}).to('i8'), scale={t.scale!r}): the same "
                "weights; it rounds activations to int8",
        ))  # fmt: skip
    dense = [c for c in calls if c.op in (ops.matmul, ops.linear) and _weights(c) is not None]
    share = sum(c.total_ns for c in dense) / 1e9 / seconds if seconds else 0.0
    if not out and share > DENSE_SHARE:
        largest = max(dense, key=lambda c: c.total_ns)
        out.append(Finding(
            "note", "products with f32 weights take most of the time; ternary ones are 16 times smaller, but give other results",
            f"{share:.0%} of the run, the most of it in {largest}",
            "tt.quant.quality(w, 'ternary') tells what it would cost in accuracy",
        ))  # fmt: skip
    return out or [
        Finding("fine", "no f32 weights that are ternary (those of the first call at each place were looked at)")
    ]


def _weights(c: Calls) -> Spec | None:
    w = c.inputs[1] if len(c.inputs) > 1 else None
    return w if w is not None and w.ndim == 2 and w.dtype is f32 and w.size >= LEAST_WEIGHTS else None


def batches(calls: Sequence[Calls], seconds: float) -> Finding:
    """The costliest product of few rows, measured here beside larger batches of the same."""
    few = [c for c in calls if c.device == "cpu" and _rows(c) is not None and len(c.elapsed_ns) >= LEAST_CALLS]
    worth = [c for c in few if c.total_ns >= SHARE * seconds * 1e9]
    if not worth:
        return Finding("fine", f"no dense product of at most {ROWS} rows is repeated often enough to matter")
    costliest = max(worth, key=lambda c: c.total_ns)
    size = _rows(costliest) or 1
    found = measured_batch(costliest, size)
    small = found.advice(size)
    told = f"{len(costliest.elapsed_ns)} calls of {costliest}, {costliest.total_ns / 1e9 / seconds:.0%} of the run"
    if not small:
        return Finding("fine", "small batches cost little here", f"{told}; best: {found}")
    return Finding(
        "warning", f"a batch of {size} is small: the same weights are read for every {'row' if size == 1 else f'{size} rows'}",
        f"{told}; measured now: {_beside(found, size)}",
        "compute several at once: tt.process_in_batches(fn, data), fn.run_many(inputs); tt.find_optimal_batch_size finds the size",
    )  # fmt: skip


def _beside(found: BatchSize, size: int) -> str:
    """What a row takes in batches like the program's, and in the best one."""
    ran = [t for t in found.trials if t.seconds]
    near = max([t for t in ran if t.size <= size] or ran[:1], key=lambda t: t.size)
    best = next(t for t in ran if t.size == found.size)
    return (
        f"{near.size} at a time take {seconds_text(near.per_item_s)} a row, {best.size} at a time {seconds_text(best.per_item_s)}: "
        f"{near.per_item_s / best.per_item_s:.1f} times as fast (medians of {len(best.seconds)} runs)"
    )


def _rows(c: Calls) -> int | None:
    """The rows of a product of few of them with a large matrix."""
    if (
        c.op not in (ops.matmul, ops.linear)
        or _weights(c) is None
        or c.inputs[0] is None
        or c.inputs[0].dtype is not f32
    ):
        return None
    rows = prod(c.inputs[0].shape[:-1])
    return rows if 1 <= rows <= ROWS else None


def measured_batch(c: Calls, size: int) -> BatchSize:
    x, w = c.inputs[0], c.inputs[1]
    assert x is not None
    assert w is not None
    data, matrix = randn((BATCH_ROWS, x.shape[-1]), seed=1), randn(w.shape, seed=2)
    with warnings.catch_warnings():  # the advice is told in the finding
        warnings.simplefilter("ignore")
        return advise_batch(lambda n: c.op(data[:n], matrix), size, maximum=BATCH_ROWS)


SCRIPT = (
    Check("memory pool", pool, ("before", "after")),
    Check("hidden copies", copies, ("copies",)),
    Check("transfers", transfers, ("transfers", "seconds")),
    Check("steady times", unsteady, ("calls", "seconds")),
    Check("small calls", small_calls, ("chains", "eager_calls", "seconds")),
    Check("compilation", recompiled, ("compiled",)),
    Check("layouts", layouts, ("strided", "calls", "seconds")),
    Check("f32 weights", weights, ("ternary", "calls", "seconds")),
    Check("batches", batches, ("calls", "seconds")),
)
