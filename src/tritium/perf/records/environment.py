"""The surroundings of a measurement: what speed depends on, what may explain a difference, and this machine's ceilings.

The parent describes the machine, never a worker. Fields of `Hard` must agree before two runs are compared; the others
are shown when they differ.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path

from tritium import settings
from tritium.arguments import checked
from tritium.machine import tuned
from tritium.machine.facts import caches, digest, this_machine
from tritium.perf.meters.sensors import temperature

PACKAGES = ("numpy", "torch", "jax", "mlx", "scipy-openblas32")
OVER = 1.1  # times a ceiling: within it the ceiling was measured a little low; beyond it the work is overstated
VARIABLES = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TRITIUM_NUM_THREADS", "TRITIUM_ISA", "TRITIUM_TUNED",
)  # fmt: skip


@dataclass(frozen=True)
class Hard:
    """Properties that make two machines unlike: runs that differ here are not comparable."""

    cpu: str
    flags: str  # a hash of the instruction flags
    cpus: int
    usable: int
    architecture: str
    system: str
    loops: str  # "native", or "numpy" where there is no native library
    threads: int
    gpus: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return digest([getattr(self, f.name) for f in fields(self)])[:16]


@dataclass(frozen=True)
class Level:
    """A memory level: how much it holds, and bytes a second at the threads of the run."""

    name: str
    nbytes: float | None  # None: without end
    rate: float | None  # None: could not be measured


@dataclass(frozen=True)
class Ceiling:
    """One limit of a machine: of arithmetic (operations a second), or of a memory level (bytes a second)."""

    name: str
    kind: str  # "flops", "int_ops" or "bytes"
    rate: float


@dataclass(frozen=True)
class Limits:
    """This machine's measured ceilings at the threads of the run."""

    threads: int
    flops: float
    int_ops: float
    levels: tuple[Level, ...]

    @property
    def ceilings(self) -> tuple[Ceiling, ...]:
        """All that were measured: arithmetic, then memory from near to far."""
        levels = (Ceiling(level.name, "bytes", level.rate) for level in self.levels if level.rate is not None)
        return (Ceiling("f32", "flops", self.flops), Ceiling("int8", "int_ops", self.int_ops), *levels)

    def rate(self, integer: bool = False) -> float:
        """Operations a second."""
        return self.int_ops if integer else self.flops

    def least_s(self, flops: int, moved: int, integer: bool = False) -> float | None:
        """The time below which a call cannot go: the longer of its arithmetic and its bytes.

        None where the bytes lie in a level whose speed could not be measured, and arithmetic is not what bounds the call.
        """
        compute = flops / self.rate(integer)
        index = next((i for i, v in enumerate(self.levels) if v.nbytes is None or moved <= v.nbytes), -1)
        rates = [v.rate for v in self.levels[index:] if v.rate is not None]
        slowest = moved / rates[0] if rates else 0.0  # of a larger level, where its own is not known
        if self.levels[index].rate is None and slowest > compute:
            return None
        return max(compute, slowest)


@dataclass(frozen=True)
class Environment:
    """Machine, system and versions of a measurement."""

    hard: Hard
    python: str
    tritium: str
    commit: str  # of the checkout the package lies in; "" where it is none
    dirty: bool
    packages: dict[str, str]
    kernel: str  # of the operating system
    memory_gib: float
    virtual: str  # the hypervisor; "" on bare metal or where it is unknown
    governor: str
    power_source: str  # "mains", "battery", ""
    load: float  # of the last minute, when the run began
    temperature_c: float | None
    variables: dict[str, str] = field(default_factory=dict)
    limits: Limits | None = None


def differences(a: Environment, b: Environment) -> tuple[dict[str, tuple[str, str]], dict[str, tuple[str, str]]]:
    """Fields in which two environments differ: the hard ones, which forbid a comparison, and the others."""
    hard = {
        f.name: (str(getattr(a.hard, f.name)), str(getattr(b.hard, f.name)))
        for f in fields(Hard)
        if getattr(a.hard, f.name) != getattr(b.hard, f.name)
    }
    soft = {
        f.name: (str(getattr(a, f.name)), str(getattr(b, f.name)))
        for f in fields(Environment)
        if f.name not in ("hard", "limits", "load", "temperature_c") and getattr(a, f.name) != getattr(b, f.name)
    }
    return hard, soft


