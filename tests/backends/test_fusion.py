"""A fragment cut at its product: the parts that every device takes."""

from __future__ import annotations

from tritium import ops
from tritium.backends.fusion import ProductParts, product_parts
from tritium.dtype import f32, tern2
from tritium.fragment import Fragment, Step
from tritium.op import Spec

X, W, SCALE = Spec((4, 64), f32), Spec((32, 64), tern2), Spec((1,), f32)
OUT = Spec((4, 32), f32)


def test_maps_around_a_product_are_fragments_of_their_own() -> None:
    steps = (
        Step(ops.relu, (0,), (), X),
        Step(ops.quantized_matmul, (4, 1, 2, None), (("group", 0),), OUT),
        Step(ops.add, (5, 3), (), OUT),
    )
    cut = product_parts(Fragment((X, W, SCALE, OUT), steps, (6,)))
    assert isinstance(cut, ProductParts)
    assert (cut.core, cut.operands) == (steps[1], (None, 1, 2, None))
    assert cut.before == Fragment((X,), (Step(ops.relu, (0,), (), X),), (1,))
    assert cut.before_inputs == (0,)
    assert cut.after == Fragment((OUT, OUT), (Step(ops.add, (0, 1), (), OUT),), (2,))
    assert cut.after_inputs == (3,)


def test_a_product_alone_has_nothing_around_it() -> None:
    core = Step(ops.quantized_matmul, (0, 1, 2, None), (("group", 0),), OUT)
    cut = product_parts(Fragment((X, W, SCALE), (core,), (3,)))
    assert isinstance(cut, ProductParts)
    assert cut == ProductParts(core, (0, 1, 2, None), None, (), None, ())


def test_a_fragment_without_a_product_is_not_cut() -> None:
    assert product_parts(Fragment((X,), (Step(ops.relu, (0,), (), X),), (1,))) == "it has 0 products, not one"
