"""The three files a person writes: what to measure, how energy is read, when a change is a regression; and `Options`.

Options are one record, made where a command or a call begins, and read by every step below it. A value has one name all the
way: that of the field of the record it belongs to, which is also the key of a file and the parameter of the command line.

Knows nothing of measuring. A key that is unknown, twice there or of the wrong kind is an error that names the file, the
key, what was given and the nearest valid one. The same rules hold for objects made in Python.

| file       | class            | commands                                                                          |
|------------|------------------|-----------------------------------------------------------------------------------|
| benchmark  | BenchmarkConfig  | `tritium compare --config`, `tritium bench SUITE --config`                        |
| energy     | EnergyConfig     | `tritium bench energy --config`                                                   |
| regression | RegressionConfig | `tritium regression-check --config`, `tritium regression-test --config`           |
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

from tritium import backends, dtype
from tritium.errors import ArgumentError, DTypeError, FormatError, nearest
from tritium.perf.records import json_io as records
from tritium.perf.records.run import PLANS, Plan
from tritium.perf.work import peers

C = TypeVar("C", bound="Config")
MAX_FILE_BYTES = 1 << 20


# ---- values: each function takes what stands in a file (or was given in Python) and where, and gives the value

SECONDS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0, "seconds": 1.0, "m": 60.0,
    "min": 60.0, "minutes": 60.0, "h": 3600.0, "hours": 3600.0,
}  # fmt: skip


def duration(given: Any, where: str = "duration") -> float:
    """Seconds: a number of them, or text such as "30s", "100ms", "2min"."""
    value: float | None = None
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        value = float(given)
    elif isinstance(given, str):
        found = re.fullmatch(
            r"\s*((?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?)\s*([a-zµ]*)\s*", given, re.IGNORECASE
        )
        if found is None:
            raise ArgumentError(f'{where}: {given!r} is not a duration; write "30s", "100ms", or seconds as a number.')
        unit = found[2].lower() or "s"
        if unit not in SECONDS:
            raise ArgumentError(
                f"{where}: {given!r} has the unit {found[2]!r}; there are ns, us, ms, s, min and h.{nearest(unit, SECONDS)}"
            )
        value = float(found[1]) * SECONDS[unit]
    if value is None or not math.isfinite(value) or value <= 0:
        raise ArgumentError(
            f'{where}: a duration above 0 is needed ("30s", "100ms", or seconds), given {_told(given)}.'
        )
    return value


def duration_text(seconds: float) -> str:
    """A duration as a file has it."""
    for unit in ("s", "ms", "us"):
        said = f"{seconds / SECONDS[unit]:.12g}{unit}"
        if seconds >= SECONDS[unit] and duration(said) == seconds:
            return said
    return f"{seconds!r}s"


def fraction(given: Any, where: str = "threshold") -> float:
    """A share: 0.05, "5%", or 5.0 read as percent because it is above 1."""
    value: float | None = None
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        value = given / 100 if given > 1 else float(given)
    elif isinstance(given, str):
        found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(%?)\s*", given)
        if found is not None:
            number = float(found[1])
            value = number / 100 if found[2] or number > 1 else number
    if value is None or not 0 < value <= 1:  # at most 100 %: what was read may be read again
        raise ArgumentError(
            f'{where}: a share above 0, at most 100 %, is needed (0.05, "5%", or 5.0 for 5 %), given {_told(given)}.'
        )
    return value


def count_from(least: int) -> Callable[[Any, str], int]:
    def read(given: Any, where: str) -> int:
        if not isinstance(given, int) or isinstance(given, bool) or given < least:
            raise ArgumentError(f"{where}: a whole number, at least {least}, is needed, given {_told(given)}.")
        return given

    return read


def flag(given: Any, where: str) -> bool:
    if not isinstance(given, bool):
        raise ArgumentError(f"{where}: true or false is needed, given {_told(given)}.")
    return given


def text(given: Any, where: str) -> str:
    if not isinstance(given, str) or not given.strip():
        raise ArgumentError(f"{where}: text is needed, given {_told(given)}.")
    return given


def level(given: Any, where: str) -> float:
    if not isinstance(given, float) or not 0.5 <= given < 1:
        raise ArgumentError(f"{where}: a confidence from 0.5 to below 1 (0.95) is needed, given {_told(given)}.")
    return given


def watts(given: Any, where: str) -> float | None:
    if given is None:
        return None
    if not isinstance(given, (int, float)) or isinstance(given, bool) or not 0 < given < 1e5:
        raise ArgumentError(f"{where}: watts above 0, or null, are needed, given {_told(given)}.")
    return float(given)


def words(given: Any, where: str) -> tuple[str, ...]:
    """Names, each once."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ArgumentError(f"{where}: a list of names is needed, given {_told(given)}.")
    found = tuple(text(item, f"{where}[{i}]").strip() for i, item in enumerate(given))
    if not found:
        raise ArgumentError(f"{where}: at least one name is needed, given none.")
    return tuple(dict.fromkeys(found))


