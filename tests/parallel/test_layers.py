"""A model over several ranks, here threads, has the bits of one process: every family, format and number of ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import families
import tritium as tt
from families import CONFIGS
from ranks import run_ranks
from tritium.buffer import native
from tritium.models.load import Model
from tritium.parallel import Group, calls

IDS = np.random.default_rng(5).integers(0, 80, 24).tolist()


def logits(model: Model) -> list[np.ndarray]:
    session = model.session(slots=2)
    return [session.extend(0, IDS), session.extend(1, IDS[:7]), session.step([0, 1], [3, 5]), session.score(0, IDS[:3])]


def assert_logits(ours: np.ndarray, theirs: np.ndarray) -> None:
    """The same bits; in the pure build, where NumPy multiplies floats, the last ones depend on the number of rows."""
    if native is None:
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())
    else:
        np.testing.assert_array_equal(ours, theirs)


def assert_same(path: Path, ranks: int) -> None:
    alone = logits(tt.load(path, kv="f32"))
    for rank in run_ranks(ranks, lambda group: logits(tt.load(path, kv="f32", parallel=group))):
        for ours, theirs in zip(rank, alone, strict=True):
            assert_logits(ours, theirs)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_family_has_the_same_logits_on_any_number_of_ranks(name: str, ranks: int, tmp_path: Path) -> None:
    assert_same(families.write_folder(tmp_path / "m", families.random(CONFIGS[name], 3)), ranks)


@pytest.mark.parametrize("name", ["bitnet", "qwen3", "maple"])
def test_groups_of_columns_keep_their_bits(name: str, tmp_path: Path) -> None:
    assert_same(families.write_gguf(tmp_path / "m.gguf", families.random(CONFIGS[name], 3, group=32)), 2)


def test_groups_that_only_some_rows_need_are_those_of_all_ranks(tmp_path: Path) -> None:
    """One row of one matrix has scales of its own: its rank needs groups, and so do the sums of all others."""
    w = families.random(CONFIGS["llama"], 3, group=32)
    rng = np.random.default_rng(1)
    for name, (t, scale) in w.ternary.items():
        scales = np.broadcast_to(scale[:1, :1], scale.shape).copy()
        scales[-1] = np.float32(np.float16(scales[-1] * rng.uniform(0.5, 1.5, scales.shape[1])))
        w.ternary[name] = (t, scales)
    assert_same(families.write_gguf(tmp_path / "m.gguf", w), 2)


def test_a_rank_holds_its_part_of_the_weights(tmp_path: Path) -> None:
    path = families.write_folder(tmp_path / "m", families.random(CONFIGS["llama"], 3))
    whole = tt.load(path)

    def sizes(group: Group) -> tuple[int, int]:
        model = tt.load(path, parallel=group)
        return model.nbytes, model.session().nbytes

    for nbytes, cache in run_ranks(2, sizes):
        assert nbytes < 0.6 * whole.nbytes
        assert cache == whole.session().nbytes // 2


def test_generation_is_the_same_and_other_tokens_are_an_error(tmp_path: Path) -> None:
    path = families.write_folder(tmp_path / "m", families.random(CONFIGS["qwen3"], 3))
    alone = tt.load(path).session()
    wanted = [int(alone.extend(0, IDS).argmax())]
    for _ in range(5):
        wanted.append(int(alone.step([0], wanted[-1:])[0].argmax()))

    def greedy(group: Group) -> list[int]:
        session = tt.load(path, parallel=group).session()
        tokens = [int(session.extend(0, IDS).argmax())]
        for _ in range(5):
            tokens.append(session.pick([0], tokens[-1:]).ids[0])
        return tokens

    assert run_ranks(2, greedy) == [wanted, wanted]

    def apart(group: Group) -> None:
        session = tt.load(path, parallel=group).session()
        session.extend(0, [1, 2, 3 + group.rank])

    with pytest.raises(tt.errors.RankError, match=r"Rank 1 was called with something else than rank 0.*seed"):
        run_ranks(2, apart)


def test_rank_0_leads_and_others_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MESSAGE", 64)  # a prompt takes two pieces
    path = families.write_folder(tmp_path / "m", families.random(CONFIGS["qwen3_5"], 3))
    alone = tt.load(path, kv="f32").session(slots=3)
    wanted = [alone.extend(1, IDS * 5), alone.step([1], [5])]

    def body(group: Group) -> list[np.ndarray] | bool:
        model = tt.load(path, kv="f32", parallel=group)
        if group.rank:
            return model.follow()
        first = model.session()
        first.extend(0, IDS)
        del first
        session = model.session(slots=3)
        results = [session.extend(1, IDS * 5), session.step([1], [5])]
        model.lead_again()
        return results

    ours, *others = run_ranks(3, body)
    assert others == [True, True]
    assert_logits(ours[0], wanted[0])
    assert_logits(ours[1], wanted[1])


def test_what_ranks_cannot_do_is_refused(tmp_path: Path) -> None:
    path = families.write_folder(tmp_path / "m", families.random(CONFIGS["llama"], 3))
    packed = tt.load(path).save(tmp_path / "m.tritium")

    def refused(pattern: str, **options: object) -> None:
        with pytest.raises(tt.errors.TritiumError, match=pattern):
            run_ranks(2, lambda group: tt.load(**{"path": path} | options, parallel=group))

    refused("certified=True was given, and of a head over several processes each has a part", certified=True)
    refused("is prepacked: parallel=<rank . of 2> is chosen when it is written", path=packed)
    with pytest.raises(
        tt.errors.ArgumentError, match="each process has a part of this model; load it without parallel="
    ):
        run_ranks(2, lambda group: tt.load(path, parallel=group).save(tmp_path / "x"))
    with pytest.raises(tt.errors.ArgumentError, match="follow: this model is in one process"):
        tt.load(path).follow()
    with pytest.raises(tt.errors.ArgumentError, match="lead: rank 0 leads and all others follow, and this is rank 1"):
        run_ranks(2, lambda group: tt.load(path, parallel=group).lead())
