"""The examples: each runs, on its smallest sizes, and does what it says."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tritium import io
from tritium.models.load import load

EXAMPLES = Path(__file__).parents[2] / "examples"
VERSES = ["Ge1:1 In the beginning.", "Ge1:2 And the earth.", "Ge2:1 Thus.", "Exo1:1 Now these."]
SIZES = "--layers 1 --intermediate 256 --context 32 --batch 8 --device cpu --samples 20".split()


# ---- train_bytes


@pytest.fixture(scope="module")
def train_bytes() -> ModuleType:
    pytest.importorskip("torch", reason="needs torch: pip install torch")
    sys.path.insert(0, str(EXAMPLES))
    try:
        return import_module("train_bytes")
    finally:
        sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text a model learns in a few steps."""
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("".join(f"And the number was {i % 7}.\n" for i in range(2000)))
    return file


@pytest.fixture(scope="module")
def trained(train_bytes: ModuleType, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained")
    train_bytes.main(["--text", str(text), "--out", str(out), "--steps", "40", "--log-every", "10", *SIZES])
    return out


def test_verses_become_chapters(train_bytes: ModuleType) -> None:
    found = train_bytes.chapters(VERSES)
    assert found == "\0Genesis 1\nIn the beginning.\nAnd the earth.\n\0Genesis 2\nThus.\n\0Exodus 1\nNow these.\n"
    with pytest.raises(SystemExit, match="no verse"):
        train_bytes.chapters(["Nothing of the kind"])


def test_a_file_of_verses_is_known_by_its_first_line(train_bytes: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "raw.txt").write_text("\n".join(VERSES))
    assert train_bytes.read_text(tmp_path / "raw.txt").startswith(b"\0Genesis 1\nIn")
    (tmp_path / "other.txt").write_text("A text.")
    assert train_bytes.read_text(tmp_path / "other.txt") == b"\0A text."


def test_what_is_held_out_is_not_trained_on(train_bytes: ModuleType) -> None:
    text = b"".join(b"\0Chapter %d\n" % i + b"words " * 40 for i in range(100))
    learn, held = train_bytes.split(text)
    assert learn + held == text
    assert held.startswith(b"\0")
    assert 0.04 * len(text) < len(held) < 0.06 * len(text)


@pytest.mark.parametrize(("done", "share"), [(0, 0), (0.01, 0.49), (0.02, 0.98), (0.49999, 0.5), (0.5, 1 / 3), (1, 0)])
def test_the_learning_rate_has_two_stages(train_bytes: ModuleType, done: float, share: float) -> None:
    recipe = train_bytes.recipe_of(train_bytes.options(["--device", "cpu"]))
    assert recipe.rate.at(done) == pytest.approx(share, abs=1e-4)


def test_a_few_steps_lower_the_loss(trained: Path) -> None:
    log = json.loads((trained / "log.json").read_text())
    losses = [row["loss"] for row in log["curve"]]
    assert losses[-1] < 0.8 * losses[0]
    assert 0 < log["bits_per_byte"]["held_out"] < 6
    assert "val_bits_per_byte" in log["curve"][3]
    assert len(log["text"]["sha256"]) == 64
    assert all(s.startswith(p) for s, p in zip(log["samples"], ("In the beginning", "And he said"), strict=False))


def test_the_files_of_a_run_hold_the_same_model(trained: Path) -> None:
    verdict = io.verify(trained / "hf", trained / "model.i2_s.gguf")
    assert verdict.same, verdict.difference
    assert verdict.ternary == 7


def test_the_exported_file_gives_the_network_s_logits(train_bytes: ModuleType, trained: Path) -> None:
    import torch

    from tritium.models.load import load

    network = train_bytes.Network(train_bytes.Shape(layers=1, intermediate=256, context=32)).eval()
    network.load_state_dict(torch.load(trained / "weights.pt"))
    ids = list(b"And the number")
    with torch.no_grad():
        want = network(torch.tensor([ids]))[0, -1].numpy()
    got = load(trained / "model.i2_s.gguf", kv="f32").session().extend(0, ids)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=2e-3 * np.abs(want).max())


def test_a_seed_gives_the_same_model_again(train_bytes: ModuleType, text: Path) -> None:
    runs = [train_bytes.main(["--text", str(text), "--steps", "3", "--log-every", "1", *SIZES]) for _ in range(2)]
    losses = [[row["loss"] for row in run["curve"]] for run in runs]
    assert losses[0] == losses[1]


