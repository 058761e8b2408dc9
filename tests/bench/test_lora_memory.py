"""The count of LoRA's memory: sizes alone give the bytes that a step takes, and fewer tokens take fewer."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install torch")
ROOT = Path(__file__).parents[2]
SMALL = (
    "--layers 2 --hidden 64 --intermediate 128 --heads 4 --kv-heads 2 --vocab 300 --rank 2 --chunk 8 --tokens".split()
)


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("lora_memory", ROOT / "bench" / "lora_memory.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_computed_is_what_a_step_takes(script: Any) -> None:
    sizes = script.main([*SMALL, "32"])
    real = script.main([*SMALL, "32", "--real"])
    assert sizes["packed"] == 2 * (64 * 64 * 2 + 32 * 64 * 2 + 64 * 128 * 3) // 4
    assert sizes["table"] == 300 * 64 * 2
    assert {k: real[k] for k in ("packed", "table", "adapters", "optimizer", "loaded")} == {
        k: v for k, v in sizes.items() if k != "peak"
    }
    assert real["peak"] == pytest.approx(sizes["peak"], rel=0.1)
    assert script.main([*SMALL, "8"])["peak"] < sizes["peak"]
