"""How fast a model is here: prefill, decode, time to the first token, time until ready, memory, energy where measured.

Knows nothing of the command line. Every sample is kept; what cannot be measured says why.
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
from tritium.models.load import Model
from tritium.models.session import Session
from tritium.perf.meters.meter import EnergyMeter
from tritium.perf.stats.resample import student_quantile
from tritium.threads import get_num_threads


@dataclass(frozen=True)
class Measured:
    """Samples of one quantity."""

    unit: str
    samples: tuple[float, ...] = ()
    absent: str = ""  # why there are none

    @property
    def median(self) -> float:
        return median(self.samples) if self.samples else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """95 % for the typical value, from the spread of the logarithms of the samples."""
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
        around = "" if math.isnan(low) else f"  ({low:.4g} … {high:.4g}, 95 %)"
        return f"{self.median:.4g} {self.unit}{around}  {len(self.samples)} sample{'s' * (len(self.samples) > 1)}"


@dataclass(frozen=True)
class Report:
    """What `measure` found."""

    model: str
    machine: str
    threads: int
    prefill_tokens: int
    decode_tokens: int
    batch: int
    weight_bytes: int  # read for every token
    cache_bytes: int  # of keys and values, for the tokens of one run
    rows: dict[str, Measured] = field(default_factory=dict)

    @property
    def bandwidth(self) -> float:
        """Bytes of weights a second while decoding."""
        return self.weight_bytes * self.rows["decode"].median / self.batch

    def as_dict(self) -> dict[str, Any]:
        rows = {
            name: asdict(row)
            | {"median": row.median if row.samples else None}
            | {"interval_95": row.interval if len(row.samples) > 1 else None}
            for name, row in self.rows.items()
        }
        return asdict(self) | {"rows": rows, "decode_weight_bytes_per_s": self.bandwidth}

    def page(self) -> str:
        """For people."""
        lines = [f"{self.model} on {self.machine}, {self.threads} thread{'s' * (self.threads > 1)}"]
        what = f"{self.prefill_tokens} tokens of prompt, {self.decode_tokens} decoded"
        lines.append(what + (f", {self.batch} sequences together" if self.batch > 1 else ""))
        width = max(map(len, self.rows))
        lines += ["", *(f"{name:<{width}}  {row}" for name, row in self.rows.items()), ""]
        lines.append(
            f"Every token reads {bytes_text(self.weight_bytes)} of weights: {self.bandwidth / 1e9:.1f} GB/s while decoding "
            "(`tritium ceilings` tells what memory gives)."
        )
        return "\n".join(lines)


def measure(
    make: Callable[[], Model], *, prefill: int = 128, decode: int = 64, repeat: int = 5, batch: int = 1,
    progress: Progress | None = None, meter: EnergyMeter | None = None,
) -> Report:  # fmt: skip
    """Load a model, warm it up, and time `repeat` runs of a prompt of `prefill` tokens and `decode` tokens after it."""

    def told(done: int, what: str) -> None:
        if progress is not None:
            progress(done, repeat + 2, what)

    told(0, "loading")
    ready, model = _ready(make)
    if prefill + decode > model.config.context:
        raise ArgumentError(
            f"bench model: {prefill} tokens of prompt and {decode} decoded were asked; this model's context holds "
            f"{model.config.context}. Ask for fewer (-p, -n)."
        )
    told(1, "warming up")
    session = model.session(slots=batch, context=min(prefill + decode + 1, model.config.context))
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, model.config.vocab_size, prefill).tolist()
    _run(session, prompt, 2)  # compiles
    prefills, firsts, decodes = [], [], []
    for i in range(repeat):
        told(i + 2, f"run {i + 1} of {repeat}")
        first, spent = _run(session, prompt, decode)
        prefills.append(prefill / first)
        firsts.append(first)
        decodes.append(batch * decode / spent)
    energy = _energy(session, prefill, decode, EnergyMeter() if meter is None else meter)
    told(repeat + 2, "")
    linears = prepacked.linears(model.network)
    head = model.network.head.weight
    read = sum(q.nbytes for q in linears.values()) + (0 if "lm_head" in linears else head.nbytes)
    rows = {
        "ready": ready, "prefill": Measured("tokens/s", tuple(prefills)), "first token": Measured("s", tuple(firsts)),
        "decode": Measured("tokens/s", tuple(decodes)), "peak memory": peak_memory(), "energy": energy,
    }  # fmt: skip
    return Report(
        model.name, processor(), get_num_threads(), prefill, decode, batch, read,
        session.config.cache_bytes * session.caches[0].dtype.nbytes * session.capacity * batch, rows,
    )  # fmt: skip


def _ready(make: Callable[[], Model], times: int = 3) -> tuple[Measured, Model]:
    """Seconds until a model can be asked for a session; the file is warm after the first time, which is left out."""
    samples = []
    make()
    for _ in range(times):
        begun = perf_counter()
        make()
        samples.append(perf_counter() - begun)
    return Measured("s", tuple(samples)), make()


def _run(session: Session, prompt: list[int], decode: int) -> tuple[float, float]:
    """Seconds to the first token, and seconds of all further ones."""
    slots = list(range(session.slots))
    for slot in slots:
        session.truncate(slot, 0)
    begun = perf_counter()
    token = int(session.extend(0, prompt).argmax())
    first = perf_counter() - begun
    for slot in slots[1:]:
        session.extend(slot, prompt)
    begun = perf_counter()
    _decode(session, token, decode)
    return first, perf_counter() - begun


def _decode(session: Session, token: int, times: int) -> None:
    """Write so many tokens in every slot."""
    slots = list(range(session.slots))
    ids = [token] * len(slots)
    for left in reversed(range(times)):
        ids = session.pick(slots, ids, ahead=left > 0).ids


def _energy(session: Session, prefill: int, decode: int, meter: EnergyMeter) -> Measured:
    """Joules a token: the tokens after the prompt are decoded again and again for as long as the counters need."""

    def again() -> None:
        for slot in range(session.slots):
            session.truncate(slot, prefill)
        _decode(session, 0, decode)

    found = meter.window(again)
    if found["kind"] != "measured":
        return Measured("J/token", (), found["reason"])
    where = f"J/token, of {found['details']['domain']} ({found['source']})"
    return Measured(where, (found["value"] / (session.slots * decode),))


def peak_memory() -> Measured:
    """The most memory this process ever had, as the system counts it: weights mapped from a file included."""
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Measured("GB", (peak / 1e9,))
