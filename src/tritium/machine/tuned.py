"""Tuned choices of this machine, as the runtime reads them: once per process, when it selects a kernel and not per call.

Knows nothing of measuring: `perf.tune` writes the file, this module reads it. A file belongs to one machine, one build of the
native library and one version of the package; a choice of kernels for a GPU, besides, to one GPU, torch and Triton. A file that
is damaged is ignored with a warning; one that belongs to another is ignored, which is logged at level info, since every
upgrade makes it so: `tritium doctor` and `tritium tune --list` report it. Without a file, the defaults apply.

| choice                      | read by, and when                                        | may change bits |
|-----------------------------|----------------------------------------------------------|-----------------|
| kernel/ROW/DTYPE:CLASS,…    | the CPU backend, when it first selects a kernel          | no              |
| tiling/DTYPE                | the CPU backend, when weights are repacked               | no              |
| storage                     | the CPU backend, when a model is prepacked               | no              |
| batch/NAME                  | process_in_batches(size="NAME")                          | used by name    |
| cuda/product/NxKxM/GPU      | `cuda.linear.choice`, when it first selects a kernel for a case  | no              |
| threads                     | `threads`, at import; only with TRITIUM_TUNED=all        | dense products  |
| device                      | `default_device`; only with TRITIUM_DEVICE=auto or TRITIUM_TUNED=all  | yes |
| device/OP/ELEMENTS          | `default_device(size=…)`, new tensors; likewise          | yes             |
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

from tritium import settings
from tritium.buffer import native
from tritium.machine.facts import Machine, bytes_text, sealed, this_machine, unsealed
from tritium.op import Specs

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = 1
MAX_FILE_BYTES = 16 << 20


@dataclass(frozen=True)
class Choice:
    """The best candidate of a tuning, and why."""

    value: str | int
    why: str
    exact: bool = True  # False: results may differ in their last bits, so it applies only with TRITIUM_TUNED=all


def path(machine: Machine | None = None) -> Path:
    """Return the file of this machine."""
    return settings.cache_dir() / f"tuned-{(machine or this_machine()).key}.json"


@cache
def build() -> str:
    """Return an id of the native library of this process: tuned choices of another build are void."""
    if native is None:
        return "none"
    status = os.stat(native.__file__)
    return f"{status.st_size}-{status.st_mtime_ns}"


def version() -> str:
    """Return the version of the package, read from sys.modules since this module may not import it."""
    return str(getattr(sys.modules["tritium"], "__version__", ""))


@cache
def stored() -> Mapping[str, Choice]:
    """Return the choices of the file, also those that apply only on request. Read once; TRITIUM_TUNED=0 reads nothing."""
    if settings.tuned() == "none" or not any(settings.cache_dir().glob("tuned-*.json")):
        return {}
    machine = this_machine()
    body = read_file(path(machine), machine)
    return {} if body is None else {name: Choice(**c) for name, c in body["choices"].items()}


@cache
def choices() -> Mapping[str, Choice]:
    """Return the choices this process applies."""
    everything = settings.tuned() == "all"
    return {name: c for name, c in stored().items() if c.exact or everything}


def forget() -> None:
    """Drop the cached choices, so that the next use reads the file again."""
    stored.cache_clear()
    choices.cache_clear()
    for clear in _cache_clears:
        clear()


_cache_clears: list[Callable[[], None]] = []


def remembered(fn: Callable[..., Any]) -> Any:
    """Cache the results of a function that depends on tuned choices until `forget` is called."""
    cached = lru_cache(maxsize=4096)(fn)
    _cache_clears.append(cached.cache_clear)
    return cached


def kernel_key(row: str, specs: Specs) -> str:
    """Return the name of a kernel choice: the best kernel for one shape applies to all of the same size class."""
    return f"kernel/{row}/" + ",".join("-" if s is None else f"{s.dtype.name}:{size_class(s.size)}" for s in specs)


def size_class(elements: int) -> int:
    """Return the size class: the number of base-4 digits, so that a class spans a factor of four."""
    return (elements.bit_length() + 1) // 2


# ---- devices by size

DEVICE = "device"
DEVICE_OP = "matmul"  # the op by which devices are compared where none is named


def device_key(op: str, elements: int) -> str:
    """Return the name of the choice of device for an op whose largest tensor has this many elements, or more."""
    return f"{DEVICE}/{op}/{elements}"


@remembered
def devices_by_size(op: str, *, auto: bool = False) -> tuple[tuple[int, Choice], ...]:
    """Return the choices of device for an op, each with the number of elements from which it applies, ascending.

    auto: also where TRITIUM_TUNED does not apply them.
    """
    source = stored() if auto else choices()
    entries = ((re.fullmatch(rf"{DEVICE}/{re.escape(op)}/(\d{{1,18}})", name), c) for name, c in source.items())
    return tuple(sorted(((int(key[1]), c) for key, c in entries if key is not None), key=lambda entry: entry[0]))


# ---- what belongs to one GPU

PRODUCT = "cuda/product"  # m tokens with ternary weights [n, k]


def gpu(capability: tuple[int, int], processors: int) -> str:
    """Return the GPU with this compute capability and number of SMs, and its compilers: "NVIDIA H200, torch 2.9.1, triton
    3.5.1"; "" where there is none, or GPUs of several names match. Capability (0, 0) matches any."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return ""
    devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    matching = [
        p for p in devices if p.multi_processor_count == processors and capability in ((p.major, p.minor), (0, 0))
    ]
    names = {str(p.name) for p in matching}
    try:
        triton: Any = importlib.import_module("triton")
    except ImportError:
        return ""
    return f"{names.pop()}, torch {torch.__version__}, triton {triton.__version__}" if len(names) == 1 else ""


