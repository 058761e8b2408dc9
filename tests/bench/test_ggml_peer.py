"""bench/ggml_peer.py: which builds of ggml are named, and how."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "ggml_peer.py"


@pytest.fixture(scope="module")
def peer() -> Any:
    spec = importlib.util.spec_from_file_location("ggml_peer", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_builds_are_read_from_the_environment(peer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITIUM_GGML", "bitnet.cpp=i2_s=a/libggml.so llama.cpp=tq2_0=b")
    assert peer.entries() == [("bitnet.cpp", "i2_s", "a/libggml.so"), ("llama.cpp", "tq2_0", "b")]


@pytest.mark.parametrize("text", ["", "llama.cpp", "llama.cpp=tq2_0", "llama.cpp=iq9=x", "a=b=c=d"])
def test_what_names_no_build_is_refused(peer: Any, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TRITIUM_GGML", text)
    with pytest.raises(SystemExit, match="NAME=TYPE=PATH is needed, with a TYPE of tq1_0"):
        peer.entries()


def test_a_folder_without_libraries_is_refused(peer: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"holds no libggml-base\.so"):
        peer.Ggml(tmp_path, 1)
