"""Race between configurations: repeated, stored for the next process, explained, measured again.

Knows nothing of what a configuration means: the caller's function does. The runtime's own choices are in `perf.tune.choices`.

A race. Every candidate warms up once. In each round every remaining candidate runs once, in random order, so that a machine
that slows down affects all alike. A candidate is dropped when the interval of its median is above that of the best, or when
after two rounds even its best time is three times the worst of the best. Then the rest share the time. The lowest median
wins; candidates whose intervals overlap the winner's are listed as "not told apart".
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

from tritium.arguments import checked, checked_except
from tritium.batching.batches import BatchSize, advise_batch as advise_batch, find_optimal_batch_size, seconds_in
from tritium.errors import ArgumentError, TuneError, nearest
from tritium.machine.facts import seconds_text
from tritium.machine.tuned import Choice
from tritium.perf.records.json_io import utc_now
from tritium.perf.tune import file as tune_file
from tritium.perf.tune.file import Candidate, Interval, Status, Tuning, median_interval
from tritium.perf.work.libraries import settled

ROUNDS = 15
LEAST_ROUNDS = 5  # before an interval drops a candidate: fewer values have no 90 % interval
HOPELESS = 3.0  # times slower than the best, from the second round on
LEAST_SAMPLE_S = 0.002  # shorter calls are repeated within a sample
MOST_CALLS = 1000
BUDGET_S = 20.0


@dataclass(frozen=True)
class Drift:
    """The stored winner, measured again beside the runner-up."""

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
        """Return the time now relative to the time then."""
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
    """A candidate during a race."""

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
        """Warm up once, then time one call to set the number of calls in a sample."""
        self._guarded(self._one)
        first = self._guarded(self._one)
        if first is not None and not self.returned:
            self.calls = min(max(1, round(LEAST_SAMPLE_S / max(first, 1e-9))), MOST_CALLS)

    def sample(self) -> None:
        """Time one sample."""
        seconds = self._guarded(self._one)
        if seconds is not None:
            self.seconds.append(seconds)

    def _guarded(self, act: Callable[[], float]) -> float | None:
        """Return the result of an action; None and a reason if it raises."""
        if not self.running:
            return None
        try:
            return act()
        except Exception as error:
            self.failed = f"{type(error).__name__}: {error}".strip(": ")
            return None

    def _one(self) -> float:
        """Return the seconds of a call, or those that the function returned."""
        start = perf_counter()
        for _ in range(self.calls):
            result = settled(self.call())
        elapsed = (perf_counter() - start) / self.calls
        reported = seconds_in(result)
        self.returned = reported is not None
        return elapsed if reported is None else reported


def race(runners: Sequence[_Runner], rounds: int, budget_s: float, seed: int) -> tuple[int, str]:
    """Run the candidates; return the number of rounds and why they ended early."""
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
    """Drop the candidates that cannot win any more."""
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
    """Return the candidates with their status."""
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


@checked_except("op", "fn")
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
    """Return the fastest configuration by a race; it is stored for `get_optimal_config`, in this process and later ones.

    fn(config) does the work once and is timed, or returns how long it took: a timedelta, or seconds as a number. A
    configuration that raises is recorded as failed. `shape`, `dtype` and `device` distinguish races of one name.
    """
    tuning, objects = run(
        op, configs, fn, shape=shape, dtype=dtype, device=device, rounds=rounds, budget_s=budget_s, seed=seed
    )
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
    """Run the race alone; return its record, and each configuration by its repr."""
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
    """Return the configurations by their repr, with every argument checked."""
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


def _text(value: Any) -> str:
    """Return a shape, dtype or device as text."""
    if isinstance(value, (tuple, list)):
        return "x".join(map(str, value)) or "()"
    return str(value)


def history(op: str | None = None) -> tuple[Tuning, ...]:
    """Return every stored race of this machine, the oldest first; of one name and those below it ("kernel"), or all."""
    return tuple(t for t in tune_file.tunings() if op is None or tune_file.belongs(t.op, op))


def latest(op: str, shape: Any = "", dtype: Any = "", device: Any = "") -> Tuning | None:
    """Return the last race of a name that has a winner."""
    key = (op, _text(shape), _text(dtype), _text(device))
    return next((t for t in reversed(history(op)) if t.key == key and t.best is not None), None)


@checked
def get_optimal_config(
    op: str, *, shape: Any = "", dtype: Any = "", device: Any = "", configs: Iterable[Any] | None = None
) -> Any | None:
    """Return the best configuration of a name by `tune`; None if nothing is stored for it on this machine and version.

    A configuration whose repr is a Python literal is restored from it. For others pass `configs`, to look it up.
    """
    stored = latest(op, shape, dtype, device)
    if stored is None or stored.best is None:
        return None
    text = stored.best.config
    objects = {repr(c): c for c in configs} if configs is not None else _functions.get(stored.key, (None, {}))[1]
    if text in objects:
        return objects[text]
    if configs is not None:
        return None
    with suppress(ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return ast.literal_eval(text)
    raise ArgumentError(
        f"get_optimal_config: the best of {op!r} is {text}, which is no literal; pass configs= to look it up."
    )


def explain(op: str, shape: Any = "", dtype: Any = "", device: Any = "") -> str:
    """Return the candidates of the last race with their intervals and outcomes, as text.

    If nothing has exactly this name, shape, dtype and device: the last races of everything below the name.
    """
    key = (op, _text(shape), _text(dtype), _text(device))
    races = {t.key: t for t in history(op)}  # the last of each
    if not races:
        known = sorted({t.op for t in history()})
        raise ArgumentError(f"explain: nothing was tuned under {op!r} on this machine.{nearest(op, known)}")
    return "\n\n".join(_page(t) for t in ([races[key]] if key in races else races.values()))


def _page(t: Tuning) -> str:
    """Return one race as a table."""
    context = ", ".join(x for x in (t.shape, t.dtype, t.device) if x)
    rows = [["config", "median", "95 % interval", "samples", "outcome"]]
    for c in (*t.ranked, *(c for c in t.candidates if c not in t.ranked)):
        low, high = c.interval
        figures = (seconds_text(c.median), f"{seconds_text(low)} … {seconds_text(high)}") if c.seconds else ("-", "-")
        outcome = c.status + (f": {c.reason}" if c.reason else "")
        rows.append([c.config, *figures, str(len(c.seconds)), outcome])
    widths = [max(len(r[i]) for r in rows) for i in range(4)]
    lines = ["  ".join([*(x.ljust(w) for x, w in zip(r, widths, strict=False)), r[4]]) for r in rows]
    lines.insert(1, "  ".join("-" * len(x) for x in (*(" " * w for w in widths), "outcome")))
    close = [c.config for c in t.candidates if c.status == "not told apart"]
    tied = f"Not told apart from the best: {', '.join(close)}." if close else ""
    foot = f"{t.rounds} rounds in random order, by {t.source}, {t.elapsed_s:.1f} s on {t.created}."
    return "\n".join(x for x in (f"{t.op}{f' ({context})' * bool(context)}", *lines, tied, foot, t.note) if x)


def revalidate(
    op: str, fn: Callable[[Any], Any] | None = None, *, shape: Any = "", dtype: Any = "", device: Any = "",
    configs: Iterable[Any] | None = None, rounds: int = ROUNDS, budget_s: float = BUDGET_S, seed: int = 1,
) -> Drift:  # fmt: skip
    """Measure the stored winner again beside the runner-up: how far its time has moved, and whether it still wins.

    In the process that tuned, the function is known; in another one pass it, and `configs` if they are no literals.
    """
    stored = latest(op, shape, dtype, device)
    if stored is None or stored.best is None:
        raise ArgumentError(f"revalidate: nothing was tuned under {op!r} on this machine; tune first.")
    known, objects = _functions.get(stored.key, (None, {}))
    if configs is not None:
        objects = {repr(c): c for c in configs}
    function = fn or known
    if function is None:
        raise ArgumentError(f"revalidate: {op!r} was tuned in another process; give its function as fn=.")
    pair = [c.config for c in stored.ranked[:2]]
    chosen = [objects[text] if text in objects else _literal(op, text) for text in pair]
    repeat, _ = run(
        op, chosen, function, shape=shape, dtype=dtype, device=device, rounds=rounds, budget_s=budget_s, seed=seed
    )
    return drift_of(stored, replace(repeat, note="revalidated"))


def drift_of(found: Tuning, now: Tuning) -> Drift:
    """Return how the winner of one race does in another."""
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
    """Run `find_optimal_batch_size(op, maximum, fn)` and store it: process_in_batches(op=op) of later processes uses it too."""
    return race_batches(op, maximum, fn, **options)[1]


def race_batches(op: str, maximum: int, fn: Callable[[int], Any], **options: Any) -> tuple[Tuning, BatchSize]:
    """Do the same and return the stored record too; its times are of one item."""
    start = perf_counter()
    best = find_optimal_batch_size(op, maximum, fn, **options)
    candidates = []
    for t in best.trials:
        status: Status = "failed" if t.failed else "best" if t.size == best else "slower"
        candidates.append(Candidate(repr(t.size), tuple(s / t.size for s in t.seconds), status, t.failed))
    runs = max(len(t.seconds) for t in best.trials)
    tuning = Tuning(
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
    tune_file.add(tuning, {f"batch/{op}": Choice(best.size, best.why)})
    return tuning, best


def clear(op: str | None = None) -> int:
    """Delete what was tuned under a name, or everything; return the number of races deleted."""
    for key in [k for k in _functions if op is None or tune_file.belongs(k[0], op)]:
        del _functions[key]
    return tune_file.remove(op)
