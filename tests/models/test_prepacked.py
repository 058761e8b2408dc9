"""Our own model files: the same bits as the original, mapped where they lie, on any machine; damage is told, never obeyed."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import models
from models import TINY, Shape
from tritium.backends.cpu.device import native
from tritium.errors import ArgumentError, FormatError, TritiumError
from tritium.io.reader import map_file
from tritium.models.load import Model, load
from tritium.models.prepacked import Prepacked, is_prepacked, linears, plain, save

IDS = models.prompt(TINY, 12)
SIDES = {"tokenizer.json": b'{"a": 1}', "empty.txt": b""}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.folder(tmp_path_factory.mktemp("original") / "m", models.random(TINY, 2))


def prepack(model: Model, path: Path, **options: Any) -> Path:
    return save(model.network, model.config, SIDES, path, name="small", **options)


@pytest.fixture(scope="module")
def packed(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepack(load(original), tmp_path_factory.mktemp("packed") / "m.tritium")


def logits(model: Model) -> Any:
    return model.session().extend(0, IDS)


# ---- the same model


@pytest.mark.parametrize("shape", [TINY, Shape(family="llama", tied=False), replace(TINY, kv_heads=1)])
@pytest.mark.parametrize("storage", ["tern2", "tern5"])
@pytest.mark.parametrize("head", [None, "f16", "int8"])
def test_a_prepacked_model_gives_the_same_bits(shape: Shape, storage: str, head: str | None, tmp_path: Path) -> None:
    first = load(models.folder(tmp_path / "m", models.random(shape, 1)), storage=storage, head=head)
    second = load(prepack(first, tmp_path / "m.tritium"))
    assert second.config == first.config
    assert second.name == "small"
    assert second.nbytes == first.nbytes
    np.testing.assert_array_equal(logits(second), logits(first))


def test_a_prepacked_model_can_be_saved_again(packed: Path, tmp_path: Path) -> None:
    again = load(packed).save(tmp_path / "again.tritium")
    assert again.read_bytes() == packed.read_bytes()


def test_every_weight_comes_back_in_its_bits(original: Path, packed: Path) -> None:
    one, two = load(original).network, load(packed).network
    assert list(linears(one)) == list(linears(two))
    assert list(plain(one)) == list(plain(two))
    for name, layer in linears(one).items():
        np.testing.assert_array_equal(layer.dequantize().numpy(), linears(two)[name].dequantize().numpy(), err_msg=name)
    for name, t in plain(one).items():
        np.testing.assert_array_equal(t.numpy(), plain(two)[name].numpy(), err_msg=name)


def test_a_tied_head_is_stored_once(original: Path, tmp_path: Path) -> None:
    model = load(original)
    names = Prepacked(prepack(model, tmp_path / "m.tritium"))._file.tensors
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names
    again = load(tmp_path / "m.tritium")
    assert again.network.head.weight is again.network.embedding.weight


def test_side_files_are_kept(packed: Path) -> None:
    assert Prepacked(packed).files == SIDES


def test_a_prepacked_file_is_known_by_its_beginning(packed: Path, original: Path) -> None:
    assert is_prepacked(map_file(packed))
    assert not is_prepacked(map_file(original / "model.safetensors"))
    assert not is_prepacked(memoryview(b""))


def test_large_weights_stay_where_the_file_has_them(packed: Path) -> None:
    """They are read-only, since they are the file."""
    network = load(packed).network
    assert not network.embedding.weight.storage.writable
    assert not network.blocks[0].mlp.gate_up.weight.data.storage.writable


# ---- the int8 copy of a certified head


@pytest.fixture(scope="module")
def certified(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if native is None:
        pytest.skip("without the native library sums have no fixed order")
    return prepack(load(original, head="f16", certified=True), tmp_path_factory.mktemp("certified") / "m.tritium")


def test_the_copy_of_a_head_comes_back_in_its_bits(original: Path, certified: Path, tmp_path: Path) -> None:
    first, second = load(original, head="f16", certified=True), load(certified)
    one, two = first.network.certified, second.network.certified
    assert one is not None
    assert two is not None
    assert second.nbytes == first.nbytes
    np.testing.assert_array_equal(one.copy.dequantize().numpy(), two.copy.dequantize().numpy())
    np.testing.assert_array_equal(one.error.numpy(), two.error.numpy())
    np.testing.assert_array_equal(one.norm.numpy(), two.norm.numpy())
    assert not two.copy.weight.data.storage.writable  # it is the file
    assert models.greedy(second, IDS[:4], 8)[0] == models.greedy(first, IDS[:4], 8)[0]
    assert load(certified).save(tmp_path / "again.tritium").read_bytes() == certified.read_bytes()


def test_a_file_without_a_copy_has_its_head_read_as_a_whole(packed: Path) -> None:
    model = load(packed)
    assert model.network.certified is None
    assert "no int8 copy" in model.explain() or native is None
    with pytest.raises(ArgumentError, match="certified=True is chosen when it is written"):
        load(packed, certified=True)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("lm_head.copy", {"activations": "float"}),
        ("lm_head.copy", {"group": 16}),
        ("lm_head.copy", {"shape": [48, 31]}),
        ("lm_head.copy_error", {"dtype": "bf16"}),
        ("lm_head.copy_norm", {"shape": [24]}),
    ],
)
def test_wrong_words_about_a_copy_are_refused(
    where: str, words: dict[str, Any], certified: Path, tmp_path: Path
) -> None:
    path = changed(certified, tmp_path / "m.tritium", lambda config, about: about[where].update(words))
    with pytest.raises(FormatError):
        load(path)


def test_a_copy_without_bounds_is_refused(certified: Path, tmp_path: Path) -> None:
    path = changed(certified, tmp_path / "m.tritium", lambda config, about: about.pop("lm_head.copy_norm"))
    with pytest.raises(FormatError, match=r"lm_head\.copy_norm"):
        load(path)


# ---- other machines

RUN = """
import json, sys, models
from tritium.models.load import load
from tritium.models.prepacked import save
model = load(sys.argv[1], kv="f32")
if len(sys.argv) > 2:
    model.save(sys.argv[2])
