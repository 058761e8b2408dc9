"""Speed of a model on this machine: prefill, decode, time to first token, load time, memory, and the energy of both phases.

Every sample is stored; what cannot be measured has a reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from statistics import mean, median, stdev
from time import perf_counter
from typing import Any

import numpy as np

from tritium.errors import ArgumentError
from tritium.io.stream import Progress
from tritium.machine.facts import bytes_text, processor
from tritium.models import prepacked
from tritium.models.bounds import Bounded
from tritium.models.load import Model
from tritium.models.session import Session
from tritium.perf.meters.meter import EnergyMeter
from tritium.perf.stats.resample import student_quantile
from tritium.threads import get_num_threads

WINDOWS = 3  # of energy, for each phase


@dataclass(frozen=True)
class Measured:
    """Samples of one quantity."""

    unit: str
    samples: tuple[float, ...] = ()
    absent: str = ""  # reason for having none

    @property
    def median(self) -> float:
        """Return the median of the samples."""
        return median(self.samples) if self.samples else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval of the typical value, from the spread of the logarithms of the samples."""
        n = len(self.samples)
        if n < 2:
            return math.nan, math.nan
        logs = [math.log(s) for s in self.samples]
        half = student_quantile(0.975, n - 1) * stdev(logs) / math.sqrt(n)
        return math.exp(mean(logs) - half), math.exp(mean(logs) + half)

    def __str__(self) -> str:
        if not self.samples:
            return f"not measured: {self.absent}"
        low, high = self.interval
        interval = "" if math.isnan(low) else f"  ({low:.4g} … {high:.4g}, 95 %)"
        return f"{self.median:.4g} {self.unit}{interval}  {len(self.samples)} sample{'s' * (len(self.samples) > 1)}"


@dataclass(frozen=True)
class Report:
    """The result of `measure`."""

    model: str
    machine: str
    threads: int
    prefill_tokens: int
    decode_tokens: int
    batch: int
    weight_bytes: int  # read for every token
    cache_bytes: int  # of the KV cache, for the tokens of one run
    head: str  # how the output head was read, and how often bounds were enough
    rows: dict[str, Measured] = field(default_factory=dict)

    @property
    def bandwidth(self) -> float:
        """Return the bytes of weights read per second while decoding."""
        return self.weight_bytes * self.rows["decode"].median / self.batch

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        rows = {
            name: asdict(row)
            | {"median": row.median if row.samples else None}
            | {"interval_95": row.interval if len(row.samples) > 1 else None}
            for name, row in self.rows.items()
        }
        return asdict(self) | {"rows": rows, "decode_weight_bytes_per_s": self.bandwidth}

    def page(self) -> str:
        """Return the report as text."""
        lines = [f"{self.model} on {self.machine}, {self.threads} thread{'s' * (self.threads > 1)}"]
        workload = f"prefill {self.prefill_tokens} tokens, decode {self.decode_tokens}"
        lines.append(workload + (f", batch {self.batch}" if self.batch > 1 else ""))
        width = max(map(len, self.rows))
        lines += ["", *(f"{name:<{width}}  {row}" for name, row in self.rows.items()), ""]
        lines.append(
            f"Every token reads {bytes_text(self.weight_bytes)} of weights: {self.bandwidth / 1e9:.1f} GB/s while decoding "
            "(`tritium ceilings` measures the memory bandwidth)."
        )
        lines.append(f"Output head: {self.head}.")
        return "\n".join(lines)


