"""Devices and the backends behind them: memory, and kernels for some ops. A backend is imported when first used.

Absence is explained here, never raised from inside a suite.
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from math import prod
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from tritium import settings
from tritium.arguments import Range, checked, checked_except
from tritium.backends.reference import packed
from tritium.buffer import Array, native
from tritium.dtype import DType, is_name, tern2
from tritium.errors import ArgumentError, DeviceError, TritiumError, nearest, shown
from tritium.fragment import Fragment
from tritium.layout import Layout
from tritium.machine import tuned
from tritium.op import OPS, Kind, Op, Spec, Specs, exact, make_room


class Kernel(NamedTuple):
    """One way to compute a row: NumPy's own signature, kernel(*ins, out=None, **attrs).

    On a device that keeps values (`backends.values.device`) it is fn(out, **attrs): out is what will come out, as a Spec, and what
    fn gives is called with the values of the operands.
    """

    name: str
    fn: Callable[..., Any]
    accepts: Callable[[Specs, Mapping[str, Any], tuple[Layout | None, ...]], bool] | None = None


class Replay(NamedTuple):
    """A call that the library of a device carries out, as native code, which reads it by place, repeats it."""

    fn: Callable[..., Any]  # values of the operands in, values of the results out
    storage: type  # of the results; derives from buffer.Held
    look: Callable[[Array], Any]  # the value of an array, where that is not just what its storage holds
    number: Callable[[Any, DType], Any]  # a Python number as a value
    after: tuple[Any, ...]  # what fn is given after the operands
    named: dict[str, Any]  # and by name
    together: bool  # whether it takes the operands as one tuple


@dataclass(frozen=True, eq=False)
class Device:
    """A place with memory and kernels. `Device("cuda", 1)` is looked up, and refused if absent, when it is used."""

    type: str
    index: int = 0
    unit: str = ""  # what stands after the colon; of the first unit of a kind it may be left out
    listed: bool = field(default=False, repr=False)  # False: made by hand, and looked up when it is used

    def __str__(self) -> str:
        return f"{self.type}" if self.index == 0 else f"{self.type}:{self.unit or self.index}"

    def __repr__(self) -> str:
        return f"Device({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, (str, Device)) and str(self) == str(other))

    def __hash__(self) -> int:
        return hash(self.type if self.index == 0 else str(self))  # that of its text, which for most is the type

    def __reduce__(self) -> tuple[Any, ...]:
        return device, (str(self),)

    @property
    def backend(self) -> Backend:
        return backend_of(self)


class Backend:
    """The interface of a device: memory, a way in and out, and kernels. It does not grow with ops.

    Subclass it, fill `kernels`, and call `register`. `tritium.testing.check_backend` tells whether it is right.
    """

    required: ClassVar[tuple[str, ...]] = ("allocate", "upload", "download")  # methods that a subclass must define
    device: Device
    kernels: Mapping[Op, Sequence[Kernel]] = {}
    dynamic: Mapping[Op, Callable[..., Any]] = {}  # rows whose kernel makes its own memory
    missing: Mapping[Op, str] = {}  # why a row has neither a kernel here nor rows that it is made of
    has_f64 = True  # where not, a model's results may differ in their last bits from those of other devices
    has_complex = False  # whether it stores complex numbers; kernels say what they compute
    pages_caches = False  # whether sessions keep keys and values in blocks, which slots take as they grow
    runs_ahead = False  # whether calls return before their work is done, and `bring` waits for no more than it must
    writes = True  # whether kernels write into memory; else they give values, which `run` puts in their place

    def __init__(self, device: Device) -> None:
        self.device = device
        self._chosen: dict[Any, Kernel | None] = {}

    def allocate(self, nbytes: int) -> Any:
        """A storage: an object with device, nbytes, writable, clone(), own() and export(), as buffer.Storage has."""
        raise DeviceError(f"The backend of {self.device} does not say how to allocate memory.")

    def array(self, a: Array) -> Any:
        """Return what this backend's kernels take for an array."""
        return a

    def run(self, kernel: Kernel, out: Any, ins: tuple[Array | None, ...], attrs: Mapping[str, Any]) -> None:
        """Carry out a call on memory. `out` is one array, or a tuple for rows of several outputs."""
        arrays = [None if x is None else self.array(x) for x in ins]
        target = tuple(self.array(o) for o in out) if isinstance(out, tuple) else self.array(out)
        kernel.fn(*arrays, out=target, **attrs)

    def replay(self, kernel: Kernel, out: Any, ins: Specs, attrs: Mapping[str, Any]) -> Replay | None:
        """Return what native code needs to repeat such a call by the device's own library; None: it cannot."""
        return None

    def upload(self, data: np.ndarray[Any, Any], to: Array) -> None:
        """Copy from the host."""
        raise DeviceError(f"The backend of {self.device} does not say how to copy from the host.")

    def download(self, a: Array) -> np.ndarray[Any, Any]:
        """The elements on the host; a copy unless the memory is the host's own."""
        raise DeviceError(f"The backend of {self.device} does not say how to copy to the host.")

    def bring(self, a: Array) -> Callable[[], np.ndarray[Any, Any]]:
        """Begin to copy to the host: what is given waits until the elements are there. What is queued after it is not waited
        for, where `runs_ahead`."""
        return partial(self.download, a)

    def tiling(self, t: DType) -> DType:
        """Return the packing of the same integers that the product kernels of this device read fastest."""
        return t

    def densest(self) -> DType:
        """In which packing ternary weights that are read for one token at a time take least time."""
        return tern2

    def first_illegal(self, a: Array) -> int:
        """Return the index, counted row by row, of the first code of a packed array that means nothing; -1: all are legal."""
        return packed.first_illegal(packed.Packed(self.download(a), a.dtype, a.shape))

    def synchronize(self) -> None:
        """Return when all work given to the device is done."""

    def settle(self, arrays: Sequence[Array]) -> None:
        """Return when these arrays hold their values: a lazy device computes them now."""
        self.synchronize()

    def memory_stats(self) -> dict[str, int] | None:
        """Return the active, peak and cached bytes of the device's own allocator, and its limit; None: it has none."""
        return None

    def trim(self) -> int:
        """Give back memory that the device's own allocator keeps; how many bytes."""
        return 0

    def limit(self, *, memory_bytes: int | None = None, cache_bytes: int | None = None) -> None:
        """Bounds for the device's own allocator; None leaves one as it is."""
        raise DeviceError(
            f"{self.device} has no allocator of its own to limit; the pool's is tritium.memory.configure."
        )

    def memory(self) -> tuple[int, int] | None:
        """Bytes in use on the device and there in all; None: it has the memory of the machine, or does not tell."""
        return None

    def timer(self) -> Callable[[], int]:
        """Start a clock of the device's own work; calling the result waits for that work and gives its nanoseconds."""
        self.synchronize()
        start = time.perf_counter_ns()

        def stop() -> int:
            self.synchronize()
            return time.perf_counter_ns() - start

        return stop

    def refuses(self, body: Fragment) -> str | None:
        """Return why `body` would not gain by running as one call here; None: it is one pass over memory."""
        return f"{self.device} has no kernel that runs several rows in one pass"

    def native_call(
        self, op: Op, specs: Specs, attrs: Mapping[str, Any], layouts: tuple[Layout | None, ...]
    ) -> tuple[Any, dict[str, Any]] | str:
        """The native kernel of a call, and its attributes, for a program that runs without Python; or why there is none."""
        return f"{self.device} has no programs of native kernels"

    def overwrites(self, op: Op, attrs: Mapping[str, Any], index: int) -> bool:
        """Return True if the result of an op may be written exactly over that input."""
        return op.inplace and (index == 0 or op.kind is Kind.MAP)

    def describe(self) -> dict[str, str]:
        """Facts for `tritium devices`, in the order a person wants them."""
        return {}

    def new(self, spec: Spec) -> Array:
        """Uninitialised, contiguous memory for a spec."""
        self.check_complex(spec)
        return Array(self.allocate(spec.nbytes), spec.dtype, spec.shape, spec.strides, 0)

    def check_complex(self, spec: Spec) -> None:
        """Raise for complex numbers where the device stores none."""
        if spec.dtype.is_complex and not self.has_complex:
            raise DeviceError(
                f"{self.device} stores no complex numbers, given {spec}; compute on the CPU: .to('cpu'), or move the real and "
                f"the imaginary part, real(x) and imag(x)."
            )

    def listed(self, op: Op, specs: Specs) -> Sequence[Kernel]:
        """The kernels of a row for these operands, best first."""
        return self.kernels.get(op, ())

    def chooses_by_shape(self, op: Op) -> bool:
        """Return True if the kernel of an op depends on more than dtypes and attributes, or may."""
        return True

    def retuned(self) -> None:
        """Choose kernels anew, after what was tuned has changed. Programs compiled before keep their kernels."""
        self._chosen.clear()

    def choose(
        self, op: Op, specs: Specs, attrs: Mapping[str, Any], layouts: tuple[Layout | None, ...]
    ) -> Kernel | None:
        """The first listed kernel that accepts the call; remembered."""
        flat = tuple(x is None or x.is_contiguous for x in layouts)
        key = (op, specs, exact(tuple(attrs.values())), flat)
        with suppress(KeyError):
            return self._chosen[key]
        make_room(self._chosen, 4096)
        listed = self.listed(op, specs)
        accepted = (k for k in listed if k.accepts is None or k.accepts(specs, attrs, layouts))
        kernel = self._chosen[key] = next(accepted, None)
        if (log := settings.listener("kernels")) is not None:
            _log_choice(log, self.device, op, specs, listed, kernel)
        return kernel


