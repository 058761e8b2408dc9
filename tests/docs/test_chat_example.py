"""The scripts of examples/chat on their smallest sizes."""

from __future__ import annotations

import json
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tritium import load
from tritium.io.dequantize import dequantize

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES / "stories"))
    monkeypatch.syspath_prepend(str(EXAMPLES / "chat"))


@pytest.fixture
def distil(chat: None) -> ModuleType:
    pytest.importorskip("torch", reason="needs torch: pip install torch")
    pytest.importorskip("tokenizers", reason="needs tokenizers: pip install tokenizers")
    return import_module("distil")


def vocabulary() -> tuple[list[str], list[str]]:
    """A vocabulary in the order of SmolLM2's: special tokens, bytes, merges."""
    from tritium.models.text.tokenizer import ALPHABET

    merges = ["Ġ t", "h e", "Ġt he", "Ã ©", "i n", "Ġt o", "i Ã©", "in g", "{ {"]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<{i}>" for i in range(14))]
    return special + sorted(ALPHABET) + [m.replace(" ", "") for m in merges], merges


@pytest.mark.usefixtures("chat")
def test_a_cut_vocabulary_splits_plain_text_as_the_whole_one() -> None:
    pytest.importorskip("tokenizers", reason="needs tokenizers: pip install tokenizers")
    module = import_module("vocabulary")
    tokens, merges = vocabulary()
    whole = module.tokenizer_of(module.files(tokens, merges, list(range(len(tokens))), ""))
    rows = module.cut(tokens, merges, 300)
    left = [tokens[row] for row in rows]
    assert {"Ġthe", "ing", "<|im_end|>"} <= set(left)
    assert not {"Ã©", "iÃ©", "<3>"} & set(left)  # not plain; merged from what is not; of no use
    tokenizer = module.tokenizer_of(module.files(tokens, merges, rows, ""))
    for text in ("to the thing, he 12", "<|im_start|>in the<|im_end|>"):
        assert tokenizer.encode(text).tokens == whole.encode(text).tokens
    assert tokenizer.decode(tokenizer.encode("café {{").ids) == "café {{"


@pytest.mark.usefixtures("chat")
def test_conversations_are_read_out_of_the_sampler_s_log() -> None:
    module = import_module("conversations")
    end, gap, number, forced, cut = 2, 100_000, 49152, 65535, 65534
    table = np.array([[9, 8, 1, 5, 6, gap, 7, gap, end, end], [9, 8, 1, 5, 6, 30, end, 7, gap, end]])
    lengths, base = np.array([5, 8]), 2
    first = [number, number, 21, 22, end, 7, 23, end, end]  # question 21 22, answer 23
    second = [number + 1, number, forced, forced, forced, 24, 25, cut]
    found = module.conversations(np.array(first + second + [number, number, 21]), table, lengths, base)
    assert [(tokens.tolist(), ended) for tokens, ended in found] == [
        ([9, 8, 1, 5, 6, 21, 22, end, 7, 23, end], True),
        ([9, 8, 1, 5, 6, 30, end, 7, 24, 25], False),
    ]
    assert module.is_good(np.arange(50), 2)
    assert not module.is_good(np.tile(np.arange(5), 10), 2)


@pytest.mark.usefixtures("chat")
def test_scripts_begin_alike_and_leave_answers_to_the_teacher() -> None:
    module = import_module("conversations")
    lists = module.questions()
    scripts = [module.script(i, 0, lists) for i in range(500)]
    assert scripts == [module.script(i, 0, lists) for i in range(500)]
    assert all(begin.startswith(module.SYSTEM + module.USER) and rest[-1] == "" for begin, rest in scripts)
    assert {len(rest) for _, rest in scripts} == {1, 3, 5, 7}
    assert not any("{" in begin for begin, _ in scripts)


