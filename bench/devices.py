"""Every device here beside the others, and what Tritium adds to the library behind a device.

Knows nothing of how a time is taken: that is the measuring half of the package, with fresh processes and arms in turn. The limits
that the project set itself stand beside the figures.

    python bench/devices.py                          all of it: some minutes for each device
    python bench/devices.py --quick                  a short look: nothing is judged
    python bench/devices.py --only small             one part: compare, dispatch, small
    python bench/devices.py --output measured        writes measured/results.json and measured/report.html

Parts. `compare`: operations x sizes on every device, without their transfers and with them, and the sizes from which another
device is the faster one; a case that takes a device longer than 20 s is left out, and named. `dispatch`: code that names no
device, on the CPU, beside NumPy: an operation of 1000x1000; and what a call of one element takes, all of which is dispatch, as a
share of it. `small`: operations on few elements on torch beside torch, on mlx beside mlx; of mlx, which computes when it is asked
to, the call alone and the call with its evaluation. A library that is not installed is left out, with the reason. Shown are
medians over processes and the 95 % interval of the ratio.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from results import Column, Entry, Figure, add_option, ratio_of, value, write
from timing import machine

import tritium as tt
from tritium.perf.engine.measuring import measure
from tritium.perf.gate.compare import compare_paired
from tritium.perf.records.case import Case, Context, Made, Recipe, UnsupportedError, Work
from tritium.perf.records.run import PLANS, Plan, Results, Run
from tritium.perf.store import results as store
from tritium.perf.tables import pages
from tritium.perf.tables.crossover import LEAST_PROCESSES
from tritium.perf.tables.table import Table
from tritium.perf.tables.tables import RULES, time_interval, time_text, told_apart
from tritium.perf.work import peers, recipes as work
from tritium.perf.work.canary import is_canary

OPERATIONS = ("matmul", "add", "softmax", "bitlinear")
SIZES, QUICK_SIZES = (64, 256, 512, 1024), (64, 256)
SIDE = 1000  # of the operation whose dispatch is a share of it
SMALL = (8, 64)
DISPATCH, OVERHEAD = 1.01, 1.5  # times the library's own
LOOK = Plan("look", generations=3, rounds=2, batches=2, gates=False)
DEVICES = Plan("devices", generations=8, rounds=3, gates=False)  # many cases, of which no one is judged
PATIENCE_S = 20  # a device that needs longer for a case, in one process, is left out of it


class Limit(NamedTuple):
    """A figure beside its limit."""

    case: str
    theirs: str
    ours: str
    ratio: float
    interval: tuple[float, float] | None
    limit: float
    judged: bool = True  # False: too few processes for an interval of 95 %
    more: str = ""  # what ours does besides, so that the limit is not meant
    times: tuple[Figure, Figure] | None = None  # theirs and ours, µs

    @property
    def verdict(self) -> str:
        if self.more:
            return f"does more: {self.more}"
        if not self.judged:
            return "not judged: a look"
        low, high = self.interval or (self.ratio, self.ratio)
        if high <= self.limit:
            return "met"
        return "MISSED" if low > self.limit else "unsure"

    @property
    def row(self) -> tuple[str, ...]:
        between = "" if self.interval is None else f" ({self.interval[0]:.3g}…{self.interval[1]:.3g})"
        return self.case, self.theirs, self.ours, f"{self.ratio:.3g}{between}", f"{self.limit:g}", self.verdict


# ---- devices


def devices_compared(devices: Sequence[str] | None, sizes: Sequence[int], plan: Plan, threads: int | None) -> Results:
    asked: dict[str, Any] = {} if devices is None else {"devices": devices}
    config = tt.perf.BenchmarkConfig(
        operations=OPERATIONS, tensor_sizes=sizes, data_types=("f32",), transfer="both", **asked
    )
    plan = replace(plan, metrics=("wall",), timeout_s=PATIENCE_S)
    return tt.perf.run_comparison(config, plan=plan, peers=("none",), threads=threads, progress=told)


# ---- dispatch


def dispatch(plan: Plan, threads: int | None) -> Results:
    """An operation that names no device, beside NumPy; and one of a single element."""
    cases = [*work.grid(["add", "matmul"], [(SIDE, SIDE)], threads=threads), *work.grid(["add"], [(1,)])]
    arms, _ = peers.arms(["tritium", "numpy"], threads)
    return measure(cases, arms, replace(plan, threads=threads, metrics=("wall",)), suite="dispatch", progress=told)


def dispatch_limits(results: Results) -> Iterator[Limit]:
    yield from (found for found in limits(results, "numpy", "tritium", DISPATCH) if str(SIDE) in found.case)
    tiny = results.of("add 1 f32", "tritium")
    for name in ("add", "matmul"):
        whole = results.of(f"{name} {SIDE}x{SIDE} f32", "tritium")
        if tiny is not None and whole is not None and tiny.seconds and whole.seconds:
            share = tiny.seconds / whole.seconds
            times = (figure_of(whole), figure_of(tiny))
            said = f"dispatch of {name} {SIDE}x{SIDE}: a call of one element / the call"
            yield Limit(
                said, time_text(whole), time_text(tiny), share, None, DISPATCH - 1, enough(results), times=times
            )


# ---- small operations


class Small(NamedTuple):
    """An operation by its operands (x, y: floats; m: a mask; i: indices) and as a function of each library's module."""

    operands: str
    ours: Callable[[Any], Callable[..., Any]]
    torch: Callable[[Any], Callable[..., Any]]
    mlx: Callable[[Any], Callable[..., Any]]