def sizes(given: Any, where: str) -> tuple[tuple[int, ...], ...]:
    """Shapes: [[64, 64], [128, 128]]; a lone number n is n x n."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ArgumentError(f"{where}: a list of sizes such as [[64, 64], [128, 128]] is needed, given {_told(given)}.")
    found = []
    for i, item in enumerate(given):
        shape = (item, item) if isinstance(item, int) else item
        if isinstance(shape, str) or not isinstance(shape, Iterable):
            raise ArgumentError(f"{where}[{i}]: a size such as [64, 64] is needed, given {_told(item)}.")
        shape = tuple(count_from(1)(n, f"{where}[{i}]") for n in shape)
        if not 1 <= len(shape) <= 4:
            raise ArgumentError(f"{where}[{i}]: a size of 1 to 4 numbers is needed, given {len(shape)}.")
        found.append(shape)
    if not found:
        raise ArgumentError(f"{where}: at least one size is needed, given none.")
    return tuple(dict.fromkeys(found))


def counts(given: Any, where: str) -> tuple[int, ...]:
    """Whole numbers from 1 on, each once; there may be none."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ArgumentError(f"{where}: a list of whole numbers such as [1, 8, 32] is needed, given {_told(given)}.")
    return tuple(dict.fromkeys(count_from(1)(n, f"{where}[{i}]") for i, n in enumerate(given)))


TRANSFERS = ("excluded", "included", "both")


def transfer_named(given: Any, where: str) -> str:
    if given not in TRANSFERS:
        raise ArgumentError(
            f"{where}: {', '.join(TRANSFERS)} can be asked for, given {_told(given)}.{nearest(str(given), TRANSFERS)}"
        )
    return str(given)


FLOATS = ("f16", "bf16", "f32", "f64")


def float_types(given: Any, where: str) -> tuple[str, ...]:
    """Floating types by their short names; the long ones (float16) are understood."""
    found = []
    for i, name in enumerate(words(given, where)):
        try:
            kind = dtype.dtype(name)
        except DTypeError:
            kind = None
        if kind is None or kind.name not in FLOATS:
            said = (
                "" if kind is None else f" {kind.name} is the type of stored weights: see `tritium bench quantization`."
            )
            raise ArgumentError(
                f"{where}[{i}]: {name!r} is not a type to compute in; there are {', '.join(FLOATS)}."
                f"{said or nearest(name, FLOATS)}"
            )
        found.append(kind.name)
    return tuple(dict.fromkeys(found))


def device_names(given: Any, where: str) -> tuple[str, ...]:
    """Names a device can have; whether it is here is found out when it is used."""
    found, known = words(given, where), [*backends.device_names(), *peers.CPU_KERNELS]
    for i, name in enumerate(found):
        kind, _, unit = name.partition(":")
        kernels = kind == "cpu" and unit and not unit.isdigit()
        if name not in peers.CPU_KERNELS if kernels else not backends.is_device_name(name):
            raise ArgumentError(
                f"{where}[{i}]: {name!r} is not a device; there are {', '.join(known)}.{nearest(name, known)}"
            )
    return found


