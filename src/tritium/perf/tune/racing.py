"""Which of several configurations is fastest: a race with repeats, kept for the next process, explained, measured again.

Knows nothing of what a configuration means: that is the caller's function. What the runtime itself can choose is in
`perf.tune.choices`.

A race. Every candidate runs once to get ready. Then come rounds: in each, every candidate that is still in runs once, in
random order, so that a machine that grows slower harms all alike. One is dropped when the interval of its median lies
above that of the best, or when after two rounds even its best time is three times the worst of the best. Then the rest
share the time. The lowest median wins; candidates whose intervals meet the winner's are named as not told apart.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

from tritium.batching.batches import BatchSize, advise_batch as advise_batch, find_optimal_batch_size, seconds_in
from tritium.errors import ArgumentError, TuneError, nearest
from tritium.machine.facts import seconds_text
from tritium.machine.tuned import Choice
from tritium.perf.records.json_io import utc_now
from tritium.perf.tune import file as tune_file
from tritium.perf.tune.file import Candidate, Interval, Status, Tuning, median_interval
from tritium.perf.work.libraries import settled

ROUNDS = 15
LEAST_ROUNDS = 5  # before an interval drops a candidate: of fewer values there is no interval of 90 %
HOPELESS = 3.0  # times slower than the best, from the second round on
LEAST_SAMPLE_S = 0.002  # shorter calls are repeated within a sample
MOST_CALLS = 1000
BUDGET_S = 20.0


@dataclass(frozen=True)
class Drift:
    """The kept winner measured again beside the runner-up."""

    op: str
    config: str
    was_s: float
    now_s: float
    now_interval: Interval
    runner_up: str  # empty: there was no other
    runner_up_s: float | None
    holds: bool  # the winner is not slower than the runner-up now
    race: Tuning = field(repr=False)

    @property
    def ratio(self) -> float:
        """Time now over time then."""
        return self.now_s / self.was_s

    def __str__(self) -> str:
        low, high = self.now_interval
        text = (
            f"{self.op}: {self.config} took {seconds_text(self.was_s)}, takes {seconds_text(self.now_s)} "
            f"({seconds_text(low)} … {seconds_text(high)}): {self.ratio - 1:+.1%}."
        )
        if not self.runner_up:
            return f"{text} There was no runner-up to compare it with."
        now = "fails" if self.runner_up_s is None else f"takes {seconds_text(self.runner_up_s)}"
        verdict = "The choice holds" if self.holds else "The choice no longer holds; tune again"
        return f"{text} The runner-up {self.runner_up} {now}. {verdict}."


# ---- the race


@dataclass
class _Runner:
    """A candidate while it runs."""

    config: Any
    key: str
    call: Callable[[], Any]
    seconds: list[float] = field(default_factory=list)
    calls: int = 1
    returned: bool = False
    dropped: str = ""
    failed: str = ""

    @property
    def running(self) -> bool:
        return not self.dropped and not self.failed

    def ready(self) -> None:
        """Once without counting, and once to see how many calls a sample takes."""
        self._guarded(self._one)
        first = self._guarded(self._one)
        if first is not None and not self.returned:
            self.calls = min(max(1, round(LEAST_SAMPLE_S / max(first, 1e-9))), MOST_CALLS)

    def sample(self) -> None:
        found = self._guarded(self._one)
        if found is not None:
            self.seconds.append(found)

    def _guarded(self, act: Callable[[], float]) -> float | None:
        if not self.running:
            return None
        try:
            return act()
        except Exception as error:
            self.failed = f"{type(error).__name__}: {error}".strip(": ")
            return None

    def _one(self) -> float:
        start = perf_counter()
        for _ in range(self.calls):
            result = settled(self.call())
        elapsed = (perf_counter() - start) / self.calls
        said = seconds_in(result)
        self.returned = said is not None
        return elapsed if said is None else said


def race(runners: Sequence[_Runner], rounds: int, budget_s: float, seed: int) -> tuple[int, str]:
    """Run them; how many rounds there were, and what ended them early."""
    order = random.Random(seed)
    for runner in runners:
        runner.ready()
    start = perf_counter()
    for number in range(1, rounds + 1):
        running = [r for r in runners if r.running]
        if not running or (len(running) == 1 and number > LEAST_ROUNDS):
            return number - 1, ""
        order.shuffle(running)
        for runner in running:
            runner.sample()
        _drop([r for r in runners if r.running])
        if perf_counter() - start > budget_s and number < rounds:
            return number, f"the budget of {budget_s:g} s ended it after {number} of {rounds} rounds"
    return rounds, ""


def _drop(running: Sequence[_Runner]) -> None:
    if not running:
        return
    best = min(running, key=lambda r: median(r.seconds))
    n = len(best.seconds)
    _, high = median_interval(best.seconds)
    for r in running:
        low, _ = median_interval(r.seconds)
        if r is best or low <= high:
            continue
        if n >= LEAST_ROUNDS:
            r.dropped = f"after {n} rounds: at least {seconds_text(low)}, the best at most {seconds_text(high)}"
        elif n >= 2 and low > HOPELESS * high:
            r.dropped = f"after {n} rounds: {low / high:.1f} times the best"


def _results(runners: Sequence[_Runner]) -> tuple[Candidate, ...]:
    ran = [r for r in runners if not r.failed and r.seconds]
    best = min((r for r in ran if r.running), key=lambda r: median(r.seconds), default=None)
    out = []
    for r in runners:
        status: Status = "slower"
        if r.failed:
            status = "failed"
        elif r is best:
            status = "best"
        elif r.dropped:
            status = "dropped"
        elif best is not None and median_interval(r.seconds)[0] <= median_interval(best.seconds)[1]:
            status = "not told apart"
        out.append(Candidate(r.key, tuple(r.seconds), status, r.failed or r.dropped, r.calls))
    return tuple(out)


# ---- for users

_functions: dict[tuple[str, str, str, str], tuple[Callable[[Any], Any], dict[str, Any]]] = {}


def tune(
    op: str,
    configs: Iterable[Any],
    fn: Callable[[Any], Any],
    *,
    shape: Any = "",
    dtype: Any = "",
    device: Any = "",
    rounds: int = ROUNDS,
    budget_s: float = BUDGET_S,
    seed: int = 0,
    keep: bool = True,
) -> Any:
    """The fastest of the configurations, by a race; kept for `get_optimal_config`, in this process and in later ones.

    fn(config) does the work once and is timed, or returns how long it took: a timedelta, or seconds as a number. A
    configuration that raises is recorded and out. `shape`, `dtype` and `device` tell apart what is tuned under one name.
    """
    made = run(op, configs, fn, shape=shape, dtype=dtype, device=device, rounds=rounds, budget_s=budget_s, seed=seed)
    tuning, objects = made
    _functions[tuning.key] = fn, objects
    if keep:
        tune_file.add(tuning)
    best = tuning.best
    if best is None:
        failures = "; ".join(f"{c.config}: {c.reason}" for c in tuning.candidates)
        raise TuneError(f"tune: no configuration of {op!r} ran: {failures}")
    return objects[best.config]


def run(
    op: str,
    configs: Iterable[Any],
    fn: Callable[[Any], Any],
    *,
    shape: Any = "",
    dtype: Any = "",
    device: Any = "",
    rounds: int = ROUNDS,
    budget_s: float = BUDGET_S,
    seed: int = 0,
) -> tuple[Tuning, dict[str, Any]]:
    """The race alone: its record, and each configuration by its text."""
    objects = _objects(op, configs, fn, rounds, budget_s)
    runners = [_Runner(c, key, partial(fn, c)) for key, c in objects.items()]
    start = perf_counter()
    count, note = race(runners, rounds, budget_s, seed)
    source = "seconds the function returned" if any(r.returned for r in runners) else "wall clock"
    key = (op, _text(shape), _text(dtype), _text(device))
    return Tuning(
        *key, _results(runners), source, count, utc_now("milliseconds"), perf_counter() - start, note
    ), objects


def _objects(op: Any, configs: Iterable[Any], fn: Any, rounds: Any, budget_s: Any) -> dict[str, Any]:
    """The configurations by their text, everything checked."""
    if not isinstance(op, str) or not op:
        raise ArgumentError(f"tune: a name is needed for what is tuned, given {op!r}.")
    if not callable(fn):
        raise ArgumentError(f"tune: {fn!r} cannot be called; give a function of one configuration.")
    if not isinstance(rounds, int) or isinstance(rounds, bool) or rounds < 1:
        raise ArgumentError(f"tune: rounds must be 1 or more, given {rounds!r}.")
    if not isinstance(budget_s, (int, float)) or not budget_s > 0:
        raise ArgumentError(f"tune: budget_s must be a number of seconds above 0, given {budget_s!r}.")
    objects: dict[str, Any] = {}
    for c in configs:
        key = repr(c)
        if key in objects:
            raise ArgumentError(f"tune: the configuration {key} was given twice; each needs its own repr.")
        objects[key] = c
    if not objects:
        raise ArgumentError("tune: there are no configurations; give one or more.")
    return objects


def _text(of: Any) -> str:
    if isinstance(of, (tuple, list)):
        return "x".join(map(str, of)) or "()"
    return str(of)


def history(op: str | None = None) -> tuple[Tuning, ...]:
    """Every race kept on this machine, the oldest first; of one name and those below it ("kernel"), or of all."""
    return tuple(t for t in tune_file.tunings() if op is None or tune_file.belongs(t.op, op))


def latest(op: str, shape: Any = "", dtype: Any = "", device: Any = "") -> Tuning | None:
    """The last race of a name that some configuration won."""
    key = (op, _text(shape), _text(dtype), _text(device))
    return next((t for t in reversed(history(op)) if t.key == key and t.best is not None), None)


def get_optimal_config(
    op: str, *, shape: Any = "", dtype: Any = "", device: Any = "", configs: Iterable[Any] | None = None
) -> Any | None:
    """What `tune` found best for a name; None where nothing is kept for it on this machine and version.

    A configuration whose repr is a Python literal comes back as it was. For others give `configs`, to find it among them.
    """
    found = latest(op, shape, dtype, device)
    if found is None or found.best is None:
        return None
    text = found.best.config
    objects = {repr(c): c for c in configs} if configs is not None else _functions.get(found.key, (None, {}))[1]
    if text in objects:
        return objects[text]
    if configs is not None:
        return None
    with suppress(ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return ast.literal_eval(text)
    raise ArgumentError(
        f"get_optimal_config: the best of {op!r} is {text}, which is no literal; give configs=, to find it among them."
    )


def explain(op: str, shape: Any = "", dtype: Any = "", device: Any = "") -> str:
    """Why: the candidates of the last race with their intervals, and what became of each.

    Where nothing has just this name, shape, dtype and device: the last races of all that the name covers.
    """
    asked = (op, _text(shape), _text(dtype), _text(device))
    races = {t.key: t for t in history(op)}  # the last of each
    if not races:
        known = sorted({t.op for t in history()})
        raise ArgumentError(f"explain: nothing was tuned under {op!r} on this machine.{nearest(op, known)}")
    return "\n\n".join(_page(t) for t in ([races[asked]] if asked in races else races.values()))


def _page(t: Tuning) -> str:
    about = ", ".join(x for x in (t.shape, t.dtype, t.device) if x)
    rows = [["config", "median", "95 % interval", "samples", "outcome"]]
    for c in (*t.ranked, *(c for c in t.candidates if c not in t.ranked)):
        low, high = c.interval
        told = (seconds_text(c.median), f"{seconds_text(low)} … {seconds_text(high)}") if c.seconds else ("-", "-")
        outcome = c.status + (f": {c.reason}" if c.reason else "")
        rows.append([c.config, *told, str(len(c.seconds)), outcome])
    widths = [max(len(r[i]) for r in rows) for i in range(4)]
    lines = ["  ".join([*(x.ljust(w) for x, w in zip(r, widths, strict=False)), r[4]]) for r in rows]
    lines.insert(1, "  ".join("-" * len(x) for x in (*(" " * w for w in widths), "outcome")))
    close = [c.config for c in t.candidates if c.status == "not told apart"]
    tied = f"Not told apart from the best: {', '.join(close)}." if close else ""
    foot = f"{t.rounds} rounds in random order, by {t.source}, {t.elapsed_s:.1f} s on {t.created}."
    return "\n".join(x for x in (f"{t.op}{f' ({about})' * bool(about)}", *lines, tied, foot, t.note) if x)


def revalidate(
    op: str, fn: Callable[[Any], Any] | None = None, *, shape: Any = "", dtype: Any = "", device: Any = "",
    configs: Iterable[Any] | None = None, rounds: int = ROUNDS, budget_s: float = BUDGET_S, seed: int = 1,
) -> Drift:  # fmt: skip
    """Measure the kept winner again beside the runner-up: how far its time has moved, and whether it still wins.

    In the process that tuned, the function is known; in another one give it, and `configs` where they are no literals.
    """
    found = latest(op, shape, dtype, device)
    if found is None or found.best is None:
        raise ArgumentError(f"revalidate: nothing was tuned under {op!r} on this machine; tune first.")
    known, objects = _functions.get(found.key, (None, {}))
    if configs is not None:
        objects = {repr(c): c for c in configs}
    act = fn or known
    if act is None:
        raise ArgumentError(f"revalidate: {op!r} was tuned in another process; give its function as fn=.")
    pair = [c.config for c in found.ranked[:2]]
    chosen = [objects[text] if text in objects else _literal(op, text) for text in pair]
    made, _ = run(op, chosen, act, shape=shape, dtype=dtype, device=device, rounds=rounds, budget_s=budget_s, seed=seed)
    return drift_of(found, replace(made, note="revalidated"))


def drift_of(found: Tuning, now: Tuning) -> Drift:
    """How the winner of one race fares in another."""
    assert found.best is not None
    by_text = {c.config: c for c in now.candidates}
    again = by_text.pop(found.best.config)
    if not again.seconds:
        raise TuneError(f"revalidate: {again.config} of {found.op!r} no longer runs: {again.reason}")
    other = next(iter(by_text.values()), None)
    holds = other is None or not other.seconds or again.interval[0] <= other.interval[1]
    time = other.median if other is not None and other.seconds else None
    return Drift(
        found.op, again.config, found.best.median, again.median, again.interval, other.config if other else "", time,
        holds, now,
    )  # fmt: skip


def _literal(op: str, text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        raise ArgumentError(f"revalidate: {text} of {op!r} is no literal; give configs=.") from None


def tune_batch(op: str, maximum: int, fn: Callable[[int], Any], **options: Any) -> BatchSize:
    """`find_optimal_batch_size(op, maximum, fn)`, kept: process_in_batches(op=op) of later processes knows it too."""
    return race_batches(op, maximum, fn, **options)[1]


def race_batches(op: str, maximum: int, fn: Callable[[int], Any], **options: Any) -> tuple[Tuning, BatchSize]:
    """The same, with the record that is kept; its times are of one item."""
    start = perf_counter()
    found = find_optimal_batch_size(op, maximum, fn, **options)
    candidates = []
    for t in found.trials:
        status: Status = "failed" if t.failed else "best" if t.size == found else "slower"
        candidates.append(Candidate(repr(t.size), tuple(s / t.size for s in t.seconds), status, t.failed))
    runs = max(len(t.seconds) for t in found.trials)
    made = Tuning(
        f"batch/{op}",
        "",
        "",
        "",
        tuple(candidates),
        "seconds an item",
        runs,
        utc_now("milliseconds"),
        perf_counter() - start,
    )
    tune_file.add(made, {f"batch/{op}": Choice(found.size, found.why)})
    return made, found


def clear(op: str | None = None) -> int:
    """Forget what was tuned under a name, or everything; how many races went."""
    for key in [k for k in _functions if op is None or tune_file.belongs(k[0], op)]:
        del _functions[key]
    return tune_file.remove(op)
