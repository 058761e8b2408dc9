"""What all tests of CUDA kernels share where Triton's interpreter runs them."""

from __future__ import annotations

import pytest

from triton_runs import INTERPRETED


@pytest.fixture(autouse=True, scope="module")
def library() -> None:
    """Give the interpreter what it lacks: a tensor of one element is a number, and NumPy's functions stand in for CUDA's."""
    if INTERPRETED:
        import interpreted  # noqa: F401
        from tritium.backends.cuda import functions as cuda_functions
        from triton_library import Library

        cuda_functions.libdevice = Library()
