"""What is computed on paper: it follows from the measured times, and the page has its table."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def scale(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.delitem(sys.modules, "scale", raising=False)
    import scale

    return scale


def test_the_page_has_the_table(scale: ModuleType) -> None:
    assert scale.table() in (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")


def test_one_gpu_takes_the_measured_step_of_the_model_that_was_measured(scale: ModuleType) -> None:
    """With the context of the measurement: the fit of products may be 10 % beside the chain of all layers."""
    known = scale.fit()
    short = scale.step_us(scale.SHAPES["2B"], 1, known) - scale.SHAPES["2B"].layers * (
        2 * 5 * 128 * scale.CONTEXT * 2 / known.bytes_a_us
    )
    assert short == pytest.approx(575, rel=0.1)


def test_gathers_cost_the_more_the_farther_they_go(scale: ModuleType) -> None:
    known = scale.fit()
    times = [scale.step_us(scale.SHAPES["70B"], ranks, known) for ranks in (1, 8, 64)]
    assert times[1] < times[0] < times[2]