def plain(operands: str, ours: str, torch: str | None = None, mlx: str | None = None) -> Small:
    """A function that each library has, under some name."""
    return Small(operands, *(lambda module, name=name or ours: getattr(module, name) for name in (ours, torch, mlx)))


def along(name: str, torch: str | None = None) -> Small:
    """A function of the last axis."""
    return Small(
        "x", lambda t: partial(getattr(t, name), axis=-1), lambda t: partial(getattr(t, torch or name), dim=-1),
        lambda m: partial(getattr(m, name), axis=-1),
    )  # fmt: skip


def joined_by(name: str, torch: str, mlx: str) -> Small:
    def of(name: str) -> Callable[[Any], Callable[..., Any]]:
        return lambda module: lambda x, y: getattr(module, name)((x, y))

    return Small("xy", of(name), of(torch), of(mlx))


OPS = {
    "add": plain("xy", "add"),
    "subtract": plain("xy", "subtract", "sub"),
    "multiply": plain("xy", "multiply"),
    "divide": plain("xy", "divide"),
    "less": plain("xy", "less"),
    "where": plain("mxy", "where"),
    "relu": Small("x", lambda t: t.relu, lambda t: t.relu, lambda m: lambda x: m.maximum(x, 0)),
    "sqrt": plain("x", "sqrt"),
    "exp": plain("x", "exp"),
    "tanh": plain("x", "tanh"),
    "sigmoid": plain("x", "sigmoid"),
    "silu": Small("x", lambda t: t.silu, lambda t: t.nn.functional.silu, lambda m: lambda x: x * m.sigmoid(x)),
    "gelu": Small(
        "x", lambda t: t.gelu, lambda t: t.nn.functional.gelu,
        lambda m: lambda x: x * (1 + m.erf(x / 1.4142135623730951)) / 2,
    ),
    "matmul": plain("xy", "matmul"),
    "sum": along("sum"),
    "max": along("max", "amax"),
    "mean": along("mean"),
    "softmax": along("softmax"),
    "astype f16": Small(
        "x", lambda t: lambda x: t.astype(x, t.f16), lambda t: lambda x: x.to(t.float16),
        lambda m: lambda x: x.astype(m.float16),
    ),
    "take": Small(
        "xi", lambda t: partial(t.take, axis=0), lambda t: lambda x, i: t.index_select(x, 0, i),
        lambda m: partial(m.take, axis=0),
    ),
    "concat": joined_by("concat", "cat", "concatenate"),
    "stack": joined_by("stack", "stack", "stack"),
}  # fmt: skip
MORE = {  # what Tritium promises and the library does not: shown beside the limit, not judged by it
    ("torch", "relu"): "-0 becomes 0",
    ("torch", "sqrt"): "the nearest number, by NumPy",
    ("torch", "silu"): "in f64, rounded once: the same bits on every device",
    ("torch", "gelu"): "in f64: torch's f32 loses digits below 0",
    ("mlx", "exp"): "in f64: mlx loses |x| / 2 ulps",
    ("mlx", "sigmoid"): "by that exp",
    ("mlx", "silu"): "by that exp",
    ("mlx", "gelu"): "an erf of f32's digits",
    ("mlx", "softmax"): "by that exp, and a sum by blocks",
    ("mlx", "take"): "indices are checked at once",
}
MOST_APART = 1e-4  # mlx's own exp is that far off


