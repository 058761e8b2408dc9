"""Instructions and cycles of this process's threads, as the processor counts them; or why it does not.

Linux only, through perf_event_open; the kernel's own instructions are left out, so an ordinary user may count.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import struct
import sys
import weakref
from pathlib import Path

from tritium.errors import ArgumentError
from tritium.perf.meters.absent import Absent
from tritium.perf.meters.sensors import text
from tritium.perf.words import nearest

CONFIGS = {"cycles": 0, "instructions": 1}  # PERF_COUNT_HW_*
CALLS = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331, "i686": 336}  # perf_event_open
SIZE = 112  # of perf_event_attr as of PERF_ATTR_SIZE_VER5: kernels since 4.1
FLAGS = 1 << 1 | 1 << 5 | 1 << 6  # inherit: threads born later too; exclude_kernel; exclude_hv
TIMES = 1 | 2  # read the time the counter was wanted and the time it ran beside its value
PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")


def attributes(name: str) -> bytes:
    """struct perf_event_attr: a hardware event, counted in user code of this thread and its children."""
    raw = bytearray(SIZE)
    struct.pack_into("=IIQQQQQ", raw, 0, 0, SIZE, CONFIGS[name], 0, 0, TIMES, FLAGS)
    return bytes(raw)


class Kernel:
    """The two system calls that are needed; a test has its own."""

    def threads(self) -> list[int]:
        return sorted(int(t) for t in os.listdir("/proc/self/task"))

    def open(self, attribute: bytes, thread: int) -> int:
        """A descriptor that counts for a thread; OSError as the system tells it."""
        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.syscall(ctypes.c_long(CALLS[platform.machine()]), attribute, thread, -1, -1, ctypes.c_ulong(8))
        if fd < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return int(fd)

    def read(self, fd: int) -> tuple[int, int, int]:
        """The count, the nanoseconds it was wanted, the nanoseconds it ran."""
        count, enabled, ran = struct.unpack("=QQQ", os.read(fd, 24))
        return count, enabled, ran

    def close(self, fd: int) -> None:
        os.close(fd)


class Counter:
    """A meter of one hardware counter over all threads there are, and those they start."""

    unit, source = "1", "perf_event_open, user code of all threads"

    def __init__(self, name: str, kernel: Kernel | None = None) -> None:
        if name not in CONFIGS:
            raise ArgumentError(
                f"there is no counter {name!r}.{nearest(name, CONFIGS)} There are {', '.join(CONFIGS)}."
            )
        self.metric = name
        self.exact = name == "instructions"  # the same work takes other cycles every time
        self._kernel = kernel or Kernel()
        self._fds: dict[int, int] = {}  # by thread
        self._before: dict[int, tuple[int, int, int]] = {}
        self.absent = self._follow()
        weakref.finalize(self, _close, self._kernel, self._fds)

    def _follow(self) -> Absent | None:
        """Count in the threads that are not yet counted; those that counted ones start are counted by themselves."""
        if sys.platform != "linux" or platform.machine() not in CALLS:
            return Absent(
                "unsupported", f"counters are read through Linux only, not on {sys.platform}", "perf_event_open"
            )
        try:
            for thread in self._kernel.threads() if not self._fds else ():
                with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                    self._fds[thread] = self._kernel.open(attributes(self.metric), thread)
        except OSError as error:
            return why_not(error)
        return None

    def start(self) -> None:
        if self.absent is None:
            self._before = {fd: self._kernel.read(fd) for fd in self._fds.values()}

    def stop(self, calls: int) -> float | Absent:
        if self.absent is not None:
            return self.absent
        total = 0.0
        for fd, (count, enabled, ran) in self._before.items():
            now, enabled_now, ran_now = self._kernel.read(fd)
            enabled, ran = enabled_now - enabled, ran_now - ran
            if enabled and not ran:
                return Absent("shared_device", "others held the counter all the time", "perf_event_open")
            total += (now - count) * (enabled / ran if ran else 1)  # it took turns with other counters
        return total / calls


def _close(kernel: Kernel, fds: dict[int, int]) -> None:
    for fd in fds.values():
        with contextlib.suppress(OSError):
            kernel.close(fd)
    fds.clear()


def why_not(error: OSError, paranoid: Path = PARANOID, cpuinfo: Path = Path("/proc/cpuinfo")) -> Absent:
    """The reason behind a refusal of the system."""
    source = "perf_event_open"
    if error.errno in (errno.EACCES, errno.EPERM):
        level = text(paranoid)
        if level.lstrip("-").isdigit() and int(level) > 2:
            return Absent(
                "no_permission",
                f"kernel.perf_event_paranoid is {level}; as root: sysctl kernel.perf_event_paranoid=2",
                source,
            )
        return Absent("no_permission", "the system (a container's seccomp filter?) forbids perf_event_open", source)
    if error.errno in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENODEV, errno.ENXIO):
        if "hypervisor" in text(cpuinfo).split():
            return Absent("virtual_machine", "this virtual machine shows no performance counters (PMU)", source)
        return Absent("no_device", "this processor shows no performance counters (PMU)", source)
    if error.errno == errno.ENOSYS:
        return Absent("no_driver", "this kernel is built without perf events", source)
    return Absent("unsupported", f"perf_event_open: {error.strerror or error}", source)