@checked
def this_environment(threads: int, *, limits: bool = True) -> Environment:
    """The environment of this process. The ceilings are measured once on a machine and then read from a file."""
    machine = this_machine()
    commit, dirty = _commit()
    return Environment(
        hard=Hard(
            machine.cpu, machine.flags, machine.cpus, machine.usable, platform.machine(), platform.system(),
            machine.loops, threads, gpus(),
        ),
        python=platform.python_version(),
        tritium=tuned.version(),
        commit=commit,
        dirty=dirty,
        packages={name: version for name in PACKAGES if (version := _version(name))},
        kernel=platform.release(),
        memory_gib=machine.memory_gib,
        virtual=_virtual(),
        governor=_first("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        power_source=_power_source(),
        load=round(os.getloadavg()[0], 2),
        temperature_c=_warmest(),
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
        limits=this_machines_limits(threads) if limits else None,
    )  # fmt: skip


@cache
def this_machines_limits(threads: int) -> Limits:
    from tritium.compiler import cost

    model = cost.model(threads)
    rates = {v.name: v.rate for v in model.levels}
    levels = [
        Level(f"L{c.level}", c.nbytes * max(1, threads // c.shared_by), rates.get(f"L{c.level}")) for c in caches()
    ]
    return Limits(threads, model.flops, model.int_ops, (*levels, Level("DRAM", None, rates["DRAM"])))


def _warmest() -> float | None:
    degrees = temperature()
    return degrees if isinstance(degrees, float) else None


@cache
def gpus() -> tuple[str, ...]:
    """The GPUs the driver lists; none where there is no driver."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=10, check=False
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(line.strip() for line in done.stdout.splitlines() if line.strip()) if done.returncode == 0 else ()


def _version(name: str) -> str:
    """Return the version of an installed package; "" where it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


@cache
def _commit() -> tuple[str, bool]:
    """The commit of the checkout this package lies in, and whether it was changed since."""
    folder = Path(__file__).parents[4]
    if not (folder / ".git").exists():
        return "", False
    try:
        outputs = [
            subprocess.run(["git", "-C", str(folder), *command], capture_output=True, text=True, timeout=10, check=True)
            for command in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        ]
    except (OSError, subprocess.SubprocessError) as error:
        settings.log.debug("the commit is not known: %s", error)
        return "", False
    return outputs[0].stdout.strip(), bool(outputs[1].stdout.strip())


def _first(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


# Vendors whose DMI fields name a hypervisor, as systemd-detect-virt knows them.
VENDORS = {
    "QEMU": "QEMU", "KVM": "KVM", "OpenStack": "KVM", "Amazon EC2": "Amazon EC2", "Google Compute Engine": "Google",
    "VMware": "VMware", "VMW": "VMware", "innotek GmbH": "VirtualBox", "VirtualBox": "VirtualBox", "Xen": "Xen",
    "Bochs": "Bochs", "Parallels": "Parallels", "BHYVE": "bhyve", "Hyper-V": "Hyper-V", "Apple Virtualization": "Apple",
    "Firecracker": "Firecracker",
}  # fmt: skip
DMI = ("product_name", "sys_vendor", "board_vendor", "bios_vendor", "product_version")
GUEST_NODES = ("hypervisor", "vmgenid", "fw-cfg")  # of a device tree; real boards have none of them


def _virtual(root: Path = Path("/")) -> str:
    """Return the hypervisor of this machine, as far as the system names it; "" where nothing shows one.

    Its sources: the DMI fields, the CPU's hypervisor flag, /sys/hypervisor, and the device tree of ARM and RISC-V guests.
    """
    dmi = [_first(str(root / "sys/class/dmi/id" / field)) for field in DMI]
    known = next((name for text in dmi for word, name in VENDORS.items() if text.startswith(word)), "")
    flagged = any(
        line.startswith("flags") and "hypervisor" in line.split()
        for line in _first(str(root / "proc/cpuinfo")).splitlines()
    )
    kind = _first(str(root / "sys/hypervisor/type"))
    if known or flagged or kind:
        bare_metal = known == "Amazon EC2" and dmi[0].endswith(".metal")  # its DMI says Amazon EC2 too
        return "" if bare_metal and not flagged else known or dmi[1] or kind or "a hypervisor"
    return _device_tree_guest(root / "proc/device-tree")


def _device_tree_guest(tree: Path) -> str:
    """Return the hypervisor that a device tree shows, "" on a real board."""
    compatible = _first(str(tree / "hypervisor/compatible")).replace("\0", " ").split()
    if compatible:
        return {"linux,kvm": "KVM", "xen,xen": "Xen"}.get(compatible[0], compatible[0])
    board = _first(str(tree / "compatible")).replace("\0", " ").split()
    guest = "linux,dummy-virt" in board or any((tree / node).exists() for node in GUEST_NODES)
    return "a hypervisor, by the device tree" if guest else ""


def _power_source(root: Path = Path("/sys/class/power_supply")) -> str:
    kinds = {_first(str(p / "type")): _first(str(p / "online")) for p in root.glob("*")}
    if kinds.get("Mains") == "1":
        return "mains"
    return "battery" if "Battery" in kinds else ""


def command_line() -> str:
    """Return the command line of this process."""
    name = Path(sys.argv[0]).name
    return " ".join(["tritium" if name == "__main__.py" else name, *sys.argv[1:]])
