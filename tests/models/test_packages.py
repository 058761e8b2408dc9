"""The packages that running a model takes: all that are missing are named at once, before anything is fetched or loaded."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import tiny
import tritium as tt
from hub_server import Hub, serving, use as use_hub
from tritium import io
from tritium.errors import FormatError, PackageError, TritiumError
from tritium.models import load as loading
from tritium.models.load import Use, packages_of, require_packages, shipped
from tritium.models.text import vocabulary
from tritium.serve import create_app
from tritium.serve.server import serve

NAME = "owner/repo"
OF_A_NAME: dict[Use, list[str]] = {
    "fetching": ["huggingface_hub"],
    "running": ["huggingface_hub", "tokenizers"],
    "chatting with": ["huggingface_hub", "tokenizers", "jinja2"],
    "serving": ["huggingface_hub", "h11", "tokenizers", "jinja2"],
}
ALL = OF_A_NAME["serving"]


def take_away(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)


def message(*args: Any) -> str:
    """Return what `require_packages` says, "" where it says nothing."""
    try:
        require_packages(*args)
    except PackageError as error:
        return str(error)
    return ""


# ---- a name, whose files are not here yet


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    pytest.importorskip("huggingface_hub", reason="needs the extra 'run'")
    monkeypatch.chdir(tmp_path)
    with serving() as served:
        use_hub(monkeypatch, served.url, tmp_path / "cache")
        served.add(NAME, {"kjv-I2_S.gguf": shipped()})
        yield served


@pytest.mark.parametrize("use", OF_A_NAME)
@pytest.mark.parametrize("missing", [set(some) for n in range(1, 5) for some in combinations(ALL, n)], ids=sorted)
def test_every_set_of_missing_packages_is_named_in_one_sentence(
    use: Use, missing: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ALL:  # installed here or not
        monkeypatch.setitem(sys.modules, package, None if package in missing else sys)
    monkeypatch.setattr(loading.chat, "package", lambda: sys)
    names = [name for name in OF_A_NAME[use] if name in missing]
    assert packages_of(NAME, use) == OF_A_NAME[use]
    if not names:
        assert message(NAME, use) == ""
        return
    *others, last = map(repr, names)
    listed = f"packages {', '.join(others)} and {last}, which are" if others else f"package {last}, which is"
    assert message(NAME, use) == (
        f"owner/repo is no file or folder here, and {use} a model of this name from the Hugging Face hub needs the {listed} "
        f"not installed; pip install {' '.join(names)}."
    )


ROADS: dict[str, tuple[Callable[[], Any], Use]] = {
    "load": (lambda: tt.load(NAME), "running"),
    "serve": (lambda: serve(NAME), "serving"),
    "asgi": (lambda: asyncio.run(create_app(NAME).start()), "chatting with"),
}


@pytest.mark.parametrize("road", ROADS)
def test_nothing_is_asked_of_the_hub_before_all_packages_are_there(
    road: str, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, use = ROADS[road]
    take_away(monkeypatch, *OF_A_NAME[use][1:])  # that of the hub is here: it could fetch
    with pytest.raises(PackageError) as caught:
        call()
    assert str(caught.value) == message(NAME, use) != ""
    assert hub.asked == []


def test_fetching_needs_none_of_the_others(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    take_away(monkeypatch, "tokenizers", "jinja2")  # huggingface_hub itself needs h11
    assert tt.fetch(NAME).read_bytes() == shipped().read_bytes()
    assert tt.load(tt.fetch(NAME)).generate("And", max_tokens=2).tokens  # of its file what it needs is known: nothing


def test_a_template_package_with_known_holes_is_refused_before_anything_is_fetched(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jinja2", reason="needs the extra 'run'")
    monkeypatch.setattr("jinja2.__version__", "3.1.5")
    assert message(NAME, "chatting with") == (
        "jinja2 3.1.5 has known ways out of its sandbox; pip install 'jinja2>=3.1.6'."
    )
    assert hub.asked == []
    assert message(NAME, "running") == ""


# ---- a file, which says what it needs


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models by what their texts need, as every kind of file."""
    pytest.importorskip("tokenizers", reason="needs the extra 'run'")
    at = tmp_path_factory.mktemp("files")
    made: dict[str, Path] = {}
    for name, template in (("base", {}), ("chat", {"chat_template": "{{ messages }}"})):
        made[f"{name} folder"] = folder = tiny.hf_packed(at / name)
        (folder / "tokenizer_config.json").write_text(json.dumps(template))
        io.convert(folder, at / f"{name}.gguf", to="i2_s")
        made[f"{name} gguf"] = at / f"{name}.gguf"
        made[f"{name} prepacked"] = tt.load(folder).save(at / f"{name}.tritium")
        made[f"{name} prepacked gguf"] = tt.load(at / f"{name}.gguf").save(at / f"{name}-gguf.tritium")
    made["byte folder"], made["byte gguf"] = at / "bytes", shipped()
    io.convert(shipped(), made["byte folder"], to="hf")
    made["byte prepacked"] = tt.load().save(at / "bytes.tritium")
    (at / "one").mkdir()
    made["chat gguf in a folder"] = Path(shutil.copy(made["chat gguf"], at / "one")).parent
    return made