@pytest.mark.usefixtures("chat")
def test_an_embedding_in_four_bits_is_near() -> None:
    pytest.importorskip("torch", reason="needs torch: pip install torch")
    table = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    table[1, :32] = 0
    packed = import_module("files").as_q4_0(table)
    near = dequantize("Q4_0", memoryview(packed.tobytes()), table.shape)
    assert (near[1, :32] == 0).all()
    assert np.square(near - table).mean() < 0.01 * np.square(table).mean()


def test_a_step_is_a_function_of_its_number_and_an_epoch_takes_every_conversation_once(distil: ModuleType) -> None:
    torch = pytest.importorskip("torch")
    batches = distil.Conversations(torch.arange(1000), torch.arange(0, 990, 10), length=9, batch=33)
    firsts = torch.cat([batches(i)[:, 0] for i in range(3)])
    assert sorted(firsts.tolist()) == list(range(0, 990, 10))
    again = distil.Conversations(torch.arange(1000), torch.arange(0, 990, 10), length=9, batch=33)
    assert torch.equal(again(5), batches(5))
    assert not torch.equal(batches(3), batches(0))


class Stub:
    """A training whose steps take a time by a clock of its own."""

    def __init__(self, recipe: Any, seconds: list[float]) -> None:
        self.recipe, self.seconds, self.done, self.now = recipe, seconds, 0, 0.0
        self.shares: list[float] = []

    def perf_counter(self) -> float:
        return self.now

    def step(self, batch: Any) -> None:
        self.shares.append(self.done / self.recipe.steps)
        self.now += self.seconds[min(self.done, len(self.seconds) - 1)]
        self.done += 1


@pytest.mark.parametrize("seconds", [[30.0, 0.1], [0.1] * 300 + [60.0] + [0.1], [0.1] * 200 + [0.3]])
def test_a_training_by_the_clock_ends_its_schedule_in_time(
    distil: ModuleType, monkeypatch: pytest.MonkeyPatch, seconds: list[float]
) -> None:
    stub = Stub(distil.recipe_of(distil.argparse.Namespace(lr=1e-3), distil.MANY), seconds)
    monkeypatch.setattr(distil, "time", stub)
    plan = distil.Plan(stub, 100.0, fixed=False)
    while not plan.over():
        plan.step(None)
    assert 90 < stub.now < 100.5
    assert stub.shares[-1] > 0.97
    assert stub.done == stub.recipe.steps == plan.rows[-1][1]