def _log_choice(
    log: Any, device: Device, op: Op, specs: Specs, listed: Sequence[Kernel], kernel: Kernel | None
) -> None:
    """Log which kernel a call uses, and those before it in the list, which did not take the call."""
    operands = ", ".join(str(s) for s in specs if s is not None)
    call = f"{op.name}({operands}) on {device}"
    passed = ", ".join(dict.fromkeys(k.name for k in listed[: listed.index(kernel)])) if kernel is not None else ""
    if kernel is not None:
        log.debug("%s: kernel %s%s", call, kernel.name, f"; not taken by {passed}" if passed else "")
    elif op.lower is not None:
        log.debug("%s: no kernel, runs as other ops", call)
    elif listed:
        log.debug("%s: no kernel takes it", call)


class Absent(NamedTuple):
    """The reason for which a device is not here, and how to get it."""

    why: str
    remedy: str
    extra: str = ""  # whose packages would bring it here (`errors.EXTRAS`); "" where no packages are what it lacks


@dataclass
class Entry:
    """A kind of device that may exist: how to make its backend, and how to find out whether it is here."""

    make: Callable[[Device], Backend]
    probe: Callable[[], int | tuple[str, ...] | Absent]  # how many of them there are, or their names, or why none
    backends: dict[int, Backend] = field(default_factory=dict)


