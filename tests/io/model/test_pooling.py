"""What an embedding model's files say beside its weights goes from Hugging Face's layout to GGUF's and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tiny
from tritium.io import convert
from tritium.io.model import pooling
from tritium.io.model.opening import open as open_model
from tritium.models import embeddings


def source(path: Path, mode: str, **side: Any) -> Path:
    """Return a packed model with the files of sentence-transformers."""
    folder = tiny.hf_packed(path, "llama")
    (folder / pooling.FOLDER).mkdir()
    (folder / pooling.FOLDER / "config.json").write_text(json.dumps({mode: True, "word_embedding_dimension": 256}))
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | side))
    return folder


@pytest.mark.parametrize("mode", pooling.MODES)
@pytest.mark.parametrize("ends", [True, False])
def test_pooling_and_the_token_of_the_end_are_carried_over(tmp_path: Path, mode: str, ends: bool) -> None:
    folder = source(tmp_path / "m", mode, add_eos_token=ends, add_bos_token=not ends)
    convert(folder, tmp_path / "m.gguf", to="i2_s")
    convert(tmp_path / "m.gguf", tmp_path / "back", to="hf")
    convert(tmp_path / "back", tmp_path / "copy", to="f32")
    metadata = open_model(tmp_path / "m.gguf").metadata
    assert metadata["tokenizer.ggml.add_eos_token"] is ends
    assert metadata["tokenizer.ggml.add_bos_token"] is not ends
    for path in (folder, tmp_path / "m.gguf", tmp_path / "back", tmp_path / "copy"):
        assert embeddings.read_recipe(open_model(path)).pooling == pooling.MODES[mode]
    for path in (tmp_path / "back", tmp_path / "copy"):
        side = json.loads((path / "tokenizer_config.json").read_text())
        assert (side["add_eos_token"], side["add_bos_token"]) == (ends, not ends)
        steps = json.loads((path / "tokenizer.json").read_text())["post_processor"]["single"]
        assert ["SpecialToken" in step for step in steps] == ([False, True] if ends else [True, False])


def test_a_token_after_a_text_by_the_post_processor_is_carried_over_if_it_is_the_end(tmp_path: Path) -> None:
    for ends in (True, False):
        folder = tiny.hf_packed(tmp_path / f"m{ends}", "llama")
        whole = json.loads((folder / "tokenizer.json").read_text())
        number = json.loads((folder / "config.json").read_text())["eos_token_id"]
        known = {e["id"]: e["content"] for e in whole["added_tokens"]} | {
            i: t for t, i in whole["model"]["vocab"].items()
        }
        last = known[number if ends else number + 1]
        end = {"SpecialToken": {"id": last, "type_id": 0}}
        whole["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, end],
        }
        (folder / "tokenizer.json").write_text(json.dumps(whole))
        done = convert(folder, tmp_path / f"m{ends}.gguf", to="i2_s")
        assert open_model(tmp_path / f"m{ends}.gguf").metadata["tokenizer.ggml.add_eos_token"] is ends
        assert any("put after a text" in w for w in done.warnings) is not ends


def test_prompts_have_no_key_and_a_word_says_so(tmp_path: Path) -> None:
    folder = source(tmp_path / "m", "pooling_mode_lasttoken")
    (folder / pooling.PROMPTS).write_text(json.dumps({"prompts": {"query": "find: "}}))
    done = convert(folder, tmp_path / "m.gguf", to="i2_s")
    assert any(pooling.PROMPTS in w for w in done.warnings)
    assert convert(folder, tmp_path / "copy", to="hf").warnings == ()
    assert (tmp_path / "copy" / pooling.PROMPTS).is_file()
    convert(folder, tmp_path / "copy", to="hf", overwrite=True)
