"""A paged KV cache: slots take blocks as they grow, and a session writes the tokens of one whose slots are whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import tritium as tt
from tritium.errors import ArgumentError, OutOfMemoryError
from tritium.models.caching.blocks import BLOCK, Blocks, blocks_for
from tritium.serve.scheduler import Request, Scheduler


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from([0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])), max_size=30
    ),
    st.integers(1, 12),
)
def test_a_block_has_one_slot_at_most(moves: list[tuple[int, int]], count: int) -> None:
    blocks, held = Blocks(4, 3 * BLOCK, count), dict.fromkeys(range(4), 0)
    for slot, end in moves:
        if end < held[slot]:
            blocks.release(slot, end)
            held[slot] = end
        elif blocks.missing({slot: end}) <= blocks.free:
            blocks.hold({slot: end})
            held[slot] = end
        else:
            with pytest.raises(OutOfMemoryError, match=rf"{blocks.free} of {count} are free.*larger pool"):
                blocks.hold({slot: end})
        rows = [blocks.rows(s)[: blocks_for(n)].tolist() for s, n in held.items()]
        owned = [number for row in rows for number in row]
        assert len(set(owned)) == len(owned) == count - blocks.free
        assert all(0 <= number < count for number in owned)


@pytest.fixture
def paging(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that pages its caches and begins steps early, as CUDA does."""
    pytest.importorskip("torch", reason="a device that stands for CUDA needs PyTorch: pip install torch")
    for name in ("pages_caches", "runs_ahead"):
        monkeypatch.setattr(type(tt.device("torch").backend), name, True)


def played(session: Any, path: Path) -> list[Any]:
    """What a session gives in turns that grow, cut, share, save and score sequences across blocks."""
    out: list[Any] = [session.extend(0, list(range(1, BLOCK + 10))).argmax()]
    out += [row.argmax() for row in session.extend_all([1, 2], [[5, 6, 7] * 3, [9, 8]])]
    ids = [1, 2, 3]
    for _ in range(BLOCK + 5):
        ids = session.pick([0, 1, 2], ids, ahead=True).ids
        out += ids
    session.truncate(1, 10)
    out.append(session.extend(1, [4, 5]).argmax())
    session.share(0, 3, 100)
    out += session.score(3, [1, 2, 3]).round(4).tolist()
    session.save(path, 0)
    session.truncate(0, 0)
    out += session.restore(path, 0)
    return [*out, session.step([0, 1], [3, 4]).argmax(-1).tolist()]


def test_a_session_in_blocks_writes_the_tokens_of_one_in_slots(paging: None, tmp_path: Path) -> None:
    whole = tt.load().session(slots=4, context=256)
    paged = tt.load(device="torch").session(slots=4, context=256, pool=8 * BLOCK)
    assert (whole.pool, whole.grain, paged.pool, paged.grain) == (1024, 1, 8 * BLOCK, BLOCK)
    assert paged.nbytes * 2 == whole.nbytes
    assert played(paged, tmp_path / "paged") == played(whole, tmp_path / "whole")
    for slot in range(4):
        paged.truncate(slot, 0)
    assert paged._blocks.free == 8


def test_spare_slots_are_emptied_before_a_session_is_full(paging: None) -> None:
    session = tt.load(device="torch").session(slots=3, context=256, pool=4 * BLOCK)
    session.extend(0, [1] * (2 * BLOCK))
    session.extend(1, [2] * BLOCK)
    with pytest.raises(OutOfMemoryError, match="of blocks of 64 tokens 2 more are needed, and 1 of 4 are free"):
        session.extend(2, [3] * (BLOCK + 1))
    assert [len(session.tokens(slot)) for slot in range(3)] == [2 * BLOCK, BLOCK, 0]
    for slot in (1, 0):
        session.spare(slot)
    session.extend(0, [1])  # in use again
    session.extend(2, [3] * BLOCK)
    assert [len(session.tokens(slot)) for slot in range(3)] == [2 * BLOCK + 1, 0, BLOCK]
    session.truncate(0, BLOCK)
    for slot in (2, 0):
        session.spare(slot)
    session.share(0, 1, BLOCK)  # of a spare slot, while another makes way
    session.extend(1, [4] * (2 * BLOCK))
    assert [len(session.tokens(slot)) for slot in range(3)] == [BLOCK, 3 * BLOCK, 0]
    assert session.tokens(1)[:BLOCK] == session.tokens(0)


def test_a_pool_has_an_error_where_it_is_wrong(paging: None) -> None:
    with pytest.raises(ArgumentError, match=r"pool=100 is for caches in blocks, and cpu has none.*Leave it out"):
        tt.load().session(pool=100)
    with pytest.raises(ArgumentError, match="pool must be a whole number of tokens, at least 1, given 0"):
        tt.load(device="torch").session(pool=0)
    assert tt.load(device="torch").session(slots=2, context=100).pool == 4 * BLOCK
    with pytest.raises(ArgumentError, match="keys and values are integers"):
        tt.load(device="torch", kv="int8").session(pool=128)


def test_a_sequence_has_the_room_of_the_pool(paging: None) -> None:
    session = tt.load(device="torch").session(slots=2, context=256, pool=100)
    assert (session.pool, session.capacity) == (2 * BLOCK, 2 * BLOCK)
    model = tt.load(device="torch")
    with Scheduler(model.session(slots=2, context=256, pool=BLOCK), model.tokenizer) as scheduler:
        asked = Request(tuple(model.tokenizer.encode("And God said")), max_tokens=200)
        events = list(scheduler.submit_all([asked])[0])
    assert events[-1].finish == "context"
    assert len("".join(event.text for event in events)) > BLOCK // 2


def test_requests_wait_for_room_and_end_well(paging: None) -> None:
    """Together they need more than the pool has: none fails, and each has the text that it has alone."""
    model = tt.load(device="torch")
    prompts = [f"And God said {word}" for word in ("one", "two", "three")]
    alone = [model.generate(p, max_tokens=8).text for p in prompts]
    with Scheduler(model.session(slots=3, context=256, pool=2 * BLOCK), model.tokenizer) as scheduler:
        requests = [Request(tuple(model.tokenizer.encode(p)), max_tokens=8) for p in prompts]
        texts = ["".join(event.text for event in ticket) for ticket in scheduler.submit_all(requests)]
    assert texts == alone