def _lazy(module: str, function: str = "make") -> Callable[[Device], Backend]:
    def make(device: Device) -> Backend:
        backend: Backend = getattr(importlib.import_module(module), function)(device)
        return backend

    return make


def _lazy_probe(module: str, what: str) -> Callable[[], int | tuple[str, ...] | Absent]:
    """Return a probe that is imported when it is called."""
    return lambda: getattr(importlib.import_module(module), what)()


_PROBES = "tritium.backends.probes"
_entries: dict[str, Entry] = {
    "cpu": Entry(_lazy("tritium.backends.cpu.device"), lambda: 1),
    "mlx": Entry(_lazy(_PROBES, "make_mlx"), _lazy_probe(_PROBES, "mlx_units")),
    "torch": Entry(_lazy(_PROBES, "make_torch"), _lazy_probe(_PROBES, "torch_units")),
    "mps": Entry(_lazy(_PROBES, "make_torch"), _lazy_probe(_PROBES, "mps_units")),
    "cuda": Entry(_lazy(_PROBES, "make_cuda"), _lazy_probe(_PROBES, "cuda_units")),
}
_BUILT_IN = frozenset(_entries)
_ALIASES = {"gpu": ("cuda", "mlx:gpu", "mps"), "metal": ("mlx:gpu", "mps")}  # the first that is here
_devices: dict[str, Device] = {}


