"""Configuration files: what to measure, how energy is read, when a change is a regression; and `Options`.

`Options` is one record, built where a command or a call begins, and read by every step below it. A value has one name
throughout: that of its field, which is also the key of a file and the parameter of the command line.

A key that is unknown, duplicate or of the wrong type is an error that names the file, the key, its value and the
nearest valid one. The same rules hold for objects built in Python.

| file       | class            | commands                                                                          |
|------------|------------------|-----------------------------------------------------------------------------------|
| benchmark  | BenchmarkConfig  | `tritium compare --config`, `tritium bench SUITE --config`                        |
| energy     | EnergyConfig     | `tritium bench energy --config`                                                   |
| regression | RegressionConfig | `tritium regression-check --config`, `tritium regression-test --config`           |
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

from tritium import backends, dtype
from tritium.arguments import SECONDS, checked_record, read_duration
from tritium.errors import ArgumentError, DTypeError, FormatError, nearest, shown
from tritium.perf.records import json_io as records
from tritium.perf.records.run import PLANS, Plan
from tritium.perf.work import peers

C = TypeVar("C", bound="Config")
MAX_FILE_BYTES = 1 << 20
MOST_ITEMS = 4096  # of a list in a file


# ---- values: each function takes the raw value from a file or from Python and its key, and returns the checked value


def duration_text(seconds: float) -> str:
    """Return a duration as text for a file."""
    for unit in ("s", "ms", "us"):
        text = f"{seconds / SECONDS[unit]:.12g}{unit}"
        if seconds >= SECONDS[unit] and read_duration(text) == seconds:
            return text
    return f"{seconds!r}s"


def fraction(value: Any, where: str = "threshold") -> float:
    """Return a share: 0.05, "5%", or 5.0 read as percent because it is above 1."""
    share: float | None = None
    if (isinstance(value, str) and re.fullmatch(r"\s*0*1(\.0*)?\s*", value)) or (type(value) is int and value == 1):
        raise ArgumentError(f'{where}: 1 could be 1 % or 100 %; write "1%" (or 0.01), or "100%".')
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        share = value / 100 if value > 1 else float(value)
    elif isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(%?)\s*", value)
        if match is not None:
            number = float(match[1])
            share = number / 100 if match[2] or number > 1 else number
    if share is None or not 0 < share <= 1:  # at most 100 %: reading the result again must not change it
        raise ArgumentError(
            f'{where}: a share above 0, at most 100 %, is needed (0.05, "5%", or 5.0 for 5 %), given {_repr(value)}.'
        )
    return share


def count_from(least: int) -> Callable[[Any, str], int]:
    """Return a reader of integers from `least` on."""

    def read(value: Any, where: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ArgumentError(f"{where}: an integer, at least {least}, is needed, given {_repr(value)}.")
        return value

    return read


def flag(value: Any, where: str) -> bool:
    """Return a boolean."""
    if not isinstance(value, bool):
        raise ArgumentError(f"{where}: true or false is needed, given {_repr(value)}.")
    return value


def text(value: Any, where: str) -> str:
    """Return text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ArgumentError(f"{where}: text is needed, given {_repr(value)}.")
    return value


def level(value: Any, where: str) -> float:
    """Return a confidence level."""
    if not isinstance(value, float) or not 0.5 <= value < 1:
        raise ArgumentError(f"{where}: a confidence from 0.5 to below 1 (0.95) is needed, given {_repr(value)}.")
    return value


def watts(value: Any, where: str) -> float | None:
    """Return a power, or None."""
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 1e5:
        raise ArgumentError(f"{where}: watts above 0, or null, are needed, given {_repr(value)}.")
    return float(value)


def words(value: Any, where: str) -> tuple[str, ...]:
    """Return names, each once."""
    names = tuple(text(item, f"{where}[{i}]").strip() for i, item in enumerate(_items(value, where, "a list of names")))
    if not names:
        raise ArgumentError(f"{where}: at least one name is needed, given none.")
    return tuple(dict.fromkeys(names))