def measure(
    make: Callable[[], Model], *, prefill: int = 128, decode: int = 64, repeat: int = 5, batch: int = 1,
    progress: Progress | None = None, meter: EnergyMeter | None = None, windows: int = WINDOWS,
) -> Report:  # fmt: skip
    """Load a model, warm it up, and time `repeat` runs of a prompt of `prefill` tokens and `decode` tokens after it.

    windows: in each of which a phase is repeated for as long as the counters of energy need.
    """

    def report(done: int, step: str) -> None:
        if progress is not None:
            progress(done, repeat + 2, step)

    report(0, "loading")
    ready, model = _ready(make)
    if prefill + decode > model.config.context:
        raise ArgumentError(
            f"bench model: {prefill} tokens of prompt and {decode} decoded were requested; this model's context is "
            f"{model.config.context}. Request fewer (-p, -n)."
        )
    report(1, "warming up")
    session = model.session(slots=batch, context=min(prefill + decode + 1, model.config.context))
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, model.config.vocab_size, prefill).tolist()
    _run(session, prompt, 2)  # compiles
    prefills, firsts, decodes = [], [], []
    for i in range(repeat):
        report(i + 2, f"run {i + 1} of {repeat}")
        first, spent = _run(session, prompt, decode)
        prefills.append(prefill / first)
        firsts.append(first)
        decodes.append(batch * decode / spent)
    watch = EnergyMeter(device=str(model.device)) if meter is None else meter
    energy = _energy(session, prompt, decode, watch, windows)
    report(repeat + 2, "")
    linears = prepacked.linears(model.network)
    head = model.network.head.weight
    certified = model.network.certified
    table = 0 if "lm_head" in linears else head.nbytes if certified is None else certified.nbytes
    read = sum(q.nbytes for q in linears.values()) + table
    rows = {
        "ready": ready, "prefill": Measured("tokens/s", tuple(prefills)), "first token": Measured("s", tuple(firsts)),
        "decode": Measured("tokens/s", tuple(decodes)), "peak memory": peak_memory(), **energy,
    }  # fmt: skip
    return Report(
        model.name, processor(), get_num_threads(), prefill, decode, batch, read,
        session.nbytes, model.head_use, rows,
    )  # fmt: skip


def _ready(make: Callable[[], Model], times: int = 3) -> tuple[Measured, Model]:
    """Return the seconds until a model is loaded, and the model; the first time, with a cold file cache, is left out."""
    samples = []
    make()
    for _ in range(times):
        begun = perf_counter()
        make()
        samples.append(perf_counter() - begun)
    return Measured("s", tuple(samples)), make()


def _run(session: Session, prompt: list[int], decode: int) -> tuple[float, float]:
    """Return the seconds to the first token, and the seconds of all further ones."""
    slots = list(range(session.slots))
    for slot in slots:
        session.truncate(slot, 0)
    begun = perf_counter()
    logits = session.extend_bounded(0, prompt)
    token = logits.largest()[0] if isinstance(logits, Bounded) else int(logits.argmax())
    first = perf_counter() - begun
    for slot in slots[1:]:
        session.extend(slot, prompt)
    begun = perf_counter()
    _decode(session, token, decode)
    return first, perf_counter() - begun


def _decode(session: Session, token: int, times: int) -> None:
    """Decode this many tokens in every slot."""
    slots = list(range(session.slots))
    ids = [token] * len(slots)
    for left in reversed(range(times)):
        ids = session.pick(slots, ids, ahead=left > 0).ids


def _energy(session: Session, prompt: list[int], decode: int, meter: EnergyMeter, windows: int) -> dict[str, Measured]:
    """Return joules per token of prefill and of decoding, each with and without what idling for as long takes."""
    slots = range(session.slots)

    def read() -> None:
        for slot in slots:
            session.truncate(slot, 0)
            session.extend(slot, prompt)

    def write() -> None:
        for slot in slots:
            session.truncate(slot, session.reusable(slot, len(prompt)))
        _decode(session, 0, decode)

    phases = {"prefill": (read, len(prompt)), "decode": (write, decode)}
    rows: dict[str, Measured] = {}
    for name, (phase, tokens) in phases.items():
        rows |= _joules(f"{name} energy", phase, session.slots * tokens, meter, windows)
    return rows


def _joules(name: str, phase: Callable[[], None], tokens: int, meter: EnergyMeter, windows: int) -> dict[str, Measured]:
    """Return the rows of one phase; without the second where the idle power is unknown."""
    whole, above = [], []
    for _ in range(windows):
        reading = meter.window(phase)
        if reading["kind"] != "measured":  # nor would the next window be: an estimate is no measurement
            return {name: Measured("J/token", (), reading["reason"])}
        details = reading["details"]
        whole.append(reading["value"] / tokens)
        if details.get("above_idle_j") is not None and details.get("calls"):
            above.append(details["above_idle_j"] / details["calls"] / tokens)
    unit = f"J/token, of {details['domain']} ({reading['source']})"
    rows = {name: Measured(unit, tuple(whole))}
    if len(above) == windows and min(above) > 0:
        rows[f"{name} above idle"] = Measured(unit, tuple(above))
    return rows


def peak_memory() -> Measured:
    """Return the peak resident memory of this process, weights mapped from a file included."""
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Measured("GB", (peak / 1e9,))