_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def register(
    name: str,
    make: Callable[[Device], Backend],
    probe: Callable[[], int | tuple[str, ...] | Absent] = lambda: 1,
) -> None:
    """Make a kind of device known under a name; its backend is made when first used.

    `make` is a subclass of Backend, which is checked now, or a function that returns a backend, which is checked then.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DeviceError(
            f"register: {name!r} cannot be the name of a device; use letters, digits, '_' and '-', a letter first."
        )
    if name in _entries:
        raise DeviceError(
            f"A device named {name!r} is registered already; unregister({name!r}) first or take another name."
        )
    if name in _ALIASES or is_name(name) or name == AUTO:
        meaning = "the device that was measured to be the fastest" if name == AUTO else "a dtype"
        if name in _ALIASES:
            meaning = f"the first of {', '.join(_ALIASES[name])} that is here"
        raise DeviceError(f"register: {name!r} means {meaning}, also in x.to({name!r}); take another name.")
    for role, value in (("make", make), ("probe", probe)):
        if not callable(value):
            raise DeviceError(
                f"register: {role} of {name!r} must be callable, given {value!r}; "
                f"write register({name!r}, MyBackend) or see docs/add-a-backend.md."
            )
    if isinstance(make, type):
        if not issubclass(make, Backend):
            raise DeviceError(f"register: {make.__name__} is not a subclass of tritium.Backend; derive it from that.")
        _check_complete(make, name)
    _entries[name] = Entry(make, probe)
    forget()


@checked
def _check_complete(backend: Backend | type[Backend], name: str) -> None:
    """Raise if a backend lacks methods that every backend needs, or its tables of kernels hold something else."""
    cls = backend if isinstance(backend, type) else type(backend)
    missing = [
        method
        for base in cls.__mro__
        for method in vars(base).get("required", ())
        if getattr(cls, method, None) is vars(base).get(method)
    ]
    if missing:
        raise DeviceError(
            f"The backend of {name!r} is incomplete: {cls.__name__} lacks {', '.join(missing)}; "
            f"define them as docs/add-a-backend.md says."
        )
    wrong = ""
    for table in ("kernels", "dynamic", "missing"):
        rows = getattr(backend, table)
        if isinstance(rows, property):  # of a class: known only of its instances
            continue
        if not isinstance(rows, Mapping):
            wrong = f"{table} must map ops to their entries, given {type(rows).__name__}"
            break
        wrong = next(filter(None, (_wrong_row(table, row, entry) for row, entry in rows.items())), "")
        if wrong:
            break
    if wrong:
        raise DeviceError(f"The backend of {name!r} is not usable: {cls.__name__}.{wrong}; see docs/add-a-backend.md.")


def _wrong_row(table: str, row: Any, entry: Any) -> str:
    """Return what is wrong with one row of a backend's table; "" for nothing."""
    if not isinstance(row, Op):
        hint = f": write tritium.ops.{row}" if isinstance(row, str) and row in OPS else ""
        return f"{table} has the key {row!r}, which is not an op{hint}"
    if table == "kernels" and not (isinstance(entry, (list, tuple)) and all(isinstance(k, Kernel) for k in entry)):
        return f"{table}[{row.name}] must be a list of Kernel, given {entry!r}"
    functions = [k.fn for k in entry] if table == "kernels" else [entry] if table == "dynamic" else []
    bad = [f for f in functions if not callable(f)]
    return f"{table}[{row.name}] must be callable, given {bad[0]!r}" if bad else ""