def devices_here() -> tuple[str, ...]:
    return tuple(map(str, backends.present()))


def absence(device: str) -> str:
    """Why a device of a file is skipped on this machine; "" when it is here."""
    if device in peers.CPU_KERNELS:
        return peers.kernels_absent(device)
    try:
        backends.device(device)
    except Exception as error:  # whatever a probe says is the reason
        return str(error).removeprefix(f"Device {device!r} is not available: ")
    return ""


def _told(given: Any) -> str:
    return "nothing" if given is None else repr(given)[:60]


# ---- the files


class Key(NamedTuple):
    """A key of a file: the field it fills, how its value is read, and how it is written."""

    field: str
    read: Callable[[Any, str], Any]
    write: Callable[[Any], Any] = records.plain


class Config:
    """A file a person writes, as a frozen record. `KEYS` is all there is to know of it; a dotted key lies in an inner object."""

    KIND: ClassVar[str]
    USE: ClassVar[str]
    KEYS: ClassVar[Mapping[str, Key]]

    def __post_init__(self) -> None:
        for name, key in self.KEYS.items():
            object.__setattr__(self, key.field, key.read(getattr(self, key.field), name))

    @classmethod
    def load(cls: type[C], path: str | os.PathLike[str]) -> C:
        """Read a file of this kind."""
        where = Path(path).name
        raw = Path(path).read_bytes() if Path(path).stat().st_size <= MAX_FILE_BYTES else None
        if raw is None:
            raise FormatError(f"{where}: larger than {MAX_FILE_BYTES >> 20} MiB; a file of settings is small.")
        data = records.loads(raw, where)
        if not isinstance(data, dict):
            raise FormatError(f"{where}: an object with {', '.join(_tops(cls))} is needed, given {_told(data)}.")
        return _from(cls, data, where)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it as `load` reads it."""
        from tritium.perf.store.results import write_text

        return write_text(Path(path), self.dumps() + "\n")

    def dumps(self) -> str:
        out: dict[str, Any] = {}
        for name, key in self.KEYS.items():
            top, _, inner = name.partition(".")
            value = key.write(getattr(self, key.field))
            if inner:
                out.setdefault(top, {})[inner] = value
            else:
                out[top] = value
        return records.dumps(out, indent=2)


def _tops(cls: type[Config]) -> list[str]:
    return list(dict.fromkeys(name.partition(".")[0] for name in cls.KEYS))


def _from(cls: type[C], data: dict[str, Any], where: str) -> C:
    """The record of what a file holds."""
    _check_kind(cls, data, where)
    flat: dict[str, Any] = {}
    inner = {name.partition(".")[0] for name in cls.KEYS if "." in name}
    for name, value in data.items():
        if name in inner:
            if not isinstance(value, dict):
                raise FormatError(f"{where}: {name}: an object is needed, given {_told(value)}.")
            flat |= {f"{name}.{k}": v for k, v in value.items()}
        else:
            flat[name] = value
    for name in flat:
        if name not in cls.KEYS:
            known = (
                _tops(cls) if "." not in name else [k for k in cls.KEYS if k.startswith(name.partition(".")[0] + ".")]
            )
            raise FormatError(f"{where}: unknown key {name!r}; there are {', '.join(known)}.{nearest(name, known)}")
    try:
        return cls(**{cls.KEYS[name].field: cls.KEYS[name].read(value, name) for name, value in flat.items()})
    except ArgumentError as error:
        raise FormatError(f"{where}: {error}") from None


def _check_kind(cls: type[Config], data: dict[str, Any], where: str) -> None:
    """A file of another kind is named, rather than its first key."""
    if {"schema", "results"} <= set(data):
        raise FormatError(f"{where}: this is a file of results, not a {cls.KIND} file. {cls.USE}")
    mine = set(data) & set(_tops(cls))
    for other in (BenchmarkConfig, EnergyConfig, RegressionConfig):
        if other is not cls and not mine and set(data) & set(_tops(other)):
            raise FormatError(
                f"{where}: this is {_a(other.KIND)} file (it has {', '.join(k for k in data if k in _tops(other))}); "
                f"{_a(cls.KIND)} file is needed, with {', '.join(_tops(cls))}. {other.USE}"
            )


def _a(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


@dataclass(frozen=True)
class BenchmarkConfig(Config):
    """What to measure: operations x sizes x batches x data types x devices, and for how long."""

    tensor_sizes: tuple[tuple[int, ...], ...] = (
        (64, 64),
        (128, 128),
        (256, 256),
        (512, 512),
        (1024, 1024),
        (2048, 2048),
    )
    warmup_iterations: int = 5  # batches before the first sample
    measurement_iterations: int = 10  # rounds in all, spread over fresh processes
    operations: tuple[str, ...] = ("matmul", "add", "multiply", "quantize", "bitlinear")
    devices: tuple[str, ...] = field(default_factory=devices_here)
    data_types: tuple[str, ...] = ("f32", "f16")
    timeout_s: float = 30.0  # of one case on one arm, in one process
    batch_sizes: tuple[int, ...] = ()  # rows or sequences in place of those of the sizes; none: as the sizes say
    transfer: str = "excluded"  # whether inputs and results travel inside the clock; both: a case of each

    KIND: ClassVar[str] = "benchmark"
    USE: ClassVar[str] = "Give a benchmark file to `tritium compare --config`."
    KEYS: ClassVar[Mapping[str, Key]] = {
        "tensor_sizes": Key("tensor_sizes", sizes),
        "warmup_iterations": Key("warmup_iterations", count_from(0)),
        "measurement_iterations": Key("measurement_iterations", count_from(1)),
        "operations": Key("operations", words),
        "devices": Key("devices", device_names),
        "data_types": Key("data_types", float_types),
        "timeout": Key("timeout_s", duration, duration_text),
        "batch_sizes": Key("batch_sizes", counts),
        "transfer": Key("transfer", transfer_named),
    }

    def plan(self, plan: Plan = PLANS["default"]) -> Plan:
        """A plan that measures as long as this file asks: its warm-up, and at least its rounds, over fresh processes."""
        generations = min(plan.generations, self.measurement_iterations)
        return replace(
            plan,
            generations=generations,
            rounds=-(-self.measurement_iterations // generations),
            warmup_batches=self.warmup_iterations,
            timeout_s=self.timeout_s,
        )

    def usable_devices(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The devices that are here, and a note for each that is not."""
        why = {name: absence(name) for name in self.devices}
        skipped = tuple(f"device {name} skipped: {reason.rstrip('.')}." for name, reason in why.items() if reason)
        return tuple(name for name, reason in why.items() if not reason), skipped


