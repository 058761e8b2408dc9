"""The instruction sets that tests are parametrized by: those of this CPU. conftest leaves out and counts those that were not built."""

from __future__ import annotations

import importlib.util
import platform
from pathlib import Path
from types import ModuleType

from tritium.buffer import native


def _script() -> ModuleType:
    path = Path(__file__).parents[2] / "tools" / "instruction_sets.py"
    spec = importlib.util.spec_from_file_location("instruction_sets", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sets = _script()  # what a build decides by

ISAS: list[str] = native.isas_detected() if native is not None else []
BASES = sorted({native.isa_base(isa) for isa in ISAS})
UNBUILT = [isa for isa in ISAS if isa not in native.isas()]
BUILT_BASES = sorted({native.isa_base(isa) for isa in ISAS if isa not in UNBUILT})
_NATIVE = sets.built(sets.asked("native", platform.machine(), sets.cpu_features()), platform.machine())
NOT_NATIVE = [isa for isa in ISAS if isa not in _NATIVE]  # what a build for this CPU leaves out
