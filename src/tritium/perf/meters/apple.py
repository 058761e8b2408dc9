"""Apple's chips: energy of the processor, GPU and neural engine by IOReport, else powermetrics; the battery by ioreg.

Not yet run on a Mac: written after the interfaces, tested with imitations. IOReport is a library Apple does not document;
it needs no rights. powermetrics needs root.
"""

from __future__ import annotations

import ctypes
import os
import plistlib
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from tritium.perf.meters.absent import Absent
from tritium.perf.meters.sensors import Sensor

FOUNDATION = "/System/Library/Frameworks/CoreFoundation.framework/CoreFoundation"
IOREPORT = "/usr/lib/libIOReport.dylib"
UTF8 = 0x08000100
UNITS = {"J": 1.0, "mJ": 1e-3, "uJ": 1e-6, "µJ": 1e-6, "nJ": 1e-9}
FRESH_S = 0.005  # the channels are read together; sensors asked in a row share one reading
# The end of a channel's name, and whose energy it is. Memory serves both processor and GPU: it is nobody's alone.
CHANNELS = {"CPU Energy": "cpu", "GPU Energy": "gpu", "ANE": "machine", "DRAM": "machine"}
POWERS = {"cpu_power": "cpu", "gpu_power": "gpu", "ane_power": "machine"}  # of powermetrics, in milliwatts


def apple(system: str = sys.platform, channels: Callable[[], Any] | None = None) -> list[Sensor | Absent]:
    """The sensors of an Apple chip."""
    if system != "darwin":
        return [Absent("no_device", "this is not a Mac", "IOReport", "cpu")]
    try:
        read = (channels or opened)()
        energies = read()
    except (OSError, AttributeError, RuntimeError):
        return powermetrics()
    listed: list[Sensor | Absent] = [
        Sensor("IOReport (not yet run on a Mac)", name, "module", group, partial(_channel, read, name))  # type: ignore[arg-type]
        for name in energies
        if (group := group_of(name))
    ]
    return listed or [Absent("unsupported", "IOReport lists no energy of this chip", "IOReport", "cpu")]


def group_of(channel: str) -> str:
    """Return the group whose energy a channel counts; "" for parts of others and unknown ones. A chip of two dies has each twice."""
    name = channel.partition("_")[2].partition("_")[2] if channel.startswith("DIE_") else channel
    return next((group for ends, group in CHANNELS.items() if name.rstrip("0123456789") == ends), "")


def _channel(read: Callable[[], Mapping[str, float]], name: str) -> float | Absent:
    joules = read().get(name)
    return Absent("unsupported", f"IOReport no longer lists {name}", "IOReport") if joules is None else joules


# ---- IOReport


@cache
def opened() -> Callable[[], Mapping[str, float]]:
    """A function that reads every energy channel in joules; OSError where there is no such library."""
    return Channels(ctypes.CDLL(FOUNDATION), ctypes.CDLL(IOREPORT)).read