def sizes(value: Any, where: str) -> tuple[tuple[int, ...], ...]:
    """Return shapes from [[64, 64], [128, 128]]; a lone number n is n x n."""
    shapes = []
    for i, item in enumerate(_items(value, where, "a list of sizes such as [[64, 64], [128, 128]]")):
        numbers = [item, item] if isinstance(item, int) else _items(item, f"{where}[{i}]", "a size such as [64, 64]")
        shape = tuple(count_from(1)(n, f"{where}[{i}]") for n in numbers)
        if not 1 <= len(shape) <= 4:
            raise ArgumentError(f"{where}[{i}]: a size of 1 to 4 numbers is needed, given {len(shape)}.")
        shapes.append(shape)
    if not shapes:
        raise ArgumentError(f"{where}: at least one size is needed, given none.")
    return tuple(dict.fromkeys(shapes))


def counts(value: Any, where: str) -> tuple[int, ...]:
    """Return integers from 1 on, each once; there may be none."""
    items = _items(value, where, "a list of integers such as [1, 8, 32]")
    return tuple(dict.fromkeys(count_from(1)(n, f"{where}[{i}]") for i, n in enumerate(items)))


TRANSFERS = ("excluded", "included", "both")


def transfer_named(value: Any, where: str) -> str:
    """Return the transfer mode."""
    if not isinstance(value, str) or value not in TRANSFERS:
        close = nearest(value, TRANSFERS) if isinstance(value, str) else ""
        raise ArgumentError(f"{where}: one of {', '.join(TRANSFERS)} is needed, given {_repr(value)}.{close}")
    return str(value)


FLOATS = ("f16", "bf16", "f32", "f64")


def float_types(value: Any, where: str) -> tuple[str, ...]:
    """Return float dtypes by their short names; the long ones (float16) are understood."""
    kinds = []
    for i, name in enumerate(words(value, where)):
        try:
            kind = dtype.dtype(name)
        except DTypeError:
            kind = None
        if kind is None or kind.name not in FLOATS:
            hint = (
                "" if kind is None else f" {kind.name} is the type of stored weights: see `tritium bench quantization`."
            )
            raise ArgumentError(
                f"{where}[{i}]: {name!r} is not a type to compute in; there are {', '.join(FLOATS)}."
                f"{hint or nearest(name, FLOATS)}"
            )
        kinds.append(kind.name)
    return tuple(dict.fromkeys(kinds))


def device_names(value: Any, where: str) -> tuple[str, ...]:
    """Return device names; whether a device is present is checked when it is used."""
    names, known = words(value, where), [*backends.device_names(), *peers.CPU_KERNELS]
    for i, name in enumerate(names):
        kind, _, unit = name.partition(":")
        kernels = kind == "cpu" and unit and not unit.isdigit()
        if name not in peers.CPU_KERNELS if kernels else not backends.is_device_name(name):
            raise ArgumentError(
                f"{where}[{i}]: {name!r} is not a device; there are {', '.join(known)}.{nearest(name, known)}"
            )
    return names


def devices_here() -> tuple[str, ...]:
    """Return the devices of this machine."""
    return tuple(map(str, backends.present()))


def absence(device: str) -> str:
    """Return why a device of a file is skipped on this machine; "" if it is present."""
    if device in peers.CPU_KERNELS:
        return peers.kernels_absent(device)
    try:
        backends.device(device)
    except Exception as error:  # the message of any probe is the reason
        return str(error).removeprefix(f"Device {device!r} is not available: ")
    return ""


def _repr(value: Any) -> str:
    """Return a value as text for an error message."""
    return "nothing" if value is None else shown(value)