FILES = [
    *(f"{text} {kind}" for text in ("base", "chat") for kind in ("folder", "gguf", "prepacked", "prepacked gguf")),
    *("byte folder", "byte gguf", "byte prepacked", "chat gguf in a folder"),
]


@pytest.mark.parametrize("name", FILES)
def test_a_file_needs_what_its_vocabulary_and_template_need(
    name: str, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    take_away(monkeypatch, *ALL)
    text = {"byte": [], "base": ["tokenizers"], "chat": ["tokenizers", "jinja2"]}[name.partition(" ")[0]]
    path = files[name]
    assert packages_of(path, "fetching") == []
    assert packages_of(path) == packages_of(str(path)) == text[:1]
    assert packages_of(path, "chatting with") == text
    assert packages_of(path, "serving") == ["h11", *text]


def test_every_kind_of_file_was_tried(files: dict[str, Path]) -> None:
    assert sorted(files) == sorted(FILES)


def test_the_sentence_on_a_file_names_it(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    take_away(monkeypatch, *ALL)
    monkeypatch.chdir(files["chat gguf"].parent)
    assert message("chat.gguf", "chatting with") == (
        "Chatting with chat.gguf needs the packages 'tokenizers' and 'jinja2', which are not installed; pip install tokenizers jinja2."
    )
    assert message("chat.gguf") == (
        "Running chat.gguf needs the package 'tokenizers', which is not installed; pip install tokenizers."
    )
    assert message(None, "serving", "opentelemetry-api-x", "jinja2") == (
        "Serving the model in the package needs the packages 'h11', 'opentelemetry-api-x' and 'jinja2', which are not installed; "
        "pip install h11 opentelemetry-api-x jinja2."
    )
    assert message(None, "chatting with") == message(None) == ""


def test_what_a_file_is_said_to_need_is_what_reading_its_text_needs(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    take_away(monkeypatch, "tokenizers")
    for name, path in files.items():
        model = tt.load(path)
        if name.startswith("byte"):
            assert model.tokenizer.encode("And")
        else:
            with pytest.raises(PackageError, match="tokenizers"):
                _ = model.tokenizer


def test_where_all_are_installed_no_file_is_opened_for_it(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("opened")

    for package in ALL:
        monkeypatch.setitem(sys.modules, package, sys)
    monkeypatch.setattr(io, "open", refuse)
    assert packages_of(files["chat gguf"], "serving") == ["h11"]
    assert message(files["chat gguf"], "chatting with") == ""


@pytest.mark.parametrize("content", [None, b"", b"GGUF\x03", b"\x80pickle", b"no model at all"])
def test_what_is_wrong_with_a_file_is_left_to_loading_it(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_away(monkeypatch, *ALL)
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    assert message(path, "chatting with") == ""
    with pytest.raises(FormatError):
        tt.load(path)


def test_a_folder_without_a_vocabulary_is_left_to_loading_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take_away(monkeypatch, *ALL)
    made = tiny.hf_packed(tmp_path / "hf")
    (made / "tokenizer.json").unlink()
    assert message(made, "chatting with") == ""
    with pytest.raises(TritiumError, match=r"no tokenizer\.json"):
        _ = tt.load(made).tokenizer


def test_sentencepiece_needs_the_package_too() -> None:
    assert vocabulary.packages_of_gguf({"tokenizer.ggml.model": "llama"}) == ["tokenizers"]
    assert vocabulary.packages_of_gguf({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": []}) == []
    assert vocabulary.packages_of_gguf({"tokenizer.chat_template": "x"}) == ["jinja2"]
