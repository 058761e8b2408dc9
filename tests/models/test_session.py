"""Sessions: tokens in any chunks, slots in any company give the same bits; nothing changes after an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import models
import tritium as tt
from models import TINY
from tritium.backends import Absent, probes
from tritium.buffer import native
from tritium.errors import ArgumentError, ContextError
from tritium.models.bounds import Bounded
from tritium.models.config import Config
from tritium.models.generation import generate_batch
from tritium.models.load import Model, load
from tritium.models.sampling import Sampler
from tritium.models.session import BUCKETS, START, Picked, Session, chunks, shares_rows

IDS = models.prompt(TINY, TINY.context)
needs_native = pytest.mark.skipif(native is None, reason="without the native library sums have no fixed order")
OTHERS = [name for name in ("torch", "mlx") if find_spec(name) is not None]
OTHERS += ["cuda"] if find_spec("torch") is not None and not isinstance(probes.cuda_units(), Absent) else []


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """A tiny model, its keys and values kept in one dtype or another."""
    path = models.folder(tmp_path_factory.mktemp("session") / "m", models.random(TINY, 4))
    kept: dict[str, Model] = {}
    return lambda kv: kept.setdefault(kv, load(path, kv=kv))


@pytest.fixture(scope="module")
def model(made: Any) -> Model:
    return made("f16")


@pytest.fixture(scope="module")
def alone(model: Model) -> Any:
    """The logits [tokens, vocab] of IDS, one token at a time."""
    session = model.session()
    return np.stack([session.extend(0, [t]) for t in IDS])


# ---- the same bits


@pytest.mark.parametrize("kv", ["f32", "f16", "bf16"])
def test_all_at_once_gives_the_bits_of_one_by_one(kv: str, made: Any) -> None:
    model = made(kv)
    session = model.session()
    rows = [session.extend(0, [t]) for t in IDS]
    for n in (1, 2, 3, 4, 5, 15, 16, 17, 33, len(IDS)):
        np.testing.assert_array_equal(model.session().extend(0, IDS[:n]), rows[n - 1], err_msg=str(n))


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8))
@settings(max_examples=25)
def test_any_chunks_give_the_bits_of_one_by_one(model: Model, alone: Any, sizes: list[int]) -> None:
    session, done = model.session(), 0
    for size in sizes:
        if done + size > len(IDS):
            break
        got = session.extend(0, IDS[done : done + size])
        done += size
        np.testing.assert_array_equal(got, alone[done - 1])
    assert session.tokens(0) == IDS[:done]


@given(st.integers(1, 30), st.data())
@settings(max_examples=25)
def test_what_was_forgotten_leaves_no_trace(model: Model, alone: Any, held: int, data: st.DataObject) -> None:
    keep = data.draw(st.integers(0, held))
    session = model.session()
    session.extend(0, [7] * keep + IDS[keep:held])  # another beginning
    session.truncate(0, 0)
    session.extend(0, IDS[:keep] + [9] * (held - keep + 1))
    session.truncate(0, keep)
    assert session.tokens(0) == IDS[:keep]
    more = data.draw(st.integers(keep + 1, len(IDS)))
    np.testing.assert_array_equal(session.extend(0, IDS[keep:more]), alone[more - 1])


@given(st.lists(st.integers(0, 3), min_size=1, max_size=24))
@settings(max_examples=15)
def test_slots_interleaved_give_the_bits_of_each_alone(model: Model, alone: Any, turns: list[int]) -> None:
    """Every slot holds the same text shifted, so a number read from a neighbour would show."""
    session = model.session(slots=4)
    done = [0] * 4
    for slot in turns:
        np.testing.assert_array_equal(session.extend(slot, [IDS[done[slot]]]), alone[done[slot]])
        done[slot] += 1
    assert [len(session.tokens(s)) for s in range(4)] == done


@pytest.mark.parametrize("slots", [[0], [2, 0], [0, 1, 2], [4, 3, 2, 1, 0], [1, 3]])
def test_a_step_of_several_gives_the_bits_of_each_alone(slots: list[int], model: Model, alone: Any) -> None:
    session = model.session(slots=5)
    for slot in slots:
        session.extend(slot, IDS[: slot + 1])
    for _ in range(3):
        at = [len(session.tokens(s)) for s in slots]
        rows = session.step(slots, [IDS[n] for n in at])
        assert rows.shape == (len(slots), TINY.vocab)
        for row, n in zip(rows, at, strict=True):
            np.testing.assert_array_equal(row, alone[n])


def test_as_many_slots_as_there_can_be(model: Model, alone: Any) -> None:
    session = model.session(slots=64, context=4)
    for n in range(3):
        rows = session.step(list(range(64)), [IDS[n]] * 64)
        np.testing.assert_array_equal(rows, np.broadcast_to(alone[n], rows.shape))


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, list[int], Any]:
    """A model with heads of the usual size and a context beyond the largest program; its tokens, one at a time."""
    shape = models.Shape(width=256, heads=2, kv_heads=1, inner=256, layers=1, context=600)
    model = load(models.folder(tmp_path_factory.mktemp("long") / "m", models.random(shape, 1)))
    ids = models.prompt(shape, 330)
    session = model.session()
    return model, ids, np.stack([session.step([0], [t])[0] for t in ids])


@pytest.mark.parametrize("sizes", [[330], [257, 73], [100, 100, 130], [1, 64, 65, 200], [31, 32, 33, 234], [328, 1, 1]])
def test_long_prompts_give_the_bits_of_one_by_one(sizes: list[int], long: Any) -> None:
    model, ids, rows = long
    session, done = model.session(slots=2, context=340), 0
    for size in sizes:
        got = session.extend(1, ids[done : done + size])
        done += size
        np.testing.assert_array_equal(got, rows[done - 1])


def test_long_scores_are_those_of_the_logits(long: Any) -> None:
    model, ids, rows = long
    session = model.session()
    session.extend(0, ids[:1])
    want = log_softmax(rows[:-1])[np.arange(len(ids) - 1), ids[1:]]
    np.testing.assert_allclose(session.score(0, ids[1:]), want, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_number_of_threads_changes_no_bit(threads: int, long: Any) -> None:
    model, ids, rows = long
    before = tt.get_num_threads()
    try:
        tt.set_num_threads(threads)
        session = model.session(slots=3)
        for slot in range(3):
            np.testing.assert_array_equal(session.extend(slot, ids[: 200 + slot]), rows[199 + slot])
        found = session.step([2, 0, 1], [ids[202], ids[200], ids[201]])
        np.testing.assert_array_equal(found, rows[[202, 200, 201]])
    finally:
        tt.set_num_threads(before)


def test_programs_give_the_bits_of_the_parts_called_one_after_the_other(made: Any) -> None:
    model = made("f32")
    w = models.random(TINY, 4)
    seen = models.Inputs()
    models.decode(w, IDS[:20], seen)
    eager = models.led(model, IDS[:20], models.Lead(list(seen.all), follow=False))
    np.testing.assert_array_equal(model.session().extend(0, IDS[:20]), eager[-1])


def test_sessions_of_one_model_do_not_share_their_tokens(model: Model, alone: Any) -> None:
    one, two = model.session(), model.session(context=20)
    one.extend(0, IDS[:10])
    two.extend(0, [3, 3, 3])
    np.testing.assert_array_equal(one.extend(0, [IDS[10]]), alone[10])
    assert two.tokens(0) == [3, 3, 3]


def test_logits_given_out_stay_as_they_are(model: Model, alone: Any) -> None:
    session = model.session()
    first = session.extend(0, IDS[:3])
    second = session.step([0], [IDS[3]])
    session.step([0], [IDS[4]])
    np.testing.assert_array_equal(first, alone[2])
    np.testing.assert_array_equal(second[0], alone[3])


# ---- the largest alone


def table(rows: Any, device: str = "cpu") -> Session:
    """A session of a network without layers: the logits after token i are rows[i]."""
    numbers = tt.asarray(np.asarray(rows, np.float32), device=device)
    network: Any = SimpleNamespace(
        divided=None,
        adapters=None,
        certified=None,
        embedding=lambda ids: tt.take(numbers, ids.reshape(-1), axis=0).reshape(*ids.shape, -1),
        ropes=(tt.nn.RoPE(8).to(device),), blocks=(), head=lambda x: x, device=tt.device(device),
    )  # fmt: skip
    c = Config(
        "llama",
        vocab_size=numbers.shape[1],
        hidden_size=8,
        intermediate_size=8,
        layers=1,
        heads=1,
        kv_heads=1,
        head_dim=8,
        context=64,
    )
    return Session(network, c, slots=12)


LOGITS = st.one_of(st.floats(-9, 9, width=32), st.sampled_from([0.0, -0.0, 1.0, 9.0, -np.inf, -np.inf, np.inf, np.nan]))


def same(found: Picked, rows: Any) -> None:
    best = rows.argmax(axis=-1)
    assert found.ids == best.tolist()
    assert all(type(i) is int for i in found.ids)
    np.testing.assert_array_equal(found.logits, rows[np.arange(len(best)), best])


@pytest.mark.parametrize("device", ["cpu", *OTHERS])
@pytest.mark.parametrize("there", [True, False], ids=["there", "here"])
@given(st.data())
@settings(max_examples=15)
def test_what_is_picked_is_the_argmax_of_what_a_step_gives(device: str, there: bool, data: st.DataObject) -> None:
    """Equals, infinities and NaN, in batches that fill their program and in padded ones."""
    size = data.draw(st.integers(1, 40))
    rows = data.draw(hnp.arrays(np.float32, (size, size), elements=LOGITS))
    one, two = table(rows, device), table(rows, device)
    one._picks_there = there
    for _ in range(2):
        slots = data.draw(st.lists(st.integers(0, 11), min_size=1, max_size=12, unique=True))
        ids = data.draw(st.lists(st.integers(0, size - 1), min_size=len(slots), max_size=len(slots)))
        logits = two.step(slots, ids)
        np.testing.assert_array_equal(logits, rows[ids])
        same(one.pick(slots, ids), logits)
    assert [one.tokens(s) for s in range(12)] == [two.tokens(s) for s in range(12)]


@pytest.mark.parametrize("device", ["cpu", *OTHERS])
@pytest.mark.parametrize(
    "row", [[-np.inf] * 5, [np.nan, np.inf, 1], [3, np.inf, np.nan, np.nan], [1, np.inf, np.inf], [2] * 4]
)
def test_what_no_number_tells_is_picked_too(device: str, row: list[float]) -> None:
    rows = np.array([row] * len(row), np.float32)
    session = table(rows, device)
    session._picks_there = True
    same(session.pick([3], [0]), rows[:1])


@pytest.mark.parametrize("device", ["cpu", *OTHERS])
def test_greedy_tokens_are_the_same_by_either_way(device: str, model: Model) -> None:
    far = model.to(device)
    prompts = [IDS[: 3 + i] for i in range(3)]
    want = [models.greedy(far, p, 12)[0] for p in prompts]
    for there in (True, False):
        session = far.session(slots=3)
        session._picks_there = there
        found = [[int(session.extend(i, p).argmax())] for i, p in enumerate(prompts)]
        for _ in range(11):
            ids = session.pick([0, 1, 2], [tokens[-1] for tokens in found]).ids
            for tokens, token in zip(found, ids, strict=True):
                tokens.append(token)
        assert found == want


@pytest.mark.parametrize("device", OTHERS)
def test_two_numbers_a_sequence_are_brought_back_in_one_tensor(
    device: str, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, brought = model.to(device).session(slots=3), []
    backend: Any = session.device.backend
    bring = backend.bring

    def noted(x: tt.Tensor) -> Any:
        brought.append((x.shape, x.dtype))
        return bring(x)

    monkeypatch.setattr(backend, "bring", noted)
    session.pick([0, 1, 2], [1] * 3)
    assert brought == [((4, 2), tt.f32)]  # a program of four


@pytest.mark.parametrize("device", OTHERS)
def test_what_a_step_leaves_for_the_next_is_neither_joined_nor_written_in_parts(device: str, model: Model) -> None:
    """Each of these would be launches of its own at the end of every step."""
    session = model.to(device).session(slots=3)
    session.pick([0, 1, 2], [1] * 3)
    graph = next(iter(session._programs.pick._entries.values())).program.graph
    assert not {"update", "concat", "copy"} & {n.op.name for n in graph.order()}
    assert [i for i, _ in graph.writes][:2] == [0, 1]


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a session's device one that works by itself, and tells which steps its programs were begun with."""

    def made(session: Session) -> list[Any]:
        begun: list[Any] = []
        session._picks_there, begin = True, session._begin

        def noted(ids: Any, places: Any) -> Any:
            begun.append(ids.numpy().ravel().tolist())
            return begin(ids, places)

        monkeypatch.setattr(type(session.device.backend), "runs_ahead", True)
        monkeypatch.setattr(session, "_begin", noted)
        return begun

    return made


