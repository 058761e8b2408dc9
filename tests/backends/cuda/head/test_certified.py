"""The largest logit through an int8 copy on a GPU is that of the whole head, bit by bit, and bounds hold.

The file runs itself twice more: in Triton's interpreter, and compiled, on CUDA where there is a device.
"""

from __future__ import annotations

import importlib.util
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tritium import dtype as dt, ops
from tritium.functions import asarray
from tritium.layout import Layout
from tritium.nn.certified import certify
from tritium.op import Spec
from tritium.testing import arrays, expected
from triton_runs import INTERPRETED, PLACE, built, compiles, in_both_modes, kernels_of, passes, runs

torch = pytest.importorskip("torch", reason="the certified head on CUDA needs PyTorch: pip install torch triton")
if importlib.util.find_spec("triton") is None:
    pytest.skip("the certified head on CUDA needs Triton: pip install torch triton", allow_module_level=True)
from cuda_arrays import Calls, Launches  # noqa: E402

Array = np.ndarray[Any, np.dtype[Any]]
HEADS = ("normal", "ties", "near ties", "zeros", "one row", "outliers", "denormals", "largest", "lengths")
INPUTS = ("normal", "a row", "zeros", "nan", "inf", "short", "huge", "one column")
F16_MOST = 65504.0
ROWS, COLUMNS = st.sampled_from([1, 5, 130, 260]), st.sampled_from([1, 16, 90, 256, 300])


@in_both_modes
def test_all_of_this_where_triton_is(mode: str) -> None:
    passes(__file__, mode)


kernels, halves, argmax = kernels_of("head.certified"), kernels_of("head.halves"), kernels_of("head.argmax")


def make_table(kind: str, v: int, k: int, random: np.random.Generator) -> Array:
    """Return a head of f16."""
    w = random.standard_normal((v, k)).astype(np.float32)
    if kind == "ties":
        w[:] = w[random.integers(0, min(v, 3), v)]
    elif kind == "near ties":
        w[:] = w[0].astype(np.float16)
        w[:, random.integers(0, k)] *= 1 + random.integers(-2, 3, v) * np.float32(2.0**-10)
    elif kind == "zeros":
        w[:] = 0
    elif kind == "one row":
        w[1:] *= 1e-3
    elif kind == "outliers":
        w[:, random.integers(0, k)] *= 300
        w[random.integers(0, v)] *= 40
    elif kind == "denormals":
        w *= 1e-7
    elif kind == "largest":
        w = np.sign(w) * np.float32(F16_MOST)
    elif kind == "lengths":
        w *= np.exp(random.standard_normal((v, 1)) * 3).astype(np.float32)
    return np.clip(w, -F16_MOST, F16_MOST).astype(np.float16)


def make_input(kind: str, table: Array, random: np.random.Generator) -> Array:
    """Return one input of the head."""
    x = random.standard_normal(table.shape[1]).astype(np.float32)
    if kind == "a row":
        x = table[random.integers(0, table.shape[0])].astype(np.float32)
    elif kind == "one column":
        x[1:] = 0
    elif kind == "huge":
        x *= np.float32(1e36)
    else:
        x *= np.float32({"zeros": 0, "short": 1e-8}.get(kind, 1))
    if kind in ("nan", "inf"):
        x[random.integers(0, x.size)] = float(kind)
    return x


def there(a: Any) -> Any:
    return torch.from_numpy(np.ascontiguousarray(a)).to(PLACE)


def copy_of(table: Array) -> Any:
    head = certify(asarray(table, device="cpu"))
    assert head is not None
    weight = head.copy.weight.plain()
    return kernels().Copy(*(there(t.numpy()) for t in (weight.data, weight.scale, head.error, head.norm)))


def whole(x: Any, table: Any, multiplier: float) -> Any:
    """Return all logits as the whole head has them."""
    logits = halves().linear(x, table, None, torch.float32)
    return logits if multiplier == 1 else logits * float(np.float32(multiplier))


def check(x: Array, table: Array, multiplier: float = 1.0) -> list[int]:
    """Compare with the whole head; return how many rows were read for each token."""
    x, copy, table = there(x), copy_of(table), there(table)
    logits = whole(x, table, multiplier)
    index, value, rows = kernels().largest(x, table, copy, multiplier)
    want = argmax().argmax(logits)
    assert torch.equal(index, want)
    exact = logits.gather(1, want[:, None])[:, 0]
    assert torch.equal(value.nan_to_num(nan=3.0), exact.nan_to_num(nan=3.0))
    assert torch.equal(value.isnan(), exact.isnan())
    counts: list[int] = rows.tolist()
    assert all(1 <= count <= table.shape[0] for count in counts)
    return counts


