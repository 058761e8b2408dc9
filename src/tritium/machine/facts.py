"""The machine as the system reports it: a fingerprint of what speed depends on, its caches, its free memory."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tritium.buffer import native


@dataclass(frozen=True)
class Cache:
    """One level of cache, as the system reports it."""

    level: int
    nbytes: int
    shared_by: int  # of the CPUs this process may use


@dataclass(frozen=True)
class Machine:
    """The properties that speed depends on: measurements of one machine do not apply to another."""

    cpu: str
    flags: str  # a hash of the instruction flags
    cpus: int
    usable: int  # by affinity and cgroup
    affinity: str
    memory_gib: float  # by cgroup, to a tenth
    system: str
    loops: str  # "native", or "numpy" where there is no native library

    @property
    def key(self) -> str:
        return digest(asdict(self))[:16]


def this_machine() -> Machine:
    """Return the fingerprint of this process on this machine."""
    return Machine(
        cpu=processor(),
        flags=digest(sorted(_flags()))[:16],
        cpus=os.cpu_count() or 1,
        usable=usable_threads(),
        affinity=listed(_allowed()),
        memory_gib=round(memory_limit() / 2**30, 1),
        system=f"{platform.system()} {platform.release()}",
        loops="numpy" if native is None else "native",
    )


def processor() -> str:
    """Return the processor's name as the system reports it; on ARM, that of its part number."""
    text = _text("/proc/cpuinfo")
    for line in text.splitlines():
        if line.lower().startswith(("model name", "hardware", "cpu model")):
            return f"{line.partition(':')[2].strip()} ({platform.machine()})"
    return arm_name(text) or platform.processor() or platform.machine()


# ARM's cores by the part number that Linux reports (implementer 0x41); others' numbers name their chips, not cores.
ARM_CORES = {
    0xD03: "Cortex-A53", 0xD05: "Cortex-A55", 0xD08: "Cortex-A72", 0xD0B: "Cortex-A76", 0xD0C: "Neoverse-N1", 0xD0D: "Cortex-A77",
    0xD40: "Neoverse-V1", 0xD41: "Cortex-A78", 0xD44: "Cortex-X1", 0xD47: "Cortex-A710", 0xD48: "Cortex-X2", 0xD49: "Neoverse-N2",
    0xD4D: "Cortex-A715", 0xD4E: "Cortex-X3", 0xD4F: "Neoverse-V2", 0xD81: "Cortex-A720", 0xD82: "Cortex-X4", 0xD84: "Neoverse-V3",
    0xD8E: "Neoverse-N3",
}  # fmt: skip


def arm_name(text: str) -> str:
    """Return the names of the ARM cores in the text of /proc/cpuinfo, "" where none is known."""
    fields = [[part.strip() for part in line.split(":", 1)] for line in text.splitlines() if ":" in line]
    if any(name == "CPU implementer" and value != "0x41" for name, value in fields):
        return ""
    parts = {int(value, 16) for name, value in fields if name == "CPU part" and value.startswith("0x")}
    names = sorted(ARM_CORES[part] for part in parts if part in ARM_CORES)
    return f"{' and '.join(names)} ({platform.machine()})" if names and len(names) == len(parts) else ""


def usable_threads() -> int:
    """Return how many threads this process may run at once."""
    if native is not None:
        return int(native.available_threads())
    return len(_allowed()) or os.cpu_count() or 1


def _allowed() -> list[int]:
    """Return the CPUs this process may run on; none where the system does not report them."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def _flags() -> list[str]:
    """Return the instruction sets the system lists."""
    for line in _text("/proc/cpuinfo").splitlines():
        if line.lower().startswith(("flags", "features")):
            return line.partition(":")[2].split()
    return [f"{k}={v}" for k, v in _sysctl("hw.optional").items()]


def _text(*parts: str | os.PathLike[str]) -> str:
    """Return the text of a file, "" where it cannot be read."""
    try:
        with open(os.path.join(*parts), encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _sysctl(name: str) -> dict[str, str]:
    """Return macOS's sysctl values under a name; none on other systems."""
    if platform.system() != "Darwin":
        return {}
    import subprocess

    done = subprocess.run(["/usr/sbin/sysctl", name], capture_output=True, text=True, timeout=10, check=False)
    return {k: v.strip() for k, _, v in (line.partition(":") for line in done.stdout.splitlines()) if v}