@pytest.mark.parametrize("device", ["cpu", *OTHERS])
def test_the_next_step_is_under_way_when_it_is_asked_for(device: str, model: Model, ahead: Any) -> None:
    far = model.to(device)
    want, _ = models.greedy(far, IDS[:4], 9)
    session = far.session()
    token = int(session.extend(0, IDS[:4]).argmax())
    begun, found = ahead(session), [token]
    for left in reversed(range(8)):
        found += session.pick([0], [found[-1]], ahead=left > 0).ids
        assert len(begun) == len(found) - (left == 0)
    assert found == want
    assert [ids[0] for ids in begun] == want[:-1]  # each once
    assert session.tokens(0) == [*IDS[:4], *want[:-1]]


@pytest.mark.parametrize("device", ["cpu", *OTHERS])
@pytest.mark.parametrize("instead", ["other tokens", "another slot", "truncate", "extend", "step", "score"])
def test_a_step_that_was_begun_in_vain_changes_nothing(device: str, instead: str, model: Model, ahead: Any) -> None:
    far = model.to(device)
    one, two = far.session(slots=2), far.session(slots=2)
    begun = ahead(one)
    for session in (one, two):
        session.extend(0, IDS[:5])
        session.extend(1, IDS[:3])
        session.pick([0, 1], [1, 2], ahead=session is one)
        if instead == "truncate":
            session.truncate(0, 3)
            session.extend(0, IDS[3:6])
        elif instead == "extend":
            session.extend(1, IDS[3:5])
        elif instead == "step":
            session.step([0, 1], [2, 1])
        elif instead == "score":
            session.score(0, [1, 2])
    assert len(begun) == 2
    slots, ids = ([1], [2]) if instead == "another slot" else ([0, 1], [5, 6])
    assert one.pick(slots, ids) == two.pick(slots, ids)
    assert [one.tokens(s) for s in (0, 1)] == [two.tokens(s) for s in (0, 1)]
    np.testing.assert_array_equal(one.extend(0, IDS[:2]), two.extend(0, IDS[:2]))