def product_key(n: int, k: int, m: int, gpu: str) -> str:
    """Return the name of a choice of kernel for a product on a GPU."""
    return f"{PRODUCT}/{n}x{k}x{m}/{gpu}"


def products(gpu: str) -> dict[tuple[int, int, int], Choice]:
    """Return the choices that apply on a GPU, by (n, k, m)."""
    entries = ((re.fullmatch(rf"{PRODUCT}/(\d+)x(\d+)x(\d+)/(.+)", name), c) for name, c in choices().items())
    return {(int(key[1]), int(key[2]), int(key[3])): c for key, c in entries if key is not None and key[4] == gpu}


# ---- the file


def read_file(path: Path, machine: Machine) -> dict[str, Any] | None:
    """Return the body of the file; None where there is no file, or it is invalid, which is logged."""
    try:
        return _read(path, machine)
    except FileNotFoundError:
        return None
    except StaleError as error:
        _log(settings.INFO, path, str(error))  # as after every upgrade; doctor and tune --list say it to people
    except INVALID as error:
        _log(settings.WARNING, path, str(error))
    return None


def unused_reason(machine: Machine | None = None) -> str:
    """Return why the file of this machine is not used: stale or damaged; "" where it is used, or there is none."""
    machine = machine or this_machine()
    try:
        _read(path(machine), machine)
    except FileNotFoundError:
        return ""
    except INVALID as error:
        return str(error)
    return ""


class StaleError(ValueError):
    """An intact file of another machine, native library or version."""


INVALID = (OSError, ValueError, TypeError, KeyError, RecursionError)


def _read(path: Path, machine: Machine) -> dict[str, Any]:
    import json

    status = path.stat()
    if not S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    if status.st_size > MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {bytes_text(MAX_FILE_BYTES)}")
    return checked(json.loads(path.read_bytes()), machine)


@cache
def _log(level: int, path: Path, why: str) -> None:
    """Log once for each file and reason: the file may be read many times."""
    if level < settings.WARNING and settings.listener(level=level) is None:
        return
    settings.log.log(level, "tuned: %s is not used (%s); run tritium tune again", path, why)


def document(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with the schema and checksum that `checked` verifies."""
    return sealed(SCHEMA, "tuned", body)


def checked(document: Any, machine: Machine) -> dict[str, Any]:
    """Return the body of an intact document of this machine and build; raise ValueError with the reason otherwise, StaleError for another's."""
    body = unsealed(document, SCHEMA, "tuned")
    here = {"machine": asdict(machine), "build": build(), "version": version()}
    for name, what in (
        ("machine", "another machine"),
        ("build", "another native library"),
        ("version", "another version"),
    ):
        if body.get(name) != here[name]:
            raise StaleError(f"it belongs to {what}")
    if not isinstance(body.get("tunings"), list) or not isinstance(body.get("choices"), dict):
        raise ValueError("it has no choices or no tunings")
    for name, fields in body["choices"].items():
        choice = Choice(**fields)
        if not (
            isinstance(choice.value, (str, int)) and isinstance(choice.why, str) and isinstance(choice.exact, bool)
        ):
            raise ValueError(f"its choice {name!r} has fields of the wrong type")
    return body
