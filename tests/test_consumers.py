"""Libraries that take arrays of the array API standard: their functions give tensors the answers they give NumPy arrays."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tritium as tt

HELPERS = Path(__file__).parent / "helpers"
LEAST = {"scipy": 15, "sklearn": 10, "xarray": 2, "opt_einsum": 1}  # calls that are made at least
NEEDED = {"xarray": ("xarray", "einops")}


@pytest.mark.parametrize("library", LEAST)
def test_functions_of_other_libraries(library: str) -> None:
    for module in NEEDED.get(library, (library,)):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    environment = os.environ | {"SCIPY_ARRAY_API": "1"}
    program = [sys.executable, str(HELPERS / "consumers.py"), library]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=300)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert len(lines) >= LEAST[library]
    assert [line for line in lines if not line.endswith(": ok")] == []


@pytest.mark.parametrize(
    "function", [np.mean, np.std, np.sum, np.transpose, np.sort, np.exp, np.linalg.svdvals, np.fft.fft, np.add.reduce]
)
def test_functions_of_numpy_give_what_they_give_of_arrays(function: object) -> None:
    assert callable(function)
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    got, want = function(tt.asarray(x)), function(x)
    assert type(got) is type(want)
    np.testing.assert_array_equal(got, want)
