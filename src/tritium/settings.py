"""What the environment asks for, read in one place; and the logger.

Knows nothing else of the package.

| variable             | meaning                                                    |
|----------------------|------------------------------------------------------------|
| TRITIUM_DEVICE       | the device used where none is named                        |
| TRITIUM_ISA          | force the CPU kernels: portable, avx2, avx512, neon        |
| TRITIUM_NUM_THREADS  | threads of the CPU kernels                                 |
| TRITIUM_PURE         | 1: ignore the native library, run everything on NumPy      |
| TRITIUM_LOG          | a logging level: debug, info, warning, error               |
"""

from __future__ import annotations

import logging
import os

log = logging.getLogger("tritium")


def device() -> str | None:
    return os.environ.get("TRITIUM_DEVICE") or None


def pure() -> bool:
    return os.environ.get("TRITIUM_PURE", "") not in ("", "0")


def start_logging() -> None:
    """Give the `tritium` logger a handler when TRITIUM_LOG names a level; otherwise the application decides."""
    level = os.environ.get("TRITIUM_LOG")
    if not level:
        return
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        log.warning("TRITIUM_LOG=%s is not a logging level; use debug, info, warning or error.", level)
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(number)