@checked_except("name")
def unregister(name: str) -> None:
    """Forget a registered device; tensors on it can no longer be used."""
    global _set
    if not isinstance(name, str) or name in _BUILT_IN or name not in _entries:
        known = ", ".join(n for n in _entries if n not in _BUILT_IN) or "none"
        raise DeviceError(f"{name!r} is not a device that was registered; registered are: {known}.")
    del _entries[name]
    for known in [k for k in _devices if k.partition(":")[0] == name]:
        del _devices[known]
    if _set is not None and _set.device.type == name:
        _set = None
    forget()


def forget() -> None:
    """Drop every remembered call: the choice of device or kernel has changed."""
    global _usual
    _usual = None
    if native is not None:
        native.set_usual(False)
    for row in OPS.values():
        row.forget()


def retuned() -> None:
    """Let every backend read again what was tuned, after it has changed, and drop the remembered calls."""
    tuned.forget()
    for entry in _entries.values():
        for backend in entry.backends.values():
            backend.retuned()
    forget()


def device(given: str | Device | None = None) -> Device:
    """The device meant by a name ('cpu', 'cuda:1'), a Device, or None for the default one."""
    if isinstance(given, Device):
        return given if given.listed else _find(str(given))
    if given is None:
        return _default(None, None).device
    if not isinstance(given, str):
        raise DeviceError(f"{shown(given)} is not a device; give a name such as 'cpu', or a Device.")
    known = _devices.get(given)
    return _find(given) if known is None else known


def _find(name: str) -> Device:
    kind, _, unit = name.partition(":")
    if name in _ALIASES:
        return _first(name)
    units = _units(kind) if kind in _entries else ()
    numbered = not isinstance(units, Absent) and all(u.isdigit() for u in units)
    if kind not in _entries or (unit and numbered and not unit.isdigit()):
        raise DeviceError(f"{name!r} is not a device.{nearest(kind, _entries)} Valid here: {', '.join(_entries)}.")
    if isinstance(units, Absent):
        raise DeviceError(f"Device {name!r} is not available: {units.why}; {units.remedy}.")
    if unit and unit not in units:
        there = f"{len(units)} of {kind!r}, numbered from 0" if numbered else " and ".join(f"{kind}:{u}" for u in units)
        raise DeviceError(f"Device {name!r} does not exist: there is {there}.")
    index = units.index(unit) if unit else 0
    device = Device(kind, index, units[index], listed=True)
    return _devices.setdefault(str(device), device)


def _units(name: str) -> tuple[str, ...] | Absent:
    """The names of the devices of a kind, the one that is meant without a name first; or why there is none."""
    try:
        units = _entries[name].probe()
    except Exception as error:
        return Absent(f"its probe failed: {type(error).__name__}: {error}", "mend the probe that was registered")
    if isinstance(units, int) and not isinstance(units, bool) and units > 0:
        return tuple(map(str, range(units)))
    if isinstance(units, Absent):
        return units
    if isinstance(units, tuple) and units and all(isinstance(u, str) and u for u in units):
        return units
    if units in (0, ()) and not isinstance(units, bool):
        return Absent("its probe counts no units", "connect one")
    return Absent(
        f"its probe returned {units!r}, not a number of units, their names or Absent(why, remedy)",
        "mend the probe that was registered",
    )


def _first(alias: str) -> Device:
    """The first of the devices that a name may stand for."""
    why = []
    for name in _ALIASES[alias]:
        try:
            return device(name)
        except DeviceError as error:
            why.append(str(error).removeprefix("Device ").rstrip("."))
    raise DeviceError(f"Device {alias!r} is not available: {'; '.join(why)}.")


def device_names() -> list[str]:
    """Every kind of device that has a name here, present or not."""
    return list(dict.fromkeys([*_entries, *_ALIASES]))


def is_device_name(word: str) -> bool:
    kind = word.partition(":")[0]
    return kind in _entries or kind in _ALIASES


def backend_of(device: Device) -> Backend:
    entry = _entries.get(device.type)
    if entry is None:
        raise DeviceError(f"Device {device} was unregistered; move its tensors before that.")
    if device.index not in entry.backends:
        entry.backends[device.index] = _make_backend(entry, device)
        if (log := settings.listener()) is not None:
            log.debug("backend of %s made", device)
    return entry.backends[device.index]


