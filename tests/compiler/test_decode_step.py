"""New tokens in a graph: which rows are found together, which stay apart, and that a device that takes them together computes the
same."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import families
import tritium as tt
from tritium import ops
from tritium.backends import Absent, probes
from tritium.compiler.decode_step import find_decode_steps, note
from tritium.op import Spec

HEADS, SHARED, SIZE, CAPACITY = 4, 2, 128, 40
EVERY = HEADS + 2 * SHARED


def step(x: Any, cos: Any, sin: Any, places: Any, kv: Any) -> Any:
    turned = ops.rope(x, cos, sin, heads=HEADS + SHARED)
    ops.update_cache(kv, turned[:, :, HEADS:], places, out=kv)
    return ops.attention(turned[:, :, :HEADS], kv[:, :SHARED], kv[:, SHARED:], places, scale=0.5)


def normed(x: Any, cos: Any, sin: Any, places: Any, kv: Any, of_q: Any, of_k: Any) -> Any:
    q, k = ops.rms_norm(x[:, :, :HEADS], of_q, eps=1e-6), ops.rms_norm(x[:, :, HEADS : HEADS + SHARED], of_k, eps=1e-5)
    return step(ops.concat(q, k, x[:, :, HEADS + SHARED :], axis=2), cos, sin, places, kv)


def specs(tokens: int = 1, batch: int = 2, size: int = SIZE) -> list[Spec]:
    angles = Spec((batch, tokens, size // 2), tt.f32)
    return [
        Spec((batch, tokens, EVERY, size), tt.f32), angles, angles, Spec((batch, 3), tt.i32),
        Spec((3, 2 * SHARED, CAPACITY, size), tt.f16),
    ]  # fmt: skip


def found(fn: Any, given: list[Spec] | None = None, donate: tuple[int, ...] = (4,)) -> list[Any]:
    return find_decode_steps(tt.trace(fn, *(given or specs()), donate=donate))


def test_the_rows_of_a_new_token_are_found_together() -> None:
    graph = tt.trace(step, *specs(), donate=(4,))
    (t,) = find_decode_steps(graph)
    assert (t.x, t.cos, t.sin, t.places, t.cache) == graph.inputs
    assert graph.outputs == (t.attention,)
    assert graph.writes == ((4, t.update),)
    assert (t.interleaved, t.scale) == (False, 0.5)
    assert {n for n in graph.order() if n.op is not ops.given} == set(t.nodes)
    assert t.nodes[-1] is t.attention
    assert note(t).node == "rope+update_cache+attention"


WEIGHTS = [Spec((SIZE,), tt.f32)] * 2


def test_norms_of_heads_belong_to_it() -> None:
    graph = tt.trace(normed, *specs(), *WEIGHTS, donate=(4,))
    (t,) = find_decode_steps(graph)
    assert (t.x, t.cos, t.sin, t.places, t.cache) == graph.inputs[:5]
    assert t.norms == (*graph.inputs[5:], 1e-6, 1e-5)
    assert {n for n in graph.order() if n.op is not ops.given} == set(t.nodes)
    assert (t.interleaved, t.nodes[-1]) == (False, t.attention)
    assert note(t).node == "rms_norm+rms_norm+concat+rope+update_cache+attention"


def plain_norms(x: Any, cos: Any, sin: Any, places: Any, kv: Any) -> Any:
    return normed(x, cos, sin, places, kv, None, None)


def test_norms_of_heads_may_have_no_weights() -> None:
    (t,) = found(plain_norms)
    assert t.norms == (None, None, 1e-6, 1e-5)


def normed_and_read(x: Any, cos: Any, sin: Any, places: Any, kv: Any) -> Any:
    return normed(x, cos, sin, places, kv, None, None) + ops.rms_norm(x[:, :, :HEADS], eps=1e-6).sum(2, keepdims=True)


def other_heads_normed(x: Any, cos: Any, sin: Any, places: Any, kv: Any) -> Any:
    q, k = ops.rms_norm(x[:, :, SHARED : HEADS + SHARED]), ops.rms_norm(x[:, :, :SHARED])
    return step(ops.concat(q, k, x[:, :, HEADS + SHARED :], axis=2), cos, sin, places, kv)


def values_normed(x: Any, cos: Any, sin: Any, places: Any, kv: Any) -> Any:
    q, k = ops.rms_norm(x[:, :, :HEADS]), x[:, :, HEADS : HEADS + SHARED]
    return step(ops.concat(q, k, ops.rms_norm(x[:, :, HEADS + SHARED :]), axis=2), cos, sin, places, kv)


@pytest.mark.parametrize("fn", [normed_and_read, other_heads_normed, values_normed])
def test_norms_that_others_read_or_that_are_not_quite_those_stay_before_it(fn: Any) -> None:
    (t,) = found(fn)
    assert t.norms is None
    assert t.x.op is ops.concat


def test_each_layer_of_a_model_has_one_where_one_token_comes() -> None:
    session = tt.load().session(slots=2)
    kv, places = session.caches, np.array([[0, 0, 1], [1, 0, 1]], np.int32)
    at, one, four = np.arange(2, dtype=np.int32), np.zeros((2, 1), np.int32), np.zeros((2, 4), np.int32)
    last, pick = session._programs.last, session._programs.pick
    for program, given, many in (
        (last, (one, places, at), len(kv)),
        (last, (four, places, at), 0),
        (pick, (one.astype(np.int64), places, session.turns), len(kv)),
    ):
        graph = program.program(*map(tt.asarray, given), *kv).graph
        tokens = find_decode_steps(graph)
        assert [t.cache for t in tokens] == list(graph.inputs[3:])[:many]
        assert all(t.places.op is ops.given for t in tokens)


def turned_twice(x: Any, cos: Any, sin: Any, places: Any, kv: Any) -> Any:
    y = step(x, cos, sin, places, kv)
    return y + ops.rope(x, cos, sin, heads=HEADS + SHARED)[:, :, :HEADS]


def read_before(x: Any, cos: Any, sin: Any, places: Any, kv: Any) -> Any:
    old = kv[0, 0, 0].sum()
    return step(x, cos, sin, places, kv) + old


def read_after(x: Any, cos: Any, sin: Any, places: Any, kv: Any) -> Any:
    return step(x, cos, sin, places, kv) + kv[0, 0, 0].sum()


def given_back(x: Any, cos: Any, sin: Any, places: Any, kv: Any) -> Any:
    return step(x, cos, sin, places, kv), kv


def other_places(x: Any, cos: Any, sin: Any, places: Any, kv: Any) -> Any:
    turned = ops.rope(x, cos, sin, heads=HEADS + SHARED)
    ops.update_cache(kv, turned[:, :, HEADS:], places, out=kv)
    return ops.attention(turned[:, :, :HEADS], kv[:, :SHARED], kv[:, SHARED:], places + 0)


def values_first(x: Any, cos: Any, sin: Any, places: Any, kv: Any) -> Any:
    turned = ops.rope(x, cos, sin, heads=HEADS + SHARED)
    ops.update_cache(kv, turned[:, :, HEADS:], places, out=kv)
    return ops.attention(turned[:, :, :HEADS], kv[:, SHARED:], kv[:, :SHARED], places)


def all_turned(x: Any, cos: Any, sin: Any, places: Any, kv: Any) -> Any:
    turned = ops.rope(x, cos, sin)
    ops.update_cache(kv, turned[:, :, HEADS:], places, out=kv)
    return ops.attention(turned[:, :, :HEADS], kv[:, :SHARED], kv[:, SHARED:], places)


def windowed(x: Any, cos: Any, sin: Any, places: Any, kv: Any) -> Any:
    turned = ops.rope(x, cos, sin, heads=HEADS + SHARED)
    ops.update_cache(kv, turned[:, :, HEADS:], places, out=kv)
    return ops.attention(turned[:, :, :HEADS], kv[:, :SHARED], kv[:, SHARED:], places, window=3)


def turned_in_part(x: Any, cos: Any, sin: Any, places: Any, kv: Any) -> Any:
    turned = ops.rope(x, cos[..., :1], sin[..., :1], heads=HEADS + SHARED, size=2)
    ops.update_cache(kv, turned[:, :, HEADS:], places, out=kv)
    return ops.attention(turned[:, :, :HEADS], kv[:, :SHARED], kv[:, SHARED:], places)


def a_copy(x: Any, cos: Any, sin: Any, places: Any, kv: Any) -> Any:
    return step(x, cos, sin, places, kv.clone())


@pytest.mark.parametrize(
    "fn",
    [
        turned_twice,
        read_before,
        read_after,
        given_back,
        other_places,
        values_first,
        all_turned,
        a_copy,
        windowed,
        turned_in_part,
    ],
)
def test_rows_that_others_read_or_that_are_not_quite_those_stay_apart(fn: Any) -> None:
    assert found(fn) == []


def test_several_tokens_stay_apart() -> None:
    assert found(step, specs(tokens=2)) == []


# ---- in programs


def arguments(batch: int, device: str, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batch, 1, EVERY, SIZE)).astype(np.float32)
    angle = rng.standard_normal((batch, 1, SIZE // 2))
    kv = rng.standard_normal((batch + 1, 2 * SHARED, CAPACITY, SIZE)).astype(np.float16)
    places = np.array([[b, 7 * b % CAPACITY, 1] for b in range(batch)], np.int32)
    return [
        tt.tensor(a, device=device) for a in (x, np.cos(angle).astype("f4"), np.sin(angle).astype("f4"), places, kv)
    ]


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """torch on the CPU as a device that writes donated arguments where they lie and takes new tokens in one call; its calls."""
    pytest.importorskip("torch", reason="a device that stands for CUDA needs PyTorch: pip install torch")
    calls: list[tuple[Any, ...]] = []
    backend = type(tt.device("torch").backend)

    def attend_new(
        self: Any, x: Any, cos: Any, sin: Any, cache: Any, places: Any, scale: float | None, settled: bool, norms: Any
    ) -> Any:
        calls.append((x.shape, cos.shape, sin.shape, cache.shape, places.shape, scale, settled))
        both = cache.shape[1]
        heads = x.shape[2] - both
        if norms is not None:
            q, k, v = x[:, :, :heads], x[:, :, heads : heads + both // 2], x[:, :, heads + both // 2 :]
            q, k = ops.rms_norm(q, norms.of_q, eps=norms.q_eps), ops.rms_norm(k, norms.of_k, eps=norms.k_eps)
            x = ops.concat(q, k, v, axis=2)
        turned = ops.rope(x, cos, sin, heads=heads + both // 2)
        ops.update_cache(cache, turned[:, :, heads:], places, out=cache)
        y = ops.attention(turned[:, :, :heads], cache[:, : both // 2], cache[:, both // 2 :], places, scale=scale)
        return self.array(y)

    for name, value in (
        ("compiler", "calls one after another"), ("writes_arguments", True), ("compiled", lambda self, run, form: run),
        ("takes_new", lambda self, x, cache, places, interleaved: not interleaved), ("attend_new", attend_new),
    ):  # fmt: skip
        monkeypatch.setattr(backend, name, value)
    return calls


def test_a_program_has_its_device_take_new_tokens_in_one_call(together: list[tuple[Any, ...]]) -> None:
    wanted, given = arguments(3, "torch"), arguments(3, "torch")
    want = step(*wanted)
    fn = tt.compile(step, donate="kv")
    np.testing.assert_array_equal(fn(*given).numpy(), want.numpy())
    np.testing.assert_array_equal(given[4].numpy(), wanted[4].numpy())
    half = (3, 1, SIZE // 2)
    assert together == [((3, 1, EVERY, SIZE), half, half, (4, 2 * SHARED, CAPACITY, SIZE), (3, 3), 0.5, True)]
    program = fn.program(*given)
    assert program.launches == 1
    assert "decode step: rope+update_cache+attention: 3 calls become one" in program.explain()


def test_norms_of_heads_are_part_of_the_call(together: list[tuple[Any, ...]]) -> None:
    weights = [tt.tensor(np.linspace(0.5, 1.5, SIZE, dtype="f4") * n, device="torch") for n in (1, -2)]
    wanted, given = (arguments(2, "torch") for _ in range(2))
    want = normed(*wanted, *weights)
    fn = tt.compile(normed, donate="kv")
    np.testing.assert_array_equal(fn(*given, *weights).numpy(), want.numpy())
    np.testing.assert_array_equal(given[4].numpy(), wanted[4].numpy())
    assert len(together) == 1
    assert fn.program(*given, *weights).launches == 1


def test_places_that_a_program_makes_are_not_settled(together: list[tuple[Any, ...]]) -> None:
    def later(x: Any, cos: Any, sin: Any, places: Any, kv: Any) -> Any:
        return step(x, cos, sin, places + tt.tensor([0, 1, 0], dtype="i32", device="torch"), kv)

    wanted, given = arguments(2, "torch"), arguments(2, "torch")
    want = later(*wanted)
    np.testing.assert_array_equal(tt.compile(later, donate="kv")(*given).numpy(), want.numpy())
    np.testing.assert_array_equal(given[4].numpy(), wanted[4].numpy())
    assert [c[-1] for c in together] == [False]


def test_while_someone_watches_the_rows_run_one_by_one(together: list[tuple[Any, ...]]) -> None:
    wanted, given = arguments(2, "torch"), arguments(2, "torch")
    want, seen = step(*wanted), []
    watcher = tt.launch.watch(lambda event: seen.append(event.op.name))
    try:
        got = tt.compile(step, donate="kv")(*given)
    finally:
        tt.launch.unwatch(watcher)
    np.testing.assert_array_equal(got.numpy(), want.numpy())
    assert [n for n in seen if n in ("rope", "update_cache", "attention")] == ["rope", "update_cache", "attention"]
    assert together == []


def told(session: Any, steps: int) -> list[int]:
    """The tokens that a session writes after three others, by so many steps."""
    ids = [int(session.extend(0, [1, 2, 3]).argmax())]
    for _ in range(steps):
        ids.append(session.pick([0], ids[-1:]).ids[0])
    return ids


def test_norms_of_a_models_heads_are_part_of_the_call(together: list[tuple[Any, ...]], tmp_path: Path) -> None:
    path = families.write_folder(tmp_path / "m", families.random(families.CONFIGS["qwen3"], 1))
    session = tt.load(path, device="torch").session()
    assert told(tt.load(path, device="cpu").session(), 4) == told(session, 4)
    assert len(together) == 4 * len(session.caches)
    one = tt.asarray(np.zeros((1, 1), np.int64), device="torch")
    places = tt.asarray(np.array([[0, 0, 1]], np.int32), device="torch")
    program = session._programs.pick.program(one, places, session.turns, *session.caches)
    assert [t.norms is not None for t in program.foreign.decode_steps] == [True] * len(session.caches)


def test_a_model_writes_the_same_tokens(together: list[tuple[Any, ...]]) -> None:
    session = tt.load(device="torch").session()
    assert told(tt.load(device="cpu").session(), 8) == told(session, 8)
    assert len(together) == 8 * len(session.caches)


@pytest.mark.skipif(
    isinstance(probes.cuda_units(), Absent) or find_spec("triton") is None, reason="needs a GPU of CUDA and Triton"
)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("step", [step, plain_norms])
def test_graphs_of_cuda_take_new_tokens_in_one_launch(batch: int, step: Any) -> None:
    """The same bits at every call: by copies, and where the arguments lie. Each call stands one token further."""
    fn = tt.compile(step, donate="kv")
    wanted, given = arguments(batch, "cuda"), arguments(batch, "cuda")
    takes = tt.device("cuda").backend.takes_new(given[0].spec, given[4].spec, given[3].spec, False)
    assert not takes or fn.program(*given).launches == 1
    pointer = given[4].torch().data_ptr()
    for n in range(6):
        for args in (wanted, given):
            args[3].torch()[:, 1] += 1
            args[0].torch().mul_(-1.5)
        np.testing.assert_array_equal(fn(*given).numpy(), step(*wanted).numpy(), err_msg=str(n))
        np.testing.assert_array_equal(given[4].numpy(), wanted[4].numpy(), err_msg=str(n))
    assert given[4].torch().data_ptr() == pointer
