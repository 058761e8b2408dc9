"""Checks of a program: a table of functions from a recorded run to findings about what makes it slow.

The run is recorded by `see.doctor.watch`; nothing here is about the machine. One check measures: larger batches of the
program's own costliest small product.
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
from tritium.see.doctor.checks import Check, Finding, Levels, Severity, grade
from tritium.see.doctor.watch import (
    LEAST_WEIGHTS,
    SMALL_NS,
    Calls,
    Chains,
    Compilations,
    Copied,
    Strided,
    Ternary,
    Transfers,
)

LEAST_ALLOCATIONS = 100
LEAST_CALLS = 20  # of one kind, below which spread and batch size are not judged
POOL: Levels = (
    ("warning", 0.5),
    ("note", 0.2),
)  # share of allocations taken from the system although such blocks had been returned to it
COPIED: Levels = (("warning", 1 << 20), ("note", 1))  # bytes of hidden copies
MOVED: Levels = (("problem", 0.25), ("warning", 0.05), ("note", 0.0))  # share of the run spent in transfers
SPREAD: Levels = (("warning", 0.5), ("note", 0.2))  # interquartile range over median of the times
SHARE = 0.02  # of the run: calls that take less are not reported
CHAINED: Levels = (("warning", 0.2), ("note", 0.02))  # share of the run in chains of small calls
ROWS = 8  # largest batch that counts as small
BATCH_ROWS = 64  # largest batch it is compared with
DENSE_SHARE = 0.3  # share of the run in products with f32 weights


def check_pool(before: memory.Stats, after: memory.Stats) -> Finding:
    requests, misses = after.allocations - before.allocations, after.misses - before.misses
    if requests < LEAST_ALLOCATIONS:
        return Finding("fine", f"{max(requests, 0)} allocations: too few for the pool to matter")
    blocks = sum(c.live + c.free for c in after.classes) - sum(c.live + c.free for c in before.classes)
    repeated = max(
        0, misses - max(0, blocks)
    )  # allocated from the system although such a block had been returned to it
    evidence = (
        f"{1 - misses / requests:.0%} of {requests} allocations came from the pool; {misses} from the system, {repeated} of them for "
        f"blocks that had been returned; it caches at most {bytes_text(after.limit)}"
    )
    severity = grade(repeated / requests, POOL)
    if severity == "fine":
        reason = " (the misses are tensors that are alive or cached for reuse)" if misses > requests / 2 else ""
        return Finding("fine", f"the pool reuses freed blocks{reason}", evidence)
    return Finding(
        severity, "memory is returned to the system and allocated again", evidence,
        f"tt.memory.configure(limit={2 * after.limit}); fewer new tensors: out=, x.add_(y), @tt.compile",
    )  # fmt: skip


def check_copies(copies: Sequence[Copied]) -> list[Finding]:
    if not copies:
        return [Finding("fine", "no hidden copy")]
    findings = []
    for c in sorted(copies, key=lambda c: -c.nbytes)[:5]:
        findings.append(Finding(
            grade(c.nbytes, COPIED), f"{c.op} makes a hidden copy at {c.site}",
            f"{c.count} time{'s' * (c.count > 1)}, {bytes_text(c.nbytes)} in total: no view can express this layout",
            f"copy once, outside the loop: x = x.contiguous(); or {c.op} before the transpose or slice",
        ))  # fmt: skip
    return findings


def check_transfers(total: Transfers, seconds: float) -> Finding:
    count, nbytes, ns = total
    if not count:
        return Finding("fine", "nothing moved between devices")
    share = ns / 1e9 / seconds if seconds else 0.0
    evidence = f"{count} transfers, {bytes_text(nbytes)}, {seconds_text(ns / 1e9)}: {share:.0%} of the run"
    severity: Severity = grade(share, MOVED) if count >= LEAST_CALLS else "note"
    return Finding(
        severity, "tensors move between devices", evidence,
        "move inputs once, before the loop: x = x.to(device); bring back only the result",
    )  # fmt: skip


def check_spread(calls: Sequence[Calls], seconds: float) -> list[Finding]:
    repeated = [c for c in calls if len(c.elapsed_ns) >= LEAST_CALLS and c.total_ns >= SHARE * seconds * 1e9]
    findings = []
    for c in repeated:
        low, middle, high, late = np.quantile(c.elapsed_ns, (0.25, 0.5, 0.75, 0.95)).tolist()
        spread = (high - low) / middle if middle else 0.0
        severity = grade(spread, SPREAD)
        if severity != "fine":
            evidence = (
                f"{len(c.elapsed_ns)} calls: half between {seconds_text(low / 1e9)} and {seconds_text(high / 1e9)}, 95th "
                f"percentile {seconds_text(late / 1e9)}"
            )
            findings.append((spread, Finding(
                severity, f"times of {c} vary by {spread:.0%}", evidence,
                "see the findings on the machine; compare two versions with tritium compare, not with one run of each",
            )))  # fmt: skip
    findings.sort(key=lambda entry: -entry[0])
    if findings:
        return [finding for _, finding in findings[:3]]
    return [
        Finding(
            "fine",
            f"times of repeated calls are steady ({len(repeated)} kinds of calls were repeated often enough to judge)",
        )
    ]


def check_small_calls(chains: Chains | None, eager_calls: int, seconds: float) -> Finding:
    if chains is None or chains.calls < LEAST_CALLS:
        return Finding("fine", "no chains of small calls that fusion could replace")
    share = chains.elapsed_ns / 1e9 / seconds if seconds else 0.0
    evidence = (
        f"{chains.calls} of {eager_calls} calls outside compiled functions take less than {seconds_text(SMALL_NS / 1e9)} and work on "
        f"the previous result ({' → '.join(chains.names[:6])}, {chains.times} times): {seconds_text(chains.elapsed_ns / 1e9)}, "
        f"{share:.0%} of the run; fused, each would move about {bytes_text(chains.saved_bytes)} less"
    )
    severity = grade(share, CHAINED)
    if severity == "fine":
        return Finding("fine", "chains of small calls take little time", evidence)
    return Finding(
        severity, "many small calls follow one another; tt.compile would fuse them", evidence,
        "decorate the function that contains them with @tt.compile; fn.explain(x) shows what was fused",
    )  # fmt: skip


def check_compilation(counts: Compilations) -> Finding:
    calls, programs = counts
    evidence = (
        f"{programs} program{'s' * (programs != 1)} compiled for {calls} call{'s' * (calls != 1)} of compiled functions"
    )
    if programs < LEAST_CALLS or 2 * programs < calls:
        return Finding("fine", evidence)
    return Finding(
        "warning", "compiled functions are recompiled again and again", evidence,
        "pass numbers that change as tensors; pad or bucket shapes that change; fn.cache_info() shows the counts",
    )  # fmt: skip


def check_layouts(strided: Sequence[Strided], calls: Sequence[Calls], seconds: float) -> list[Finding]:
    if not strided:
        return [Finding("fine", "operands are contiguous (the first call of each kind was examined)")]
    findings = []
    for s in strided[:5]:
        same_kind = [c for c in calls if c.op.name == s.op and _match(s.inputs, c.inputs)]
        total = sum(c.total_ns for c in same_kind) / 1e9
        share = total / seconds if seconds else 0.0
        evidence = f"{s.spec} with strides {s.strides}; {sum(len(c.elapsed_ns) for c in same_kind)} calls of this kind, {share:.0%} of the run"
        findings.append(Finding(
            "warning" if share > 0.1 else "note", f"{s.op} has a non-contiguous operand at {s.site}", evidence,
            "x = x.contiguous() once, if it is used more than once",
        ))  # fmt: skip
    return findings


def _match(seen: Specs, recorded: Specs) -> bool:
    """Return True if operands are those of a recorded kind of call; a number (None) is recorded as a 0-d tensor."""
    return len(seen) == len(recorded) and all(s is None or s == r for s, r in zip(seen, recorded, strict=True))


def check_weights(matrices: Sequence[Ternary], calls: Sequence[Calls], seconds: float) -> list[Finding]:
    findings = []
    for t in matrices[:5]:
        packed = Spec(t.spec.shape, tern2).nbytes
        findings.append(Finding(
            "warning", f"the f32 weights of {t.op} at {t.site} are ternary",
            f"{t.spec}: every value is -{t.scale:.4g}, 0 or {t.scale:.4g} ({t.zeros:.0%} zeros): {bytes_text(t.spec.nbytes)}, packed "
            f"{bytes_text(packed)}",
            f"layer = tt.nn.BitLinear.from_ternary(tt.sign({'w.T' if t.op == 'matmul' else 'w'}).to('i8'), scale={t.scale!r}): the same "
                "weights; it rounds activations to int8",
        ))  # fmt: skip
    dense = [c for c in calls if c.op in (ops.matmul, ops.linear) and _weight_spec(c) is not None]
    share = sum(c.total_ns for c in dense) / 1e9 / seconds if seconds else 0.0
    if not findings and share > DENSE_SHARE:
        largest = max(dense, key=lambda c: c.total_ns)
        findings.append(Finding(
            "note", "products with f32 weights take most of the time; ternary weights are 16 times smaller, but change the results",
            f"{share:.0%} of the run, most of it in {largest}",
            "tt.quant.quality(w, 'ternary') measures the loss of accuracy",
        ))  # fmt: skip
    return findings or [
        Finding("fine", "no f32 weights that are ternary (those of the first call at each line were examined)")
    ]


def _weight_spec(c: Calls) -> Spec | None:
    w = c.inputs[1] if len(c.inputs) > 1 else None
    return w if w is not None and w.ndim == 2 and w.dtype is f32 and w.size >= LEAST_WEIGHTS else None


def check_batches(calls: Sequence[Calls], seconds: float) -> Finding:
    """Check the costliest product of few rows by measuring it with larger batches, too."""
    few = [c for c in calls if c.device == "cpu" and _count_rows(c) is not None and len(c.elapsed_ns) >= LEAST_CALLS]
    relevant = [c for c in few if c.total_ns >= SHARE * seconds * 1e9]
    if not relevant:
        return Finding("fine", f"no dense product of at most {ROWS} rows is repeated often enough to matter")
    costliest = max(relevant, key=lambda c: c.total_ns)
    size = _count_rows(costliest) or 1
    result = measure_batch(costliest, size)
    advice = result.advice(size)
    evidence = f"{len(costliest.elapsed_ns)} calls of {costliest}, {costliest.total_ns / 1e9 / seconds:.0%} of the run"
    if not advice:
        return Finding("fine", "small batches cost little here", f"{evidence}; best: {result}")
    return Finding(
        "warning", f"a batch of {size} is small: the same weights are read for every {'row' if size == 1 else f'{size} rows'}",
        f"{evidence}; measured now: {_compare_batches(result, size)}",
        "compute several rows at once: tt.process_in_batches(fn, data), fn.run_many(inputs); tt.find_optimal_batch_size finds the size",
    )  # fmt: skip


def _compare_batches(result: BatchSize, size: int) -> str:
    """Return the time of one row in batches of the program's size and in the best one, as text."""
    trials = [t for t in result.trials if t.seconds]
    near = max([t for t in trials if t.size <= size] or trials[:1], key=lambda t: t.size)
    best = next(t for t in trials if t.size == result.size)
    return (
        f"{near.size} at a time take {seconds_text(near.per_item_s)} a row, {best.size} at a time {seconds_text(best.per_item_s)}: "
        f"{near.per_item_s / best.per_item_s:.1f} times as fast (medians of {len(best.seconds)} runs)"
    )