def test_a_training_of_a_number_of_steps_keeps_it_and_stops_in_time(
    distil: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = Stub(distil.recipe_of(distil.argparse.Namespace(lr=1e-3), 1000), [1.0])
    monkeypatch.setattr(distil, "time", stub)
    plan = distil.Plan(stub, 100.0, fixed=True)
    while not plan.over():
        plan.step(None)
    assert (stub.done, stub.recipe.steps, plan.rows) == (101, 1000, [])


def test_a_student_learns_from_the_teacher_and_its_file_answers_as_it_does(distil: ModuleType, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    network, files, words = (import_module(name) for name in ("network", "files", "vocabulary"))
    torch.manual_seed(0)
    tokens, merges = vocabulary()
    rows = words.cut(tokens, merges, 300)
    source = network.Llama(network.Sizes(vocab=len(tokens), layers=3))
    torch.nn.init.normal_(source.model["embed_tokens"].weight, std=0.05)
    weights = {name: value.detach() for name, value in source.named_parameters()}
    args: Any = distil.argparse.Namespace(lr=1e-3, drop=[1], most_layers=0, plain=True)
    teacher, student, layers = distil.make_networks(args, weights, rows)
    assert layers == [0, 2]
    assert student.model["layers"][1].mlp.up_proj.weight.equal(source.model["layers"][2].mlp.up_proj.weight)
    loss = distil.Loss(teacher, layers, 1.0, compiled=False, halves=False)
    assert loss.targets == [1, 2]  # what the next layer of the student read in the teacher
    ids = torch.randint(len(rows), (2, 9))
    training = distil.Training(student, distil.recipe_of(args, 40), loss=loss)
    losses = [training.step(ids) for _ in range(6)]
    assert losses[-1] < 0.9 * losses[0]
    judged = distil.judge(student, loss, ids, torch.ones(len(rows)), 2)
    assert 0 < judged["kl"] < losses[0]
    files.write_model(tmp_path, student.sizes, student.state_dict(), words.files(tokens, merges, rows, ""), {"a": 1})
    assert json.loads((tmp_path / "log.json").read_text())["bytes"] == (tmp_path / "model.gguf").stat().st_size
    with torch.no_grad():
        table = student.model["embed_tokens"].weight
        table.copy_(
            torch.from_numpy(dequantize("Q4_0", memoryview(files.as_q4_0(table.numpy()).tobytes()), table.shape))
        )
        want = student(ids[:1])[0, -1].numpy()
    model = load(tmp_path / "model.gguf", kv="f32", activations="float")
    got = model.session().extend(0, ids[0].tolist())
    np.testing.assert_allclose(got, want, atol=2e-2 * np.abs(want).max())


@pytest.fixture
def small_run(distil: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that runs the script on random weights of one layer and a vocabulary of 300 tokens, and returns its log."""
    torch = pytest.importorskip("torch")
    tokens, merges = vocabulary()
    torch.manual_seed(0)
    network = import_module("network")
    small = partial(network.Sizes, hidden=64, intermediate=128, heads=2, kv_heads=1)
    monkeypatch.setattr(network, "Sizes", small)
    source = network.Llama(small(vocab=len(tokens), layers=2))
    weights = {name: value.detach() for name, value in source.named_parameters()}
    monkeypatch.setattr(distil, "read_weights", lambda path, device: (weights, tokens, merges))
    file = SimpleNamespace(metadata={"tokenizer.chat_template": ""})
    monkeypatch.setattr(distil, "tritium", SimpleNamespace(io=SimpleNamespace(open=lambda path: file), __version__="0"))
    monkeypatch.setattr(distil.subprocess, "Popen", lambda command: None)
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "tokens.npz", tokens=rng.integers(0, 200, 240), starts=np.arange(0, 240, 8))

    def run(name: str, *more: str) -> dict[str, Any]:
        sizes = ["--batch", "2", "--length", "6", "--judged", "2", "--vocab", "300", "--steps", "3", "--drop", "1"]
        command = ["distil.py", "weights", str(tmp_path / "tokens.npz"), "--out", str(tmp_path / name), *sizes, *more]
        monkeypatch.setattr("sys.argv", command)
        distil.main()
        log = tmp_path / name / "log.json"
        return json.loads(log.read_text()) if log.exists() else {}

    precision = torch.get_float32_matmul_precision()
    yield run
    torch.set_float32_matmul_precision(precision)


def test_a_run_that_goes_on_writes_the_bytes_of_one_that_did_not_stop(small_run: Any, tmp_path: Path) -> None:
    whole = small_run("whole")
    assert small_run("stopped", "--until", "1") == {}
    assert not (tmp_path / "stopped" / "model.gguf").exists()
    again = small_run("stopped")
    files = [(tmp_path / name / "model.gguf").read_bytes() for name in ("whole", "stopped")]
    assert files[0] == files[1]
    assert whole["after"] == again["after"] != whole["before"]
    assert whole["loss"] == {"kl": {"weight": 1.0, "temperature": 1.0}, "distance": {"weight": 1.0}}
    assert whole["recipe"]["distillation"] is None


def test_the_log_of_the_run_says_which_losses_it_had(distil: ModuleType) -> None:
    log = json.loads((EXAMPLES / "chat" / "log.json").read_text(encoding="utf-8"))
    assert log["recipe"]["distillation"] is None
    assert log["loss"]["distance"]["weight"] == log["settings"]["share"]
    recipe = distil.recipe_of(distil.argparse.Namespace(lr=log["settings"]["lr"]), log["recipe"]["steps"])
    assert recipe == type(recipe).from_json(json.dumps(log["recipe"]))  # fields that came later have their defaults