@runs
@settings(max_examples=6 if INTERPRETED else 150, deadline=None)
@given(
    st.sampled_from(HEADS), st.lists(st.sampled_from(INPUTS), min_size=1, max_size=4), ROWS, COLUMNS,
    st.sampled_from([1.0, 1.0, 0.25, -3.0, 1 / 3]), st.integers(0, 2**32),
)  # fmt: skip
def test_any_head_and_input(head: str, inputs: list[str], v: int, k: int, multiplier: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    table = make_table(head, v, k, random)
    check(np.stack([make_input(kind, table, random) for kind in inputs]), table, multiplier)


@runs
def test_few_rows_are_read_where_bounds_say_enough() -> None:
    random = np.random.default_rng(1)
    table = make_table("normal", 200, 300, random)
    x = np.stack([make_input(kind, table, random) for kind in ("a row", "normal", "nan", "a row", "zeros")])
    rows = check(x, table)
    assert rows[0] == rows[3] == 1
    assert rows[1] < 40
    assert rows[2] == rows[4] == 200


@runs
def test_equal_rows_are_all_read_and_the_first_counts() -> None:
    random = np.random.default_rng(2)
    table = make_table("normal", 290, 64, random)
    table[7] = table[150] = table[289]
    x = table[7].astype(np.float32)[None]
    assert check(x, table) == [3]
    index, _, _ = kernels().largest(there(x), there(table), copy_of(table))
    assert index.tolist() == [7]


@runs
@pytest.mark.parametrize("tokens", [9] if INTERPRETED else [2, 17, 33, 64, 65, 130])
def test_more_tokens(tokens: int) -> None:
    random = np.random.default_rng(tokens)
    table = make_table("normal", 140, 96, random)
    kinds = random.choice(INPUTS, tokens)
    check(np.stack([make_input(kind, table, random) for kind in kinds]), table)


@runs
@settings(max_examples=4 if INTERPRETED else 60, deadline=None)
@given(
    st.sampled_from(HEADS), st.sampled_from(INPUTS), ROWS, COLUMNS,
    st.sampled_from([1.0, 0.2, -3.0]), st.integers(0, 2**32),
)  # fmt: skip
def test_bounds_hold(head: str, kind: str, v: int, k: int, multiplier: float, seed: int) -> None:
    """No logit is above its upper bound, and the largest is not below the largest lower one."""
    random = np.random.default_rng(seed)
    table = make_table(head, v, k, random)
    x, copy = there(make_input(kind, table, random)[None]), copy_of(table)
    bounds = kernels().bound(x, copy, multiplier)
    logits = whole(x, there(table), multiplier)
    assert bool(((logits <= bounds.upper) | (bounds.upper == torch.inf)).all())
    low = int(bounds.low[0])
    floor = np.array(low ^ (low >> 31 & 0x7FFFFFFF), np.int32).view(np.float32)
    assert bool((logits >= float(floor)).any()) or floor == -np.inf
    blocks = bounds.upper.split(bounds.tile.rows, dim=1)
    assert torch.equal(bounds.highest[:, 0], torch.stack([b.max() for b in blocks]))


@runs
def test_four_launches_of_fixed_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing of torch's but new memory: what a graph of it holds, whatever the numbers are."""
    module, calls = kernels(), Calls()
    table = make_table("normal", 300, 32, np.random.default_rng(0))
    x, copy, table = there(np.ones((3, 32), np.float32)), copy_of(table), there(table)
    launches = Launches()
    for name in ("split_kernel", "bounds_kernel", "read_kernel", "places_kernel"):
        monkeypatch.setattr(module, name, launches)
    with calls:
        module.largest(x, table, copy)
    blocks = -(-300 // module.tile_of(3).rows)
    assert launches.grids == [(3,), (blocks,), (blocks, 1), (1,)]
    assert set(calls.names) <= {"empty", "split", "view"}


@runs
def test_what_the_row_accepts() -> None:
    kernels()
    from tritium.backends.cuda import rows as cuda_rows

    def accepts(
        table: dt.DType = dt.f16, copy: dt.DType = dt.i8, k: int = 8, strides: tuple[int, int] | None = None
    ) -> bool:
        shapes = ((2, k), dt.f32), ((5, k), table), ((5, k), copy), *[((5,), dt.f32)] * 3
        layouts = (None, None if strides is None else Layout((5, k), strides, 0), *[None] * 4)
        return cuda_rows._accepts_bounded([Spec(*s) for s in shapes], {"multiplier": 1.0}, layouts)

    assert accepts()
    assert accepts(dt.bf16)
    assert accepts(strides=(8, 1))
    assert not accepts(dt.f32)
    assert not accepts(copy=dt.tern2)
    assert not accepts(k=1 << 15)
    assert not accepts(strides=(16, 1))


@runs
def test_the_reference_reads_the_same_rows() -> None:
    """Of operands that are no copy of the table too: bounds are a function of the operands."""
    for case in ops.bounded_argmax.samples:
        operands, attrs = arrays(ops.bounded_argmax, case), dict(case.attrs)
        if operands[1].dtype != np.float16:
            continue
        x, table, *copy = map(there, operands)
        results = kernels().largest(x, table, kernels().Copy(*copy), attrs.get("multiplier", 1.0))
        index, value, rows = expected(ops.bounded_argmax, operands, attrs)
        assert index.tolist() == results[0].tolist()
        assert rows.tolist() == results[2].tolist()
        np.testing.assert_allclose(results[1].cpu().numpy(), value, rtol=1e-4)


# ---- without a GPU

FLOATS = dict.fromkeys(("x", "scale", "factors", "row_scale", "error", "norm", "upper", "highest"), "*fp32")
NUMBERS = dict.fromkeys(("least", "near", "far", "lost_by", "parts_by", "reach_by", "multiplier"), "fp32")
OTHERS = {"q": "*i8", "w": "*i8", "low": "*i32", "best": "*i64", "rows": "*i32", "index": "*i64", "value": "*fp32"}


def compiled(name: str, capability: int, fixed: dict[str, Any], even: tuple[str, ...], **options: Any) -> Any:
    """A kernel compiled for a GPU. w: the dtype of the table where it is not that of the copy."""
    kernel = getattr(kernels(), name)
    types = {**FLOATS, **NUMBERS, **OTHERS, **({"w": options.pop("w")} if "w" in options else {})}
    types = {key: kind for key, kind in types.items() if key in kernel.arg_names}
    return built(
        kernel, types, fixed | {"EARLY": capability == 90}, capability, even, enable_fp_fusion=False, **options
    )


@compiles
@pytest.mark.parametrize("capability", [75, 80, 90])
def test_kernels_compile_for_every_gpu(capability: int) -> None:
    """The product of many tokens is compiled for tensor cores alone: elsewhere it takes a minute."""
    module = kernels()
    compiled("split_kernel", capability, {"BLOCK": 512}, ("x", "q", "K"), num_warps=8)
    compiled("places_kernel", capability, {"BLOCK": 8}, (), num_warps=1)
    for tokens, even in ((8, True), (64, True))[: 1 + (capability == 90)]:
        tile = module.tile_of(tokens)
        fixed = {"BN": tile.rows, "BM": 2 * tokens, "BK": tile.columns, "EVEN": even, "TIMES": True}
        options = {"num_warps": tile.warps, "num_stages": tile.stages if capability == 90 else 2}
        made = compiled(
            "bounds_kernel", capability, fixed | {"BYTES": capability >= 80}, ("w", "q", "K", "N"), **options
        )
        assert ".ftz" not in made.asm["ptx"]
        assert ("wgmma.mma_async" in made.asm["ptx"]) == (capability == 90)


def layout_of_sums(made: Any) -> set[str]:
    """The layouts of the sums that are added up along a row: they fix the order."""
    text = made.asm["ttgir"]
    names = re.findall(r"math\.fma .* : tensor<8x256xf32, (#\w+)>", text)
    assert names
    return {re.search(rf"^{name} = (.*)$", text, re.M)[1] for name in names}  # type: ignore[index]


@compiles
@pytest.mark.parametrize(("capability", "t"), [(75, "*fp16"), (80, "*bf16"), (90, "*fp16")])
@pytest.mark.parametrize("even", [("x", "w", "K", "N"), ("x", "w")], ids=["even", "odd"])
def test_rows_are_summed_in_the_order_of_the_whole_head(capability: int, t: str, even: tuple[str, ...]) -> None:
    """The compiler lays both out alike: this, and not the text of the kernels alone, makes their bits equal."""
    reader = {"BN": 128, "EACH": 8, "BK": 256, "STAGES": kernels().STAGES, "TIMES": False}
    orders = [
        layout_of_sums(compiled("read_kernel", capability, reader | {"TM": tm}, even, w=t, num_warps=4))
        for tm in (1, 16)
    ]
    for tokens in (1, 4):
        fixed = {"M": tokens, "BN": 8, "BK": 256, "STAGES": halves().STAGES, "BIAS": False, "EARLY": capability == 90}
        types = {"x": "*fp32", "w": t, "bias": "*fp32", "out": "*fp32"}
        orders.append(
            layout_of_sums(built(halves().few, types, fixed, capability, even, num_warps=4, enable_fp_fusion=False))
        )
    assert len(orders[0]) == 1
    assert all(order == orders[0] for order in orders)
