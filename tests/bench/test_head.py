"""The benchmark of output heads: it runs, and the certified texts are those of the float head."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from tritium.buffer import native
from tritium.models.load import shipped

BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.skipif(native is None, reason="without the native library no head is certified")
def test_certified_texts_are_those_of_the_float_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "head.json"
    options = [
        "--tokens",
        "2",
        "--rounds",
        "2",
        "--json",
        str(output),
        "--sampler",
        "greedy",
        "--sampler",
        "min-p 0.05",
    ]
    monkeypatch.setattr(sys, "argv", ["head.py", str(shipped()), *options])
    runpy.run_path(str(BENCH / "head.py"), run_name="__main__")
    results = json.loads(output.read_text())["results"]
    assert set(results) == {"greedy", "min-p 0.05"}
    for result in results.values():
        assert result["equal_texts"] == result["texts"] == 3
        assert all(len(rates) == 2 for rates in result["rates"].values())
    assert "x int8" in capsys.readouterr().out
