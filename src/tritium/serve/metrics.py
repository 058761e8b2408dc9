"""Metrics of a server in Prometheus' format: counters and histograms under the names that dashboards of vLLM know.

Times are counted by the scheduler's thread, and read by others; `page` is text of Prometheus' format.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tritium.escape import prometheus as escaped

# Bounds of vLLM's histograms, so that its dashboards fit; seconds and tokens.
FIRST_S = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
)
BETWEEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
WHOLE_S = (
    0.01,
    0.05,
    0.1,
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
    480.0,
)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
REASONS = {"stop": "stop", "length": "length", "context": "length", "cancelled": "abort"}


class Histogram:
    """Counts of values up to each of some bounds, and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self._counts, self._sum = [0] * (len(bounds) + 1), 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Count a value."""
        with self._lock:
            self._counts[bisect_left(self.bounds, value)] += 1
            self._sum += value

    def read(self) -> tuple[list[int], float]:
        """Return how many values were at most each bound, all of them last; and their sum."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        sums, so_far = [], 0
        for count in counts:
            so_far += count
            sums.append(so_far)
        return sums, total


@dataclass
class Meter:
    """Times and tokens of the requests of one scheduler."""

    first: Histogram = field(default_factory=lambda: Histogram(FIRST_S))
    between: Histogram = field(default_factory=lambda: Histogram(BETWEEN_S))
    whole: Histogram = field(default_factory=lambda: Histogram(WHOLE_S))
    queued: Histogram = field(default_factory=lambda: Histogram(WHOLE_S))
    prompts: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    answers: Histogram = field(default_factory=lambda: Histogram(TOKENS))
    ended: Counter[str] = field(default_factory=Counter)  # by reason
    tokens: int = 0  # generated, also of answers under way

    def token(self, since_s: float, is_first: bool) -> None:
        """Count a token, so long after the one before it or after its request."""
        self.tokens += 1
        (self.first if is_first else self.between).observe(since_s)

    def end(self, finish: str | None, prompt: int, answer: int, seconds: float) -> None:
        """Count a request that ended; without a finish it failed."""
        self.ended[REASONS.get(finish or "", "error")] += 1
        self.prompts.observe(prompt)
        self.answers.observe(answer)
        self.whole.observe(seconds)


class Metric(NamedTuple):
    """A metric: its name, what it is, its kind, and its values by labels. A histogram is its own value."""

    name: str
    help_text: str
    kind: str
    values: Iterable[tuple[Mapping[str, str], float | Histogram]]


def page(metrics: Iterable[Metric]) -> str:
    """Return metrics in Prometheus' text format."""
    lines = []
    for m in metrics:
        lines += [f"# HELP {m.name} {escaped(m.help_text)}", f"# TYPE {m.name} {m.kind}"]
        for labels, value in m.values:
            if isinstance(value, Histogram):
                lines += _histogram(m.name, labels, value)
            else:
                lines.append(
                    f"{m.name}{_labels(labels)} {value:g}"
                    if isinstance(value, float)
                    else f"{m.name}{_labels(labels)} {value}"
                )
    return "\n".join(lines) + "\n"


def _histogram(name: str, labels: Mapping[str, str], histogram: Histogram) -> list[str]:
    counts, total = histogram.read()
    bounds = [*(f"{b:g}" for b in histogram.bounds), "+Inf"]
    rows = [f"{name}_bucket{_labels({**labels, 'le': b})} {n}" for b, n in zip(bounds, counts, strict=True)]
    return [*rows, f"{name}_count{_labels(labels)} {counts[-1]}", f"{name}_sum{_labels(labels)} {total:.9g}"]


def _labels(labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items())
    return f"{{{inside}}}" if inside else ""


def of_requests(meter: Meter, name: str) -> list[Metric]:
    """Return the metrics of the requests to a model."""
    labels = {"model_name": name}
    histograms = (
        ("time_to_first_token_seconds", "Time from a request to its first token.", meter.first),
        ("inter_token_latency_seconds", "Time between two tokens of an answer.", meter.between),
        ("e2e_request_latency_seconds", "Time from a request to its end.", meter.whole),
        ("request_queue_time_seconds", "Time a request waited for a slot.", meter.queued),
        ("request_prompt_tokens", "Tokens of a prompt.", meter.prompts),
        ("request_generation_tokens", "Tokens of an answer.", meter.answers),
    )
    ended = [
        ({**labels, "finished_reason": reason}, meter.ended[reason]) for reason in ("stop", "length", "abort", "error")
    ]
    return [
        *(Metric(f"vllm:{n}", help_text, "histogram", [(labels, h)]) for n, help_text, h in histograms),
        Metric("vllm:request_success_total", "Requests that ended, by reason.", "counter", ended),
        Metric("vllm:generation_tokens_total", "Tokens generated.", "counter", [(labels, meter.tokens)]),
    ]


class EnergyCounters:
    """Joules and watts of sensors; nothing where there are none. Counters of joules are continued where they begin anew.

    `find` lists sensors, such as `tritium.perf.meters.probe.probe`; what has no `read` among them is absent."""

    def __init__(self, find: Callable[[], Sequence[Any]] = tuple) -> None:
        self._find = find
        self._sensors: list[Any] | None = None
        self._last: dict[int, float] = {}
        self._joules: dict[int, float] = {}

    def read(self) -> list[Metric]:
        """Return joules since the first call, and watts now."""
        if self._sensors is None:
            self._sensors = [s for s in self._find() if hasattr(s, "read")]
        joules, watts = [], []
        for i, sensor in enumerate(self._sensors):
            value = sensor.read()
            if not isinstance(value, (int, float)):
                continue
            labels = {"source": sensor.source, "domain": sensor.domain}
            if sensor.unit == "W":
                watts.append((labels, float(value)))
                continue
            step = value - self._last.get(i, value)
            self._joules[i] = self._joules.get(i, 0.0) + (step if step >= 0 else step + (sensor.range_j or -step))
            self._last[i] = value
            joules.append((labels, self._joules[i]))
        metrics = (
            [Metric("tritium:energy_joules_total", "Energy since the first scrape.", "counter", joules)]
            if joules
            else []
        )
        return metrics + ([Metric("tritium:power_watts", "Power.", "gauge", watts)] if watts else [])
