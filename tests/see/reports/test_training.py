"""The page of a training: what it shows, and rows and files that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tritium.see
from tritium.errors import ArgumentError, FormatError, TritiumError

SHARES = {"flips": 0.25, "zeros": 0.5, "gradient": 3.0}


def rows(count: int = 5) -> list[dict[str, Any]]:
    return [
        {"step": 10 * i, "loss": 5.0 - i, "learning_rate": 1e-3, "lambda": 0.2 * i}
        | {"layers": {"a.q_proj": SHARES, "b.<script>": SHARES | {"gradient": None, "zeros": 1.0}}}
        for i in range(count)
    ]


def test_a_page_has_the_curves_and_a_row_for_each_layer(tmp_path: Path) -> None:
    path = tritium.see.training_page(rows(), tmp_path / "t.html", title="small")
    text = path.read_text()
    for part in (
        "loss",
        "learning rate",
        "lambda",
        "zero weights",
        "gradient norm",
        "a.q_proj",
        "steps",
    ):
        assert part in text
    assert "5 at first, 1 at last" in text
    assert "25 %" in text
    assert "weight decay" not in text
    assert "b.<script>" not in text
    assert "b.&lt;script&gt;" in text


def test_a_page_has_a_map_of_layers_for_each_part_that_was_recorded(tmp_path: Path) -> None:
    text = tritium.see.training_page(rows(), tmp_path / "t.html").read_text()
    titles = ("Norm of the gradient by layer", "Flipped weights by layer", "Zero weights by layer")
    assert all(title in text for title in titles)
    reason = "flips and zeros: frozen"
    lora = [
        row | {"absent": reason, "layers": {"a.x.q": {"gradient": 3.0}, "a.x.k": {"gradient": 0.5}}} for row in rows()
    ]
    text = tritium.see.training_page(lora, tmp_path / "t.html").read_text()
    assert [title in text for title in titles] == [True, False, False]
    assert reason in text
    assert "Names without a.x." in text
    assert "zeros, first" not in text
    odd = [row | {"absent": ["<script>"]} for row in rows()]
    assert "absent" not in tritium.see.training_page(odd, tmp_path / "t.html").read_text().split("<main")[1]


def test_a_watch_its_rows_and_its_file_give_the_same_page(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps({"schema": 1, "training": rows()}))
    sources = (rows(), SimpleNamespace(rows=rows()), tmp_path / "t.json", str(tmp_path / "t.json"))
    pages = {tritium.see.training_page(s, tmp_path / f"{i}.html").read_text() for i, s in enumerate(sources)}
    assert len(pages) == 1


def test_a_training_without_a_record_has_a_page_that_says_so(tmp_path: Path) -> None:
    assert "has not reached its first" in tritium.see.training_page([], tmp_path / "t.html").read_text()


@pytest.mark.parametrize(
    "source",
    [
        3,
        "",
        [3],
        [{"step": 1}],
        [{"step": "x", "layers": {}}],
        [{"step": 1, "layers": {"a": 3}}],
        [{"step": float("nan"), "layers": {}}],
    ],
    ids=str,
)
def test_what_is_no_training_is_refused(source: Any, tmp_path: Path) -> None:
    with pytest.raises((TritiumError, OSError)):
        tritium.see.training_page(source, tmp_path / "t.html")
    assert not (tmp_path / "t.html").exists()


@pytest.mark.parametrize(
    "content", ["", "[", "[" * 100_000, "{}", '{"schema": 2, "training": []}', '{"schema": 1, "training": 3}']
)
def test_a_file_that_is_no_training_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(content)
    with pytest.raises((FormatError, ArgumentError), match="training_page"):
        tritium.see.training_page(tmp_path / "t.json", tmp_path / "t.html")
