"""Contenders by name: names from the command line become contenders, absent libraries become notes with their remedy.

Libraries are only checked for presence here; a worker imports its own.

    arms, notes = peers.arms()                              all that is installed: tritium, tritium portable, numpy, reference …
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

ISAS = ("portable", "avx2", "avxvnni", "avx512", "avx512bw", "avx512vnni", "amx", "neon", "dotprod", "i8mm")
CPU_KERNELS = {f"cpu:{name}": name for name in ("reference", *ISAS)}  # the CPU with other kernels, as device names


def candidates() -> list[str]:
    """Return every name that `arms` accepts, usable here or not."""
    variants = [f"tritium:{name}" for name in backends.device_names()]
    return ["tritium", "tritium.compile", "reference", *ISAS, *PEERS, *variants]


def arms(
    names: Sequence[str] | None = None, threads: int | None = None, *, devices: Sequence[str] = ()
) -> tuple[list[Arm], list[str]]:
    """Return the contenders of these names, and notes on what is left out and why. Without names: all that is installed here.

    `devices` adds Tritium on each device except the CPU. An unknown name is an error with the nearest one; an absent library or
    device is a note. The CPU with other kernels has the name of its contender: portable, avx2, reference.
    """
    contenders: list[Arm] = []
    notes: list[str] = []
    requested = [n.strip() for n in names] if names is not None else _usual(notes)
    for name in [*requested, *(f"tritium:{d}" for d in devices if d != "cpu")]:
        contender = _arm(name, threads)
        if isinstance(contender, str):
            notes.append(contender)
        elif contender.name not in [a.name for a in contenders]:
            contenders.append(contender)
    return contenders, notes


def _usual(notes: list[str]) -> list[str]:
    """Return the default names, adding notes on those left out."""
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


def _arm(requested: str, threads: int | None) -> Arm | str:
    """Return the contender of a name, or why there is none."""
    name = ALIASES.get(requested, requested)
    isa = name.removeprefix("tritium ").removeprefix("tritium:")
    variables = tuple((v, str(threads)) for v in THREADS) if threads is not None else ()
    if isa in ISAS:
        return _variant(isa, variables)
    if name.startswith("tritium:"):
        try:
            return Arm(name, name, environment=variables, optimisation=str(backends.device(isa)))
        except DeviceError as error:
            if isa.partition(":")[0] in backends.device_names():
                return f"{name} is left out: {error}"
            raise ArgumentError(f"arms: {error}") from None
    if name not in LIBRARIES:
        raise ArgumentError(
            f"arms: {requested!r} is unknown.{nearest(requested, candidates())} There are {', '.join(candidates())}."
        )
    if name == "reference":
        return Arm(name, name, environment=(*variables, ("TRITIUM_PURE", "1")), optimisation="numpy reference")
    if name not in PEERS:
        return Arm(name, name, environment=variables, optimisation="numpy" if native is None else str(native.isa()))
    peer = PEERS[name]
    if absence := peer.absence():
        return absence
    if name == "jax" and threads == 1:  # it has no API for this
        variables = (*variables, ("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"))
    return Arm(name, name, environment=variables, optimisation=f"{name} {peer.version()}")


def arm_of(device: str) -> str:
    """Return the name of Tritium's contender on a device: tritium, tritium:mlx; cpu:portable is portable."""
    return CPU_KERNELS.get(device) or ("tritium" if device == "cpu" else f"tritium:{device}")


def kernels_absent(device: str) -> str:
    """Return why the CPU cannot run these kernels here; "" if it can."""
    contender = _arm(CPU_KERNELS[device], None)
    return contender.partition(" is left out: ")[2] if isinstance(contender, str) else ""


def _variant(isa: str, variables: tuple[tuple[str, str], ...]) -> Arm | str:
    """Return Tritium with the kernels of another instruction set, or why it is left out."""
    from tritium.backends.cpu.device import unbuilt

    isas = list(native.isas()) if native is not None else []
    if isa in unbuilt():
        return f"tritium {isa} is left out: this build has no kernels for it; TRITIUM_ISAS=all pip install . has them"
    if isa not in isas:
        return f"tritium {isa} is left out: this CPU and build have {', '.join(isas) or 'no native kernels'}"
    return Arm(f"tritium {isa}", "tritium", environment=(*variables, ("TRITIUM_ISA", isa)), optimisation=isa)