def test_a_gpu_of_cuda_runs_ahead() -> None:
    pytest.importorskip("torch", reason="CUDA needs PyTorch: pip install torch triton")
    from tritium.backends.cuda.device import Cuda

    assert Cuda.runs_ahead


@pytest.mark.parametrize("device", ["cpu", *OTHERS])
def test_what_a_step_begun_in_vain_wrote_is_read_by_nobody(device: str, model: Model, ahead: Any) -> None:
    """It stands behind what counts, and is written over; the slots then hold other texts than it was begun for."""
    far = model.to(device)
    session = far.session(slots=2)
    for slot in (0, 1):
        session.extend(slot, IDS[: 4 + slot])
    begun = ahead(session)
    session.pick([0, 1], [1, 2], ahead=True)
    assert len(begun) == 2
    for slot, ids in ((1, IDS[6:12]), (0, IDS[2:9])):
        session.truncate(slot, 0)
        np.testing.assert_array_equal(session.extend(slot, ids), far.session().extend(0, ids))
    assert session._ahead is None


@pytest.mark.parametrize("device", ["cpu", *OTHERS])
def test_every_step_begun_has_tokens_and_places_that_exist(device: str, model: Model, ahead: Any) -> None:
    """So that no check of it can find anything, wanted or not: up to the last place of the context, and in padding."""
    session = model.to(device).session(slots=3, context=8)
    for slot in range(3):
        session.extend(slot, IDS[: 2 + slot])
    seen: list[Any] = []
    ahead(session)
    begin = session._begin

    def noted(ids: Any, places: Any) -> Any:
        seen.append((ids.numpy().copy(), places.numpy().copy()))
        return begin(ids, places)

    session._begin = noted  # type: ignore[method-assign]
    ids = [1, 2, 3]
    for _ in range(4):
        ids = session.pick([0, 1, 2], ids, ahead=True).ids
    assert len(seen) == 4  # none beyond
    for ids_, places in seen:
        assert ((ids_ >= 0) & (ids_ < TINY.vocab)).all()
        assert (places[:, 1] + places[:, 2] <= session.capacity).all()
        assert places[3].tolist() == [0, 0, 0]