def small(candidate: str, *, op: str, size: int, evaluated: bool) -> Made:
    """A recipe: an operation on a device of Tritium, or by the library behind it; `evaluated`: computed before the clock stops."""
    library, _, device = candidate.partition(":")
    random = np.random.default_rng(0)
    x, y = np.abs(random.standard_normal((2, size, size), np.float32)) + np.float32(0.1)
    made = {"x": x, "y": y, "m": x < y, "i": random.integers(0, size, 16)}
    data = [made[name] for name in OPS[op].operands]
    makers = {"tritium": _tritium, "torch": _torch, "mlx": _mlx}
    if library not in makers:
        raise UnsupportedError(f"{library} is no library behind a device of Tritium.")
    call, wait, back = makers[library](device or "cpu", OPS[op], data)
    expected = OPS[op].ours(tt)(*(tt.asarray(part) for part in data)).numpy()
    return Made(call, wait if evaluated else None, back, lambda: expected, MOST_APART)


Arms = tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]


def _tritium(device: str, op: Small, data: list[Any]) -> Arms:
    operands = [tt.asarray(part, device=device, copy=True) for part in data]
    backend = tt.device(device).backend
    backend.settle(operands)
    return partial(op.ours(tt), *operands), lambda made: backend.settle((made,)), lambda made: made.numpy()


def _torch(device: str, op: Small, data: list[Any]) -> Arms:
    import torch

    operands = [torch.from_numpy(part).to(device) for part in data]
    return partial(op.torch(torch), *operands), lambda made: None, lambda made: made.cpu().numpy()


def _mlx(device: str, op: Small, data: list[Any]) -> Arms:
    import mlx.core as mx

    mx.set_default_device(mx.cpu if device == "cpu" else mx.gpu)
    operands = [mx.array(part) for part in data]
    mx.eval(operands)
    return partial(op.mlx(mx), *operands), mx.eval, np.array


def small_cases(names: dict[bool, str]) -> list[Case]:
    """`names`: whether the result is waited for, and how the case says so. Every operation once, the first in more ways."""
    first = next(iter(OPS))
    ways = [(first, n, evaluated) for n in SMALL for evaluated in names]
    ways += [(op, SMALL[-1], max(names)) for op in OPS if op != first]
    return [
        Case(
            f"{op} {n}x{n} f32{names[evaluated]}",
            Recipe(f"{Path(__file__).resolve()}:small", {"op": op, "size": n, "evaluated": evaluated}),
            Context(op, (n, n)), Work(n * n, 8 * n * n, 4 * n * n),
        )
        for op, n, evaluated in ways
    ]  # fmt: skip


WAITED = {"torch": {False: " on torch"}, "mlx": {False: " on mlx, the call alone", True: " on mlx, evaluated"}}


def small_overheads(plan: Plan) -> dict[str, Results | str]:
    """For each library: what was measured, or why nothing was."""
    found: dict[str, Results | str] = {}
    for library, names in WAITED.items():
        arms, notes = peers.arms([f"tritium:{library}:cpu", library], 1)
        if len(arms) < 2:
            found[library] = "; ".join(notes)
            continue
        once = replace(plan, threads=1, metrics=("wall",))
        found[library] = measure(small_cases(names), arms, once, suite="small", progress=told)
    return found


def small_limits(results: Results, library: str) -> Iterator[Limit]:
    for found in limits(results, library, f"tritium:{library}:cpu", OVERHEAD):
        yield found._replace(more=MORE.get((library, found.case.split(f" {SMALL[-1]}x")[0]), ""))


# ---- in words


def limits(results: Results, theirs: str, ours: str, limit: float) -> Iterator[Limit]:
    """The ratio of every case both did, ours to theirs, beside a limit."""
    found = {v.case: v for v in compare_paired(results, theirs, ours, RULES).verdicts if v.metric == "wall"}
    for case in results.cases:
        v, one, two = found.get(case), results.of(case, theirs), results.of(case, ours)
        if v is not None and v.ratio is not None and one is not None and two is not None:
            between, times = told_apart(v.interval95), (figure_of(one), figure_of(two))
            yield Limit(case, time_text(one), time_text(two), v.ratio, between, limit, enough(results), times=times)


def figure_of(run: Run) -> Figure:
    """Return the time of a call in µs; every process counts once."""
    wall = run.of("wall")
    if wall is None or wall.median is None:
        raise ValueError(f"{run.case} of {run.arm} has no time")
    interval = time_interval(wall)
    return value(1e6 * wall.median, interval and [1e6 * end for end in interval], len(wall.values))