def test_the_float_network_is_trained_but_not_exported(train_bytes: ModuleType, text: Path, tmp_path: Path) -> None:
    log = train_bytes.main(["--text", str(text), "--float", "--out", str(tmp_path), "--steps", "3", *SIZES])
    assert log["kind"] == "float"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["log.json", "weights.pt"]


def test_the_clock_ends_a_training(train_bytes: ModuleType, text: Path) -> None:
    log = train_bytes.main(["--text", str(text), "--steps", "100000", "--minutes", "0.002", "--log-every", "1", *SIZES])
    assert 0 < len(log["curve"]) < 1000


def test_a_network_learns_from_one_that_was_trained(train_bytes: ModuleType, text: Path, trained: Path) -> None:
    log = train_bytes.main(
        ["--text", str(text), "--teacher", str(trained), "--steps", "30", "--log-every", "10", *SIZES]
    )
    assert log["teacher"] == trained.name
    assert log["recipe"]["distillation"]["logits"] == 0.5
    assert log["curve"][-1]["loss"] < 0.8 * log["curve"][0]["loss"]


def test_every_byte_but_the_first_is_labelled(train_bytes: ModuleType, text: Path, trained: Path) -> None:
    network = train_bytes.read_network(trained, "cpu")
    data = train_bytes.tensor_of(train_bytes.read_text(text)[:333], "cpu")
    labels = train_bytes.soft_labels(network, data, 32, batch=3).float()
    np.testing.assert_allclose(labels[1:].exp().sum(-1).numpy(), 1, atol=0.02)
    import torch

    with torch.no_grad():
        last = network(data[-33:-1][None].long())[0, -1].log_softmax(-1)
    np.testing.assert_allclose(labels[-1].numpy(), last.numpy(), rtol=0.01, atol=0.02)


def test_an_absent_text_says_how_to_get_it(train_bytes: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_bytes.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match="apt-get install bible-kjv"):
        train_bytes.read_text(None)


# ---- distil_bytes


def test_both_ways_to_a_ternary_network_are_compared_on_held_out_text(
    train_bytes: ModuleType, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    sizes = (
        "--seeds 1 --teacher-steps 8 --steps 4 --batch 2 --hidden 32 --intermediate 64 --layers 1 --context 32".split()
    )
    import_module("distil_bytes").main(["--text", str(text), "--out", str(tmp_path / "d.json"), *sizes])
    results = json.loads((tmp_path / "d.json").read_text())
    assert 0 < results["teacher"] < 9
    assert {name: len([run[name] for run in results["runs"]]) for name in ("fine-tuned", "distilled")} == {
        "fine-tuned": 1,
        "distilled": 1,
    }
    assert results["distilled"] == {"mean": results["runs"][0]["distilled"], "spread": 0.0}


def test_the_model_of_the_package_is_a_teacher(
    train_bytes: ModuleType, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    module = import_module("distil_bytes")
    sizes = "--seeds 1 --steps 2 --batch 2 --hidden 32 --intermediate 64 --layers 1 --context 32 --shipped".split()
    ways = {"from scratch", "distilled", "distilled, with relations"}
    assert set(module.main(["--text", str(text), *sizes])["runs"][0]) == ways
    prompt = load().tokenizer.encode("In the beginning God", bos=False)
    with torch.no_grad():
        ours = module.shipped_teacher("cpu").eval()(torch.tensor([prompt]))[0, -1]
    session = load(kv="f32").session()
    torch.testing.assert_close(ours, torch.tensor(session.extend(0, prompt)), rtol=1e-3, atol=1e-3)


# ---- lora_bytes


def test_lora_over_packed_weights_learns_another_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="the model is one of transformers")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    module = import_module("lora_bytes")
    monkeypatch.setattr(module, "HELD_OUT", 4 * (module.WINDOW + 1))
    out = ("--adapter", str(tmp_path / "a"), "--out", str(tmp_path / "l.json"))
    module.main([*"--model kjv-draft --steps 4 --batch 2 --lr 0.02".split(), *out])
    results = json.loads((tmp_path / "l.json").read_text())
    bits = results["bits_per_byte"]
    assert bits["with adapters"] < bits["the model"]
    assert abs(bits["merged to f32"] - bits["with adapters"]) < 0.05
    assert 0 < results["flips"] < 1
    assert results["exact_merge"] is False
    assert (tmp_path / "a" / "adapter_config.json").exists()


# ---- stories


@pytest.fixture
def stories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "stories"))