def _count_rows(c: Calls) -> int | None:
    """Return the number of rows of a product of few rows with a large matrix; None for other calls."""
    if (
        c.op not in (ops.matmul, ops.linear)
        or _weight_spec(c) is None
        or c.inputs[0] is None
        or c.inputs[0].dtype is not f32
    ):
        return None
    rows = prod(c.inputs[0].shape[:-1])
    return rows if 1 <= rows <= ROWS else None


def measure_batch(c: Calls, size: int) -> BatchSize:
    x, w = c.inputs[0], c.inputs[1]
    assert x is not None
    assert w is not None
    data, matrix = randn((BATCH_ROWS, x.shape[-1]), seed=1), randn(w.shape, seed=2)
    with warnings.catch_warnings():  # the finding has the advice
        warnings.simplefilter("ignore")
        return advise_batch(lambda n: c.op(data[:n], matrix), size, maximum=BATCH_ROWS)


SCRIPT = (
    Check("memory pool", check_pool, ("before", "after")),
    Check("hidden copies", check_copies, ("copies",)),
    Check("transfers", check_transfers, ("transfers", "seconds")),
    Check("steady times", check_spread, ("calls", "seconds")),
    Check("small calls", check_small_calls, ("chains", "eager_calls", "seconds")),
    Check("compilation", check_compilation, ("compiled",)),
    Check("layouts", check_layouts, ("strided", "calls", "seconds")),
    Check("f32 weights", check_weights, ("ternary", "calls", "seconds")),
    Check("batches", check_batches, ("calls", "seconds")),
)