def _items(value: Any, where: str, needed: str) -> list[Any]:
    """Return the elements of a list; text, classes, arrays without axes and lists without end are none."""
    if isinstance(value, (str, bytes, type)) or not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0:
        raise ArgumentError(f"{where}: {needed} is needed, given {_repr(value)}.")
    items = list(islice(value, MOST_ITEMS + 1))
    if len(items) > MOST_ITEMS:
        raise ArgumentError(f"{where}: {needed} is needed, at most {MOST_ITEMS} of them, given {_repr(value)}.")
    return items


# ---- the files


class Key(NamedTuple):
    """A key of a file: the field it fills, and the functions that read and write its value."""

    field: str
    read: Callable[[Any, str], Any]
    write: Callable[[Any], Any] = records.plain


class Config:
    """A configuration file as a frozen record. `KEYS` describes it completely; a dotted key is in a nested object."""

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
            raise FormatError(f"{where}: an object with {', '.join(_tops(cls))} is needed, given {_repr(data)}.")
        return _from(cls, data, where)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the file in the form `load` reads."""
        from tritium.perf.store.results import write_text

        return write_text(Path(path), self.dumps() + "\n")

    def dumps(self) -> str:
        """Return the text of the file."""
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
    """Return the keys of the outer object."""
    return list(dict.fromkeys(name.partition(".")[0] for name in cls.KEYS))


def _from(cls: type[C], data: dict[str, Any], where: str) -> C:
    """Return the record of a file's contents."""
    _check_kind(cls, data, where)
    flat: dict[str, Any] = {}
    inner = {name.partition(".")[0] for name in cls.KEYS if "." in name}
    for name, value in data.items():
        if name in inner:
            if not isinstance(value, dict):
                raise FormatError(f"{where}: {name}: an object is needed, given {_repr(value)}.")
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
    """Raise FormatError if the file is of another kind, instead of complaining about its first key."""
    if {"schema", "results"} <= set(data):
        raise FormatError(f"{where}: this is a file of results, not a {cls.KIND} file. {cls.USE}")
    own_keys = set(data) & set(_tops(cls))
    for other in (BenchmarkConfig, EnergyConfig, RegressionConfig):
        if other is not cls and not own_keys and set(data) & set(_tops(other)):
            raise FormatError(
                f"{where}: this is {_a(other.KIND)} file (it has {', '.join(k for k in data if k in _tops(other))}); "
                f"{_a(cls.KIND)} file is needed, with {', '.join(_tops(cls))}. {other.USE}"
            )


