"""bench/torch_steps.py in small: its figures, and the bits that it compares before it measures."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

import tritium as tt
from tritium import buffer

torch = pytest.importorskip("torch", reason="the layers are PyTorch's")
BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.skipif(not buffer.native, reason="the pure-Python build has no kernels")
def test_steps_of_torch_layers_are_compared_and_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    script = import_module("torch_steps")
    threads = torch.get_num_threads(), tt.get_num_threads()
    monkeypatch.setattr(script, "LOOPED", 1)
    try:
        results = script.main(
            ["--sizes", "32", "--tokens", "4", "8", "--rounds", "1", "--json", str(tmp_path / "s.json")]
        )
    finally:
        torch.set_num_threads(threads[0])
        tt.set_num_threads(threads[1])
    assert json.loads((tmp_path / "s.json").read_text()) == results
    assert [(r["size"], r["tokens"]) for r in results] == [(32, 4), (32, 8)]
    assert {name: len(values) for name, values in results[0]["ms"].items()} == dict.fromkeys(
        ("kernels", "torch", "nn.Linear"), 2
    )
