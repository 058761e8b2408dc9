"""Decide which instruction sets a build has kernels for. CMake asks for their names, scikit-build-core for the version.

python tools/instruction_sets.py [MACHINE]    print the names, as TRITIUM_ISAS is set

TRITIUM_ISAS is native (the baseline and what this CPU runs best), all, or names with commas between them. A build that is not for
every CPU says so in its version, as in 0.1.0+native.avx2. A source distribution is built for all of them unless TRITIUM_ISAS
is set: an index that has it promised its version.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

# By kind of machine: names, the preferred ones last, with the features that Linux names of a CPU that runs them.
V3 = "avx2 fma bmi1 bmi2"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"
VNNI = f"{V4} avx512_vnni"
X86 = {
    "portable": "",
    "avx2": V3,
    "avxvnni": f"{V3} avx_vnni",
    "avx512": V4,
    "avx512bw": V4,
    "avx512vnni": VNNI,
    "amx": f"{VNNI} amx_tile amx_int8",
}
ARM = {"portable": "", "neon": "", "dotprod": "asimddp", "i8mm": "asimddp i8mm"}
MACHINES = {"x86_64": X86, "amd64": X86, "aarch64": ARM, "arm64": ARM}
NEEDED = {  # by what else
    "avxvnni": {"avx2"},
    "avx512": {"avx512bw"},  # of which avx512 has its products
    "avx512bw": {"avx512"},
    "avx512vnni": {"avx512"},
    "amx": {"avx512", "avx512vnni"},  # which has the products of few tokens
}


def names_of(machine: str) -> dict[str, str]:
    """Return the instruction sets of a kind of machine, with the features they need."""
    return MACHINES.get(machine.lower(), {"portable": ""})


def baseline(machine: str) -> str:
    """Return the instruction set that every CPU of a kind runs."""
    return best(machine, set())


def best(machine: str, features: set[str]) -> str:
    """Return the instruction set that a CPU of these features runs best."""
    return [name for name, needed in names_of(machine).items() if features.issuperset(needed.split())][-1]


def cpu_features() -> set[str]:
    """Return the features of this CPU by Linux's names; none where the system does not name them."""
    if sys.platform == "darwin":
        keys = ("hw.optional.arm", "machdep.cpu.features", "machdep.cpu.leaf7_features")
        found = subprocess.run(["sysctl", *keys], capture_output=True, text=True, check=False).stdout.lower()
        renamed = {"feat_dotprod: 1": "asimddp", "feat_i8mm: 1": "i8mm", "avx512vnni": "avx512_vnni"}
        return set(re.findall(r"\w+", found)) | {name for text, name in renamed.items() if text in found}
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    return set(" ".join(re.findall(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)[:1]).split())


def asked(wish: str, machine: str, features: set[str]) -> list[str]:
    """Return the names that TRITIUM_ISAS stands for. A wrong one ends the build with one sentence."""
    known = names_of(machine)
    if wish == "all":
        return list(known)
    names = [best(machine, features)] if wish == "native" else [name.strip() for name in wish.split(",")]
    if wrong := [name for name in names if name not in known]:
        sys.exit(
            f"TRITIUM_ISAS={wish}: there is no instruction set {wrong[0]!r} for {machine}; "
            f"set it to native, all, or names with commas between them: {', '.join(known)}."
        )
    return names


def built(names: list[str], machine: str) -> list[str]:
    """Return what is built for these names, the preferred one last: what they need, and the baseline of moved builds."""
    wanted = {baseline(machine), *names}.union(*(NEEDED.get(name, set()) for name in names))
    return [name for name in names_of(machine) if name in wanted]


def version_of(wish: str, machine: str, features: set[str]) -> str:
    """Return the version of a build: with a local part where it is not for every CPU."""
    source = (ROOT / "src" / "tritium" / "__init__.py").read_text(encoding="utf-8")
    version = re.findall(r'^__version__ = "(.+)"', source, re.MULTILINE)[0]
    names = asked(wish, machine, features)
    if wish == "all":
        return version
    return f"{version}+{'.'.join(['native'] * (wish == 'native') + names)}"


def wished() -> str:
    """Return TRITIUM_ISAS, or what stands for it where it is not set."""
    return os.environ.get("TRITIUM_ISAS") or ("all" if (ROOT / "PKG-INFO").exists() else "native")


def dynamic_metadata(field: str, settings: Mapping[str, Any]) -> str:
    """Return the version; scikit-build-core asks for it. A build without native code, or a source distribution, is for every CPU."""
    return version_of(settings.get("for", wished()), platform.machine(), cpu_features())


def main(machine: str = platform.machine()) -> None:
    names = asked(wished(), machine, cpu_features() if machine == platform.machine() else set())
    sys.stdout.write(";".join(built(names, machine)))


if __name__ == "__main__":
    main(*sys.argv[1:])
