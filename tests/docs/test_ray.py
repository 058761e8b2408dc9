"""The example of Ray Serve, where Ray is installed: one request, with the tokens of one process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from doc_pages import ROOT


@pytest.mark.skipif(os.environ.get("TRITIUM_LONG") != "1", reason="TRITIUM_LONG=1 runs it: Ray takes a minute to start")
def test_a_deployment_answers_with_the_tokens_of_one_process() -> None:
    pytest.importorskip("ray.serve", reason='needs Ray: pip install "ray[serve]"')
    subprocess.run([sys.executable, str(ROOT / "examples" / "ray_serve.py")], check=True, timeout=600)
