"""Checks of the machine: a table of pure functions from a few readings to findings.

Readings are taken by `see.doctor.readings`, findings are shown by `see.doctor.diagnosis`. A finding has its evidence
in numbers and a remedy; a check is skipped if one of its readings is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from tritium.machine.ceilings import Ceilings, scaled
from tritium.machine.facts import seconds_text
from tritium.perf.meters.sensors import Thermal
from tritium.perf.tune.racing import Drift
from tritium.see.doctor.readings import Blas, Gpu, Isa, Native, Product, Siblings, Threads, TunedFile, Watch

if TYPE_CHECKING:
    from tritium.see.memory.pressure import Pressure


Severity = Literal["problem", "warning", "note", "fine", "not looked at"]
Levels = tuple[tuple[Severity, float], ...]
SEVERITIES: tuple[Severity, ...] = ("problem", "warning", "note", "fine", "not looked at")

OTHERS: Levels = (("problem", 0.5), ("warning", 0.1), ("note", 0.03))  # share of all CPUs used by other processes
STOLEN: Levels = (("problem", 0.1), ("warning", 0.02), ("note", 0.002))  # share of all CPU time taken by the hypervisor
JITTER: Levels = (
    ("problem", 0.5),
    ("warning", 0.1),
    ("note", 0.03),
)  # median time of the fixed arithmetic over its fastest time, minus 1
NOISE: Levels = (("warning", 0.05), ("note", 0.02))  # measured difference between identical code
SLOW_BLAS: Levels = (("problem", 2.0), ("warning", 1.3))  # time over NumPy's, lower end of the interval
HOT_C = 90.0
SWITCHES = 50  # involuntary context switches per second of a process that never waits
OLD_DAYS = 90
DRIFT = 0.25  # relative change of a tuned winner's time that is reported even if it still wins


@dataclass(frozen=True)
class Finding:
    """The result of a check: severity, what is the case, the evidence in numbers, and the remedy."""

    severity: Severity
    what: str
    evidence: str = ""
    remedy: str = ""
    check: str = ""  # name of the check; filled in by `run_checks`


@dataclass(frozen=True)
class Check:
    """A row of the table of checks: `look` is called with the readings named in `needs`, in this order."""

    name: str
    look: Callable[..., Finding | Sequence[Finding]]
    needs: tuple[str, ...]


def grade(value: float, levels: Levels) -> Severity:
    """Return the severity of the first level that a value reaches."""
    return next((severity for severity, least in levels if value >= least), "fine")


# ---- the machine: clocks, other load, limits


def check_governor(counts: dict[str, int]) -> Finding:
    evidence = ", ".join(f"{name} on {n} CPU{'s' * (n > 1)}" for name, n in sorted(counts.items()))
    slow = sorted(set(counts) - {"performance"})
    if not slow:
        return Finding("fine", "the CPU governor is performance", evidence)
    return Finding(
        "warning" if "powersave" in slow else "note",
        f"the CPU governor is {', '.join(slow)}: clocks follow the load, and the first milliseconds are slow",
        f"scaling_governor: {evidence}",
        "sudo cpupower frequency-set --governor performance",
    )


def check_turbo(on: bool) -> Finding:
    if not on:
        return Finding("fine", "turbo is off: clocks do not depend on temperature and active cores")
    return Finding(
        "note", "turbo is on: clocks depend on temperature and on the number of active cores",
        "read from intel_pstate/no_turbo or cpufreq/boost",
        "for steady timings, as root: echo 1 > /sys/devices/system/cpu/intel_pstate/no_turbo (or echo 0 > …/cpufreq/boost)",
    )  # fmt: skip


def check_stolen(watch: Watch, share: float) -> Finding:
    evidence = f"{share:.1%} of all CPU time during {watch.seconds:.1f} s"
    severity = grade(share, STOLEN)
    if severity == "fine":
        return Finding("fine", "the hypervisor took no significant CPU time", evidence)
    return Finding(
        severity, "the hypervisor takes CPU time away for other guests", evidence,
        "measure at another time or on another host; compare candidates within one run (tritium compare), not across days",
    )  # fmt: skip


def check_virtual(name: str) -> Finding:
    if not name:
        return Finding("fine", "no hypervisor was detected")
    return Finding(
        "note", "this is a virtual machine: the load of other guests is not visible from inside", f"hypervisor: {name}",
        "trust ratios of candidates measured in alternation (tritium compare), not times of different days",
    )  # fmt: skip


def check_other_work(watch: Watch, busy: float, cpus: int) -> Finding:
    evidence = (
        f"other processes used {busy:.2f} of {cpus} CPUs during {watch.seconds:.1f} s; 1-minute load average {watch.load:.2f}; "
        f"{watch.switches / watch.seconds:.0f} involuntary context switches per second"
    )
    severity = grade(busy / cpus, OTHERS)
    if severity == "fine":
        crowded = watch.switches / watch.seconds > SWITCHES
        if not crowded:
            return Finding("fine", "almost no other load", evidence)
        severity = "note"
    return Finding(
        severity,
        "other work runs on this machine",
        evidence,
        "end it (top or htop lists it), or measure when it has finished",
    )


def check_heat(before: Thermal, after: Thermal) -> Finding:
    temperature = after.temperature_c
    evidence = "no temperature sensor" if temperature is None else f"{temperature:.0f} °C"
    if after.throttle_events is not None and before.throttle_events is not None:
        new = after.throttle_events - before.throttle_events
        evidence += f"; {new} throttle events during the check, {after.throttle_events} since boot"
        if new > 0:
            return Finding(
                "problem",
                "the CPU slows itself down for heat now (thermal throttling)",
                evidence,
                "cool it, or wait between runs",
            )
        if after.throttle_events:
            return Finding(
                "note", "the CPU has slowed itself down for heat since boot", evidence,
                "watch the temperature during long runs: tritium bench energy records it with every value",
            )  # fmt: skip
    if temperature is not None and temperature >= HOT_C:
        return Finding("warning", "the machine is hot, and may slow down under load", evidence, "cool it, or wait")
    return Finding("fine", "no thermal throttling", evidence)


def check_quota(cpus: float | None, throttled: int) -> Finding:
    if cpus is None:
        return Finding("fine", "no CPU quota (cgroup)")
    evidence = f"the cgroup allows {cpus:g} CPUs; throttled in {throttled} periods so far"
    if cpus != round(cpus):
        return Finding(
            "warning", f"the CPU quota is not a whole number: threads on {cpus:g} CPUs are throttled within every period", evidence,
            f"TRITIUM_NUM_THREADS={max(1, int(cpus))}, or ask for a whole number (docker --cpus={max(1, round(cpus))})",
        )  # fmt: skip
    if throttled:
        return Finding(
            "warning", "the CPU quota was used up: all threads stopped until the next period", evidence,
            f"use at most {cpus:g} threads in all processes of this cgroup: TRITIUM_NUM_THREADS={int(cpus)}",
        )  # fmt: skip
    return Finding("note", "a CPU quota limits this process", evidence, "none is needed while the quota is not used up")


def check_siblings(topology: Siblings) -> Finding:
    if topology.shared:
        cores = len(topology.groups)
        groups = "; ".join(" and ".join(map(str, g)) for g in topology.shared[:4])
        return Finding(
            "note", f"some of the {topology.cpus} CPUs are hyperthreads of one core", f"CPUs of one core: {groups}",
            f"for the steadiest timings, one thread per core: TRITIUM_NUM_THREADS={cores}",
        )  # fmt: skip
    if topology.outside:
        return Finding(
            "note", "other processes may run on the second thread of this process's cores",
            f"siblings outside this process's affinity: CPU {', '.join(map(str, topology.outside[:8]))}",
            "leave them idle, or turn SMT off, as root: echo off > /sys/devices/system/cpu/smt/control",
        )  # fmt: skip
    return Finding("fine", "every CPU is a separate core")


def check_power(source: str) -> Finding:
    if source != "battery":
        return Finding("fine", "on mains")
    return Finding(
        "warning", "on battery: most systems lower their clocks", "power_supply: no mains is online", "plug it in"
    )


def check_jitter(timings: Sequence[float]) -> Finding:
    """Check the times of a fixed piece of arithmetic, which are all equal on a quiet machine."""
    times = np.asarray(timings)
    fastest, typical, late = float(times.min()), float(np.median(times)), float(np.quantile(times, 0.95))
    excess = typical / fastest - 1
    evidence = (
        f"{len(times)} timings of the same work: fastest {seconds_text(fastest)}, median {excess:+.1%}, 95th percentile "
        f"{late / fastest - 1:+.0%}"
    )
    severity = grade(excess, JITTER)
    if severity == "fine" and late / fastest > 1.5:
        severity = "note"
    if severity == "fine":
        return Finding("fine", "the same work takes the same time", evidence)
    return Finding(
        severity, "the same work takes different times: clocks change, or a core is shared", evidence,
        "end other work, fix the clocks (governor, turbo), pin the process (taskset -c 1); `tritium selftest --aa` measures "
        "the smallest difference that can be detected",
    )  # fmt: skip


def check_noise(floor: float) -> Finding:
    if not floor:
        return Finding(
            "note", "the difference between identical code was never measured on this machine",
            "no noise floor is stored for this machine", "tritium selftest --aa",
        )  # fmt: skip
    evidence = f"in 5 % of the comparisons of identical code the difference exceeded {floor:.1%}"
    severity = grade(floor, NOISE)
    if severity == "fine":
        return Finding("fine", "small differences can be detected here", evidence)
    return Finding(
        severity, f"differences below {2 * floor:.1%} cannot be distinguished from noise here", evidence,
        "a quieter machine, or --thorough; then tritium selftest --aa again",
    )  # fmt: skip


def check_memory(pressure: Pressure) -> Finding:
    evidence = pressure.evidence
    if pressure.level in ("low", "medium"):
        return Finding("fine", f"memory pressure is {pressure.level}", evidence)
    return Finding(
        "problem" if pressure.level == "critical" else "warning", f"memory pressure is {pressure.level}", evidence,
        "smaller batches; tt.memory.trim() returns idle memory to the system; tritium memory SCRIPT lists what holds it",
    )  # fmt: skip


def check_gpu(gpus: Sequence[Gpu]) -> list[Finding]:
    findings = []
    for g in gpus:
        if g.slowed:
            findings.append(
                Finding(
                    "warning", f"{g.name} runs below its clocks", ", ".join(g.slowed), "cool it, or raise its power cap"
                )
            )
        if g.others:
            findings.append(
                Finding("warning", f"{g.name} is shared", g.others, "end the other processes, or choose another GPU")
            )
    return findings or [Finding("fine", f"{len(gpus)} GPU{'s' * (len(gpus) != 1)}, not throttled and not shared")]


# ---- the setup of Tritium


def check_native(build: Native) -> Finding:
    if not build.absence:
        return Finding("fine", "native kernels")
    if build.forced:
        return Finding("problem", "everything runs on NumPy", build.absence, "unset TRITIUM_PURE")
    return Finding(
        "problem", "everything runs on NumPy: there is no native library", build.absence,
        "install a C++ compiler (GCC 12, Clang 16 or newer) and run pip install . without TRITIUM_PURE",
    )  # fmt: skip


def check_isa(selection: Isa) -> Finding:
    evidence = f"{selection.now} of {', '.join(selection.known)}"
    if selection.rejected:
        return Finding(
            "problem", f"TRITIUM_ISA={selection.rejected}, which this CPU or build does not support", evidence,
            f"unset TRITIUM_ISA, or TRITIUM_ISA={selection.known[-1]}",
        )  # fmt: skip
    if selection.requested and selection.now != selection.known[-1]:
        return Finding("warning", f"TRITIUM_ISA limits the kernels to {selection.now}", evidence, "unset TRITIUM_ISA")
    if selection.unbuilt:
        return Finding(
            "warning", f"this build has no kernels for {selection.unbuilt}, which this CPU runs", evidence,
            "install it again on this machine, with --no-cache-dir; or build it for every CPU: TRITIUM_ISAS=all",
        )  # fmt: skip
    return Finding("fine", f"kernels for {selection.now}", evidence)


def check_blas(library: Blas, product: Product) -> Finding:
    evidence = (
        f"a matmul of {product.size}x{product.size}: {product.ours:.3g} GFLOP/s with Tritium, {product.numpy:.3g} with NumPy "
        f"({product.numpy_blas})"
    )
    if product.peak:
        evidence += f", {scaled(product.peak, 'FLOP/s')} peak"
    severity = grade(product.slower, SLOW_BLAS)
    if library.absent:
        worst: Severity = "note" if severity == "fine" else "problem"
        return Finding(worst, "there is no BLAS: dense products run on Tritium's own kernels", evidence, library.absent)
    if severity == "fine":
        return Finding("fine", library.name, evidence)
    return Finding(
        severity, f"dense products take {product.numpy / product.ours:.1f} times as long as NumPy's", f"{evidence}; {library.name}",
        "see the findings on threads and the instruction set first; then pip install --upgrade scipy-openblas32",
    )  # fmt: skip


def check_threads(state: Threads) -> list[Finding]:
    variables = ", ".join(f"{k}={v}" for k, v in state.variables.items()) or "no environment variable sets it"
    evidence = f"{state.now} threads, {state.usable} usable CPUs (affinity and cgroup); {variables}"
    findings = []
    if state.now > state.usable:
        findings.append(Finding(
            "problem", f"{state.now} threads on {state.usable} CPU{'s' * (state.usable > 1)}: oversubscribed", evidence,
            f"TRITIUM_NUM_THREADS={state.usable}, or unset it and OMP_NUM_THREADS",
        ))  # fmt: skip
    elif state.now < state.usable:
        findings.append(Finding(
            "note", f"{state.usable - state.now} of {state.usable} CPUs are not used", evidence,
            f"if this is not intended: TRITIUM_NUM_THREADS={state.usable}",
        ))  # fmt: skip
    for name, count in state.pools:
        if count > state.usable:
            findings.append(Finding(
                "warning", f"{name} would use {count} threads on {state.usable} CPUs", f"threadpoolctl; {variables}",
                f"OMP_NUM_THREADS={state.usable} OPENBLAS_NUM_THREADS={state.usable}",
            ))  # fmt: skip
    return findings or [
        Finding(
            "fine",
            f"{state.now} thread{'s' * (state.now > 1)} for {state.usable} CPU{'s' * (state.usable > 1)}",
            evidence,
        )
    ]


def check_ceilings(ceilings: Ceilings | None) -> Finding:
    if ceilings is None:
        return Finding(
            "note", "this machine's ceilings were never measured: results cannot be shown as a share of the peak",
            "no file is stored for this machine", "tritium ceilings (a few seconds)",
        )  # fmt: skip
    wide = sorted({r.name for r in ceilings.rows if r.samples and r.spread > 0.15})
    evidence = f"measured {ceilings.measured_at}; {len(wide)} of {len({r.name for r in ceilings.rows})} ceilings vary by more than 15 %"
    if ceilings.disturbed:
        return Finding(
            "warning", "the ceilings were measured while other work ran: the real ones may be higher",
            f"{evidence}: {', '.join(wide[:6])}", "tritium ceilings --refresh, when the machine is quiet",
        )  # fmt: skip
    if ceilings.quick:
        return Finding("note", "the ceilings were measured quickly", evidence, "tritium ceilings")
    return Finding("fine", "ceilings are measured", evidence)


def check_tuned(file: TunedFile) -> Finding:
    if file.state == "absent":
        return Finding(
            "note",
            "nothing was tuned on this machine: every choice is the default",
            "no file is stored",
            "tritium tune",
        )
    if file.state == "void":
        return Finding("warning", "the tuned choices are not used", file.why, "tritium tune")
    evidence = f"{file.choices} choices" + (f", the last race on {file.last}" if file.last else "")
    if file.followed == "none":
        return Finding("note", "the tuned choices are ignored: TRITIUM_TUNED=0", evidence, "unset TRITIUM_TUNED")
    if file.age_days is not None and file.age_days > OLD_DAYS:
        return Finding("note", f"the tuned choices are {file.age_days} days old", evidence, "tritium tune --revalidate")
    return Finding("fine", "tuned choices are used", evidence)


def check_drift(drifts: Sequence[Drift]) -> list[Finding]:
    """Check the tuned races that were run again, a sample of those stored."""
    findings = []
    for d in drifts:
        if not d.holds:
            findings.append(
                Finding("warning", f"a tuned choice no longer wins: {d.op}", str(d), f"tritium tune --op {d.op}")
            )
        elif abs(d.ratio - 1) > DRIFT:
            findings.append(Finding(
                "note", f"a tuned choice takes another time than when it was tuned: {d.op}", str(d), "tritium tune --revalidate"
            ))  # fmt: skip
    return findings or [
        Finding("fine", f"tuned choices hold: {', '.join(sorted({d.op for d in drifts}))} was measured again")
    ]


MACHINE = (
    Check("governor", check_governor, ("governor",)),
    Check("turbo", check_turbo, ("turbo",)),
    Check("stolen time", check_stolen, ("watch", "stolen")),
    Check("virtual machine", check_virtual, ("virtual",)),
    Check("other work", check_other_work, ("watch", "others", "cpus")),
    Check("heat", check_heat, ("heat before", "heat after")),
    Check("CPU quota", check_quota, ("quota", "throttled")),
    Check("SMT", check_siblings, ("siblings",)),
    Check("power", check_power, ("power",)),
    Check("jitter", check_jitter, ("timings",)),
    Check("noise floor", check_noise, ("noise",)),
    Check("memory", check_memory, ("pressure",)),
    Check("GPU", check_gpu, ("gpus",)),
    Check("native code", check_native, ("native",)),
    Check("instruction set", check_isa, ("isa",)),
    Check("BLAS", check_blas, ("blas", "product")),
    Check("threads", check_threads, ("threads",)),
    Check("ceilings", check_ceilings, ("ceilings",)),
    Check("tuned choices", check_tuned, ("tuned",)),
    Check("tuned, again", check_drift, ("drift",)),
)
