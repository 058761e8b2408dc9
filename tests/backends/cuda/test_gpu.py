"""What decides about kernels, told of a device; Triton is not imported here."""

from __future__ import annotations

import ast
import threading
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

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


def test_names_of_the_language_are_all_there_where_gluon_is() -> None:
    pytest.importorskip("triton", reason="Gluon is Triton's")
    if not cuda_gpu.has_gluon():
        pytest.skip("this Triton has not all that the kernels need")
    language = import_module("triton.experimental.gluon.language")
    used = {
        node.attr
        for file in Path(cuda_gpu.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "gl"
    }
    assert used >= {name for name in cuda_gpu.LANGUAGE if " or " not in name}
    either = {name for names in cuda_gpu.LANGUAGE if " or " in names for name in names.split(" or ")}
    assert {name for name in used - either if not hasattr(language, name)} == set()


def test_a_triton_without_a_name_is_said_to_be_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    modules = {
        "triton": SimpleNamespace(__version__="9.9"),
        "triton.experimental.gluon.language": SimpleNamespace(num_warps=0),
        "triton.experimental.gluon.language.nvidia.hopper": SimpleNamespace(**dict.fromkeys(cuda_gpu.GLUON)),
    }
    monkeypatch.setattr(cuda_gpu, "import_module", modules.__getitem__)
    assert not cuda_gpu.has_gluon.__wrapped__()
    assert "Triton 9.9 has no thread_barrier or barrier, async_copy_global_to_shared or async_load" in caplog.text


def test_nothing_is_captured_where_no_gpu_was_used() -> None:
    if not torch.cuda.is_initialized():
        assert not cuda_gpu.capturing()


def test_what_is_kept_is_made_in_a_thread_of_its_own_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    stream = SimpleNamespace(synchronize=lambda: waited.append(threading.current_thread().name))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    here = threading.current_thread().name
    assert cuda_gpu.make_apart(lambda: threading.current_thread().name, torch.device("cpu")) == here
    apart = cuda_gpu.make_apart(lambda: threading.current_thread().name, torch.device("cuda", 0))
    assert apart != here
    assert waited == [here, apart]  # for what it reads, and for what it made

    def fails() -> None:
        raise ValueError("no weights")

    with pytest.raises(ValueError, match="no weights"):
        cuda_gpu.make_apart(fails, torch.device("cuda", 0))