@pytest.mark.parametrize("device", ["cpu", *OTHERS])
@pytest.mark.parametrize("at", ["this step", "the next"])
def test_a_step_that_fails_leaves_slots_as_before_and_nothing_under_way(
    device: str, at: str, model: Model, ahead: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = model.to(device)
    session = far.session()
    session.extend(0, IDS[:4])
    begun = ahead(session)
    bring, calls = session.device.backend.bring, []

    def failing(found: Any) -> Any:
        calls.append(found)
        if at == "the next" and len(calls) == 2:
            raise ContextError("there is no room")
        if at == "this step" and len(calls) == 1:

            def there() -> Any:
                raise ContextError("it was doubtful")

            return there
        return bring(found)

    with monkeypatch.context() as patch:
        patch.setattr(session.device.backend, "bring", failing, raising=False)
        with pytest.raises(ContextError):
            session.pick([0], [1], ahead=True)
    assert len(begun) == 2
    assert session.tokens(0) == IDS[:4]
    assert session._ahead is None
    want = far.session()
    want.extend(0, IDS[:4])
    assert session.pick([0], [1]) == want.pick([0], [1])


def test_a_whole_text_is_the_same_with_steps_begun_ahead(model: Model, ahead: Any) -> None:
    """Also where texts end one after another, others take their slots, and one ends with a stop token."""
    from tritium.models.generation import generate_batch

    prompts = [IDS[: 3 + i] for i in range(5)]

    def texts(session: Session, *eos: int) -> list[list[int]]:
        known: Any = SimpleNamespace(eos=frozenset(eos), bytes_of=lambda token: b"x", decode=lambda ids: "")
        return [g.tokens for g in generate_batch(session, known, prompts, max_tokens=7)]

    stop = texts(model.session(slots=2))[1][2]
    session = model.session(slots=2)
    begun = ahead(session)
    found = texts(session, stop)
    assert found == texts(model.session(slots=2), stop)
    assert len({len(tokens) for tokens in found}) > 1
    assert begun


def test_no_step_is_begun_beyond_the_context(model: Model, ahead: Any) -> None:
    session = model.session(context=6)
    session.extend(0, IDS[:4])
    begun = ahead(session)
    ids = session.pick([0], [1], ahead=True).ids
    session.pick([0], ids, ahead=True)
    assert len(begun) == 2
    with pytest.raises(ContextError, match="6 tokens and 1 more"):
        session.pick([0], [1], ahead=True)


@pytest.mark.parametrize("device", OTHERS)
def test_ids_that_are_not_exact_in_the_numbers_brought_back_are_found_here(
    device: str, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tritium.models.session.EXACT", TINY.vocab - 1)
    far = model.to(device)
    session = far.session()
    assert session.pick([0], IDS[:1]).ids == far.session().step([0], IDS[:1]).argmax(axis=-1).tolist()
    assert not far._programs.pick.cache_info().programs


def test_the_cpu_finds_the_largest_of_the_logits_it_has(model: Model, alone: Any) -> None:
    session, before = model.session(), model._programs.pick.cache_info()
    same(session.pick([0], IDS[:1]), alone[:1])
    assert model._programs.pick.cache_info() == before


# ---- a certified head


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Model]:
    """A model whose head is read through an int8 copy, and as a whole."""
    shape = models.Shape(width=64, vocab=3000, context=400)
    path = models.folder(tmp_path_factory.mktemp("certified") / "m", models.random(shape, 3))
    return load(path, head="f16", certified=True), load(path, head="f16")


@needs_native
@pytest.mark.parametrize("count", [1, 3, 11])
def test_a_certified_head_picks_the_tokens_and_logits_of_the_whole(count: int, pair: tuple[Model, Model]) -> None:
    one, two = (m.session(slots=12) for m in pair)
    assert pair[1].network.certified is None
    slots = list(range(12))[::-1][:count]
    ids = [5 * i for i in range(count)]
    for _ in range(6):
        logits = two.step(slots, ids)
        picked = one.pick(slots, ids)
        same(picked, logits)
        ids = picked.ids
    assert [one.tokens(s) for s in range(12)] == [two.tokens(s) for s in range(12)]
    statistics = pair[0].head_statistics
    assert statistics is not None
    assert statistics.decided > statistics.whole


@needs_native
def test_a_device_that_decides_by_itself_says_how_many_rows_it_read(pair: tuple[Model, Model]) -> None:
    """As on a GPU: the program picks, and with each token comes the number of rows."""
    one, two = (m.session(slots=4) for m in pair)
    one._picks_there = True
    head = pair[0].network.certified
    assert head is not None
    before, ids = replace(head.statistics), [3, 8, 11]
    for _ in range(3):
        logits = two.step([2, 0, 3], ids)
        picked = one.pick([2, 0, 3], ids)
        assert picked.ids == logits.argmax(axis=-1).tolist()
        np.testing.assert_allclose(picked.logits, logits.max(axis=-1), rtol=1e-4)
        ids = picked.ids
    assert head.statistics.tokens == before.tokens + 9
    assert head.statistics.rows >= before.rows + 9 - head.statistics.whole + before.whole


@needs_native
def test_logits_within_bounds_are_those_of_a_step(pair: tuple[Model, Model]) -> None:
    one, two = (m.session(slots=3) for m in pair)
    for row, want in zip(one.bounded([2, 0], [7, 8]), two.step([2, 0], [7, 8]), strict=True):
        assert isinstance(row, Bounded)
        np.testing.assert_array_equal(row.whole(), want)
        np.testing.assert_array_equal(row.read(np.array([0, 7, 2999])), want[[0, 7, 2999]])
        assert (row.lower <= want).all()
        assert (want <= row.upper).all()


@needs_native
@pytest.mark.parametrize("count", [1, 7, 300])
def test_logits_within_bounds_after_a_prompt_are_those_of_the_whole_head(count: int, pair: tuple[Model, Model]) -> None:
    one, two = (m.session(slots=2, context=310) for m in pair)
    prompt = [7 * i % 3000 for i in range(count)]
    row, want = one.extend_bounded(1, prompt), two.extend(1, prompt)
    assert isinstance(row, Bounded)
    np.testing.assert_array_equal(row.whole(), want)
    assert row.largest() == (int(want.argmax()), float(want.max()))
    assert one.tokens(1) == prompt
    np.testing.assert_array_equal(one.step([1], [9]), two.step([1], [9]))


@needs_native
def test_tokens_can_be_appended_without_their_logits(pair: tuple[Model, Model]) -> None:
    one, two = (m.session(slots=2, context=310) for m in pair)
    head = pair[0].network.certified
    assert head is not None
    before = replace(head.statistics)
    prompt = [7 * i % 3000 for i in range(300)]
    one.append(1, prompt)
    assert head.statistics == before
    two.extend(1, prompt)
    assert one.tokens(1) == prompt
    np.testing.assert_array_equal(one.step([1], [9]), two.step([1], [9]))


@needs_native
@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.8}, {"temperature": 1.1, "top_k": 20, "top_p": 0.9}, {"temperature": 2, "min_p": 0.2},
                {"temperature": 0.9, "repetition_penalty": 1.3, "frequency_penalty": 0.4, "logit_bias": {3: 2.0, 9: -np.inf}}],
    ids=str,
)  # fmt: skip
def test_texts_of_a_certified_head_are_those_of_the_whole(options: dict[str, Any], pair: tuple[Model, Model]) -> None:
    prompts = [IDS[:4], IDS[2:9], [1]]
    known: Any = SimpleNamespace(eos=frozenset(), bytes_of=lambda token: b"x", decode=lambda ids: "", encode=list)
    texts = []
    for model in pair:
        sampler = Sampler(seed=4, **options)
        made = generate_batch(model.session(slots=2), known, prompts, sampler=sampler, max_tokens=12)
        texts.append([g.tokens for g in made])
    assert texts[0] == texts[1]


