"""Settings from environment variables, read in one place; and the logger.

| variable             | meaning                                                    |
|----------------------|------------------------------------------------------------|
| TRITIUM_DEVICE       | the device used where none is named; auto: by measurement  |
| TRITIUM_ISA          | force the CPU kernels: see `tritium devices` for the names |
| TRITIUM_NUM_THREADS  | threads of the CPU kernels                                 |
| TRITIUM_PURE         | 1: ignore the native library, run everything on NumPy      |
| TRITIUM_LOG          | logging levels and subjects: debug, or recompiles,kernels  |
| TRITIUM_CACHE        | the folder of what was measured of this machine            |
| TRITIUM_DATA         | the folder of baselines and of the history of runs         |
| TRITIUM_TUNED        | 0: ignore what was tuned; all: also what may change bits   |
| TRITIUM_CUDA_EARLY   | 0: kernels on a GPU start one after the other              |
| TRITIUM_API_KEY      | what clients of `tritium serve` must send                  |
| TRITIUM_MODEL        | the model of the ASGI app `tritium.serve.asgi:app`         |
| TRITIUM_LIVE         | 1: publish figures for `tritium top` and the dashboard     |
| TRITIUM_RUNTIME      | the folder of these figures; default: the user's own       |
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logging import Logger
    from pathlib import Path

    log: Logger

LOGGER = "tritium"
SUBJECTS = ("compile", "kernels", "memory", "recompiles", "transfers")  # each has a logger: tritium.compile, …
DEBUG, INFO, WARNING = 10, 20, 30  # levels of `logging`, which is imported when something is logged


_loggers: dict[str, Logger] = {}  # by subject: logging.getLogger takes a lock


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


def live() -> bool:
    """Return True if this process publishes its figures for viewers on this machine."""
    return os.environ.get("TRITIUM_LIVE", "") not in ("", "0")


def runtime_dir() -> Path | None:
    """Return the folder of files that live as long as their process: TRITIUM_RUNTIME, else the user's; None where there is none."""
    from pathlib import Path

    if folder := os.environ.get("TRITIUM_RUNTIME"):
        return Path(folder).expanduser()
    folder = os.environ.get("XDG_RUNTIME_DIR", "")
    return Path(folder) / "tritium" if folder and Path(folder).is_dir() else None


def tuned() -> str:
    """Return which tuned choices apply: none, exact (what changes no bit) or all."""
    return {"0": "none", "all": "all"}.get(os.environ.get("TRITIUM_TUNED", ""), "exact")


def api_key() -> str | None:
    return os.environ.get("TRITIUM_API_KEY") or None


def model() -> str | None:
    """Return the model that the ASGI app serves: a file or a name; None for the one in the package."""
    return os.environ.get("TRITIUM_MODEL") or None


def logger(subject: str) -> Logger:
    """Return the logger of a subject."""
    import logging

    return logging.getLogger(f"{LOGGER}.{subject}")


def listener(subject: str = "", level: int = DEBUG) -> Logger | None:
    """Return the logger of a subject, or of the package, if someone listens at this level, else None.

    A process that has not imported `logging` has no listener: nothing is imported to find that out.
    """
    if (known := _loggers.get(subject)) is None:
        logging = sys.modules.get("logging")
        if logging is None:
            return None
        known = _loggers[subject] = logging.getLogger(f"{LOGGER}.{subject}" if subject else LOGGER)
    return known if known.isEnabledFor(level) else None


def start_logging() -> None:
    """Give the `tritium` logger a handler when TRITIUM_LOG names a level or subjects; otherwise the application decides."""
    words = [w.strip() for w in os.environ.get("TRITIUM_LOG", "").split(",") if w.strip()]
    if not words:
        return
    import logging

    log = logging.getLogger(LOGGER)
    levels = [n for w in words if (n := logging.getLevelNamesMapping().get(w.upper())) is not None]
    subjects = [w.lower() for w in words if w.lower() in SUBJECTS]
    if levels or subjects:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
        log.addHandler(handler)
    if levels:
        log.setLevel(min(levels))
    for subject in subjects:
        logging.getLogger(f"{LOGGER}.{subject}").setLevel(DEBUG)
    for word in words:
        if word.upper() not in logging.getLevelNamesMapping() and word.lower() not in SUBJECTS:
            log.warning(
                "TRITIUM_LOG=%s is not a logging level or subject; use debug, info, warning or error, or some of %s.",
                word,
                ", ".join(SUBJECTS),
            )