def write_results(path: Path, found: Sequence[Limit], threads: int) -> None:
    """Write what Tritium adds to each library as a results file."""
    columns = [
        Column("their own", "µs", "median time of the library called directly; of a dispatch, of the whole call"),
        Column("tritium", "µs", "median time through Tritium; of a dispatch, of a call of one element"),
        Column("tritium / their own", "×", "what Tritium takes beside the library itself", "ratio"),
        Column("limit", "×", "largest ratio the project allows itself"),
    ]
    rows = []
    for limit in found:
        if limit.times is None:
            continue
        theirs, ours = limit.times
        share = ratio_of(ours, theirs) if limit.interval is None else value(limit.ratio, limit.interval, ours.processes)
        figures = {"their own": theirs, "tritium": ours, "tritium / their own": share}
        if not limit.more:
            figures["limit"] = value(limit.limit)
        rows.append(Entry((limit.case,), figures))
    write(path, "What Tritium adds to the library behind a device", ("case",), columns, rows, threads=threads)


def enough(results: Results) -> bool:
    return results.plan.generations >= LEAST_PROCESSES


def told(done: int, total: int, what: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[2K{100 * done // max(total, 1):3d} %  {what}" if done < total else "\r\x1b[2K")
        sys.stderr.flush()


def joined(parts: Sequence[Results]) -> Results:
    """All that was measured in one file; canaries of the first part only."""
    first, *rest = parts
    arms = dict.fromkeys(arm for part in parts for arm in part.arms)
    runs = [run for part in rest for run in part if not is_canary(run.case)]
    notes = dict.fromkeys(note for part in parts for note in part.notes)
    return replace(
        first, arms=tuple(arms), runs=(*first.runs, *runs), notes=tuple(notes), complete=all(p.complete for p in parts),
        kind="compare", suite="compare", elapsed_s=sum(p.elapsed_s for p in parts),
    )  # fmt: skip


def judged(found: Sequence[Limit]) -> str:
    heads = ("case", "their own", "tritium", "ratio", "limit", "")
    rows = tuple(limit.row for limit in found)
    meant = [f for f in found if not f.more]
    below = ("", f"{sum(f.verdict == 'met' for f in meant)} of {len(meant)} limits are met.")
    return Table("What Tritium adds", heads, rows, frozenset(heads[1:5]), below).text()


def written(folder: Path, parts: Sequence[Results]) -> None:
    from tritium.see import report

    folder.mkdir(parents=True, exist_ok=True)
    whole = joined(parts)
    store.save(whole, folder / "results.json")
    report(whole).save(folder / "report.html")
    print(f"\nwritten: {folder / 'results.json'}, {folder / 'report.html'}")


PARTS = ("compare", "dispatch", "small")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short look: few processes and sizes")
    parser.add_argument("--only", help=f"some of: {', '.join(PARTS)}")
    parser.add_argument("--devices", help="some of the devices here, as cpu,mlx; default: all")
    parser.add_argument("--sizes", help="sides of the operations compared, as 64,256")
    parser.add_argument("--threads", type=int, help="default: all CPUs this process may use; dispatch: 1")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="where results.json and report.html are written")
    add_option(parser)
    args = parser.parse_args()
    if args.results and args.only and not {"dispatch", "small"} & {*args.only.split(",")}:
        parser.error(f"--results needs figures beside a limit; --only {args.only} has none: name dispatch or small")
    plan = LOOK if args.quick else PLANS["default"]
    asked = args.only.split(",") if args.only else PARTS
    sizes = [int(n) for n in args.sizes.split(",")] if args.sizes else QUICK_SIZES if args.quick else SIZES
    print(f"{machine()}; limits: {plan.generations} processes, {plan.rounds} rounds in turn\n")
    parts: list[Results] = []
    found: list[Limit] = []
    if "compare" in asked:
        chosen = args.devices and args.devices.split(",")
        parts.append(devices_compared(chosen, sizes, LOOK if args.quick else DEVICES, args.threads))
        print(pages.page(parts[-1]), *parts[-1].notes, "", sep="\n")
    if "dispatch" in asked:
        parts.append(dispatch(plan, args.threads or 1))
        found += dispatch_limits(parts[-1])
    if "small" in asked:
        for library, results in small_overheads(plan).items():
            if isinstance(results, str):
                print(f"{library}: not measured: {results}\n")
                continue
            parts.append(results)
            found += small_limits(results, library)
    if found:
        print(judged(found))
    if args.results:
        write_results(args.results, found, args.threads or 1)
    if args.output and parts:
        written(args.output, parts)
    sys.exit("a limit is missed" if any(f.verdict == "MISSED" for f in found) else 0)


if __name__ == "__main__":
    main()