def test_why_a_head_is_read_as_a_whole(model: Model) -> None:
    assert ("would save 0 MB a token" if native else "sums have no fixed order") in model.explain()
    assert "turned off" in load(certified=False).explain()
    assert model.head_statistics is None


@needs_native
def test_a_head_that_cannot_be_certified_is_refused(pair: tuple[Model, Model]) -> None:
    assert "certified, read through an int8 copy" in pair[0].explain()
    with pytest.raises(ArgumentError, match="certified=True cannot be: its weights are int8 already"):
        load(certified=True, head="int8")


# ---- scores


def log_softmax(rows: Any) -> Any:
    rows = np.asarray(rows, np.float64)
    return rows - np.logaddexp.reduce(rows, axis=-1)[..., None]


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 40])
def test_a_score_is_the_log_softmax_of_the_logits(count: int, model: Model, alone: Any) -> None:
    session = model.session()
    session.extend(0, IDS[:2])
    found = session.score(0, IDS[2 : 2 + count])
    want = log_softmax(alone[1 : 1 + count])[np.arange(count), IDS[2 : 2 + count]]
    np.testing.assert_allclose(found, want, rtol=2e-6, atol=2e-6)
    assert session.tokens(0) == IDS[: 2 + count]


def test_scores_go_on_where_others_ended(model: Model) -> None:
    one, two = model.session(), model.session()
    one.extend(0, IDS[:1])
    two.extend(0, IDS[:1])
    want = one.score(0, IDS[1:40])
    found = np.concatenate([two.score(0, IDS[1:6]), two.score(0, IDS[6:7]), two.score(0, IDS[7:40])])
    np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(one.extend(0, IDS[40:41]), two.extend(0, IDS[40:41]))


