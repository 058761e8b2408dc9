"""The sampling that model files recommend, read and written."""

from __future__ import annotations

import json
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import tritium as tt
from tritium.io import gguf
from tritium.io.model import recommended
from tritium.io.stream import Piece
from tritium.models.load import shipped
from tritium.models.sampling import usable


def metadata(**values: bytes) -> Any:
    """Return the metadata of a GGUF file of the given keys after `general.sampling.`."""
    keys = {"general.architecture": gguf.string("llama")} | {recommended.PREFIX + k: v for k, v in values.items()}
    out = BytesIO()
    gguf.write(out, keys, [])
    return gguf.parse(out.getvalue()).metadata


def test_keys_of_gguf_have_the_names_of_the_sampler() -> None:
    values, warnings = recommended.from_gguf(
        metadata(temp=gguf.number("f32", 0.6), top_k=gguf.number("i32", 20), penalty_repeat=gguf.number("f32", 1.1))
    )
    assert (values, warnings) == ({"temperature": 0.6, "top_k": 20, "repetition_penalty": 1.1}, [])


def test_what_cannot_be_followed_is_a_warning() -> None:
    values, warnings = recommended.from_gguf(
        metadata(mirostat=gguf.number("i32", 2), temp=gguf.string("hot"), top_p=gguf.number("f32", float("nan")))
    )
    assert values == {}
    assert len(warnings) == 3
    assert "general.sampling.mirostat" in warnings[0]
    assert "'hot'" in warnings[1]


@pytest.mark.parametrize(
    ("config", "values"),
    [
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9}, {"temperature": 0.6, "top_p": 0.9}),
        ({"do_sample": True}, {"temperature": 1.0}),
        ({"temperature": 0.6, "repetition_penalty": 1.2}, {"repetition_penalty": 1.2}),
        ({"do_sample": True, "temperature": None, "eos_token_id": 2}, {"temperature": 1.0}),
        ({}, {}),
    ],
)
def test_a_generation_config_is_read_as_transformers_does(config: dict[str, Any], values: dict[str, float]) -> None:
    assert recommended.from_config(config) == (values, [])


@given(
    st.fixed_dictionaries(
        {"temperature": st.floats(0.015625, 2, width=32)},
        optional={
            "top_k": st.integers(0, 100), "top_p": st.floats(0, 1, width=32), "min_p": st.floats(0, 1, width=32),
            "repetition_penalty": st.floats(1, 2, width=32),
        },
    )
)  # fmt: skip
def test_both_kinds_of_file_say_the_same(values: dict[str, float]) -> None:
    written, _ = recommended.to_gguf(values)
    read, _ = recommended.from_gguf(metadata(**{k.removeprefix(recommended.PREFIX): v for k, v in written.items()}))
    assert read == pytest.approx(values, rel=1e-6)
    assert recommended.from_config(recommended.to_config(read)[0]["generation_config.json"]) == (read, [])


def test_keys_of_gguf_mean_what_llama_cpp_means() -> None:
    number = gguf.number
    assert recommended.from_gguf(metadata(top_p=number("f32", 0.9))) == ({"top_p": 0.9, "temperature": 0.8}, [])
    everything = metadata(penalty_last_n=number("i32", -1), penalty_repeat=number("f32", 1.5))
    assert recommended.from_gguf(everything) == ({"repetition_window": 0, "repetition_penalty": 1.5}, [])
    assert recommended.to_gguf({"repetition_window": 0})[0] == {
        recommended.PREFIX + "penalty_last_n": number("i32", -1)
    }
    nothing = metadata(penalty_last_n=number("i32", 0), penalty_repeat=number("f32", 1.5))
    assert recommended.from_gguf(nothing) == ({}, [])
    assert recommended.from_gguf(metadata(temp=number("f32", 1), top_k=number("f32", 40)))[0] == {
        "temperature": 1,
        "top_k": 40,
    }


@pytest.mark.parametrize("value", [10**400, float("nan"), 1e300, "0.7", [1], True, {"a": 1}])
def test_odd_values_of_a_generation_config_are_warnings(value: Any) -> None:
    values, warnings = recommended.from_config({"do_sample": True, "temperature": 0.5, "top_k": value})
    assert values == {"temperature": 0.5}
    assert len(warnings) == 1
    assert "top_k" in warnings[0]
    assert recommended.from_config({"do_sample": "yes"})[1]


def test_what_a_kind_of_file_has_no_place_for_is_a_warning() -> None:
    assert "typical_p" in recommended.to_gguf({"typical_p": 0.9})[1][0]
    assert "repetition_window" in recommended.to_config({"repetition_window": 9})[1][0]


def test_a_prepacked_file_keeps_what_is_recommended(tmp_path: Path) -> None:
    parsed = gguf.parse(shipped("kjv-draft").read_bytes())
    keys = {key: value.raw for key, value in parsed.metadata.values_by_key.items()}
    pieces = [
        Piece(n, t.shape, t.type.name, len(parsed.data(n)), partial(list, [parsed.data(n)]))
        for n, t in parsed.tensors.items()
    ]
    with (tmp_path / "a.gguf").open("wb") as file:
        gguf.write(file, keys | recommended.to_gguf({"temperature": 0.5})[0], pieces)
    model = tt.load(tmp_path / "a.gguf")
    assert model.tokenizer.sampling == {"temperature": 0.5}
    model.save(tmp_path / "a.tritium")
    assert tt.load(tmp_path / "a.tritium").tokenizer.sampling == {"temperature": 0.5}


def test_values_out_of_range_are_not_used() -> None:
    used, reasons = usable({"temperature": -3, "top_k": 1.5, "min_p": 0.05})
    assert used == {"min_p": 0.05}
    assert "temperature must be" in reasons[0]
    assert "top_k must be" in reasons[1]


def test_a_conversion_keeps_what_is_recommended(tmp_path: Path) -> None:
    tt.io.convert(shipped("kjv-draft"), tmp_path / "hf", to="hf")
    (tmp_path / "hf" / "generation_config.json").write_text(
        json.dumps({"do_sample": True, "temperature": 0.5, "min_p": 0.1})
    )
    tt.io.convert(tmp_path / "hf", tmp_path / "again.gguf", to="i2_s")
    assert tt.load(tmp_path / "again.gguf").tokenizer.sampling == {"temperature": 0.5, "min_p": 0.1}
    assert tt.load(tmp_path / "hf").tokenizer.sampling == {"temperature": 0.5, "min_p": 0.1}
    tt.io.convert(tmp_path / "again.gguf", tmp_path / "back", to="hf")
    assert json.loads((tmp_path / "back" / "generation_config.json").read_text()) == {
        "do_sample": True, "temperature": 0.5, "min_p": 0.1,
    }  # fmt: skip
