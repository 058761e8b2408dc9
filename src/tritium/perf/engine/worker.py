"""A fresh process that makes cases and times batches of calls, on command.

Knows nothing of plans, other arms or statistics: the parent decides, this obeys. Commands come as lines of JSON on one
descriptor, answers go to another; what the measured code prints goes to the parent's log. It may run against another
version of the package than the one it lies in: then `tritium.perf` is taken from here, the rest from there. So what a worker
may import uses only public names of the package; whatever needs more is asked in the parent.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import math
import os
import resource
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import repeat
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import Any

TICKS_S = 0.2  # the system counts stolen time in ticks of 10 ms: one alone says little of a shorter stretch
Request = dict[str, Any]
Answer = dict[str, Any]
INFERRING = ("torch", "torch.compile")  # candidates that would note every call for gradients nobody asks for
OWN = ("tritium", "tritium.compile", "reference")  # candidates whose memory is that of Tritium's pool


def batch(call: Callable[[], Any], wait: Callable[[Any], Any] | None, calls: int) -> tuple[int, int]:
    """Nanoseconds of wall and of CPU for so many calls; each result is waited for."""
    cpu, start = process_time_ns(), perf_counter_ns()
    if wait is None:
        for _ in repeat(None, calls):
            call()
    else:
        for _ in repeat(None, calls):
            wait(call())
    return perf_counter_ns() - start, process_time_ns() - cpu


def calibrated(call: Callable[[], Any], wait: Callable[[Any], Any] | None, least_s: float) -> tuple[int, float]:
    """Return the calls of a batch of at least so many seconds, and the seconds of one call."""
    least, calls = least_s * 1e9, 1
    while True:
        spent = max(1, batch(call, wait, calls)[0])
        if spent >= least / 3 or calls >= 1 << 24:
            return max(1, math.ceil(least * calls / spent)), spent / calls / 1e9
        calls = min(4 * calls, max(calls + 1, int(calls * least / spent)))


class Worker:
    """The cases made so far, and the commands."""

    def __init__(self, threads: int) -> None:
        from tritium.perf.work.canary import clock, team

        self.made: dict[str, Any] = {}
        self.again: dict[str, Callable[[], Any]] = {}
        self.padding: dict[str, bytearray] = {}
        self.meters: dict[str, Any] = {}
        self.threads = threads
        self.probes = {"clock": clock(), "team": team(threads)} if threads > 1 else {"clock": clock()}
        self.candidate = "tritium"

    def answer(self, request: Request) -> Answer:
        from tritium.perf.records.case import UnsupportedError

        try:
            answer: Answer = getattr(self, f"do_{request['do']}")(request)
        except UnsupportedError as error:
            return {"status": "skipped", "reason": str(error)}
        except MemoryError as error:
            return {"status": "out of memory", "reason": str(error) or "an allocation was refused"}
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error}".strip()[:1000]
            return {"status": "failed", "reason": f"{text} ({Path(where.filename).name}:{where.lineno})"}
        return {"status": "ok"} | answer

    def do_make(self, request: Request) -> Answer:
        """Follow a recipe."""
        recipe = resolve(request["target"])
        self.candidate = request["candidate"]
        again = partial(recipe, request["candidate"], **request["arguments"])
        start = perf_counter_ns()
        case = again()
        took = (perf_counter_ns() - start) / 1e9
        if self.candidate in INFERRING:
            importlib.import_module("torch").set_grad_enabled(False)  # for good: this process only measures
        self.made[request["case"]], self.again[request["case"]] = case, again
        answer: Answer = {"make_s": took, "facts": dict(case.facts)}
        if case.work is not None:
            answer["work"] = {k: v.item() if hasattr(v, "item") else v for k, v in asdict(case.work).items()}
        return answer

    def do_first(self, request: Request) -> Answer:
        """Call a case for the first time, and check the answer when asked to."""
        case = self.made[request["case"]]
        start = perf_counter_ns()
        result = case.call()
        if case.wait is not None:
            case.wait(result)
        first = (perf_counter_ns() - start) / 1e9
        gc.collect()  # the collector stays off while batches are timed, for every arm alike
        return {"first_call_s": first} | (checked(case, result) if request["check"] else {})

    def do_calibrate(self, request: Request) -> Answer:
        """Return the calls of a batch of at least so many seconds, and the seconds of one."""
        case = self.made[request["case"]]
        calls, each_s = calibrated(case.call, case.wait, request["least_s"])
        return {"calls": calls, "each_s": each_s}

    def do_batches(self, request: Request) -> Answer:
        """Seconds a call, batch by batch; and what disturbed them."""
        if request["renew"]:
            self.renew(request["case"], request["renew"])
        case, calls = self.made[request["case"]], request["calls"]
        before, stolen = resource.getrusage(resource.RUSAGE_SELF), steal()
        if request["before"]:
            batch(case.call, case.wait, request["before"])
        first = {name: probe() for name, probe in self.probes.items()}
        waited, start = waiting(), perf_counter_ns()
        samples = [batch(case.call, case.wait, calls) for _ in range(request["batches"])]
        spent = perf_counter_ns() - start
        waited = waiting() - waited
        last = {name: probe() for name, probe in self.probes.items()}
        after = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "wall": [wall / calls / 1e9 for wall, _ in samples],
            "cpu": [cpu / calls / 1e9 for _, cpu in samples],
            **{name: [first[name], last[name]] for name in self.probes},
            **({"waiting": [min(waited / spent / self.threads, 0.99)]} if sys.platform == "linux" else {}),
            "switches": after.ru_nivcsw - before.ru_nivcsw,
            "stolen": (steal() - stolen) / max(spent / 1e9, TICKS_S),
            "spent_s": spent / 1e9,
        }

    def renew(self, case: str, pad: int) -> None:
        """The same case in other memory: where arrays lie decides some per cent of the speed of many loops."""
        renewed = self.again[case]()  # while the old one holds its memory
        self.padding[case] = bytearray(pad)
        old, self.made[case] = self.made[case], renewed
        if old.close is not None:
            old.close()

    def do_memory(self, request: Request) -> Answer:
        """Return the memory of one call."""
        from tritium.perf.meters.meter import Absent, memory

        case = self.made[request["case"]]
        answer = memory(case.call if case.wait is None else lambda: case.wait(case.call()))
        if (
            answer["peak_bytes"] == 0 and not request["own"]
        ):  # another library's memory is not in the pool: 0 is no measurement
            nothing = Absent("unsupported", "the call took nothing from Tritium's pool")
            answer |= {"peak_bytes": nothing, "allocated_bytes": nothing}
        library, _, device = self.candidate.partition(":")
        if library not in OWN or device not in ("", "cpu"):  # not the pool's: 0 would be invented
            whose = (
                "only Tritium's own memory is counted"
                if library not in OWN
                else f"the memory of {device} is its library's"
            )
            absent = Absent("unsupported", f"{whose}; see rss_bytes")
            answer |= {"peak_bytes": absent, "allocated_bytes": absent}
        return {"memory": {k: {"reason": v.reason} if isinstance(v, Absent) else v for k, v in answer.items()}}

    def do_counters(self, request: Request) -> Answer:
        """Meters that are not clocks (instructions), over one batch."""
        from tritium.perf.meters.meter import Absent, meters

        case, calls = self.made[request["case"]], request["calls"]
        answer: Answer = {}
        for name in request["metrics"]:
            if name not in self.meters:
                self.meters[name] = meters([name])[0]
            meter = self.meters[name]
            meter.start()
            batch(case.call, case.wait, calls)
            value = meter.stop(calls)
            answer[name] = {"unit": meter.unit, "source": meter.source, "exact": meter.exact} | (
                {"reason": value.reason} if isinstance(value, Absent) else {"value": value}
            )
        return {"counters": answer}

    def do_marked(self, request: Request) -> Answer:
        """Call between two markers, before which callgrind writes what it counted."""
        import ctypes

        marker = ctypes.CDLL(None).srand48
        case = self.made[request["case"]]
        marker(0)
        batch(case.call, case.wait, request["calls"])
        marker(0)
        return {}

    def do_energy(self, request: Request) -> Answer:
        """Joules a call over a window long enough for the counters."""
        from tritium.perf.meters.meter import EnergyMeter

        case = self.made[request["case"]]
        return {"energy": EnergyMeter(**request["options"]).window(case.call, case.wait, least_s=request["least_s"])}

    def do_drop(self, request: Request) -> Answer:
        """Forget a case: the next one finds the memory it had."""
        self.padding.pop(request["case"], None)
        self.again.pop(request["case"], None)
        case = self.made.pop(request["case"], None)
        if case is not None and case.close is not None:
            case.close()
        return {}


def checked(case: Any, result: Any) -> Answer:
    """Check the first result: return what was compared, or why nothing was."""
    import numpy as np

    if case.expected is None or case.answer is None:
        return {"checked": "not checked: the case names no right answer"}
    got, want = np.atleast_1d(case.answer(result)), np.atleast_1d(case.expected())
    if got.shape != want.shape:
        return {"status": "wrong", "reason": f"the answer has the shape {got.shape}, the right one {want.shape}"}
    if not got.size:
        return {"checked": "equal (no elements)"}
    both = want.dtype if want.dtype.kind in "iub" else np.float64
    with np.errstate(all="ignore"):
        off = np.abs(got.astype(both).astype(np.float64) - want.astype(np.float64))
        off[(got == want) | (np.isnan(got.astype(np.float64)) & np.isnan(want.astype(np.float64)))] = 0
    largest = float(np.max(np.abs(want[np.isfinite(want)]), initial=0.0)) or 1.0
    error = float(off.max()) / largest
    if not error <= case.tolerance:
        return {
            "status": "wrong",
            "reason": f"off by {error:.3g} of the largest value; {case.tolerance:.3g} is allowed",
        }
    return {"checked": "the same values" if error == 0 else f"within {error:.2g} of the largest value"}


def resolve(target: str) -> Callable[..., Any]:
    """The function "package.module:name" or "/path/file.py:name" means."""
    place, _, name = target.rpartition(":")
    if place.endswith(".py"):
        spec = importlib.util.spec_from_file_location(f"tritium_case_{abs(hash(place)):x}", place)
        if spec is None or spec.loader is None:
            raise FileNotFoundError(f"{place} cannot be loaded.")
        if spec.name not in sys.modules:
            sys.path.append(str(Path(place).parent))
            module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        target_value: Any = sys.modules[spec.name]
    else:
        target_value = importlib.import_module(place)
    for part in name.split("."):
        target_value = getattr(target_value, part)
    return target_value


def steal() -> float:
    """Seconds the hypervisor took from all CPUs since the start; 0 where it is not told."""
    try:
        with open("/proc/stat", encoding="ascii") as f:
            return int(f.readline().split()[8]) / 100
    except (OSError, IndexError, ValueError):
        return 0.0


def waiting() -> int:
    """Return the nanoseconds that threads of this process could have run and had no CPU; 0 where it is not told."""
    nanoseconds = 0
    for task in os.listdir("/proc/self/task") if sys.platform == "linux" else ():
        with contextlib.suppress(OSError, IndexError, ValueError):
            nanoseconds += int(Path(f"/proc/self/task/{task}/schedstat").read_text(encoding="ascii").split()[1])
    return nanoseconds


def settle(options: Request) -> None:
    """Before anything is imported: die with the parent, take no more memory than there is."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: a stopped orphan would stay for ever
        if os.getppid() != options["parent"]:
            os._exit(1)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    if options["memory"]:
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (options["memory"], hard))