def caches(root: str | os.PathLike[str] = "/sys/devices/system/cpu") -> tuple[Cache, ...]:
    """Return the data caches from the core outwards, as the system reports them; none where it does not."""
    allowed = _allowed() or [0]
    folder = os.path.join(root, f"cpu{allowed[0]}", "cache")
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    result = []
    for index in (os.path.join(folder, name) for name in names if name.startswith("index")):
        level, kind, size = (_text(index, name) for name in ("level", "type", "size"))
        digits, unit = size.rstrip("KMG"), size[-1:]
        if kind == "Instruction" or not level.isdigit() or not digits.isdigit():
            continue
        sharing = set(_span(_text(index, "shared_cpu_list"))) & set(allowed)
        nbytes = int(digits) << {"K": 10, "M": 20, "G": 30}.get(unit, 0)
        result.append(Cache(int(level), nbytes, max(1, len(sharing))))
    return tuple(sorted(result, key=lambda c: c.level)) or _macos_caches()


def _macos_caches() -> tuple[Cache, ...]:
    values = _sysctl("hw")
    result = []
    for level, key in ((1, "l1dcachesize"), (2, "l2cachesize"), (3, "l3cachesize")):
        size = values.get(f"hw.perflevel0.{key}") or values.get(f"hw.{key}") or "0"
        sharing = values.get("hw.perflevel0.cpusperl2", "1") if level == 2 else "1"
        if int(size):
            result.append(Cache(level, int(size), max(1, int(sharing))))
    return tuple(result)


def _span(text: str) -> list[int]:
    """Return the numbers of a list such as "0-3,8"."""
    out: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        out += range(int(first), int(last or first) + 1)
    return out


def memory_limit() -> int:
    """Return the bytes this process may use: its limit, or the memory of the machine."""
    if native is not None:
        return int(native.memory_limit())
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def installed_memory(proc: str | os.PathLike[str] = "/proc") -> tuple[int, int | None]:
    """Return the bytes of memory the machine has (0: unknown), and those still available to a program (None: unknown)."""
    values = {}
    for line in _text(proc, "meminfo").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isascii() and words[0].isdigit():
            values[name] = int(words[0]) << 10
    if "MemTotal" in values:
        return values["MemTotal"], values.get("MemAvailable")
    try:
        return max(0, os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE"), values.get("MemAvailable")
    except (ValueError, OSError):
        return 0, values.get("MemAvailable")


def free_memory() -> int:
    """Return the bytes this process can still allocate."""
    limit, available = memory_limit(), installed_memory()[1]
    return limit if available is None else min(limit, available)


def digest(value: Any) -> str:
    """Return the SHA-256 of a value JSON can hold, in hex."""
    import hashlib
    import json

    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def sealed(schema: int, name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with the schema and checksum that `unsealed` verifies."""
    return {"schema": schema, "sha256": digest(body), name: body}


def unsealed(document: Any, schema: int, name: str) -> dict[str, Any]:
    """Return the body of an intact document; raise ValueError with the reason otherwise."""
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")
    if document.get("schema") != schema:
        raise ValueError(f"it has schema {document.get('schema')!r}, this version reads {schema}")
    body = document.get(name)
    if not isinstance(body, dict) or document.get("sha256") != digest(body):
        raise ValueError("its contents do not match its checksum")
    return body


def listed(items: Iterable[Any]) -> str:
    return ", ".join(map(str, items))


# ---- numbers as text

SIZES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))
TIMES = ((60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    """Format three digits with the largest unit that is not above the value; four just below the next unit."""
    scale, unit = next(((s, u) for s, u in units if value >= s), units[-1])
    return (f"{value / scale:.3g} {unit}" if value / scale < 999.5 else f"{value / scale:.0f} {unit}").rstrip()


def bytes_text(n: float) -> str:
    return scaled(n, SIZES)


def seconds_text(s: float) -> str:
    return scaled(s, TIMES)
