"""Settings from environment variables, read in one place; and the logger.

Knows nothing else of the package.

| variable             | meaning                                                    |
|----------------------|------------------------------------------------------------|
| TRITIUM_DEVICE       | the device used where none is named                        |
| TRITIUM_ISA          | force the CPU kernels: see `tritium devices` for the names |
| TRITIUM_NUM_THREADS  | threads of the CPU kernels                                 |
| TRITIUM_PURE         | 1: ignore the native library, run everything on NumPy      |
| TRITIUM_LOG          | a logging level: debug, info, warning, error               |
| TRITIUM_CACHE        | the folder of what was measured of this machine            |
| TRITIUM_DATA         | the folder of baselines and of the history of runs         |
| TRITIUM_TUNED        | 0: ignore what was tuned; all: also what may change bits   |
| TRITIUM_CUDA_EARLY   | 0: kernels on a GPU start one after the other              |
| TRITIUM_API_KEY      | what clients of `tritium serve` must send                  |
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logging import Logger
    from pathlib import Path

    log: Logger

LOGGER = "tritium"


def __getattr__(name: str) -> Any:
    """Make the logger when it is first used: importing `logging` takes a tenth of the time of importing the package."""
    if name != "log":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import logging

    globals()["log"] = logging.getLogger(LOGGER)
    return globals()["log"]


def device() -> str | None:
    return os.environ.get("TRITIUM_DEVICE") or None


def cuda_early() -> bool:
    """Return True if GPU kernels may start before the previous one is done, and wait where they need its results."""
    return os.environ.get("TRITIUM_CUDA_EARLY", "") != "0"


def pure() -> bool:
    return os.environ.get("TRITIUM_PURE", "") not in ("", "0")


def cache_dir() -> Path:
    """Return the folder of measurements: TRITIUM_CACHE, else the user's cache folder."""
    if folder := os.environ.get("TRITIUM_CACHE"):
        from pathlib import Path

        return Path(folder).expanduser()
    import platformdirs

    return platformdirs.user_cache_path("tritium")


def data_dir() -> Path:
    """Return the folder of baselines and the history of runs: TRITIUM_DATA, else the user's data folder."""
    if folder := os.environ.get("TRITIUM_DATA"):
        from pathlib import Path

        return Path(folder).expanduser()
    import platformdirs

    return platformdirs.user_data_path("tritium")


def tuned() -> str:
    """Return which tuned choices apply: none, exact (what changes no bit) or all."""
    return {"0": "none", "all": "all"}.get(os.environ.get("TRITIUM_TUNED", ""), "exact")


def api_key() -> str | None:
    return os.environ.get("TRITIUM_API_KEY") or None


def start_logging() -> None:
    """Give the `tritium` logger a handler when TRITIUM_LOG names a level; otherwise the application decides."""
    level = os.environ.get("TRITIUM_LOG")
    if not level:
        return
    import logging

    log = logging.getLogger(LOGGER)
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        log.warning("TRITIUM_LOG=%s is not a logging level; use debug, info, warning or error.", level)
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(number)
