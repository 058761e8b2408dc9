"""Records of a training: flips, zeros and gradients beside their definitions; files, pages and TensorBoard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tritium.errors import ArgumentError, PackageError

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
import tritium.see  # noqa: E402
from small_network import Network, text  # noqa: E402
from tritium.torch import BitLinear, Recipe, Training, Watch, Windows, add_adapters, fit, lora_linears, prepare  # noqa: E402

nn = torch.nn


def test_flips_zeros_and_gradients_are_their_definitions() -> None:
    model = nn.Sequential(BitLinear(4, 2))
    layer = model[0]
    layer.weight.data = torch.tensor([[1.0, -1.0, 0.1, 0.0], [1.0, 1.0, 1.0, -1.0]])
    watch = Watch(model)
    layer.weight.data = torch.tensor([[-1.0, -1.0, 0.1, 0.0], [1.0, 0.0, 1.0, -1.0]])
    layer.weight.grad = torch.full((2, 4), 2.0)
    watch.record(1, 3.5, learning_rate=0.1, bad=float("inf"))
    (row,) = watch.rows
    assert (row["step"], row["loss"], row["learning_rate"]) == (1, 3.5, 0.1)
    assert "bad" not in row
    assert row["layers"]["0"] == {"flips": 2 / 8, "zeros": 3 / 8, "gradient": pytest.approx(32**0.5)}
    layer.weight.grad = None
    watch.record(2, float("nan"))
    assert watch.rows[1]["loss"] is None
    assert watch.rows[1]["layers"]["0"] == {"flips": 0.0, "zeros": 3 / 8, "gradient": None}


@pytest.mark.parametrize("form", [{}, {"axis": 0}, {"scales": "learned"}, {"scales": "learned", "axis": 0}], ids=str)
def test_zeros_are_those_of_weights_with_f16_scales(form: dict[str, Any]) -> None:
    layer = BitLinear(64, 64, scale_dtype="f16", **form)
    layer.weight.data = torch.full((64, 64), 1.0003)
    layer.weight.data[:, ::2] = 0.5001  # half of a scale of 1.0002 in f32 and of 1 in f16
    if layer.scale is not None:
        layer.scale.data.fill_(1.0004)
    else:
        layer.weight.data[:, 1::2] = 1.5007
    watch = Watch(nn.Sequential(layer))
    watch.record(1, 1.0)
    t, g = layer.ternary()
    assert g.unique().item() == 1.0
    assert watch.rows[0]["layers"]["0"]["zeros"] == (t == 0).float().mean() == 0.0


def test_only_every_so_many_steps_are_recorded() -> None:
    recipe = Recipe.from_scratch(7, learning_rate=0.01)
    model = prepare(Network(), recipe)
    watch = Watch(model, every=3)
    fit(model, Windows(text(), length=8, batch=2), recipe, watch=watch)
    assert [row["step"] for row in watch.rows] == [3, 6]
    assert any(layer["flips"] > 0 for row in watch.rows for layer in row["layers"].values())
    for every in (0, True, 1.5):
        with pytest.raises(ArgumentError, match="every"):
            Watch(model, every=every)
    with pytest.raises(ArgumentError, match="no BitLinear and no adapter"):
        Watch(Network())


def test_of_adapters_the_gradients_are_recorded_and_why_there_is_no_more(tmp_path: Path) -> None:
    recipe = Recipe.from_scratch(3)
    model = add_adapters(prepare(Network(layers=1), recipe), rank=2, targets=["q_proj", "up_proj"])
    watch = Watch(model)
    norms: list[dict[str, float]] = []

    training = Training(model, recipe, watch=watch)
    training.optimizer.register_step_pre_hook(lambda *_: norms.append(slopes(model)))
    for step in range(3):
        training.step(Windows(text(), length=8, batch=2)(step))
        assert watch.rows[-1]["layers"] == {n: {"gradient": pytest.approx(norm)} for n, norm in norms[step].items()}
    assert all("frozen" in row["absent"] and "lambda" not in row for row in watch.rows)
    watch.save(tmp_path / "t.json")
    pages = [tritium.see.training_page(s, tmp_path / "t.html").read_text() for s in (watch, tmp_path / "t.json")]
    assert pages[0] == pages[1]
    assert "the packed weights of layers with an adapter are frozen" in pages[0]


def slopes(model: Any) -> dict[str, float]:
    """Return the norm of the gradients of each adapter."""
    layers = lora_linears(model).items()
    return {n: torch.cat([p.grad.flatten() for p in m.parameters()]).norm().item() for n, m in layers}


def watched(tmp_path: Path, **options: Any) -> Watch:
    recipe = Recipe.from_scratch(4)
    model = prepare(Network(layers=1), recipe)
    watch = Watch(model, **options)
    fit(model, Windows(text(), length=8, batch=2), recipe, watch=watch)
    return watch


def test_a_file_and_a_page_have_the_records(tmp_path: Path) -> None:
    watch = watched(tmp_path)
    watch.save(tmp_path / "t.json")
    assert json.loads((tmp_path / "t.json").read_text())["training"] == watch.rows
    page = tritium.see.training_page(watch, tmp_path / "t.html").read_text()
    assert "model.layers.0.self_attn.q_proj" in page
    assert tritium.see.training_page(tmp_path / "t.json", tmp_path / "u.html").read_text() == page


def test_tensorboard_has_the_records(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    watch = watched(tmp_path, tensorboard=tmp_path / "board")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    losses = [event.value for event in board.Scalars("training/loss")]
    assert losses == pytest.approx([row["loss"] for row in watch.rows])
    assert len(board.Scalars("flips/model.layers.0.mlp.down_proj")) == 4


def test_tensorboard_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(PackageError, match="pip install tensorboard"):
        Watch(nn.Sequential(BitLinear(4, 4)), tensorboard=tmp_path)