def pin(cpus: list[int]) -> None:
    """Every thread there is stays on these CPUs; done after the imports, so that workers can start side by side."""
    for task in os.listdir("/proc/self/task") if cpus else ():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task), cpus)


def load_perf() -> None:
    """`tritium.perf` from this folder, whatever version of the package is measured."""
    package = importlib.import_module("tritium")  # not before: `settle` comes first
    here = Path(__file__).resolve().parents[1]
    if Path(str(package.__file__)).resolve().parent / "perf" != here:
        spec = importlib.util.spec_from_file_location(
            "tritium.perf", here / "__init__.py", submodule_search_locations=[str(here)]
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"{here} is not a package")
        module = sys.modules["tritium.perf"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


def preload(candidate: str) -> None:
    """Import the library of a candidate: workers that start side by side share the wait, and the collector skips what is there then.

    Where it cannot be imported, the recipes that need it say so.
    """
    with contextlib.suppress(Exception):
        importlib.import_module("tritium.perf.work.libraries").library_of(candidate)


def main() -> None:
    commands, answers = os.fdopen(int(sys.argv[1]), "rb"), os.fdopen(int(sys.argv[2]), "wb", 0)

    def tell(answer: Answer) -> None:
        try:
            text = json.dumps(answer, allow_nan=False)
        except (TypeError, ValueError) as error:
            text = json.dumps({"status": "failed", "reason": f"what the case tells is not JSON: {error}"})
        answers.write(text.encode() + b"\n")

    options = json.loads(commands.readline())
    settle(options)
    try:
        load_perf()
        preload(options["candidate"])
        pin(options["cpus"])
    except Exception as error:
        tell({"status": "failed", "reason": f"{type(error).__name__}: {error}"})
        return
    worker = Worker(options["threads"])
    gc.disable()
    gc.freeze()  # what was imported need not be looked through again
    tell({"status": "ok"})
    for line in commands:
        tell(worker.answer(json.loads(line)))


if __name__ == "__main__":
    main()
