"""The commands that run a model, called as a person calls them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tritium as tt
from hub_server import Hub, serving, use
from tritium.cli.root import cli
from tritium.errors import PackageError, TritiumError
from tritium.machine import facts
from tritium.models import catalogue
from tritium.models.load import Use, require_packages, shipped


def run(*args: str, **more: Any) -> Any:
    return CliRunner().invoke(cli, list(args), **more)


def told(*args: str, **more: Any) -> str:
    """What a command refuses with."""
    found = run(*args, **more)
    assert isinstance(found.exception, TritiumError), found.output
    return str(found.exception)


def test_generate_without_a_file_says_something_real() -> None:
    found = run("generate", "-n", "40")
    assert found.exit_code == 0
    assert found.stdout.startswith("In the beginning")
    assert len(found.stdout) == len("In the beginning") + 40 + 1
    assert "tokens/s" in found.stderr
    assert "first token after" in found.stderr


def test_generate_prints_the_prompt_and_what_python_gives() -> None:
    found = run("generate", "-q", "-p", "In the beginning", "-n", "30")
    assert found.stdout == "In the beginning" + tt.load().generate("In the beginning", max_tokens=30).text + "\n"
    assert found.stderr == ""


def test_the_same_seed_gives_the_same_text_as_json() -> None:
    options = ("generate", "--json", "-p", "And", "-n", "20", "-t", "0.9", "--top-p", "0.95", "--seed", "7")
    one, two = (json.loads(run(*options).stdout) for _ in range(2))
    assert one["tokens"] == two["tokens"]
    assert (one["finish_reason"], one["prompt_tokens"], one["seed"]) == ("length", 3, 7)


def test_a_prompt_is_read_from_standard_input() -> None:
    assert run("generate", "-q", "-p", "-", "-n", "5", input="And he").stdout.startswith("And he")
    assert "byte 0 is not UTF-8" in told("generate", "-p", "-", input=b"\xff")


def test_stop_strings_end_the_text() -> None:
    found = json.loads(run("generate", "--json", "-p", "And the LORD", "-n", "200", "--stop", "said").stdout)
    assert "said" not in found["text"]
    assert found["finish_reason"] == "stop"


def test_generate_without_options_samples_and_ends_at_a_sentence() -> None:
    texts = {run("generate", "-q", "--seed", str(seed)).stdout for seed in range(4)}
    assert len(texts) == 4
    for text in texts:
        assert text.startswith("In the beginning")
        assert text.rstrip("\n")[-1] in ".?!" or len(text) >= len("In the beginning") + 200
    found = run("generate", "--seed", "1")
    assert "seed 1]" in found.stderr
    assert "seed" not in run("generate", "-t", "0", "-n", "5").stderr
    greedy = run("generate", "-q", "-t", "0", "-n", "9").stdout
    assert greedy == run("generate", "-q", "-p", "In the beginning", "-n", "9").stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("generate", "nope.gguf"), "does not exist"),
        (("generate", "-t", "-1"), "temperature must be"),
        (("generate", "-p", "x" * 300), "The prompt has 300 tokens; the context holds 256"),
        (("generate", "--context", "1000"), "made for 256"),
        (("chat", str(shipped())), "no chat template"),
        (
            ("chat", "--system", "Be brief."),
            "--system is for a model that chats, and none was named: tritium chat MODEL",
        ),
        (("chat", "-t", "-1"), "temperature must be"),
        (("chat", "--revision", "x"), "which is a path; it belongs to a name owner/repo"),
        (("generate", "--file", "x"), "which is a path; it belongs to a name owner/repo"),
        (("bench", "model", "-n", "1000"), "context is 256"),
    ],
)
def test_what_cannot_be_done_is_told(args: tuple[str, ...], says: str) -> None:
    assert says in told(*args)


def test_a_smaller_context_ends_the_text() -> None:
    found = json.loads(run("generate", "--json", "-p", "And", "--context", "20").stdout)
    assert (found["finish_reason"], len(found["tokens"])) == ("context", 18)


@pytest.fixture
def template(tmp_path: Path) -> str:
    path = tmp_path / "chat.jinja"
    path.write_text(
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:", encoding="utf-8"
    )
    return str(path)


def test_a_chat_remembers_what_was_said(template: str) -> None:
    found = run("chat", "--template", template, "-n", "12", input="Hello\nAnd then?\n/new\nHello\n")
    assert found.exit_code == 0, found.output
    answers = found.stdout.splitlines()
    model = tt.load()
    first = model.generate("user: Hello\nassistant:", max_tokens=12).text
    second = model.generate(f"user: Hello\nassistant: {first}\nuser: And then?\nassistant:", max_tokens=12).text
    assert found.stdout == f"{first}\n{second}\n{first}\n", answers


def test_a_chat_samples_as_the_model_file_recommends(template: str, tmp_path: Path) -> None:
    folder, file = tmp_path / "hf", str(tmp_path / "warm.gguf")
    tt.io.convert(shipped("kjv-draft"), folder, to="hf")
    (folder / "generation_config.json").write_text('{"do_sample": true, "temperature": 0.9, "top_k": 5, "top_p": 7}')
    tt.io.convert(folder, file, to="i2_s")
    options = ("chat", file, "--template", template, "-n", "20", "--seed", "4")
    found = run(*options, input="Hello\n")
    assert "[sampling as the model file recommends: temperature 0.9, top_k 5]" in found.stderr
    assert "top_p must be from 0 to 1" in found.stderr
    assert "[sampling" not in run(*options, "-t", "0", input="Hello\n").stderr
    wrong = run(*options, "--min-p", "2", input="")
    assert "min_p must be from 0 to 1" in str(wrong.exception)
    assert found.stdout == run(*options, "-t", "0.9", "--top-k", "5", input="Hello\n").stdout
    assert found.stdout != run(*options, "-t", "0", input="Hello\n").stdout


def test_a_message_that_does_not_fit_is_dropped_and_the_chat_goes_on(template: str) -> None:
    found = run("chat", "--template", template, "-n", "3", input="x" * 400 + "\nHello\n")
    assert found.exit_code == 0
    assert "/new begins another" in found.stderr
    assert found.stdout.strip()


# ---- a chat without a model


COMPLETES = "The model in the package does not chat: it continues your text, as the King James Bible might.\n"


def offer(found: Any) -> list[str]:
    """Return the commands that a chat without a model offers."""
    return [line.partition("  ")[0] for line in found.stderr.splitlines() if line.startswith("tritium chat ")]


@pytest.mark.parametrize(
    ("gib", "fits"),
    [
        (24, ["Ternary-Bonsai-1.7B-gguf", "bitnet-b1.58-2B-4T-gguf", "Ternary-Bonsai-8B-gguf",
              "maple-preview-GGUF --file TQ2_0-head-Q4_K"]),
        (4, ["Ternary-Bonsai-1.7B-gguf", "bitnet-b1.58-2B-4T-gguf", "Ternary-Bonsai-8B-gguf"]),
        (2, ["Ternary-Bonsai-1.7B-gguf", "bitnet-b1.58-2B-4T-gguf"]),
        (1, ["Ternary-Bonsai-1.7B-gguf"]),
    ],
)  # fmt: skip
def test_a_chat_without_a_model_offers_those_that_fit(
    gib: int, fits: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "memory_limit", lambda: gib << 30)
    found = run("chat", input="")
    assert (found.exit_code, found.stdout) == (0, "")
    first = f"No model was named. These chat and fit into the memory of this machine ({gib} GiB); tritium models lists more."
    assert found.stderr.splitlines()[0] == first
    assert [line.partition("/")[2] for line in offer(found)] == fits
    assert found.stderr.endswith(COMPLETES)


def test_what_is_offered_is_what_the_list_has_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "memory_limit", lambda: 1 << 40)
    rows = {row.command: row for row in catalogue.known()}
    lines = [line.split() for line in run("chat", input="").stderr.splitlines() if line.startswith("tritium chat ")]
    assert len(lines) >= 4
    for *command, parameters, gigabytes, unit in lines:
        row = rows[" ".join(command)]
        assert (row.parameters, f"{row.gigabytes:g}", unit) == (parameters, gigabytes, "GB")


def test_where_no_model_fits_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "memory_limit", lambda: 512 << 20)
    assert run("chat", input="").stderr == (
        "No model was named, and none of those that chat fits into the memory of this machine (512 MiB); tritium models lists them.\n"
        + COMPLETES
    )


@pytest.mark.parametrize("missing", [(), ("jinja2",), ("huggingface_hub", "tokenizers", "jinja2")])
def test_the_packages_that_the_offered_models_need_are_named(
    missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("huggingface_hub", "tokenizers", "jinja2"):
        monkeypatch.setitem(sys.modules, package, None if package in missing else sys)
    lines = run("chat", input="").stderr.splitlines()
    says = [f"They need packages that are not installed: pip install {' '.join(missing)}"] if missing else [""]
    assert lines[-2:] == [*says, COMPLETES.rstrip()]


def test_a_chat_without_a_model_continues_each_line() -> None:
    found = run("chat", "-n", "20", "-t", "0", input="And God said\n/new\nIn the\n\nnot read\n")
    assert found.exit_code == 0
    model = tt.load()
    lines = [f"{line}{model.generate(line, max_tokens=20).text}\n" for line in ("And God said", "In the")]
    assert found.stdout == "".join(lines)


def test_a_line_is_continued_to_the_end_of_a_sentence_and_differently_each_time() -> None:
    texts = {run("chat", "--seed", str(seed), input="And God said").stdout for seed in range(3)}
    assert len(texts) == 3
    for text in texts:
        assert text.startswith("And God said")
        assert text.rstrip("\n")[-1] in ".?!" or len(text) >= len("And God said") + 200


def test_a_line_that_does_not_fit_is_told_and_the_next_is_continued() -> None:
    found = run("chat", "-n", "3", input="x" * 400 + "\nAnd God\n")
    assert found.exit_code == 0
    assert "[The prompt has 400 tokens; the context holds 256." in found.stderr
    assert found.stdout.startswith("And God")


def test_a_chat_whose_input_is_closed_ends() -> None:
    command = f"{sys.executable} -m tritium chat <&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == ""
    assert done.stderr.endswith(COMPLETES)


def test_a_chat_without_a_model_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    env = os.environ | {"COLUMNS": "120", "TERM": "xterm"}
    args = [sys.executable, "-m", "tritium", "chat", "-n", "20", "-t", "0"]
    shown = b""

    def read(until: bytes) -> None:
        nonlocal shown
        begun = len(shown)
        while until not in shown[begun:]:
            shown += os.read(ours, 1 << 16)

    with subprocess.Popen(args, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as chatting:
        os.close(theirs)
        read(b"> ")
        before = shown
        for line in (b"And God said\n", b"/new\n"):
            os.write(ours, line)
            read(b"> ")
        os.write(ours, b"\x04")
        assert chatting.wait(30) == 0
    os.close(ours)
    assert b"tritium chat prism-ml/Ternary-Bonsai-1.7B-gguf" in before
    assert COMPLETES.encode().replace(b"\n", b"\r\n> ") in before
    text = tt.load().generate("And God said", max_tokens=20).text
    assert f"\x1b[1mAnd God said\x1b[0m{text}".encode() in shown


def test_perplexity_tells_bits_per_byte_with_an_error(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("And the LORD spake unto Moses, saying, " * 20, encoding="utf-8")
    found = json.loads(run("perplexity", str(text), "--json").stdout)
    assert found["tokens"] == found["bytes"] == 39 * 20
    assert 0 < found["bits_per_byte"] < 2
    assert found["bits_per_byte_error"] > 0
    assert "bits per byte" in run("perplexity", str(text)).stdout


def test_a_text_that_is_no_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"ab\xff")
    assert "byte 2 is not UTF-8" in told("perplexity", str(tmp_path / "a.txt"))


def test_an_int8_head_beside_its_table_makes_a_larger_file_and_the_help_says_so(tmp_path: Path) -> None:
    from tritium.models.load import shipped

    plain, int8 = tmp_path / "plain.tritium", tmp_path / "int8.tritium"
    run("prepack", str(shipped()), str(plain))
    added = run("prepack", str(shipped()), str(int8), "--head", "int8").output
    assert "the int8 head adds 65.0 KiB: tokens are still looked up in the f32 table of 256.0 KiB" in added
    assert int8.stat().st_size > plain.stat().st_size
    assert "int8 makes a larger file" in " ".join(run("prepack", "--help").output.split())


def test_a_prepacked_file_generates_the_same(tmp_path: Path) -> None:
    from tritium.models.load import shipped

    target = str(tmp_path / "kjv.tritium")
    found = run("prepack", str(shipped()), target)
    assert found.exit_code == 0, found.output
    assert "4 layers" in found.stdout
    assert (
        run("generate", "-q", target, "-p", "And", "-n", "30").stdout
        == run("generate", "-q", "-p", "And", "-n", "30").stdout
    )
    assert "exists already" in told("prepack", str(shipped()), target)
    assert "prepacked already" in told("prepack", target, str(tmp_path / "again"))
    assert "a prepacked model" in told("inspect", target)


def test_a_reader_that_goes_away_ends_the_program_quietly() -> None:
    command = f"{sys.executable} -m tritium generate -q -n 200 | head -c 5"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=os.environ | {"LC_ALL": "C.UTF-8"})
    assert done.stdout == "In th"
    assert "Traceback" not in done.stderr


def test_bench_model_tells_samples_and_what_was_not_measured() -> None:
    found = json.loads(run("bench", "model", "-p", "16", "-n", "8", "-r", "3", "--json").stdout)
    assert len(found["rows"]["decode"]["samples"]) == len(found["rows"]["prefill"]["samples"]) == 3
    for energy in (found["rows"][f"{phase} energy"] for phase in ("prefill", "decode")):
        assert energy["samples"] or energy["absent"]
    page = run("bench", "model", "-p", "16", "-n", "8", "-r", "3").stdout
    assert all(word in page for word in ("ready", "prefill", "first token", "decode", "peak memory", "decode energy"))


# ---- embeddings


def test_embed_prints_what_python_gives(tmp_path: Path) -> None:
    from tritium.models.load import shipped

    (tmp_path / "texts.txt").write_text("In the beginning\r\nGod said\n", encoding="utf-8")
    model, texts = str(shipped()), str(tmp_path / "texts.txt")
    expected = tt.load().embed(["In the beginning", "God said"])
    found = json.loads(run("embed", model, texts, "--json").stdout)
    assert (found["pooling"], found["normalized"], found["texts"]) == ("last", True, ["In the beginning", "God said"])
    np.testing.assert_array_equal(np.array(found["embeddings"], np.float32), expected)
    page = run("embed", model, "-", "--pooling", "mean", input="In the beginning\nGod said\n").stdout
    assert page.startswith("2 texts, 256 numbers each; pooling: mean (as asked)")
    assert "1.000" in page
    for name in ("a.npy", "a.jsonl"):
        done = run("embed", model, texts, "-o", str(tmp_path / name))
        assert done.exit_code == 0, done.output
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy", allow_pickle=False), expected)
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == ["In the beginning", "God said"]
    np.testing.assert_array_equal(np.array([row["embedding"] for row in rows], np.float32), expected)


@pytest.mark.parametrize(
    ("text", "args", "says"),
    [
        ("a\n\nb\n", (), "line 2 is empty"),
        ("a", ("-o", "a.txt"), "ends in .npy or .jsonl"),
        ("x" * 300, (), "text 0 has 300 tokens"),
        ("a", ("--prompt-name", "query"), "no prompt 'query'"),
    ],
)
def test_what_cannot_be_embedded_is_told(text: str, args: tuple[str, ...], says: str) -> None:
    from tritium.models.load import shipped

    assert says in told("embed", str(shipped()), "-", *args, input=text)


# ---- models by name


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from tritium.models.load import shipped

    pytest.importorskip("huggingface_hub", reason="needs huggingface_hub: pip install huggingface_hub")
    monkeypatch.chdir(tmp_path)
    with serving() as served:
        use(monkeypatch, served.url, tmp_path / "cache")
        served.add("owner/repo", {"kjv-I2_S.gguf": shipped(), "kjv-F16.gguf": b"dense"})
        yield served


def test_every_command_that_takes_a_model_takes_a_name(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("And God said", encoding="utf-8")
    found = run("generate", "owner/repo", "-p", "And", "-n", "3")
    assert found.stdout == run("generate", "-p", "And", "-n", "3").stdout
    assert "[owner/repo@00000000: kjv-I2_S.gguf" in found.stderr
    for args in (
        ("perplexity", "text.txt", "-m", "owner/repo"), ("embed", "owner/repo", "text.txt"), ("inspect", "owner/repo"),
        ("convert", "owner/repo", "out.gguf", "--to", "tq2_0"), ("verify", "owner/repo", "out.gguf", "--rtol", "0.001"),
        ("prepack", "owner/repo", "out.tritium"), ("inspect", "owner/repo", "--offline", "--file", "i2_s", "--revision", "main"),
    ):  # fmt: skip
        done = run(*args)
        assert done.exit_code == 0, (args, done.output, done.exception)
    assert hub.downloads() == ["kjv-I2_S.gguf"]


def test_options_of_a_name_that_mean_nothing_are_refused(hub: Hub) -> None:
    assert "no file has 'Q9'" in told("generate", "owner/repo", "--file", "Q9")
    assert "it has no revision 'x'" in told("chat", "owner/repo", "--revision", "x")
    assert "are of one model, given two by name" in told("verify", "owner/repo", "other/repo", "--revision", "x")
    assert "which is a path" in told("verify", "a.gguf", "b.gguf", "--revision", "x")
    assert "is not in the cache" in told("generate", "owner/repo", "--offline")


NEEDS: dict[str, tuple[tuple[str, ...], Use]] = {
    "generate": (("generate", "owner/repo"), "running"),
    "chat": (("chat", "owner/repo"), "chatting with"),
    "perplexity": (("perplexity", "text.txt", "-m", "owner/repo"), "running"),
    "embed": (("embed", "owner/repo", "text.txt"), "running"),
    "serve": (("serve", "owner/repo"), "serving"),
}


@pytest.mark.parametrize("name", NEEDS)
def test_a_command_names_all_packages_before_it_asks_the_hub(
    name: str, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_text("And God said", encoding="utf-8")
    args, use = NEEDS[name]
    for package in ("tokenizers", "jinja2", "h11"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(PackageError) as caught:
        require_packages("owner/repo", use)
    assert told(*args) == str(caught.value)
    assert hub.asked == []


@pytest.mark.parametrize(
    "args",
    [("prepack", "owner/repo", "out.tritium"), ("bench", "model", "owner/repo", "-p", "4", "-n", "4", "-r", "3")],
)
def test_what_reads_no_text_needs_no_package_for_it(
    args: tuple[str, ...], hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("tokenizers", "jinja2"):
        monkeypatch.setitem(sys.modules, package, None)
    assert run(*args).exit_code == 0


def test_a_file_of_a_template_and_a_draft_by_name_add_what_they_need(
    template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("jinja2", "h11", "huggingface_hub", "opentelemetry"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr("tritium.models.load.load", lambda *args, **options: pytest.fail("it was loaded"))
    assert told("chat", "--template", template).startswith(
        "Chatting with the model in the package needs the package 'jinja2',"
    )
    assert told("serve", "--template", template, "--draft", "a/b", "--spans") == (
        "Serving the model in the package needs the packages 'h11', 'jinja2', 'huggingface_hub' and 'opentelemetry-api', which are not "
        "installed; pip install h11 jinja2 huggingface_hub opentelemetry-api."
    )


def test_a_model_is_served_with_a_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("h11", reason="needs the extra 'run'")
    served: dict[str, Any] = {}
    monkeypatch.setattr("tritium.serve.server.serve", lambda model, **options: served.update(options, model=model))
    assert run("serve", "--draft", str(shipped("kjv-draft"))).exit_code == 0
    assert (served["model"].name, served["draft"].name) == ("kjv", "kjv-draft")


def test_models_are_listed_with_what_to_type() -> None:
    found = json.loads(run("models", "--json").stdout)
    assert {"bitnet", "llama"} <= {row["name"] for row in found["families"]}
    assert {"i2_s", "hf"} <= {row["name"] for row in found["formats"]}
    page = run("models").stdout
    for row in found["models"]:
        assert row["command"].startswith(f"tritium {row['use']} {row['repo']}")
        assert row["command"] in page