def _make_backend(entry: Entry, device: Device) -> Backend:
    """Return a new backend, checked; one that is refused is not kept."""
    try:
        backend = entry.make(device)
    except (TritiumError, MemoryError, ImportError):
        raise
    except Exception as error:
        raise DeviceError(
            f"The backend of {str(device)!r} could not be made: {type(error).__name__}: {error}; "
            f"mend what was registered for {device.type!r}."
        ) from error
    if not isinstance(backend, Backend):
        raise DeviceError(
            f"What was registered for {device.type!r} returned {type(backend).__name__}, not a tritium.Backend; "
            f"return an instance of a subclass of it."
        )
    if getattr(backend, "device", None) is not device or not hasattr(backend, "_chosen"):
        raise DeviceError(
            f"The backend of {str(device)!r} is incomplete: {type(backend).__name__}.__init__ must call "
            f"super().__init__(device) with the device it is called with."
        )
    if device.type not in _BUILT_IN:
        _check_complete(backend, device.type)
    return backend


class Choice(NamedTuple):
    """The device used where none is named, and the reason."""

    device: Device
    why: str


_set: Choice | None = None
_auto = False  # set_default_device("auto")

AUTO = "auto"  # in place of a device: the one that was measured to be fastest at the size of the work
_HOW = "set another with set_default_device or TRITIUM_DEVICE"
_MEASURE = "`tritium tune --op device` measures it"
_APPLY = "TRITIUM_DEVICE=auto applies the result"
_Count = Annotated[int, Range(0)]


@checked
def default_device(*, size: _Count | Sequence[_Count] | None = None, op: str | None = None) -> Choice:
    """Return the device used where none is named, and why: what was set, else TRITIUM_DEVICE, else the CPU.

    With "auto" in either of these (or TRITIUM_TUNED=all) it is the device that was measured to be the fastest at this size.
    size: the elements of the largest tensor of the work, or its shape; None: the largest size that was measured.
    op: the name of an op; None: the op by which devices are compared, the dense product.
    """
    if op is not None and op not in OPS:
        raise ArgumentError(f"default_device: {op!r} is not an op.{nearest(op, OPS)} `tritium ops` lists them.")
    return _default(size if size is None or isinstance(size, int) else prod(size), op)


def device_for(target: str | Device | None, elements: int) -> Device:
    """Return the device of a new tensor: the one meant, else the default one for so many elements."""
    if target is not None:
        return device(target)
    return _for_size(elements) if _usual is None else _usual


_usual: Device | None = None  # the CPU, once nothing says otherwise for any size; dropped with the remembered calls


def _for_size(elements: int) -> Device:
    global _usual
    setting = AUTO if _auto else settings.device()
    if setting == AUTO and not tuned.stored():
        _warn_unmeasured(settings.tuned())
    if _set is None and setting in (None, AUTO) and not (tuned.stored() if setting else tuned.choices()):
        _usual = device("cpu")
        if native is not None:
            native.set_usual(True)
    return _default(elements, None).device


@cache
def _warn_unmeasured(level: str) -> None:
    """Log once that "auto" has nothing to choose by: whoever asked for it expects another device than the CPU."""
    why = (
        "TRITIUM_TUNED=0 ignores it"
        if level == "none"
        else "; ".join([_MEASURE, *filter(None, [tuned.unused_reason()])])
    )
    settings.log.warning("device auto: nothing was measured on this machine, so tensors are on the CPU (%s)", why)


def _default(elements: int | None, op: str | None) -> Choice:
    if _set is not None:
        return _set
    setting = AUTO if _auto else settings.device()
    if setting and setting != AUTO:
        try:
            return Choice(device(setting), f"TRITIUM_DEVICE={setting}")
        except DeviceError as error:
            raise DeviceError(f"TRITIUM_DEVICE={setting}: {error}") from None
    return _measured(elements, op, auto=setting == AUTO)