@dataclass(frozen=True)
class EnergyConfig(Config):
    """How energy is read. Estimates are given only where they are allowed, and are named so."""

    monitoring_interval_s: float = 0.1
    power_measurement_duration_s: float = 10.0
    thermal_monitoring: bool = True
    battery_monitoring: bool = True
    apple_silicon: bool = True
    intel_cpu: bool = True
    nvidia_gpu: bool = False
    allow_estimates: bool = False
    tdp_w: float | None = None  # for estimates

    KIND: ClassVar[str] = "energy"
    USE: ClassVar[str] = "Give an energy file to `tritium bench energy --config`."
    KEYS: ClassVar[Mapping[str, Key]] = {
        "monitoring_interval": Key("monitoring_interval_s", duration, duration_text),
        "power_measurement_duration": Key("power_measurement_duration_s", duration, duration_text),
        "thermal_monitoring": Key("thermal_monitoring", flag),
        "battery_monitoring": Key("battery_monitoring", flag),
        "device_specific_monitoring.apple_silicon": Key("apple_silicon", flag),
        "device_specific_monitoring.intel_cpu": Key("intel_cpu", flag),
        "device_specific_monitoring.nvidia_gpu": Key("nvidia_gpu", flag),
        "allow_estimates": Key("allow_estimates", flag),
        "tdp_w": Key("tdp_w", watts),
    }


