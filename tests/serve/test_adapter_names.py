"""Adapters behind a server: requests choose one as their model, `/v1/models` lists them, and other names are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("h11", reason="needs the extra 'run'")

import click

import lora
import tritium as tt
from calls import call, post
from tritium.cli.model import with_adapters
from tritium.errors import MissingFileError
from tritium.models.load import shipped
from tritium.serve.server import Server

SHAPES = {
    f"model.layers.{i}.{name}": shape
    for i in range(2)
    for name, shape in {"self_attn.q_proj": (128, 128), "mlp.down_proj": (128, 384)}.items()
}


def test_a_request_chooses_an_adapter_as_its_model(tmp_path: Path) -> None:
    folder = lora.write(tmp_path / "a", SHAPES, size=3.0)
    model = with_adapters(tt.load(shipped("kjv-draft")), (f"poet={folder}",))
    asked = {"prompt": "In the", "max_tokens": 12}
    with Server(model, port=0, slots=2) as server:
        texts = {}
        for name in (model.name, "poet", None):
            status, answer = post(server, "completions", **asked, **({} if name is None else {"model": name}))
            assert status == 200
            assert answer["model"] == (name or model.name)
            texts[name] = answer["choices"][0]["text"]
        assert texts[None] == texts[model.name] == model.generate("In the", max_tokens=12).text
        assert texts["poet"] == model.generate("In the", max_tokens=12, adapter="poet").text
        assert texts["poet"] != texts[None]
        cards = call(server, "GET", "/v1/models")[2]["data"]
        assert [card["id"] for card in cards] == [model.name, "poet"]
        assert cards[1]["parent"] == model.name
        assert call(server, "GET", "/v1/models/poet")[2]["id"] == "poet"
        status, error = post(server, "completions", model="nobody", **asked)
        assert status == 404
        assert "'poet'" in error["error"]["message"]


@pytest.mark.parametrize("words", [("poet",), ("=x",), ("poet=",), ("poet=x", "poet=y"), ("kjv-draft=x",)])
def test_words_that_name_no_adapter_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(click.BadParameter):
        with_adapters(tt.load(shipped("kjv-draft")), words)


def test_an_adapter_that_cannot_be_read_is_told_by_the_option(tmp_path: Path) -> None:
    with pytest.raises(
        MissingFileError, match=r"^--lora NAME=PATH: adapter: there is no adapter_config.json in .*nowhere"
    ):
        with_adapters(tt.load(shipped("kjv-draft")), (f"poet={tmp_path / 'nowhere'}",))