def _measured(elements: int | None, op: str | None, *, auto: bool) -> Choice:
    """Return the device that was the fastest at a size; the CPU, with the reason, where that was not measured."""
    overall = (tuned.stored() if auto else tuned.choices()).get(tuned.DEVICE)
    by_size = tuned.devices_by_size(op or tuned.DEVICE_OP, auto=auto)
    if elements is None and op is None:
        if overall is not None:
            return _present(overall, "tuned")
        if auto and by_size:
            return _cpu(
                f"measured: no device is clearly faster at {by_size[-1][0]:,} elements, the largest size; {_HOW}"
            )
        return _cpu(f"auto, but {_unmeasured('')}" if auto else f"the CPU is the default; {_HOW}")
    if not by_size:
        if overall is not None and op in (None, tuned.DEVICE_OP):
            return _present(overall, "tuned, but not by size")
        work = " by size" if op is None else f" for {op}"
        if auto:
            return _cpu(f"auto, but {_unmeasured(work)}")
        return _cpu(f"the CPU is the default: devices were not compared{work} ({_MEASURE}, {_APPLY}); {_HOW}")
    if elements is not None and elements < by_size[0][0]:
        return _cpu(f"the CPU is the default below {by_size[0][0]:,} elements, the smallest size measured; {_HOW}")
    start, choice = next(e for e in reversed(by_size) if elements is None or e[0] <= elements)
    return _present(choice, f"tuned, from {start:,} elements on")


def _unmeasured(work: str) -> str:
    """Return why "auto" has nothing to choose by."""
    if settings.tuned() == "none":
        return "TRITIUM_TUNED=0 ignores what was measured; unset it"
    return f"devices were not compared{work} on this machine; {_MEASURE}"


def _cpu(why: str) -> Choice:
    return Choice(device("cpu"), why)


def _present(choice: tuned.Choice, source: str) -> Choice:
    """Return the device of a tuned choice; the CPU, with the reason, where that device is not here."""
    try:
        return Choice(device(str(choice.value)), f"{source}: {choice.why}")
    except DeviceError as error:
        if (log := settings.listener(level=settings.INFO)) is not None:
            log.info("tuned: the device %s is not used: %s", choice.value, error)
        return _cpu(f"the CPU is the default: {choice.value!r} was tuned, but cannot be used ({error}); {_HOW}")


@checked
def set_default_device(given: str | Device | None) -> None:
    """Use this device where none is named; "auto": the one that was measured to be the fastest at a tensor's size.

    None goes back to TRITIUM_DEVICE or the CPU.
    """
    global _set, _auto
    automatic = isinstance(given, str) and given == AUTO
    _set = None if given is None or automatic else Choice(device(given), "set by set_default_device")
    _auto = automatic
    forget()


class Found(NamedTuple):
    """One line of `tritium devices`."""

    name: str
    available: bool
    facts: dict[str, str]
    why: str = ""
    remedy: str = ""


def present() -> list[Device]:
    """Return the devices that are here, without making their backends."""
    kinds = {name: _units(name) for name in _entries}
    return [
        device(f"{name}:{unit}") for name, units in kinds.items() if not isinstance(units, Absent) for unit in units
    ]


def installable() -> dict[str, str]:
    """Return the kinds of devices that installing packages would bring here, each with the extra that names them."""
    kinds = {name: _units(name) for name in _entries}
    return {name: units.extra for name, units in kinds.items() if isinstance(units, Absent) and units.extra}


@checked
def devices() -> list[Found]:
    """Return the devices that are here with their facts, and those that are not, why, and how to get them."""
    out = []
    for name in _entries:
        units = _units(name)
        if isinstance(units, Absent):
            out.append(Found(name, False, {}, units.why, units.remedy))
            continue
        for unit in units:
            here = device(f"{name}:{unit}")
            try:
                out.append(Found(str(here), True, here.backend.describe()))
            except DeviceError as error:  # of a backend that was registered: the others are listed all the same
                out.append(Found(str(here), False, {}, str(error).rstrip("."), "mend its backend"))
    return out