@dataclass(frozen=True)
class Alerts:
    """From which slow-down on a regression is a warning, and from which it is critical."""

    warning: float = 0.05
    critical: float = 0.15


def alerts(given: Any, where: str) -> Alerts:
    if isinstance(given, Alerts):
        given = records.plain(given)
    if not isinstance(given, Mapping):
        raise ArgumentError(f"{where}: an object with warning and critical is needed, given {_told(given)}.")
    known = [f.name for f in fields(Alerts)]
    for name in given:
        if name not in known:
            raise ArgumentError(
                f"{where}: unknown key {name!r}; there are {', '.join(known)}.{nearest(str(name), known)}"
            )
    found = Alerts(**{name: fraction(value, f"{where}.{name}") for name, value in given.items()})
    if found.warning > found.critical:
        raise ArgumentError(f"{where}: warning ({found.warning:g}) must not lie above critical ({found.critical:g}).")
    return found


@dataclass(frozen=True)
class RegressionConfig(Config):
    """When a change is a regression, and what it is compared with."""

    baseline_file: str = "performance_baselines.json"
    regression_threshold: float = 0.05
    minimum_samples: int = 10
    confidence_level: float = 0.95
    alert_thresholds: Alerts = field(default_factory=Alerts)
    auto_update_baseline: bool = False

    KIND: ClassVar[str] = "regression"
    USE: ClassVar[str] = "Give a regression file to `tritium regression-check --config`."
    KEYS: ClassVar[Mapping[str, Key]] = {
        "baseline_file": Key("baseline_file", text),
        "regression_threshold": Key("regression_threshold", fraction),
        "minimum_samples": Key("minimum_samples", count_from(1)),
        "confidence_level": Key("confidence_level", level),
        "alert_thresholds": Key("alert_thresholds", alerts),
        "auto_update_baseline": Key("auto_update_baseline", flag),
    }


# ---- the options of a measurement

Record = TypeVar("Record", BenchmarkConfig, Plan, EnergyConfig)


@dataclass(frozen=True)
class Options:
    """The options of one measurement."""

    suite: str = "compare"
    config: BenchmarkConfig = field(default_factory=BenchmarkConfig)  # what: operations, tensor_sizes, devices …
    plan: Plan = PLANS["default"]  # how long and by which rules: generations, threads, seed, metrics …
    energy: EnergyConfig | None = None  # how energy is read; None: not at all
    peers: tuple[str, ...] | None = None  # which libraries to compare with; None: as the suite says
    quick: bool = False
    output: Path = Path("results.json")
    resume: bool = False  # go on from the journal beside `output`
    format: str = "text"  # of what is printed
    report: bool = True  # write a page beside `output`

    @property
    def kind(self) -> str:
        """What the results are called in their file."""
        return "compare" if self.suite == "compare" else "bench"

    @property
    def journal(self) -> Path:
        return self.output.with_name(f"{self.output.name}.journal")

    @property
    def recipe(self) -> dict[str, Any]:
        """The arguments that every recipe takes."""
        return {"threads": self.plan.threads, "seed": self.plan.seed}

    def changed(self, **values: Any) -> Options:
        """Return these options with other values, each put into the record that has a field of that name.

        A value of None leaves the field as it is.
        """
        present = {name: value for name, value in values.items() if value is not None}
        parts: dict[str, Any] = {"config": _updated(self.config, present), "plan": _updated(self.plan, present)}
        if self.energy is not None:
            parts["energy"] = _updated(self.energy, present)
        own = {f.name: present[f.name] for f in fields(self) if f.name in present}
        return replace(self, **(parts | own))


def _updated(record: Record, values: Mapping[str, Any]) -> Record:
    return replace(record, **{f.name: values[f.name] for f in fields(record) if f.name in values})
