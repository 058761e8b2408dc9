"""PNG: of the size asked for, with what was drawn on it; a clear word where the package is absent."""

from __future__ import annotations

import struct
import sys

import pytest

from tritium.errors import ArgumentError, PackageError
from tritium.see import png
from tritium.see.charts import charts

CHART = charts.Bars("Times", (charts.Bar("a", 1.0, 0.9, 1.1), charts.Bar("b", 2.0, estimate=True)), "s")


def size(picture: bytes) -> tuple[int, int]:
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", picture[16:24])  # type: ignore[return-value]


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(PackageError, match="pip install resvg_py"):
        png.render(charts.svg(CHART, theme="light"))


def test_variables_are_refused_since_they_would_become_black() -> None:
    with pytest.raises(ArgumentError, match="theme"):
        png.render(charts.svg(CHART))


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e6])
def test_a_size_that_cannot_be_is_refused(scale: float) -> None:
    with pytest.raises(ArgumentError, match="pixels"):
        png.render(charts.svg(CHART, theme="light"), scale)


def test_an_svg_without_a_size_is_refused() -> None:
    with pytest.raises(ArgumentError, match="width and height"):
        png.render("<svg/>")


@pytest.mark.parametrize("scale", [1, 2])
def test_a_picture_has_so_many_pixels_for_each_px(scale: int) -> None:
    pytest.importorskip("resvg_py", reason="the extra png is not installed")
    assert size(png.render(charts.svg(CHART, theme="dark", width=400), scale))[0] == 400 * scale


def test_the_same_svg_gives_the_same_picture() -> None:
    pytest.importorskip("resvg_py", reason="the extra png is not installed")
    light, dark = (charts.svg(CHART, theme=name) for name in ("light", "dark"))
    assert png.render(light) == png.render(light)
    assert png.render(light) != png.render(dark)