@pytest.mark.usefixtures("stories")
def test_plots_are_a_function_of_their_index() -> None:
    plots = import_module("plots")
    drawn = [plots.plot(i) for i in range(1000)]
    assert drawn == [plots.plot(i) for i in range(1000)]
    assert plots.plot(0, seed=1) != drawn[0]
    for i, (question, script) in enumerate(drawn):
        text = "".join(script)
        assert not set("{}¶/") & set(question + text)
        assert text.count('"') % 2 == 0
        assert text.endswith((".", "!", '"'))
        assert all(script[j] or script[j - 1] for j in range(len(script)))  # a gap is between sentences
        names, pronouns = plots.cast(i)
        assert any(name in text for name in names)
        assert pronouns <= {"he", "she"}


@pytest.mark.usefixtures("stories")
def test_texts_are_read_out_of_a_log() -> None:
    reading = import_module("reading")
    number, forced, end, cut = reading.NUMBER, reading.FORCED, reading.END, reading.CUT
    log = [number + 5, number + 2, forced, 70, 71, 73, end, number + 6, number, forced, 72, cut, number, number]
    likely = [1, 1, 1, 1, -1, -2, 1, 1, 1, 1, -4, 1, 1, 1]
    arrays = np.array(log, np.uint16), np.array(likely, np.float16)
    texts = [(who, reading.segments_of(ids, logs), ended) for who, ids, logs, ended in reading.texts_of(*arrays)]
    assert texts == [(5 + (2 << 13), [([70], 1.0), ([71, 73], -1.5)], True), (6, [([72], -4.0)], False)]
    assert [who for who, *_ in reading.texts_of(*arrays, 7)] == [6]


@pytest.mark.usefixtures("stories")
@pytest.mark.parametrize(
    ("sentence", "fault"),
    [
        ("Lily ran to the river as fast as she could.", ""),
        ('"I will wait here," said Ben.', ""),
        ("She ran.", "is short or long"),
        ("She had a special kind of hat.", "has a stock phrase or odd signs"),
        ('"I will wait here."', "does not say who speaks"),
        ("Lily is a very good swimmer.", "is not in the past tense"),
        ("One day a wolf named Whiskers came along.", "has another name"),
        ("The dragon flew over the hills.", "speaks of something new as known"),
        ("Then Lily lived by the old mill again.", "repeats"),
    ],
)
def test_sentences_of_the_teacher_are_judged(sentence: str, fault: str) -> None:
    reading = import_module("reading")
    before = "Lily was a girl who lived by the old mill."
    assert reading.fault_of(sentence, before, -1.0, {"Lily", "Ben"}, {"he", "she"}) == fault
    assert reading.fault_of("She ran to the river very fast.", before, -2.0, {"Lily"}, {"she"}) == "is unlikely"
    assert reading.fault_of("He ran to the river very fast.", before, -1.0, {"Lily"}, {"she"}) == "has another pronoun"


@pytest.mark.usefixtures("stories")
def test_a_network_with_a_vocabulary_of_its_own_is_trained_and_exported(
    train_bytes: ModuleType, tmp_path: Path
) -> None:
    pytest.importorskip("tokenizers", reason="needs tokenizers: pip install tokenizers")
    (tmp_path / "texts").write_text(
        "\0".join(f"The fox saw {i % 7} hens, and {i % 5} of them saw it." for i in range(400))
    )
    sizes = (
        "--hidden 256 --intermediate 256 --heads 4 --kv-heads 2 --layers 1 --vocab 300 --context 32 --batch 4".split()
    )
    out = tmp_path / "out"
    import_module("train").main([str(tmp_path / "texts"), "--out", str(out), "--steps", "3", *sizes])
    log = json.loads((out / "log.json").read_text())
    assert log["steps"] == 3
    assert 0 < log["held_out_loss"] < 7
    from tritium import load

    model = load(out / "model.gguf")
    assert model.tokenizer.vocab_size == 300
    assert model.tokenizer.decode(model.tokenizer.encode("The fox")[1:]) == "The fox"
