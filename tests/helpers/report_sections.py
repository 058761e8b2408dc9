"""How tests read a report: its sections, banner and data."""

from __future__ import annotations

import base64
import gzip

import made_report
from tritium.see.reports.blocks import Banner
from tritium.see.reports.report import (
    Report,
)
from tritium.see.reports.sections import Section

FEW = made_report.many(12)


def section(found: Report, id: str) -> Section:
    return next(s for s in found.sections if s.id == id)


def banner(found: Report) -> Banner:
    block = found.sections[0].blocks[0]
    assert isinstance(block, Banner)
    return block


def unpacked(packed: str) -> bytes:
    return gzip.decompress(base64.b64decode(packed))