class Channels:
    """A subscription to the group "Energy Model"."""

    def __init__(self, foundation: Any, report: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._cf, self._report, self._clock = foundation, report, clock
        pointer = ctypes.c_void_p
        for library, name, result, arguments in (
            (foundation, "CFStringCreateWithCString", pointer, [pointer, ctypes.c_char_p, ctypes.c_uint32]),
            (
                foundation,
                "CFStringGetCString",
                ctypes.c_bool,
                [pointer, ctypes.c_char_p, ctypes.c_long, ctypes.c_uint32],
            ),
            (foundation, "CFDictionaryGetValue", pointer, [pointer, pointer]),
            (foundation, "CFArrayGetCount", ctypes.c_long, [pointer]),
            (foundation, "CFArrayGetValueAtIndex", pointer, [pointer, ctypes.c_long]),
            (foundation, "CFRelease", None, [pointer]),
            (report, "IOReportCopyChannelsInGroup", pointer, [pointer, pointer, *[ctypes.c_uint64] * 3]),
            (report, "IOReportCreateSubscription", pointer, [pointer, pointer, pointer, ctypes.c_uint64, pointer]),
            (report, "IOReportCreateSamples", pointer, [pointer, pointer, pointer]),
            (report, "IOReportSimpleGetIntegerValue", ctypes.c_int64, [pointer, pointer]),
            (report, "IOReportChannelGetChannelName", pointer, [pointer]),
            (report, "IOReportChannelGetUnitLabel", pointer, [pointer]),
        ):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        group = self._text_of_ours(b"Energy Model")
        channels = report.IOReportCopyChannelsInGroup(group, None, 0, 0, 0)
        if not channels:
            raise RuntimeError("IOReport has no group Energy Model")
        self._subscribed = ctypes.c_void_p()
        self._subscription = report.IOReportCreateSubscription(
            None, channels, ctypes.addressof(self._subscribed), 0, None
        )
        if not self._subscription:
            raise RuntimeError("IOReport refused a subscription")
        self._key = self._text_of_ours(b"IOReportChannels")
        self._last: tuple[float, dict[str, float]] | None = None

    def _text_of_ours(self, value: bytes) -> Any:
        return self._cf.CFStringCreateWithCString(None, value, UTF8)

    def _text(self, string: Any) -> str:
        out = ctypes.create_string_buffer(256)
        return out.value.decode() if string and self._cf.CFStringGetCString(string, out, 256, UTF8) else ""

    def read(self) -> Mapping[str, float]:
        """Joules of every channel since some moment that stays the same."""
        now = self._clock()
        if self._last is None or now - self._last[0] > FRESH_S:
            self._last = now, self._sample()
        return self._last[1]

    def _sample(self) -> dict[str, float]:
        sample = self._report.IOReportCreateSamples(self._subscription, self._subscribed, None)
        if not sample:
            return {}
        joules: dict[str, float] = {}
        channels = self._cf.CFDictionaryGetValue(sample, self._key)
        for i in range(self._cf.CFArrayGetCount(channels)):
            channel = self._cf.CFArrayGetValueAtIndex(channels, i)
            unit = UNITS.get(self._text(self._report.IOReportChannelGetUnitLabel(channel)).strip())
            if unit is not None:
                name = self._text(self._report.IOReportChannelGetChannelName(channel)).strip()
                joules[name] = self._report.IOReportSimpleGetIntegerValue(channel, None) * unit
        self._cf.CFRelease(sample)
        return joules


# ---- powermetrics, ioreg


def _ran(command: list[str]) -> bytes:
    return subprocess.run(command, capture_output=True, timeout=20, check=True).stdout


def powermetrics(
    ran: Callable[[list[str]], bytes] = _ran, root: bool | None = None, every_ms: int = 100
) -> list[Sensor | Absent]:
    """Gauges of watts by Apple's own tool, where IOReport cannot be opened."""
    source = "powermetrics"
    if not (os.geteuid() == 0 if root is None else root):
        return [Absent("no_permission", "powermetrics is for root: run with sudo", source, "cpu")]
    command = [
        "/usr/bin/powermetrics",
        "-n",
        "1",
        "-i",
        str(every_ms),
        "--samplers",
        "cpu_power,gpu_power",
        "-f",
        "plist",
    ]

    def read(key: str) -> float | Absent:
        try:
            return powers(ran(command))[key]
        except (OSError, subprocess.SubprocessError, KeyError, ValueError) as error:
            return Absent("unsupported", f"powermetrics did not tell {key}: {error!r}", source, POWERS[key])

    try:
        listed = powers(ran(command))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return [Absent("unsupported", f"powermetrics did not run: {error!r}", source, "cpu")]
    return [
        Sensor(f"{source} (not yet run on a Mac)", key, "module", POWERS[key], partial(read, key), "W")  # type: ignore[arg-type]
        for key in listed
    ] or [Absent("unsupported", "powermetrics tells no power of this chip", source, "cpu")]


def powers(answer: bytes) -> dict[str, float]:
    """The watts in what powermetrics writes: property lists, each after a zero byte."""
    try:
        processor = plistlib.loads(answer.strip(b"\0\n")).get("processor", {})
    except Exception as error:  # the parser has many, also of XML
        raise ValueError(f"not a property list: {error}") from None
    return {key: float(processor[key]) / 1000 for key in POWERS if isinstance(processor.get(key), (int, float))}


def battery_of_macos(ran: Callable[[list[str]], bytes] = _ran) -> list[Sensor | Absent]:
    """The battery of a Mac."""
    source = "ioreg AppleSmartBattery"
    command = ["/usr/sbin/ioreg", "-r", "-n", "AppleSmartBattery", "-a"]

    def read_battery() -> dict[str, Any]:
        answer = ran(command)
        sources = plistlib.loads(answer) if answer.strip() else []
        return dict(sources[0]) if sources else {}

    def read() -> float | Absent:
        try:
            now = read_battery()
            if now.get("ExternalConnected", True):
                return Absent(
                    "unsupported", "on mains; a battery tells the draw only while it discharges", source, "machine"
                )
            milliamps = int(now["InstantAmperage"])
            milliamps -= (milliamps >> 63) << 64  # negative numbers come as unsigned ones
            return abs(milliamps) * int(now["Voltage"]) / 1e6
        except (OSError, subprocess.SubprocessError, KeyError, ValueError) as error:
            return Absent("unsupported", f"the battery does not tell its power: {error!r}", source, "machine")

    try:
        first = read_battery()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return [Absent("unsupported", f"ioreg did not run: {error!r}", source, "machine")]
    if not first:
        return [Absent("no_device", "there is no battery", source, "machine")]
    full, volts = first.get("AppleRawMaxCapacity"), first.get("Voltage")
    capacity = full * volts / 1e6 if full and volts else None
    return [
        Sensor(f"{source} (not yet run on a Mac)", "battery", "machine", "machine", read, "W", capacity_wh=capacity)
    ]
