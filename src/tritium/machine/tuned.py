"""What was tuned on this machine, as the runtime reads it: once in a process, when it decides and not when it calls.

Knows nothing of measuring: `perf.tune` fills the file, this reads it. A file belongs to one machine, one build of the
native library and one version of the package; a choice of kernels for a GPU, besides, to one GPU, torch and Triton. A file that
is damaged or belongs to another is reported and ignored; where there is none, everything is as shipped.

| choice                      | who reads it, and when                                   | may change bits |
|-----------------------------|----------------------------------------------------------|-----------------|
| kernel/ROW/DTYPE:CLASS,…    | the CPU backend, when it first chooses a kernel          | no              |
| tiling/DTYPE                | the CPU backend, when weights are made ready             | no              |
| storage                     | the CPU backend, when a model is prepacked               | no              |
| batch/NAME                  | process_in_batches(size="NAME")                          | asked by name   |
| cuda/product/NxKxM/GPU      | `cuda.linear.choice`, when it first chooses a kernel for a case  | no              |
| threads                     | `threads`, at import; only with TRITIUM_TUNED=all        | dense products  |
| device                      | `default_device`; only with TRITIUM_TUNED=all            | yes             |
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from pathlib import Path
from stat import S_ISREG
from typing import Any

from tritium import settings
from tritium.buffer import native
from tritium.machine.facts import Machine, bytes_text, sealed, this_machine, unsealed
from tritium.op import Specs

SCHEMA = 1
MAX_FILE_BYTES = 16 << 20


@dataclass(frozen=True)
class Choice:
    """What was found best, and why."""

    value: str | int
    why: str
    exact: bool = True  # False: results may differ in their last bits, so it is followed only where that was asked for


def path(machine: Machine | None = None) -> Path:
    """The file of this machine."""
    return settings.cache_dir() / f"tuned-{(machine or this_machine()).key}.json"


@cache
def build() -> str:
    """The native library this process runs: another one has other kernels, and what was tuned of these is void."""
    if native is None:
        return "none"
    found = Path(native.__file__).stat()
    return f"{found.st_size}-{found.st_mtime_ns}"


def version() -> str:
    """Of the package, which is above this file and therefore asked without being imported."""
    return str(getattr(sys.modules["tritium"], "__version__", ""))


@cache
def choices() -> Mapping[str, Choice]:
    """What this process follows. Read once; TRITIUM_TUNED=0 reads nothing."""
    how_much = settings.tuned()
    if how_much == "none" or not any(settings.cache_dir().glob("tuned-*.json")):
        return {}
    machine = this_machine()
    found = kept(path(machine), machine)
    every = {} if found is None else {name: Choice(**c) for name, c in found["choices"].items()}
    return {name: c for name, c in every.items() if c.exact or how_much == "all"}


def forget() -> None:
    """Read again at the next question: the file was written, or another one is meant."""
    choices.cache_clear()
    for clear in _remembering:
        clear()


_remembering: list[Callable[[], None]] = []


def remembered(fn: Callable[..., Any]) -> Any:
    """A function whose answers follow what was tuned: they are remembered until that is forgotten."""
    made = lru_cache(maxsize=4096)(fn)
    _remembering.append(made.cache_clear)
    return made


def kernel_key(row: str, specs: Specs) -> str:
    """The name of a choice of kernel: what was found for one shape holds for those of the same class."""
    return f"kernel/{row}/" + ",".join("-" if s is None else f"{s.dtype.name}:{size_class(s.size)}" for s in specs)


def size_class(elements: int) -> int:
    """Sizes within a factor of four are one class: the digits of the number to base 4."""
    return (elements.bit_length() + 1) // 2


# ---- what belongs to one GPU

PRODUCT = "cuda/product"  # m tokens with ternary weights [n, k]


def gpu(capability: tuple[int, int], processors: int) -> str:
    """The GPU of this process that is so, and what makes its kernels: "NVIDIA H200, torch 2.9.1, triton 3.5.1". Empty: there is
    none, or GPUs of several names are so. Capability (0, 0): any."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return ""
    found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    same = [p for p in found if p.multi_processor_count == processors and capability in ((p.major, p.minor), (0, 0))]
    names = {str(p.name) for p in same}
    try:
        triton: Any = importlib.import_module("triton")
    except ImportError:
        return ""
    return f"{names.pop()}, torch {torch.__version__}, triton {triton.__version__}" if len(names) == 1 else ""


def product_key(n: int, k: int, m: int, gpu: str) -> str:
    """The name of a choice of kernel for a product on a GPU."""
    return f"{PRODUCT}/{n}x{k}x{m}/{gpu}"


def products(gpu: str) -> dict[tuple[int, int, int], Choice]:
    """The choices that are followed on a GPU, by (n, k, m)."""
    found = ((re.fullmatch(rf"{PRODUCT}/(\d+)x(\d+)x(\d+)/(.+)", name), c) for name, c in choices().items())
    return {(int(at[1]), int(at[2]), int(at[3])): c for at, c in found if at is not None and at[4] == gpu}


# ---- the file


def kept(path: Path, machine: Machine) -> dict[str, Any] | None:
    """What the file holds; None where there is none, or one that cannot be trusted, which is reported."""
    import json

    try:
        about = path.stat()
        if not S_ISREG(about.st_mode):
            raise ValueError("it is no plain file")
        if about.st_size > MAX_FILE_BYTES:
            raise ValueError(f"it is larger than {bytes_text(MAX_FILE_BYTES)}")
        return checked(json.loads(path.read_bytes()), machine)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        _warn(path, str(error))
        return None


@cache
def _warn(path: Path, why: str) -> None:
    """Once for each file and reason: it is read many times."""
    settings.log.warning("tuned: %s is not used (%s); run tritium tune again", path, why)


def document(body: Mapping[str, Any]) -> dict[str, Any]:
    """A body with what a reader checks it by."""
    return sealed(SCHEMA, "tuned", body)


def checked(document: Any, machine: Machine) -> dict[str, Any]:
    """The body of a document that is whole and belongs here; ValueError says what is wrong."""
    body = unsealed(document, SCHEMA, "tuned")
    here = {"machine": asdict(machine), "build": build(), "version": version()}
    for name, what in (
        ("machine", "another machine"),
        ("build", "another native library"),
        ("version", "another version"),
    ):
        if body.get(name) != here[name]:
            raise ValueError(f"it belongs to {what}")
    if not isinstance(body.get("tunings"), list) or not isinstance(body.get("choices"), dict):
        raise ValueError("it has no choices or no tunings")
    for name, found in body["choices"].items():
        made = Choice(**found)
        if not isinstance(made.value, (str, int)) or not isinstance(made.why, str) or not isinstance(made.exact, bool):
            raise ValueError(f"its choice {name!r} cannot be")
    return body
