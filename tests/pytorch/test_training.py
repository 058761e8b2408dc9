"""The loop, its checkpoints and the Trainer's callback: a training that goes on equals one that did not stop, bit for bit."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tritium.errors import ArgumentError, FormatError, MissingFileError

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
from small_network import Network, text  # noqa: E402
from tritium.torch import (  # noqa: E402
    Recipe,
    Training,
    Watch,
    Windows,
    apply_schedules,
    bit_linears,
    fit,
    head_loss,
    prepare,
    trainer_callback,
)

RECIPE = Recipe.fine_tune(12, learning_rate=3e-3, scales="learned")


def network(recipe: Recipe = RECIPE, **options: Any) -> Any:
    return prepare(Network(dropout=0.2, **options), recipe)


def windows(**options: Any) -> Windows:
    return Windows(text(), length=16, batch=4, **options)


def assert_same(a: Any, b: Any) -> None:
    ours, theirs = a.state_dict(), b.state_dict()
    assert list(ours) == list(theirs)
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def noisy(model: Any, batch: Any) -> Any:
    """A loss that draws from every generator."""
    from tritium.torch import next_token_loss

    return next_token_loss(model, batch) * (
        1 + 0.1 * random.random() + 0.1 * float(np.random.rand()) + 0.1 * torch.rand(())
    )


def seeded() -> None:
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)


# ---- the loop


def test_fit_lowers_the_loss_and_ends_ternary() -> None:
    recipe = Recipe.fine_tune(60, learning_rate=1e-2)
    model = prepare(Network(), recipe)
    losses = fit(model, windows(), recipe)
    assert len(losses) == 60
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.5
    assert {m.lambda_ for m in bit_linears(model).values()} == {1.0}


def test_windows_are_stretches_of_the_text_and_depend_on_the_step_alone() -> None:
    tokens = torch.arange(100)
    one = Windows(tokens, length=8, batch=3)
    assert one(4).shape == (3, 9)
    assert torch.equal(one(4) - one(4)[:, :1], torch.arange(9).expand(3, 9))
    assert torch.equal(one(4), Windows(tokens, length=8, batch=3)(4))
    assert not torch.equal(one(4), one(5))
    assert not torch.equal(one(4), Windows(tokens, length=8, batch=3, seed=1)(4))
    with pytest.raises(ArgumentError, match="more than length=100"):
        Windows(tokens, length=100, batch=1)


# ---- checkpoints


@pytest.mark.parametrize("stop", [1, 5, 11])
def test_a_training_that_goes_on_equals_one_that_did_not_stop(stop: int, tmp_path: Path) -> None:
    seeded()
    whole, whole_watch = network(), None
    whole_watch = Watch(whole, every=2)
    losses = fit(whole, windows(), RECIPE, loss=noisy, watch=whole_watch)

    seeded()
    first = network()
    fit(first, windows(), RECIPE, loss=noisy, checkpoint=tmp_path / "c.pt", until=stop, watch=Watch(first, every=2))
    torch.manual_seed(99)  # a new process has other generators
    random.seed(99)
    np.random.seed(99)
    second = network(seed=3)  # and other weights before the checkpoint is read
    watch = Watch(second, every=2)
    again = fit(second, windows(), RECIPE, loss=noisy, checkpoint=tmp_path / "c.pt", watch=watch)
    assert again == losses
    assert_same(second, whole)
    assert watch.rows == whole_watch.rows
    assert fit(network(seed=4), windows(), RECIPE, checkpoint=tmp_path / "c.pt", watch=Watch(network())) == losses


def test_batches_of_an_iterable_are_skipped_as_far_as_they_were_read(tmp_path: Path) -> None:
    batches = [windows()(step) for step in range(12)]
    whole = network()
    losses = fit(whole, batches, RECIPE)
    seeded_alike = network()
    fit(seeded_alike, batches, RECIPE, checkpoint=tmp_path / "c.pt", save_every=2, until=6)
    other = network(seed=3)
    assert fit(other, iter(batches), RECIPE, checkpoint=tmp_path / "c.pt") == losses
    assert_same(other, whole)
    with pytest.raises(ArgumentError, match="ended after 3"):
        fit(network(), batches[:3], RECIPE)


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    fit(network(), windows(), RECIPE, checkpoint=path, until=1)
    other = RECIPE.with_(learning_rate=1e-2, clip=0.5)
    with pytest.raises(ArgumentError, match=r"differs in learning_rate, clip"):
        fit(network(), windows(), other, checkpoint=path)
    with pytest.raises(ArgumentError, match="another model"):
        fit(network(hidden=16), windows(), RECIPE, checkpoint=path)
    with pytest.raises(ArgumentError, match="without a Watch"):
        fit(model := network(), windows(), RECIPE, checkpoint=path, watch=Watch(model))
    with pytest.raises(ArgumentError, match="needs checkpoint="):
        fit(network(), windows(), RECIPE, save_every=3)
    assert [p.name for p in tmp_path.iterdir()] == ["c.pt"]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"no checkpoint", None])
def test_a_file_that_is_no_checkpoint_is_refused(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    torch.save({"weights": torch.zeros(2)}, path) if content is None else path.write_bytes(content)
    training = Training(network(), RECIPE)
    with pytest.raises(FormatError, match="no checkpoint"):
        training.load(path)
    with pytest.raises(MissingFileError, match="no file"):
        training.load(tmp_path / "none.pt")


def test_a_checkpoint_with_code_is_not_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "ran",)

    torch.save({"schema": 1, "x": Evil()}, tmp_path / "c.pt")
    with pytest.raises(FormatError, match="no checkpoint"):
        Training(network(), RECIPE).load(tmp_path / "c.pt")
    assert not (tmp_path / "ran").exists()


# ---- transformers' Trainer


def trainer(folder: Path, recipe: Recipe, watch: bool = False) -> Any:
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    pytest.importorskip("accelerate", reason="the Trainer needs accelerate")
    from tritium.torch import make_optimizer

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, vocab_size=32,
        attention_dropout=0.1,
    )  # fmt: skip
    model = prepare(transformers.LlamaForCausalLM(config), recipe)
    data = [{"input_ids": row[:-1], "labels": row[:-1]} for row in Windows(text(), length=16, batch=16)(0)]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=recipe.steps, per_device_train_batch_size=2, save_steps=3, logging_steps=1, report_to=[],
        use_cpu=True, disable_tqdm=True, seed=1,
    )  # fmt: skip
    records = Watch(model) if watch else None
    return transformers.Trainer(
        model=model, args=arguments, train_dataset=data, optimizers=(make_optimizer(model, recipe), None),
        callbacks=[trainer_callback(recipe, watch=records)],
    ), records  # fmt: skip


def test_the_trainer_follows_the_recipe_and_resumes_exactly(tmp_path: Path) -> None:
    recipe = Recipe.fine_tune(6, learning_rate=3e-3)
    whole, watch = trainer(tmp_path / "a", recipe, watch=True)
    whole.train()
    assert {m.lambda_ for m in bit_linears(whole.model).values()} == {1.0}
    assert [row["step"] for row in watch.rows] == [1, 2, 3, 4, 5, 6]
    rates = [row["learning_rate"] for row in watch.rows]
    assert rates == pytest.approx([3e-3 * recipe.rate.at(step / 6) for step in range(6)])
    assert all(row["loss"] is not None for row in watch.rows)
    resumed, _ = trainer(tmp_path / "b", recipe)
    resumed.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-3"))
    assert_same(resumed.model, whole.model)


def test_the_trainer_s_callback_ignores_no_field_of_a_recipe(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs transformers")
    with pytest.raises(ArgumentError, match=r"distillation=Distillation\(.*Call distil\(teacher"):
        trainer_callback(Recipe.distil(6))
    made, _ = trainer(tmp_path, Recipe.fine_tune(6))
    for field, argument, match in (
        ("steps", {"max_steps": 5}, r"steps=6 and the Trainer max_steps=5; give TrainingArguments\(max_steps=6\)"),
        ("clip", {"max_grad_norm": 0.5}, r"clip=1.0 and the Trainer max_grad_norm=0.5; .*recipe.with_\(clip=0.5\)"),
    ):
        before = {name: getattr(made.args, name) for name in argument}
        made.args.__dict__.update(argument)
        with pytest.raises(ArgumentError, match=match):
            made.train()
        made.args.__dict__.update(before)
        assert made.state.global_step == 0, field


def test_the_trainer_s_callback_refuses_a_watch_of_other_processes(tmp_path: Path) -> None:
    made, watch = trainer(tmp_path, Recipe.fine_tune(6), watch=True)
    watch.processes = replace(watch.processes, count=2)
    with pytest.raises(ArgumentError, match="the Trainer runs 1 processes, and the Watch was made of a model on 2"):
        made.train()
    assert made.state.global_step == 0


def test_schedules_have_no_lambda_where_nothing_is_ternary() -> None:
    recipe = Recipe.fine_tune(4)
    plain, ternary = (Training(model, recipe) for model in (Network(), network(recipe)))
    for training, share in ((plain, None), (ternary, 0.0)):
        values = apply_schedules(training.model, training.optimizer, recipe, 0.0)
        assert values.get("lambda") == share


# ---- a loss with few logits at a time


@pytest.mark.parametrize("chunk", [1, 5, 100])
def test_a_loss_in_chunks_is_the_loss_of_all_logits(chunk: int) -> None:
    torch.manual_seed(0)
    states, table = torch.randn(2, 6, 8, requires_grad=True), torch.randn(11, 8, requires_grad=True)
    targets = torch.randint(11, (2, 6))
    wanted = torch.nn.functional.cross_entropy((states @ table.T).flatten(0, 1), targets.flatten())
    loss = head_loss(states, lambda x: x @ table.T, targets, chunk=chunk)
    torch.testing.assert_close(loss, wanted)
    for ours, theirs in zip(
        torch.autograd.grad(loss, (states, table)), torch.autograd.grad(wanted, (states, table)), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_a_loss_in_chunks_needs_a_target_for_each_state() -> None:
    with pytest.raises(ArgumentError, match="one target for each state"):
        head_loss(torch.zeros(2, 3, 4), lambda x: x, torch.zeros(2, 2, dtype=torch.long))
    with pytest.raises(ArgumentError, match="chunk is a number"):
        head_loss(torch.zeros(2, 3, 4), lambda x: x, torch.zeros(2, 3, dtype=torch.long), chunk=0)
