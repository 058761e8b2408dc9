"""The number of threads of the CPU kernels, and its control by threadpoolctl."""

from __future__ import annotations

import os
from typing import Any

from tritium import settings
from tritium.arguments import checked, checked_except
from tritium.buffer import native
from tritium.errors import ArgumentError, shown
from tritium.interop import when_imported
from tritium.machine import tuned

MOST_THREADS = 1 << 16


@checked
def get_num_threads() -> int:
    """Return the number of threads a kernel may use now."""
    return int(native.num_threads()) if native is not None else _numpy_threads()


@checked_except("n")
def set_num_threads(n: int) -> None:
    """Let kernels, BLAS included, use n threads; native ones use at most 256."""
    if not isinstance(n, int) or not 1 <= n <= MOST_THREADS:
        raise ArgumentError(
            f"set_num_threads: {shown(n)} is not a number of threads; give 1 or more, up to {MOST_THREADS}."
        )
    if native is not None:
        native.set_num_threads(n)
    else:
        import threadpoolctl

        threadpoolctl.threadpool_limits(limits=n)


def _numpy_threads() -> int:
    import threadpoolctl

    known = [lib["num_threads"] for lib in threadpoolctl.threadpool_info() if lib["user_api"] == "blas"]
    return max(known, default=os.cpu_count() or 1)


def join_threadpoolctl(threadpoolctl: Any) -> None:
    """Make `threadpoolctl.threadpool_limits` reach our threads, as it reaches any BLAS."""

    class Controller(threadpoolctl.LibController):  # type: ignore[misc]
        """Our native library, found among the loaded ones by its file name and symbols."""

        user_api = "blas"
        internal_api = "tritium"
        filename_prefixes = ("_native",)
        check_symbols = ("tritium_get_num_threads", "tritium_set_num_threads")

        def get_num_threads(self) -> int:
            return int(self.dynlib.tritium_get_num_threads())

        def set_num_threads(self, num_threads: int) -> Any:
            return self.dynlib.tritium_set_num_threads(num_threads)

        def get_version(self) -> None:
            return None

    threadpoolctl.register(Controller)


def follow_tuned() -> None:
    """Use as many threads as were tuned, where that is asked for: the last bits of dense products depend on it."""
    if native is None or settings.tuned() != "all":
        return
    if any(os.environ.get(name) for name in ("TRITIUM_NUM_THREADS", "OMP_NUM_THREADS")):
        return
    choice = tuned.choices().get("threads")
    if choice is not None and isinstance(choice.value, int) and choice.value >= 1:
        native.set_num_threads(choice.value)


if native is not None:
    when_imported("threadpoolctl", join_threadpoolctl)
follow_tuned()
