"""How often the gates of Tritium cry wolf on this machine, and how often they find 10 % of extra work.

    python bench/alarms.py --folder F --aa 200 --extra 100     side by side: suites of five cases (tritium regression-test --against)
    python bench/alarms.py --folder F --workflow 20            separate runs: tritium compare, later tritium regression-check
    python bench/alarms.py --folder F                          what was found so far, in the folder and those inside it

Everything is kept in the folder; a second call goes on where the first one ended. Before the first suite the noise floor of the machine
is found, as `tritium selftest --aa` does. Equal code is what runs in an A/A suite and in
an unchanged pair; extra work is 10 % more rows (outputs of a layer) in one case, or in the workflow, one operation of a copy
of the package that works through a tenth of its rows twice.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from results import Column, Entry, add_option, value, write

import tritium
from tritium.perf.gate import noise, selftest
from tritium.perf.records import json_io as records
from tritium.perf.stats import estimates as stats
from tritium.perf.store import results as store

CONFIG = {
    "tensor_sizes": [[256, 256], [512, 512]],
    "operations": ["matmul", "add", "softmax", "quantize", "bitlinear"],
    "devices": ["cpu"],
    "data_types": ["f32"],
    "measurement_iterations": 120,
    "timeout": "30s",
}
SLOWED = "softmax"
SLOWER = f'''

def _slowed(device: str, threads: int | None, make: Any = LIBRARIES["tritium"]) -> Library:
    found = make(device, threads)
    fn = found.functions["{SLOWED}"]

    def twice(x: Any) -> Any:
        fn(x[: -(-len(x) // 10)])
        return fn(x)

    return replace(found, functions={{**found.functions, "{SLOWED}": twice}})


LIBRARIES["tritium"] = _slowed
'''


FLOOR_SUITES = 6


def suites(folder: Path, count: int, extra: float, journal: str = "suites.journal") -> selftest.Selftest:
    """Side by side, through the whole gate: further looks and the confirmation included."""

    def progress(done: int, of: int, what: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {extra:.0%} extra: {what}", flush=True)

    return selftest.selftest(count, extra=extra, journal=folder / journal, progress=progress)


# ---- separate runs


def slowed_copy(folder: Path) -> Path:
    """A copy of the package in which one operation does a tenth more."""
    target = folder / "slowed" / "tritium"
    if not target.exists():
        shutil.copytree(Path(tritium.__file__).parent, target, ignore=shutil.ignore_patterns("__pycache__"))
        module = target / "perf" / "work" / "libraries.py"
        if not module.exists():  # appending would make a file that nobody imports, and nothing would be slower
            sys.exit(f"{module.name} is not in perf/work of the package: the slowed copy cannot be made")
        with module.open("a", encoding="utf-8") as f:
            f.write(SLOWER)
    return target.parent


def compare(folder: Path, name: str, package: Path | None = None) -> Path:
    """One run of `tritium compare`, as the guide writes it."""
    output, config = folder / f"{name}.json", folder / "config.json"
    if output.exists():
        return output
    config.write_text(json.dumps(CONFIG), encoding="utf-8")
    began = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "tritium",
        "compare",
        "--config",
        str(config),
        "--peers",
        "numpy",
        "--threads",
        "1",
    ]
    variables = os.environ | ({"PYTHONPATH": str(package)} if package else {})
    done = subprocess.run(
        [*command, "--output", str(output)], env=variables, cwd=folder, capture_output=True, text=True
    )
    print(f"{time.strftime('%H:%M:%S')} {name}: exit {done.returncode}, {time.monotonic() - began:.0f} s", flush=True)
    if done.returncode:
        sys.exit(done.stderr)
    return output


def check(folder: Path, baseline: Path, current: Path) -> int:
    command = [sys.executable, "-m", "tritium", "regression-check", "--threshold", "0.05"]
    found = [
        "--baseline",
        str(baseline),
        "--current",
        str(current),
        "--verdict",
        str(folder / f"{current.stem}.verdict.json"),
    ]
    return subprocess.run([*command, *found], cwd=folder, capture_output=True, text=True).returncode


def workflow(folder: Path, pairs: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    slowed = slowed_copy(folder)
    codes: dict[str, list[int]] = {"unchanged": [], "slowed": []}
    for i in range(pairs):
        base = compare(folder, f"base-{i}")
        again = compare(folder, f"again-{i}")
        slow = compare(folder, f"slowed-{i}", slowed)
        codes["unchanged"].append(check(folder, base, again))
        codes["slowed"].append(check(folder, base, slow))
        print(f"  exit codes: {codes}", flush=True)
        store.write_text(folder / "workflow.json", json.dumps(codes))


def journal(folder: Path) -> selftest.Selftest | None:
    """Return all suites that the folder and those inside it hold."""
    trials = tuple(
        records.read(selftest.Trial, r, str(path))
        for path in sorted(folder.rglob("suites.journal"))
        for r in store.Journal.read(path)[0]
    )
    return selftest.Selftest(trials, 0.03) if trials else None


def counts(found: selftest.Selftest) -> Iterator[tuple[str, int, int]]:
    """Yield what is counted, how often it was seen, and of how many."""
    yield "equal code: suites that failed the gate", *found.false_alarms
    for outcome in ("EQUIVALENT", "CHANGED-SMALL", "INCONCLUSIVE", "SLOWER", "FASTER"):
        yield f"equal code: cases called {outcome}", *found.share_of(outcome)
    for extra in sorted({t.extra for t in found.trials} - {0.0}):
        yield f"{100 * extra:.0f} % extra work in one case: found", *found.detected(extra)


def write_results(path: Path, found: selftest.Selftest) -> None:
    """Write the shares as a results file."""
    columns = [
        Column("counted", "", "suites or cases"),
        Column("of", "", "suites or cases in all"),
        Column("share", "%", "counted / of", interval="exact 95 % interval"),
    ]
    rows = []
    for what, count, of in counts(found):
        if of:
            share = value(100 * count / of, [100 * end for end in stats.share_interval(count, of)])
            rows.append(Entry((what,), {"counted": value(count), "of": value(of), "share": share}))
    write(path, "False alarms and detections of the regression gate", ("suites of five cases",), columns, rows)


def report(folder: Path) -> str:
    """What was found so far, as Markdown."""
    lines = ["| what | found | of | share (95 %) |", "|---|---|---|---|"]

    def row(what: str, found: int, of: int) -> None:
        low, high = stats.share_interval(found, of) if of else (0.0, 1.0)
        lines.append(f"| {what} | {found} | {of} | {found / max(of, 1):.1%} ({low:.1%} … {high:.1%}) |")

    if found := journal(folder):
        for counted in counts(found):
            row(*counted)
        times = sorted(t.elapsed_s for t in found.trials_with(0.0)) or [0.0]
        took = f"took {times[len(times) // 2]:.1f} s in the middle and {times[-1]:.1f} s at most"
        lines += ["", f"An A/A suite of five cases {took}; noise floor ±{found.floor:.2%}.", ""]
    codes: dict[str, list[int]] = {}
    for path in sorted(folder.rglob("workflow.json")):
        for what, of in json.loads(path.read_text(encoding="utf-8")).items():
            codes.setdefault(what, []).extend(of)
    for what, of in codes.items():
        counted = ", ".join(f"{c}: {of.count(c)}" for c in sorted(set(of)))
        lines.append(f"{len(of)} {what} pairs of separate runs: exit codes {counted}.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--aa", type=int, default=0, help="A/A suites, in all")
    parser.add_argument("--extra", type=int, default=0, help="suites with 10 %% extra work in one case, in all")
    parser.add_argument("--workflow", type=int, default=0, help="pairs of separate runs, unchanged and slowed")
    add_option(parser)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if (args.aa or args.extra) and not noise.noise_floor():
        selftest.keep(suites(args.folder, FLOOR_SUITES, 0.0, "floor.journal"))
    if args.aa:
        suites(args.folder, args.aa, 0.0)
    if args.extra:
        suites(args.folder, args.extra, 0.1)
    if args.workflow:
        workflow(args.folder / "workflow", args.workflow)
    print(report(args.folder))
    if args.results:
        if (found := journal(args.folder)) is None:
            sys.exit(f"--results: {args.folder} holds no suites; --aa and --extra run some")
        write_results(args.results, found)


if __name__ == "__main__":
    main()