def _a(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


@checked_record
@dataclass(frozen=True)
class BenchmarkConfig(Config):
    """A measurement: ops x sizes x batches x dtypes x devices, and for how long."""

    tensor_sizes: tuple[tuple[int, ...], ...] = (
        (64, 64),
        (128, 128),
        (256, 256),
        (512, 512),
        (1024, 1024),
        (2048, 2048),
    )
    warmup_iterations: int = 5  # batches before the first sample
    measurement_iterations: int = 10  # rounds in total, spread over fresh processes
    operations: tuple[str, ...] = ("matmul", "add", "multiply", "quantize", "bitlinear")
    devices: tuple[str, ...] = field(default_factory=devices_here)
    data_types: tuple[str, ...] = ("f32", "f16")
    timeout_s: float = 30.0  # of one case on one contender, in one process
    batch_sizes: tuple[int, ...] = ()  # rows or sequences instead of those in the sizes; empty: as in the sizes
    transfer: str = "excluded"  # transfers of inputs and results are timed or not; both: a case of each

    KIND: ClassVar[str] = "benchmark"
    USE: ClassVar[str] = "Pass a benchmark file to `tritium compare --config`."
    KEYS: ClassVar[Mapping[str, Key]] = {
        "tensor_sizes": Key("tensor_sizes", sizes),
        "warmup_iterations": Key("warmup_iterations", count_from(0)),
        "measurement_iterations": Key("measurement_iterations", count_from(1)),
        "operations": Key("operations", words),
        "devices": Key("devices", device_names),
        "data_types": Key("data_types", float_types),
        "timeout": Key("timeout_s", read_duration, duration_text),
        "batch_sizes": Key("batch_sizes", counts),
        "transfer": Key("transfer", transfer_named),
    }

    def plan(self, plan: Plan = PLANS["default"]) -> Plan:
        """Return a plan with this file's warm-up and at least its rounds, over fresh processes."""
        generations = min(plan.generations, self.measurement_iterations)
        return replace(
            plan,
            generations=generations,
            rounds=-(-self.measurement_iterations // generations),
            warmup_batches=self.warmup_iterations,
            timeout_s=self.timeout_s,
        )

    def usable_devices(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the devices that are present, and a note for each that is not."""
        absences = {name: absence(name) for name in self.devices}
        skipped = tuple(f"device {name} skipped: {reason.rstrip('.')}." for name, reason in absences.items() if reason)
        return tuple(name for name, reason in absences.items() if not reason), skipped


@checked_record
@dataclass(frozen=True)
class EnergyConfig(Config):
    """Settings of energy readings. Estimates are made only if allowed, and are marked as such."""

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
    USE: ClassVar[str] = "Pass an energy file to `tritium bench energy --config`."
    KEYS: ClassVar[Mapping[str, Key]] = {
        "monitoring_interval": Key("monitoring_interval_s", read_duration, duration_text),
        "power_measurement_duration": Key("power_measurement_duration_s", read_duration, duration_text),
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
    """Slow-downs from which a regression is a warning, and from which it is critical."""

    warning: float = 0.05
    critical: float = 0.15


def alerts(value: Any, where: str) -> Alerts:
    """Return the alert thresholds."""
    if isinstance(value, Alerts):
        value = records.plain(value)
    if not isinstance(value, Mapping):
        raise ArgumentError(f"{where}: an object with warning and critical is needed, given {_repr(value)}.")
    known = [f.name for f in fields(Alerts)]
    for name in value:
        if name not in known:
            raise ArgumentError(
                f"{where}: unknown key {name!r}; there are {', '.join(known)}.{nearest(str(name), known)}"
            )
    thresholds = Alerts(**{name: fraction(share, f"{where}.{name}") for name, share in value.items()})
    if thresholds.warning > thresholds.critical:
        raise ArgumentError(
            f"{where}: warning ({thresholds.warning:g}) must not be above critical ({thresholds.critical:g})."
        )
    return thresholds


@checked_record
@dataclass(frozen=True)
class RegressionConfig(Config):
    """Rules for regressions, and the baseline they are compared with."""

    baseline_file: str = "performance_baselines.json"
    regression_threshold: float = 0.05
    minimum_samples: int = 10
    confidence_level: float = 0.95
    alert_thresholds: Alerts = field(default_factory=Alerts)
    auto_update_baseline: bool = False

    KIND: ClassVar[str] = "regression"
    USE: ClassVar[str] = "Pass a regression file to `tritium regression-check --config`."
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
    config: BenchmarkConfig = field(default_factory=BenchmarkConfig)  # operations, tensor_sizes, devices …
    plan: Plan = PLANS["default"]  # duration and rules: generations, threads, seed, metrics …
    energy: EnergyConfig | None = None  # settings of energy readings; None: no readings
    peers: tuple[str, ...] | None = None  # libraries to compare with; None: the suite's
    named_devices: bool = False  # the devices of `config` were requested, not taken because they are here
    quick: bool = False
    output: Path = Path("results.json")
    resume: bool = False  # continue from the journal beside `output`
    format: str = "text"  # of the printed output
    report: bool = True  # write a page beside `output`

    @property
    def kind(self) -> str:
        """Return the kind of the results in their file."""
        return "compare" if self.suite == "compare" else "bench"

    @property
    def journal(self) -> Path:
        return self.output.with_name(f"{self.output.name}.journal")

    @property
    def recipe(self) -> dict[str, Any]:
        """Return the arguments that every recipe takes."""
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
