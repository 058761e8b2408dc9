"""Losses of distillation beside their formulas in f64, and a student that comes closer to its teacher."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from tritium.errors import ArgumentError

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
from differences import differences  # noqa: E402
from small_network import Network, text  # noqa: E402
from tritium.torch import Distillation, DistillationLoss, Recipe, Training, Windows, distil, fit, prepare  # noqa: E402
from tritium.torch.distillation import distillation_loss, logit_loss, relation_loss  # noqa: E402

functional = torch.nn.functional


def normal(*shape: int, seed: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_the_logit_loss_is_its_formula(temperature: float) -> None:
    student, teacher = normal(2, 5, 7, seed=1), normal(2, 5, 7, seed=2)
    q, p = (softmax(x.double().numpy() / temperature) for x in (student, teacher))
    want = (p * (np.log(p) - np.log(q))).sum(-1).mean() * temperature**2
    assert logit_loss(student, teacher, temperature).item() == pytest.approx(want, rel=1e-5)
    assert logit_loss(teacher, teacher, temperature).item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_the_gradient_of_the_logit_loss_is_its_finite_differences(temperature: float) -> None:
    student, teacher = normal(2, 3, 7, seed=1).requires_grad_(), normal(2, 3, 7, seed=2)
    logit_loss(student, teacher, temperature).backward()

    def formula(x: Any) -> Any:
        q, p = (torch.softmax(each.double() / temperature, -1) for each in (x, teacher))
        return (p * (p / q).log()).sum() / 6 * temperature**2

    torch.testing.assert_close(student.grad, differences(formula, student), rtol=1e-5, atol=1e-7, check_dtype=False)


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_the_relation_loss_is_its_formula_also_for_other_widths(heads: int) -> None:
    student, teacher = normal(2, 6, 8, seed=1), normal(2, 6, 12, seed=2)
    want = []
    for b in range(2):
        for h in range(heads):
            p, q = (
                softmax(part @ part.T / np.sqrt(part.shape[-1]))
                for part in (np.split(x[b].double().numpy(), heads, -1)[h] for x in (teacher, student))
            )
            want.append((p * (np.log(p) - np.log(q))).sum(-1))
    assert relation_loss(student, teacher, heads).item() == pytest.approx(np.mean(want), rel=1e-5)


@pytest.mark.parametrize("heads", [1, 2])
def test_the_gradient_of_the_relation_loss_is_its_finite_differences(heads: int) -> None:
    student, teacher = normal(2, 5, 4, seed=1).requires_grad_(), normal(2, 5, 6, seed=2)
    relation_loss(student, teacher, heads).backward()

    def rows(x: Any) -> Any:
        parts = torch.stack(x.double().chunk(heads, -1))
        return torch.softmax(parts @ parts.mT / parts.shape[-1] ** 0.5, -1)

    def formula(x: Any) -> Any:
        q, p = rows(x), rows(teacher)
        return (p * (p / q).log()).sum(-1).mean()

    torch.testing.assert_close(student.grad, differences(formula, student), rtol=1e-5, atol=1e-6, check_dtype=False)


def test_the_whole_loss_is_the_weighted_sum() -> None:
    teacher, student = Network(seed=1), prepare(Network(seed=2), Recipe.distil(3))
    ids = Windows(text(), length=12, batch=2)(0)
    parts = [{"text": 1.0}, {"logits": 1.0}, {"relations": 1.0}]
    nothing = {"text": 0.0, "logits": 0.0, "relations": 0.0}
    single = [distillation_loss(teacher, Distillation(**(nothing | part)), student, ids).item() for part in parts]
    whole = distillation_loss(teacher, Distillation(text=2.0, logits=3.0, relations=0.5), student, ids).item()
    assert whole == pytest.approx(2 * single[0] + 3 * single[1] + 0.5 * single[2], rel=1e-5)
    assert all(value > 0 for value in single)


def kl(teacher: Any, student: Any) -> float:
    ids = Windows(text(seed=9), length=16, batch=16)(0)
    with torch.no_grad():
        return logit_loss(student.eval()(ids), teacher(ids)).item()


def test_a_student_comes_closer_to_its_teacher() -> None:
    batches, floats = Windows(text(), length=16, batch=8), Recipe.fine_tune(60, learning_rate=1e-2)
    teacher = Network()
    fit(teacher, batches, floats)
    before = copy.deepcopy(teacher.state_dict())
    recipe = Recipe.distil(40, learning_rate=3e-3)
    student = prepare(copy.deepcopy(teacher), recipe)
    start = kl(teacher.eval(), student)
    distil(teacher, student, batches, recipe)
    assert kl(teacher, student) < start * 0.8
    assert all(torch.equal(t, before[n]) for n, t in teacher.state_dict().items())


def test_a_loop_of_one_s_own_distils_as_distil_does() -> None:
    teacher, batches, recipe = Network(seed=1), Windows(text(), length=8, batch=2), Recipe.distil(2)
    losses = distil(teacher, prepare(Network(), recipe), batches, recipe)
    assert recipe.distillation is not None
    training = Training(prepare(Network(), recipe), recipe, loss=DistillationLoss(teacher.train(), recipe.distillation))
    assert not teacher.training
    assert [training.step(batches(i)) for i in range(2)] == losses


def test_a_recipe_with_a_teacher_is_not_trained_without_one() -> None:
    recipe, batches = Recipe.distil(2), Windows(text(), length=8, batch=2)
    model = prepare(Network(), recipe)
    with pytest.raises(
        ArgumentError, match=r"distillation=Distillation\(text=1.0.* and the loss None.*Call distil\(teacher"
    ):
        fit(model, batches, recipe)
    with pytest.raises(ArgumentError, match="a Distillation is needed, given NoneType"):
        DistillationLoss(Network(), None)  # type: ignore[arg-type]
    other = DistillationLoss(Network(), Distillation(text=0.5))
    with pytest.raises(ArgumentError, match=r"and the loss Distillation\(text=0.5"):
        fit(model, batches, recipe, loss=other)
    with pytest.raises(ArgumentError, match="distillation=None and the loss"):
        fit(model, batches, recipe.with_(distillation=None), loss=other)


def test_what_cannot_be_distilled_is_refused() -> None:
    teacher, student = Network(), prepare(Network(), Recipe.distil(3))
    batches = Windows(text(), length=8, batch=2)
    with pytest.raises(ArgumentError, match="has no distillation"):
        distil(teacher, student, batches, Recipe.fine_tune(3))
    with pytest.raises(ArgumentError, match="same module"):
        distil(student, student, batches, Recipe.distil(3))
    with pytest.raises(ArgumentError, match=r"layer 5 .* has 2 modules"):
        distil(teacher, student, batches, Recipe.distil(3, distillation=Distillation(layer=5)))
    with pytest.raises(ArgumentError, match="3 heads do not divide"):
        distil(teacher, student, batches, Recipe.distil(3, distillation=Distillation(heads=3)))
    with pytest.raises(ArgumentError, match="same vocabulary"):
        logit_loss(torch.zeros(2, 3), torch.zeros(2, 4))
