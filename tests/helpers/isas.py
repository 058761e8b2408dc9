"""The instruction sets that tests are parametrized by: those of this CPU. conftest leaves out and counts those that were not built."""

from __future__ import annotations

from tritium.buffer import native

ISAS: list[str] = native.isas_detected() if native is not None else []
BASES = sorted({native.isa_base(isa) for isa in ISAS})
UNBUILT = [isa for isa in ISAS if isa not in native.isas()]
BUILT_BASES = sorted({native.isa_base(isa) for isa in ISAS if isa not in UNBUILT})
