"""What decides about kernels, told of a device; Triton is not imported here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="GPUs are found by PyTorch: pip install torch")
from tritium.backends.cuda import gpu as cuda_gpu  # noqa: E402
from tritium.backends.cuda.capability import AMPERE, HOPPER  # noqa: E402


def test_the_interpreter_is_no_gpu() -> None:
    host = cuda_gpu.gpu(torch.device("cpu"))
    assert host == cuda_gpu.Gpu((0, 0), 1, False)
    assert host.bytes
    assert not host.early
    assert host.starting == {"EARLY": False}


def test_int8_is_multiplied_from_ampere_on() -> None:
    assert [cuda_gpu.Gpu(c, 1, False).bytes for c in ((7, 5), AMPERE, HOPPER)] == [False, True, True]


def test_gluon_is_known_by_all_names_that_kernels_import() -> None:
    file = Path(cuda_gpu.__file__).parent / "linear" / "wgmma.py"
    names = {
        alias.name
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith(".hopper")
        for alias in node.names
    }
    assert names == set(cuda_gpu.GLUON)


def test_nothing_is_captured_where_no_gpu_was_used() -> None:
    if not torch.cuda.is_initialized():
        assert not cuda_gpu.capturing()