def test_a_first_token_has_no_score(model: Model) -> None:
    session = model.session()
    with pytest.raises(ArgumentError, match="a first token has no probability; extend it by one first"):
        session.score(0, IDS[:3])
    assert session.tokens(0) == []


# ---- limits and errors


def test_the_last_token_that_fits_is_taken_and_no_more(model: Model, alone: Any) -> None:
    session = model.session()
    assert session.capacity == TINY.context
    session.extend(0, IDS[:-1])
    np.testing.assert_array_equal(session.step([0], [IDS[-1]])[0], alone[-1])
    with pytest.raises(
        ContextError, match=r"48 tokens and 1 more do not fit the context of 48.*take a model made for more"
    ):
        session.step([0], [1])
    assert session.tokens(0) == IDS


def test_a_smaller_context_says_that_more_can_be_asked_for(model: Model) -> None:
    session = model.session(context=8)
    with pytest.raises(ContextError, match=r"0 tokens and 9 more do not fit the context of 8.*up to 48"):
        session.extend(0, IDS[:9])
    session.extend(0, IDS[:8])
    with pytest.raises(ContextError):
        session.score(0, [1])
    with pytest.raises(ContextError):
        session.extend(0, [1])


def test_a_context_beyond_the_model_is_refused(model: Model) -> None:
    with pytest.raises(ContextError, match="A context of 49 tokens was asked; this model was made for 48"):
        model.session(context=49)


@pytest.mark.parametrize("slots", [0, -1, 65, 1.5, "2", None])
def test_slots_must_be_a_number_of_them(slots: Any, model: Model) -> None:
    with pytest.raises(ArgumentError, match="slots must be 1 to 64"):
        model.session(slots=slots)


@pytest.mark.parametrize("context", [0, -5, 2.5, "8"])
def test_a_context_must_be_a_number_of_tokens(context: Any, model: Model) -> None:
    with pytest.raises(ArgumentError, match="context must be a number of tokens"):
        model.session(context=context)


BAD: dict[str, Callable[[Session], Any]] = {
    "no token": lambda s: s.extend(0, []),
    "a token below 0": lambda s: s.extend(0, [3, -1]),
    "a token beyond the vocabulary": lambda s: s.extend(0, [3, TINY.vocab]),
    "a token that is text": lambda s: s.extend(0, ["a"]),  # type: ignore[list-item]
    "a token with a fraction": lambda s: s.extend(0, [1.5]),  # type: ignore[list-item]
    "a slot beyond the last": lambda s: s.extend(2, [1]),
    "a slot below 0": lambda s: s.extend(-1, [1]),
    "a slot that is text": lambda s: s.tokens("0"),  # type: ignore[arg-type]
    "a step without slots": lambda s: s.step([], []),
    "a step with too few tokens": lambda s: s.step([0, 1], [1]),
    "a pick without slots": lambda s: s.pick([], []),
    "a pick with a slot twice": lambda s: s.pick([0, 0], [1, 1]),
    "a pick whose last token is bad": lambda s: s.pick([0, 1], [1, TINY.vocab]),
    "a step with a slot twice": lambda s: s.step([0, 0], [1, 1]),
    "a step whose last token is bad": lambda s: s.step([0, 1], [1, TINY.vocab]),
    "a step whose last slot is bad": lambda s: s.step([0, 5], [1, 1]),
    "a score of a bad token": lambda s: s.score(0, [1, 2, -4]),
    "a score of nothing": lambda s: s.score(0, []),
    "forgetting more than there is": lambda s: s.truncate(0, 6),
    "forgetting below 0": lambda s: s.truncate(0, -1),
    "forgetting half a token": lambda s: s.truncate(0, 1.5),  # type: ignore[arg-type]
    "a full slot": lambda s: s.extend(0, [1] * TINY.context),
    "a step of which one slot is full": lambda s: s.step([0, 1], [1, 1]),
}


