"""Stubs are what the script writes, and declare every name; `test_types` has type checkers read them."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import tritium as tt
from tritium import buffer
from tritium.op import OPS, Trait

ROOT = Path(__file__).parents[1]


def script() -> Any:
    spec = importlib.util.spec_from_file_location("stubs", ROOT / "tools" / "stubs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_stubs_are_what_the_script_writes() -> None:
    stubs = script().stubs()
    assert len(stubs) == (1 if buffer.native is None else 2)
    for path, text in stubs.items():
        assert path.read_text() == text, f"{path.name} is stale; run python tools/stubs.py"


def test_every_public_row_and_every_attached_method_is_declared() -> None:
    text = (ROOT / "src" / "tritium" / "_table.pyi").read_text()
    declared = set(re.findall(r"^(\w+): _\w+$", text, re.MULTILINE))
    assert declared == {name for name, op in OPS.items() if Trait.INTERNAL not in op.traits}
    methods = set(re.findall(r"^    def (\w+)\(self", text, re.MULTILINE)) | set(
        re.findall(r"^    (?:def )?(\w+)", (ROOT / "src" / "tritium" / "tensor.py").read_text(), re.MULTILINE)
    )
    attached = {name for name in dir(tt.ones(2)) if name in vars(tt.Tensor)}
    internal = {name for name, op in OPS.items() if Trait.INTERNAL in op.traits}
    attached -= {name for name in attached if name.rstrip("_") in internal}
    assert attached - methods <= {"__module__", "__doc__", "__slots__"}
