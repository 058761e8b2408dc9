"""Timelines made for tests: a small network's decode, nested spans at random, and names from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tritium.see.trace.timeline import Counter, Samples, Timeline, What, timeline

Span = tuple[What, int, int, int]


def op(name: str = "matmul", **more: Any) -> What:
    about: dict[str, Any] = {
        "kernel": "tile", "detail": "f32[8,512] -> f32[8,512]", "flops": 1000, "read": 64, "written": 32,
    }  # fmt: skip
    return What(name, "op", **(about | more))


def scope(name: str) -> What:
    return What(name, "scope", device="")


def decode(slowed: float = 1.0, *, steps: int = 2, layers: int = 3, copies: bool = False, **about: Any) -> Timeline:
    """Steps of a little network; `slowed` times the ternary products, `copies` one more op in every layer."""
    spans: list[Span] = []
    at = 100

    def run(name: str, ns: int) -> None:
        nonlocal at
        spans.append((op(name), at, ns, 0))
        at += ns + 10

    for _ in range(steps):
        began = at
        for i in range(layers):
            inner = at
            run("rms_norm", 900)
            run("ternary_matmul", int(6000 * slowed))
            run("attention", 4500)
            if copies:
                run("copy", 1200)
            spans.append((scope(f"layer {i}"), inner, at - inner, 0))
        run("softmax", 700)
        spans.append((scope("step"), began, at - began, 0))
        at += 50
    return timeline(spans, ("MainThread",), at, **({"name": "decode"} | about))


def named(names: Sequence[str], **about: Any) -> Timeline:
    """A timeline with these names wherever a name can stand: ops, scopes, kernels, lanes, counters, frames, notes."""
    spans: list[Span] = []
    for i, name in enumerate(names):
        spans.append((scope(name), 100 * i, 90, i % 7))
        spans.append((op(name, kernel=name, detail=name, device="cpu"), 100 * i + 10, 50, i % 7))
    lanes = tuple(names[i % len(names)] for i in range(7))
    some = np.arange(3, dtype=np.int64)
    counters = tuple(Counter(n, n, some, some.astype(float)) for n in names[:50]) + tuple(
        Counter(n, "W", some[:0], some[:0].astype(float), n) for n in names[50:100]
    )
    every = tuple((i,) for i in range(len(names)))
    at = np.arange(len(names), dtype=np.int64)
    samples = Samples(tuple(names), every, 1000 * (at + 1), at % 7, at, 1000)
    made: dict[str, Any] = {
        "name": names[0],
        "began": names[0],
        "counters": counters,
        "samples": samples,
        "notes": tuple(names[:40]),
    }
    return timeline(spans, lanes, 100 * len(names) + 1000, **(made | about))


@st.composite
def nested(draw: st.DrawFn, lanes: int = 2, most: int = 25) -> Timeline:
    """Spans that are apart or one inside the other, with zero lengths and shared edges among them."""
    spans: list[Span] = []

    def fill(start: int, end: int, lane: int, left: int) -> None:
        at = start
        while at <= end and left > 0 and len(spans) < most and draw(st.booleans()):
            begins = draw(st.integers(at, end))
            ends = draw(st.integers(begins, end))
            spans.append((op(draw(st.sampled_from("abcd"))), begins, ends - begins, lane))
            fill(begins, ends, lane, left - 1)
            at = ends if ends > begins else ends + 1

    for lane in range(lanes):
        fill(0, 10_000, lane, 4)
    return timeline(spans, [f"lane {i}" for i in range(lanes)], 12_000)


@st.composite
def any_spans(draw: st.DrawFn, lanes: int = 2) -> Timeline:
    """Spans as they come: some of them cross."""
    one = st.tuples(st.sampled_from("abcd"), st.integers(0, 5000), st.integers(0, 3000), st.integers(0, lanes - 1))
    spans = [(op(name), start, length, lane) for name, start, length, lane in draw(st.lists(one, max_size=25))]
    return timeline(spans, [f"lane {i}" for i in range(lanes)], 9000)


def million(n: int = 1_000_000) -> Timeline:
    """Many spans, quickly: scopes with nine ops in each, on four lanes."""
    whats = (scope("layer"), *(op(f"op {i}", detail=f"f32[8,{512 + i}] -> f32[8,512]") for i in range(50)))
    which = np.arange(n, dtype=np.int64)
    lane = which * 4 // max(1, n)
    start = which * 1000 + which % 7
    head = which % 10 == 0
    elapsed = np.where(head, 9900, 700).astype(np.int64)
    what = np.where(head, 0, 1 + which % 50).astype(np.int64)
    ends = np.minimum(start + elapsed, (which // 10 * 10 + 10) * 1000)
    return Timeline(whats, what, start, ends - start, lane, tuple(f"thread {i}" for i in range(4)), n * 1000 + 10_000)