@pytest.mark.parametrize("what", BAD)
def test_nothing_changes_after_an_error(what: str, model: Model, alone: Any) -> None:
    session = model.session(slots=2)
    session.extend(0, IDS[:5])
    full = IDS if what == "a step of which one slot is full" else IDS[:3]
    session.extend(1, full)
    with pytest.raises((ArgumentError, ContextError)):
        BAD[what](session)
    assert (session.tokens(0), session.tokens(1)) == (IDS[:5], full)
    np.testing.assert_array_equal(session.extend(0, [IDS[5]]), alone[5])


def test_a_program_that_fails_leaves_the_slot_as_it_was(
    model: Model, alone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of several chunks fails: the first was written to the cache, but the slot does not count it."""
    session = model.session()
    session.extend(0, IDS[:5])
    run, calls = session._results, []

    def failing(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise MemoryError("no memory left")
        return run(*given)

    monkeypatch.setattr("tritium.models.session.chunks", lambda n: (4,) * (-(-n // 4)))
    monkeypatch.setattr(session, "_results", failing)
    with pytest.raises(MemoryError):
        session.extend(0, [2] * 12)
    monkeypatch.undo()
    assert session.tokens(0) == IDS[:5]
    np.testing.assert_array_equal(session.extend(0, IDS[5:9]), alone[8])


def test_tokens_are_given_out_as_a_copy(model: Model) -> None:
    session = model.session()
    session.extend(0, np.asarray(IDS[:3], np.int64))  # type: ignore[arg-type]
    session.step([0], np.asarray([IDS[3]]))  # type: ignore[arg-type]
    session.tokens(0).append(5)
    assert session.tokens(0) == IDS[:4]
    assert all(type(t) is int for t in session.tokens(0))


def test_the_cache_has_the_bytes_it_says(made: Any) -> None:
    for kv, size in (("f32", 4), ("f16", 2), ("bf16", 2)):
        session = made(kv).session(slots=3, context=20)
        assert session.nbytes == made(kv).config.cache_bytes * size * 3 * 20


# ---- sizes of the programs


@given(st.integers(1, 5000))
def test_chunks_take_all_tokens_and_only_the_last_is_padded(count: int) -> None:
    sizes = chunks(count)
    assert set(sizes) <= set(BUCKETS)
    assert sum(sizes) >= count > sum(sizes[:-1])


@given(st.integers(1, BUCKETS[-1]))
def test_chunks_cost_no_more_than_one_padded_call(count: int) -> None:
    above = next(b for b in BUCKETS if b >= count)
    assert sum(chunks(count)) + START * len(chunks(count)) <= above + START


# ---- anything, in any order


class Anything(RuleBasedStateMachine):
    """A session of two slots beside lists of what should stand in them; every answer is checked against a fresh session."""

    model: Model
    answers: ClassVar[dict[tuple[int, ...], Any]] = {}  # of a fresh session

    @initialize()
    def start(self) -> None:
        self.session = self.model.session(slots=2)
        self.held: list[list[int]] = [[], []]

    def want(self, ids: list[int]) -> Any:
        key = tuple(ids)
        if key not in self.answers:
            self.answers[key] = self.model.session().extend(0, ids)
        return self.answers[key]

    @rule(slot=st.integers(0, 1), ids=st.lists(st.integers(0, 2), min_size=1, max_size=7))
    def extend(self, slot: int, ids: list[int]) -> None:
        if len(self.held[slot]) + len(ids) > TINY.context:
            with pytest.raises(ContextError):
                self.session.extend(slot, ids)
            return
        self.held[slot] += ids
        np.testing.assert_array_equal(self.session.extend(slot, ids), self.want(self.held[slot]))

    @precondition(lambda self: max(map(len, self.held)) < TINY.context)
    @rule(ids=st.lists(st.integers(0, 2), min_size=2, max_size=2), order=st.permutations([0, 1]))
    def step(self, ids: list[int], order: list[int]) -> None:
        rows = self.session.step(order, [ids[s] for s in order])
        for row, slot in zip(rows, order, strict=True):
            self.held[slot].append(ids[slot])
            np.testing.assert_array_equal(row, self.want(self.held[slot]))

    @precondition(lambda self: max(map(len, self.held)) < TINY.context)
    @rule(ids=st.lists(st.integers(0, 2), min_size=2, max_size=2), there=st.booleans())
    def pick(self, ids: list[int], there: bool) -> None:
        self.session._picks_there = there
        found = self.session.pick([0, 1], ids)
        for slot in range(2):
            self.held[slot].append(ids[slot])
        same(found, np.stack([self.want(held) for held in self.held]))

    @precondition(lambda self: max(map(len, self.held)) < TINY.context - 4)
    @rule(ids=st.lists(st.integers(0, 2), min_size=2, max_size=2), times=st.integers(1, 4), more=st.booleans())
    def go_on(self, ids: list[int], times: int, more: bool) -> None:
        self.session._picks_there = True
        for left in reversed(range(times)):
            found = self.session.pick([0, 1], ids, ahead=left > 0 or more)
            for slot in range(2):
                self.held[slot].append(ids[slot])
            same(found, np.stack([self.want(held) for held in self.held]))
            ids = found.ids

    @rule(slot=st.integers(0, 1), part=st.floats(0, 1))
    def truncate(self, slot: int, part: float) -> None:
        count = int(part * len(self.held[slot]))
        self.session.truncate(slot, count)
        del self.held[slot][count:]

    @precondition(lambda self: 0 < len(self.held[0]) < TINY.context - 3)
    @rule(ids=st.lists(st.integers(0, 2), min_size=1, max_size=3))
    def score(self, ids: list[int]) -> None:
        before = self.want(self.held[0])
        found = self.session.score(0, ids)
        assert abs(found[0] - log_softmax(before)[ids[0]]) < 1e-5
        self.held[0] += ids

    @invariant()
    def holds_what_it_should(self) -> None:
        if hasattr(self, "session"):
            assert [self.session.tokens(s) for s in range(2)] == self.held


def test_anything_in_any_order_gives_the_bits_of_a_fresh_session(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    monkeypatch.setattr(type(model.device.backend), "runs_ahead", True)
    Anything.model = model
    run_state_machine_as_test(Anything, settings=settings(max_examples=12, stateful_step_count=12, deadline=None))
    assert Anything.answers


def test_two_models_of_one_shape_do_not_share_programs(tmp_path: Path, model: Model, alone: Any) -> None:
    """Programs of one model are not taken for those of another of the same shape."""
    other = load(models.folder(tmp_path / "m", models.random(TINY, 5)))
    assert not np.array_equal(other.session().extend(0, IDS[:6]), alone[5])
    np.testing.assert_array_equal(model.session().extend(0, IDS[:6]), alone[5])


# ---- several prompts, and what one slot has of another


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.lists(st.integers(0, 20), min_size=5, max_size=5))
@settings(max_examples=15)
def test_prompts_read_together_give_the_bits_of_each_alone(
    model: Model, alone: Any, counts: list[int], before: list[int]
) -> None:
    session = model.session(slots=5)
    slots = list(range(len(counts)))[::-1]
    for slot, start in zip(slots, before, strict=False):
        if start:
            session.extend(slot, IDS[:start])
    ends = [(start, start + count) for start, count in zip(before, counts, strict=False)]
    rows = session.extend_all(slots, [IDS[start:end] for start, end in ends])
    for slot, (_, end), row in zip(slots, ends, rows, strict=True):
        assert np.array_equal(row, alone[end - 1])
        assert session.tokens(slot) == IDS[:end]


def test_prompts_share_a_program_where_that_is_less_work() -> None:
    assert shares_rows([20] * 8)
    assert not shares_rows([256, 256])
    assert not shares_rows([128])


def test_reading_together_fails_for_all_or_none(model: Model) -> None:
    session = model.session(slots=3)
    session.extend(0, IDS[:3])
    with pytest.raises(ContextError):
        session.extend_all([0, 1], [IDS[:4], [1] * (TINY.context + 1)])
    with pytest.raises(ArgumentError, match="different slots"):
        session.extend_all([0, 0], [[1], [2]])
    assert [session.tokens(i) for i in range(3)] == [IDS[:3], [], []]


@pytest.mark.parametrize("device", ["cpu", *OTHERS])
def test_a_slot_takes_over_the_beginning_of_another(device: str, model: Model, tmp_path: Path) -> None:
    there = model.to(device)
    session, single = there.session(slots=2), there.session()
    session.extend(0, IDS[:20])
    session.extend(1, IDS[30:40])
    session.share(0, 1, 13)
    assert session.tokens(1) == IDS[:13]
    single.extend(0, IDS[:13])
    assert np.array_equal(session.step([1], [5]), single.step([0], [5]))
    single.restore(session.save(tmp_path / "s"))
    assert np.array_equal(session.step([0], [5]), single.step([0], [5]))
    with pytest.raises(ArgumentError, match="share"):
        session.share(0, 1, 99)
