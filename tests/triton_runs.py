"""How a file of tests uses Triton: not at all, in its interpreter, or compiled, on CUDA where there is a device.

Which of them Triton does is settled when it is imported, so such a file runs itself once more for each of the last two.
"""

from __future__ import annotations

import os
import subprocess
import sys

MODE = os.environ.get("TRITIUM_TEST_TRITON", "")  # of this run: "interpreted", "compiled", or "" for not at all
INTERPRETED = MODE == "interpreted"
PLACE = "cpu" if INTERPRETED else "cuda"


def passes(file: str, mode: str) -> None:
    """All of a file in one of the modes."""
    env = os.environ | {"TRITIUM_TEST_TRITON": mode, "TRITON_INTERPRET": str(int(mode == "interpreted"))}
    args = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", file]
    done = subprocess.run(args, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
