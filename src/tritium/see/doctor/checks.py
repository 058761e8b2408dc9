"""What may be wrong with a machine: a table of checks, each a pure function of a few readings.

Knows nothing of how a reading is taken (`see.doctor.readings`) or shown (`doctor`). A check says what it found, by which
numbers, and what to do; one whose readings are absent is not asked.
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

OTHERS: Levels = (("problem", 0.5), ("warning", 0.1), ("note", 0.03))  # of all CPUs, used by other processes
STOLEN: Levels = (("problem", 0.1), ("warning", 0.02), ("note", 0.002))  # of all CPU time, taken by the hypervisor
JITTER: Levels = (
    ("problem", 0.5),
    ("warning", 0.1),
    ("note", 0.03),
)  # how far a typical look at the clock lies above the fastest
NOISE: Levels = (("warning", 0.05), ("note", 0.02))  # how far equal code lay from equal
SLOW_BLAS: Levels = (("problem", 2.0), ("warning", 1.3))  # times as long as NumPy's product, at least
HOT_C = 90.0
SWITCHES = 50  # a second, of a process that never waits
OLD_DAYS = 90
DRIFT = 0.25  # of a tuned winner's time: worth a word even where it still wins


@dataclass(frozen=True)
class Finding:
    """What a check found: how bad, what, by which numbers, and what to do about it."""

    severity: Severity
    what: str
    evidence: str = ""
    remedy: str = ""
    check: str = ""  # the name of its row; whoever asks the table fills it in


@dataclass(frozen=True)
class Check:
    """A row: its function is given the readings it needs, in this order."""

    name: str
    look: Callable[..., Finding | Sequence[Finding]]
    needs: tuple[str, ...]


def graded(value: float, levels: Levels) -> Severity:
    """The first level that a value reaches."""
    return next((severity for severity, least in levels if value >= least), "fine")


# ---- how quiet the machine is


def governor(found: dict[str, int]) -> Finding:
    told = ", ".join(f"{name} on {n} CPU{'s' * (n > 1)}" for name, n in sorted(found.items()))
    slow = sorted(set(found) - {"performance"})
    if not slow:
        return Finding("fine", "the CPU governor is performance", told)
    return Finding(
        "warning" if "powersave" in slow else "note",
        f"the CPU governor is {', '.join(slow)}: clocks follow the load, and the first milliseconds are slow",
        f"scaling_governor: {told}",
        "sudo cpupower frequency-set --governor performance",
    )


def turbo(on: bool) -> Finding:
    if not on:
        return Finding("fine", "turbo is off: clocks do not depend on heat and neighbours")
    return Finding(
        "note", "turbo is on: clocks depend on heat and on how many cores work",
        "read from intel_pstate/no_turbo or cpufreq/boost",
        "for steady timings, as root: echo 1 > /sys/devices/system/cpu/intel_pstate/no_turbo (or echo 0 > …/cpufreq/boost)",
    )  # fmt: skip


def stolen(watch: Watch, share: float) -> Finding:
    told = f"{share:.1%} of all CPU time during {watch.seconds:.1f} s"
    severity = graded(share, STOLEN)
    if severity == "fine":
        return Finding("fine", "the hypervisor took no time worth a word", told)
    return Finding(
        severity, "the hypervisor takes CPU time away: another guest wants it", told,
        "measure at another hour or on another host; compare arms within one run (tritium compare), never two days",
    )  # fmt: skip


def virtual(name: str) -> Finding:
    if not name:
        return Finding("fine", "no hypervisor shows itself")
    return Finding(
        "note", "this is a virtual machine: what its neighbours do cannot be seen from inside", f"it tells: {name}",
        "trust ratios of arms measured in turn (tritium compare), not times of different days",
    )  # fmt: skip


def other_work(watch: Watch, busy: float, cpus: int) -> Finding:
    told = (
        f"others used {busy:.2f} of {cpus} CPUs during {watch.seconds:.1f} s; the load of the last minute is {watch.load:.2f}; "
        f"this process was put aside {watch.switches / watch.seconds:.0f} times a second"
    )
    severity = graded(busy / cpus, OTHERS)
    if severity == "fine":
        crowded = watch.switches / watch.seconds > SWITCHES
        if not crowded:
            return Finding("fine", "little else runs here", told)
        severity = "note"
    return Finding(
        severity, "other work runs beside", told, "end it (top, or htop, names it), or measure when it is over"
    )


def heat(before: Thermal, after: Thermal) -> Finding:
    warm = after.temperature_c
    told = "no temperature is told" if warm is None else f"{warm:.0f} °C"
    if after.throttle_events is not None and before.throttle_events is not None:
        new = after.throttle_events - before.throttle_events
        told += f"; slowed down for heat {new} times during the look, {after.throttle_events} times since the start"
        if new > 0:
            return Finding("problem", "the CPU slows itself down for heat now", told, "cool it, or wait between runs")
        if after.throttle_events:
            return Finding(
                "note", "the CPU has slowed itself down for heat since it was started", told,
                "watch the temperature during long runs: tritium bench energy tells it with every value",
            )  # fmt: skip
    if warm is not None and warm >= HOT_C:
        return Finding("warning", "the machine is hot, and may slow down under load", told, "cool it, or wait")
    return Finding("fine", "no slowing down for heat", told)


def quota(cpus: float | None, throttled: int) -> Finding:
    if cpus is None:
        return Finding("fine", "none (cgroup)")
    told = f"the cgroup allows {cpus:g} CPUs; it was stopped in {throttled} periods so far"
    if cpus != round(cpus):
        return Finding(
            "warning", f"the CPU quota is no whole number: {cpus:g} CPUs' worth of threads stop within every period", told,
            f"TRITIUM_NUM_THREADS={max(1, int(cpus))}, or ask for a whole number (docker --cpus={max(1, round(cpus))})",
        )  # fmt: skip
    if throttled:
        return Finding(
            "warning", "the CPU quota was used up: all threads stopped until the next period", told,
            f"use at most {cpus:g} threads over all processes of this group: TRITIUM_NUM_THREADS={int(cpus)}",
        )  # fmt: skip
    return Finding("note", "a CPU quota limits this process", told, "none is needed while it is not used up")


def siblings(found: Siblings) -> Finding:
    if found.shared:
        cores = len(found.groups)
        told = "; ".join(" and ".join(map(str, g)) for g in found.shared[:4])
        return Finding(
            "note", f"some of the {found.cpus} CPUs are two threads of one core", f"of one core each: {told}",
            f"for the steadiest timings one thread a core: TRITIUM_NUM_THREADS={cores}",
        )  # fmt: skip
    if found.outside:
        return Finding(
            "note", "other processes may run on the second thread of our cores",
            f"not ours, but of our cores: CPU {', '.join(map(str, found.outside[:8]))}",
            "leave them idle, or turn SMT off, as root: echo off > /sys/devices/system/cpu/smt/control",
        )  # fmt: skip
    return Finding("fine", "every CPU is a core of its own")


def power(source: str) -> Finding:
    if source != "battery":
        return Finding("fine", "on mains")
    return Finding(
        "warning", "on battery: most systems run slower to save it", "power_supply: no mains is online", "plug it in"
    )


def jitter(looks: Sequence[float]) -> Finding:
    """A fixed piece of arithmetic, again and again: on a quiet machine every look takes the same time."""
    seen = np.asarray(looks)
    fastest, typical, late = float(seen.min()), float(np.median(seen)), float(np.quantile(seen, 0.95))
    off = typical / fastest - 1
    told = (
        f"{len(seen)} looks at the clock: fastest {seconds_text(fastest)}, typical {off:+.1%}, the slowest 5 % from "
        f"{late / fastest - 1:+.0%} on"
    )
    severity = graded(off, JITTER)
    if severity == "fine" and late / fastest > 1.5:
        severity = "note"
    if severity == "fine":
        return Finding("fine", "the same work takes the same time", told)
    return Finding(
        severity, "the same work takes different times: clocks change, or a core is shared", told,
        "end other work, fix the clocks (governor, turbo), pin the process (taskset -c 1); `tritium selftest --aa` tells what "
        "differences can still be seen",
    )  # fmt: skip


def noise(floor: float) -> Finding:
    if not floor:
        return Finding(
            "note", "how far equal code lies from equal here was never measured",
            "no noise floor is kept for this machine", "tritium selftest --aa",
        )  # fmt: skip
    told = f"5 % of the cases of equal code lay further from equal than {floor:.1%}"
    severity = graded(floor, NOISE)
    if severity == "fine":
        return Finding("fine", "small differences can be seen here", told)
    return Finding(
        severity, f"differences below {2 * floor:.1%} cannot be told from noise here", told,
        "a quieter machine, or --thorough; then tritium selftest --aa again",
    )  # fmt: skip


def memory(found: Pressure) -> Finding:
    told = found.evidence
    if found.level in ("low", "medium"):
        return Finding("fine", f"memory pressure is {found.level}", told)
    return Finding(
        "problem" if found.level == "critical" else "warning", f"memory pressure is {found.level}", told,
        "smaller batches; tt.memory.trim() gives idle memory back; tritium memory SCRIPT tells who holds it",
    )  # fmt: skip


def gpu(found: Sequence[Gpu]) -> list[Finding]:
    out = []
    for g in found:
        if g.slowed:
            out.append(
                Finding(
                    "warning", f"{g.name} runs below its clocks", ", ".join(g.slowed), "cool it, or raise its power cap"
                )
            )
        if g.others:
            out.append(Finding("warning", f"{g.name} is shared", g.others, "end the others, or choose another GPU"))
    return out or [Finding("fine", f"{len(found)} GPU{'s' * (len(found) != 1)}, not slowed and not shared")]


# ---- how Tritium is set up


def native(found: Native) -> Finding:
    if not found.absence:
        return Finding("fine", "native kernels")
    if found.asked:
        return Finding("problem", "everything runs on NumPy", found.absence, "unset TRITIUM_PURE")
    return Finding(
        "problem", "everything runs on NumPy: there is no native library", found.absence,
        "install a C++ compiler (GCC 12, Clang 16 or newer) and run pip install . without TRITIUM_PURE",
    )  # fmt: skip


def isa(found: Isa) -> Finding:
    told = f"{found.now} of {', '.join(found.known)}"
    if found.rejected:
        return Finding(
            "problem", f"TRITIUM_ISA asks for {found.rejected}, which this CPU or build does not have", told,
            f"unset TRITIUM_ISA, or TRITIUM_ISA={found.known[-1]}",
        )  # fmt: skip
    if found.asked and found.now != found.known[-1]:
        return Finding("warning", f"TRITIUM_ISA keeps the kernels at {found.now}", told, "unset TRITIUM_ISA")
    return Finding("fine", f"kernels for {found.now}", told)


def blas(found: Blas, product: Product) -> Finding:
    told = (
        f"a product of {product.size}x{product.size}: {product.ours:.3g} GFLOP/s here, {product.numpy:.3g} with NumPy "
        f"({product.numpy_blas})"
    )
    if product.peak:
        told += f", {scaled(product.peak, 'FLOP/s')} at most"
    severity = graded(product.slower, SLOW_BLAS)
    if found.absent:
        worst: Severity = "note" if severity == "fine" else "problem"
        return Finding(worst, "there is no BLAS: dense products run on our own kernels", told, found.absent)
    if severity == "fine":
        return Finding("fine", found.name, told)
    return Finding(
        severity, f"dense products take {product.numpy / product.ours:.1f} times as long as NumPy's", f"{told}; {found.name}",
        "see the findings on threads and the instruction set first; then pip install --upgrade scipy-openblas32",
    )  # fmt: skip


def threads(found: Threads) -> list[Finding]:
    said = ", ".join(f"{k}={v}" for k, v in found.variables.items()) or "no variable sets it"
    told = f"{found.now} threads, {found.usable} usable CPUs (affinity and cgroup); {said}"
    out = []
    if found.now > found.usable:
        out.append(Finding(
            "problem", f"{found.now} threads on {found.usable} CPU{'s' * (found.usable > 1)}: they wait for each other", told,
            f"TRITIUM_NUM_THREADS={found.usable}, or unset it and OMP_NUM_THREADS",
        ))  # fmt: skip
    elif found.now < found.usable:
        out.append(Finding(
            "note", f"{found.usable - found.now} of {found.usable} CPUs are not used", told,
            f"if that is not on purpose: TRITIUM_NUM_THREADS={found.usable}",
        ))  # fmt: skip
    for name, count in found.pools:
        if count > found.usable:
            out.append(Finding(
                "warning", f"{name} would use {count} threads on {found.usable} CPUs", f"threadpoolctl; {said}",
                f"OMP_NUM_THREADS={found.usable} OPENBLAS_NUM_THREADS={found.usable}",
            ))  # fmt: skip
    return out or [
        Finding(
            "fine", f"{found.now} thread{'s' * (found.now > 1)} for {found.usable} CPU{'s' * (found.usable > 1)}", told
        )
    ]


def ceilings(found: Ceilings | None) -> Finding:
    if found is None:
        return Finding(
            "note", "this machine's ceilings were never measured: shares of what is possible cannot be told",
            "no file is kept for this machine", "tritium ceilings (a few seconds)",
        )  # fmt: skip
    wide = sorted({r.name for r in found.rows if r.samples and r.spread > 0.15})
    told = f"measured {found.measured_at}; {len(wide)} of {len({r.name for r in found.rows})} rows spread by more than 15 %"
    if found.disturbed:
        return Finding(
            "warning", "the ceilings were measured while other work ran: the truth may lie higher",
            f"{told}: {', '.join(wide[:6])}", "tritium ceilings --refresh, when the machine is quiet",
        )  # fmt: skip
    if found.quick:
        return Finding("note", "the ceilings were measured quickly", told, "tritium ceilings")
    return Finding("fine", "ceilings are there", told)


def tuned(found: TunedFile) -> Finding:
    if found.state == "absent":
        return Finding(
            "note", "nothing was tuned on this machine: every choice is as shipped", "no file is kept", "tritium tune"
        )
    if found.state == "void":
        return Finding("warning", "what was tuned is not used", found.why, "tritium tune")
    told = f"{found.choices} choices" + (f", the last race on {found.last}" if found.last else "")
    if found.followed == "none":
        return Finding("note", "what was tuned is ignored: TRITIUM_TUNED=0", told, "unset TRITIUM_TUNED")
    if found.age_days is not None and found.age_days > OLD_DAYS:
        return Finding("note", f"what was tuned is {found.age_days} days old", told, "tritium tune --revalidate")
    return Finding("fine", "tuned choices are followed", told)


def drift(found: Sequence[Drift]) -> list[Finding]:
    """Only a sample of the kept races was run again; what is said is said of those."""
    out = []
    for d in found:
        if not d.holds:
            out.append(
                Finding("warning", f"a tuned choice no longer wins: {d.op}", str(d), f"tritium tune --op {d.op}")
            )
        elif abs(d.ratio - 1) > DRIFT:
            out.append(Finding(
                "note", f"a tuned choice takes another time than it did: {d.op}", str(d), "tritium tune --revalidate"
            ))  # fmt: skip
    return out or [Finding("fine", f"tuned choices hold: {', '.join(sorted({d.op for d in found}))} was raced again")]


MACHINE = (
    Check("governor", governor, ("governor",)),
    Check("turbo", turbo, ("turbo",)),
    Check("stolen time", stolen, ("watch", "stolen")),
    Check("virtual machine", virtual, ("virtual",)),
    Check("other work", other_work, ("watch", "others", "cpus")),
    Check("heat", heat, ("heat before", "heat after")),
    Check("CPU quota", quota, ("quota", "throttled")),
    Check("SMT", siblings, ("siblings",)),
    Check("power", power, ("power",)),
    Check("jitter", jitter, ("looks",)),
    Check("noise floor", noise, ("noise",)),
    Check("memory", memory, ("pressure",)),
    Check("GPU", gpu, ("gpus",)),
    Check("native code", native, ("native",)),
    Check("instruction set", isa, ("isa",)),
    Check("BLAS", blas, ("blas", "product")),
    Check("threads", threads, ("threads",)),
    Check("ceilings", ceilings, ("ceilings",)),
    Check("tuned choices", tuned, ("tuned",)),
    Check("tuned, again", drift, ("drift",)),
)