print(json.dumps(models.greedy(model, [1, 2, 3], 10)[0]))
"""


def elsewhere(*given: Path, **kind: str) -> Any:
    env = os.environ | kind | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1] / "helpers"), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", RUN, *map(str, given)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", [{"TRITIUM_ISA": "portable"}, {"TRITIUM_PURE": "1"}], ids=["portable", "pure"])
def test_tiles_of_another_machine_are_made_anew(
    kind: dict[str, str], original: Path, packed: Path, tmp_path: Path
) -> None:
    if native is None and "TRITIUM_ISA" in kind:
        pytest.skip("there is no native library")
    want = models.greedy(load(original, kv="f32"), [1, 2, 3], 10)[0]
    assert elsewhere(packed, tmp_path / "there.tritium", **kind) == want
    assert models.greedy(load(tmp_path / "there.tritium", kv="f32"), [1, 2, 3], 10)[0] == want


# ---- writing


def test_a_file_that_is_there_is_not_replaced_unasked(original: Path, tmp_path: Path) -> None:
    model = load(original)
    path = prepack(model, tmp_path / "m.tritium")
    before = path.read_bytes()
    with pytest.raises(FormatError, match="exists"):
        prepack(model, path)
    assert prepack(model, path, overwrite=True).read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.tritium"]


def test_a_head_is_chosen_when_the_file_is_written(packed: Path) -> None:
    with pytest.raises(ArgumentError, match=r"m.tritium is prepacked: head='int8' is chosen when it is written"):
        load(packed, head="int8")


# ---- damage


def parts(raw: bytes) -> tuple[dict[str, Any], bytes]:
    size = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


def joined(header: Any, data: bytes) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def changed(packed: Path, target: Path, change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> Path:
    """The file with another configuration or other words about its weights."""
    header, data = parts(packed.read_bytes())
    notes = header["__metadata__"]
    config, about = json.loads(notes["config"]), json.loads(notes["weights"])
    change(config, about)
    notes |= {"config": json.dumps(config), "weights": json.dumps(about)}
    target.write_bytes(joined(header, data))
    return target


def test_the_file_taken_apart_and_put_together_is_the_file(packed: Path, original: Path, tmp_path: Path) -> None:
    path = changed(packed, tmp_path / "m.tritium", lambda config, about: None)
    np.testing.assert_array_equal(logits(load(path)), logits(load(original)))


def test_another_version_says_how_to_write_it_again(packed: Path, tmp_path: Path) -> None:
    header, data = parts(packed.read_bytes())
    header["__metadata__"]["version"] = "9"
    path = tmp_path / "m.tritium"
    path.write_bytes(joined(header, data))
    with pytest.raises(
        FormatError, match=r"version '9', needed format 'tritium', version 1. Write it again.*tritium prepack"
    ):
        load(path)


HOSTILE: dict[str, tuple[str, Any]] = {
    "more layers": ("config", {"layers": 3}),
    "very many layers": ("config", {"layers": 10**9}),
    "no heads": ("config", {"heads": 0}),
    "no kv heads": ("config", {"kv_heads": 0}),
    "a width that is text": ("config", {"width": "32"}),
    "another width": ("config", {"width": 64}),
    "another vocabulary": ("config", {"vocab": 10**7}),
    "another family": ("config", {"family": "llama", "activation": "silu"}),
    "a family of no one": ("config", {"family": "gpt"}),
    "a scaling of no one": ("config", {"scaling": {"rope_type": "yarn"}}),
    "a scaling that is a list": ("config", {"scaling": [[1, 2]]}),
    "a field of no one": ("config", {"colour": 3}),
    "tokens that are text": ("config", {"eos": "abc"}),
    "an eps below 0": ("config", {"eps": -1.0}),
    "a dtype of no one": ("model.norm", {"dtype": "f8"}),
    "a dtype that is a list": ("model.norm", {"dtype": ["f32"]}),
    "a norm of packed numbers": ("model.norm", {"dtype": "tern2"}),
    "a norm of another size": ("model.norm", {"shape": [33]}),
    "a shape of very many": ("model.layers.0.mlp.down", {"shape": [2**32, 2**32]}),
    "a shape below 0": ("model.layers.0.mlp.down", {"shape": [-1, 48]}),
    "a shape of text": ("model.layers.0.mlp.down", {"shape": "32x48"}),
    "a projection of floats": ("model.layers.0.mlp.down", {"dtype": "f32"}),
    "a projection of bytes": ("model.layers.0.mlp.down", {"dtype": "i8"}),
    "a group that does not divide": ("model.layers.0.mlp.down", {"group": 7}),
    "a group below 0": ("model.layers.0.mlp.down", {"group": -4}),
    "a group that is text": ("model.layers.0.mlp.down", {"group": "16"}),
    "a group of many": ("model.layers.0.mlp.down", {"group": 10**12}),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_header_that_lies_is_refused(what: str, packed: Path, tmp_path: Path) -> None:
    where, words = HOSTILE[what]

    def lie(config: dict[str, Any], about: dict[str, Any]) -> None:
        (config if where == "config" else about[where]).update(words)

    path = changed(packed, tmp_path / "m.tritium", lie)
    with pytest.raises(TritiumError):
        load(path)


@pytest.mark.parametrize("about", [3, "x", [], None, {"dtype": "f32", "shape": [48, 32]}, {"group": 0}])
def test_words_about_a_head_that_is_not_there_are_refused(about: Any, packed: Path, tmp_path: Path) -> None:
    path = changed(packed, tmp_path / "m.tritium", lambda config, words: words.update({"lm_head": about}))
    with suppress(TritiumError):  # null says that there is none, which is so
        load(path)
        assert about is None


@pytest.mark.parametrize("key", ["config", "weights"])
@pytest.mark.parametrize("text", ["", "[", "[]", "3", "null", "[" * 100000])
def test_notes_that_are_no_json_object_are_refused(key: str, text: str, packed: Path, tmp_path: Path) -> None:
    header, data = parts(packed.read_bytes())
    header["__metadata__"][key] = text
    path = tmp_path / "m.tritium"
    path.write_bytes(joined(header, data))
    with pytest.raises(FormatError, match=r"no JSON object|at most"):
        load(path)


def test_a_weight_that_is_missing_is_told(packed: Path, tmp_path: Path) -> None:
    path = changed(packed, tmp_path / "m.tritium", lambda config, about: about.pop("model.layers.1.mlp.down"))
    with pytest.raises(FormatError, match=r"model.layers.1.mlp.down.*no dtype and shape"):
        load(path)


def test_a_truncated_file_is_refused(packed: Path, tmp_path: Path) -> None:
    raw = packed.read_bytes()
    path = tmp_path / "m.tritium"
    for size in (9, 60, 100, len(raw) // 2, len(raw) - 1):
        path.write_bytes(raw[:size])
        with pytest.raises(TritiumError):
            load(path)


@given(st.data())
@settings(max_examples=60)
def test_bytes_changed_anywhere_never_crash(packed: Path, tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    """It loads and runs, or it is refused; a network of damaged numbers may say anything, but only numbers."""
    raw = bytearray(packed.read_bytes())
    header = 8 + struct.unpack("<Q", raw[:8])[0]
    for _ in range(data.draw(st.integers(1, 4))):
        end = data.draw(st.sampled_from([8, header, len(raw)]))
        raw[data.draw(st.integers(0, end - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("fuzz") / "m.tritium"
    path.write_bytes(raw)
    with suppress(TritiumError), np.errstate(all="ignore"):
        assert logits(load(path)).shape[0] > 0


NUMBER = st.integers(-2, 70) | st.sampled_from([2**31, 2**32, 2**63, 2**70]) | st.floats()
ANY = st.none() | st.booleans() | NUMBER | st.text(max_size=4) | st.lists(NUMBER, max_size=3)
ANY |= st.sampled_from(["f32", "f16", "i8", "tern2", "tern5", "tern2x64", "llama"])


@given(st.data())
@settings(max_examples=60)
def test_words_changed_anywhere_never_crash(packed: Path, tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    def lie(config: dict[str, Any], about: dict[str, Any]) -> None:
        place = data.draw(st.sampled_from([config, *(v for v in about.values())]))
        place[data.draw(st.sampled_from([*place, "group"]))] = data.draw(ANY)

    path = changed(packed, tmp_path_factory.mktemp("fuzz") / "m.tritium", lie)
    with suppress(TritiumError), np.errstate(all="ignore"):
        load(path)
