"""Who is measured beside whom: names a person writes become arms, and absent libraries become notes with their remedy.

Knows nothing of operations. Nothing is imported here but to look whether it is installed; a worker imports its own library.

    arms, notes = peers.arms()                              what a bare machine has: tritium, tritium portable, numpy, reference
    arms, notes = peers.arms(["tritium", "torch", "avx2"])  by name
"""

from __future__ import annotations

from collections.abc import Sequence

from tritium import backends
from tritium.buffer import native, native_absence
from tritium.errors import ArgumentError, DeviceError
from tritium.perf.records.case import THREADS, Arm
from tritium.perf.words import nearest
from tritium.perf.work.libraries import ALIASES, LIBRARIES, PEERS as PEERS

ISAS = ("portable", "avx2", "avxvnni", "avx512", "avx512vnni", "amx", "neon", "dotprod", "i8mm")
CPU_KERNELS = {
    f"cpu:{name}": name for name in ("reference", *ISAS)
}  # the CPU with other kernels, where devices are named


def candidates() -> list[str]:
    """Every name that `arms` takes, whether it can be used here or not."""
    variants = [f"tritium:{name}" for name in backends.device_names()]
    return ["tritium", "tritium.compile", "reference", *ISAS, *PEERS, *variants]


def arms(
    names: Sequence[str] | None = None, threads: int | None = None, *, devices: Sequence[str] = ()
) -> tuple[list[Arm], list[str]]:
    """The arms of these names, and notes on what is left out and why. Without names: all that is installed here.

    `devices` adds an arm of Tritium on each device but the CPU. A name that means nothing is an error with the nearest one; a library
    or a device that is absent is a note. The CPU with other kernels is named as its arm is: portable, avx2, reference.
    """
    found: list[Arm] = []
    notes: list[str] = []
    asked = [n.strip() for n in names] if names is not None else _usual(notes)
    for name in [*asked, *(f"tritium:{d}" for d in devices if d != "cpu")]:
        made = _arm(name, threads)
        if isinstance(made, str):
            notes.append(made)
        elif made.name not in [a.name for a in found]:
            found.append(made)
    return found, notes


def _usual(notes: list[str]) -> list[str]:
    own = ["tritium", "portable", "numpy", "reference"]
    if native is None:
        notes.append(f"there is no native library here ({native_absence}); Tritium runs on its reference kernels")
        own = ["tritium", "numpy"]
    elif native.isa() == "portable":
        own.remove("portable")
    for peer in PEERS.values():
        if not peer.usual and not peer.absence():
            notes.append(f"{peer.name} is measured only when it is named: {peer.why_not}")
    return own + [p.name for p in PEERS.values() if p.usual and p.name not in own]


def _arm(given: str, threads: int | None) -> Arm | str:
    """The arm of a name, or why there is none."""
    name = ALIASES.get(given, given)
    isa = name.removeprefix("tritium ").removeprefix("tritium:")
    said = tuple((v, str(threads)) for v in THREADS) if threads is not None else ()
    if isa in ISAS:
        return _variant(isa, said)
    if name.startswith("tritium:"):
        try:
            return Arm(name, name, environment=said, optimisation=str(backends.device(isa)))
        except DeviceError as error:
            if isa.partition(":")[0] in backends.device_names():
                return f"{name} is left out: {error}"
            raise ArgumentError(f"arms: {error}") from None
    if name not in LIBRARIES:
        raise ArgumentError(
            f"arms: {given!r} is unknown.{nearest(given, candidates())} There are {', '.join(candidates())}."
        )
    if name == "reference":
        return Arm(name, name, environment=(*said, ("TRITIUM_PURE", "1")), optimisation="numpy reference")
    if name not in PEERS:
        return Arm(name, name, environment=said, optimisation="numpy" if native is None else str(native.isa()))
    peer = PEERS[name]
    if absence := peer.absence():
        return absence
    if name == "jax" and threads == 1:  # it has no switch of its own
        said = (*said, ("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"))
    return Arm(name, name, environment=said, optimisation=f"{name} {peer.version()}")


def arm_of(device: str) -> str:
    """What the arm of Tritium on a device is called: tritium, tritium:mlx; cpu:portable is the arm portable."""
    return CPU_KERNELS.get(device) or ("tritium" if device == "cpu" else f"tritium:{device}")


def kernels_absent(device: str) -> str:
    """Why the CPU cannot be had with these kernels here; nothing when it can."""
    made = _arm(CPU_KERNELS[device], None)
    return made.partition(" is left out: ")[2] if isinstance(made, str) else ""


def _variant(isa: str, said: tuple[tuple[str, str], ...]) -> Arm | str:
    """Tritium with the kernels of another instruction set."""
    here = list(native.isas()) if native is not None else []
    if isa not in here:
        return f"tritium {isa} is left out: this CPU and build have {', '.join(here) or 'no native kernels'}"
    return Arm(f"tritium {isa}", "tritium", environment=(*said, ("TRITIUM_ISA", isa)), optimisation=isa)
