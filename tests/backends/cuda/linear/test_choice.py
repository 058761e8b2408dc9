"""Which kernel a product takes on a GPU: what was tuned there comes first, what was tuned elsewhere not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tritium import backends
from tritium.backends.cuda.capability import HOPPER
from tritium.backends.cuda.linear import choice as cuda_tuned
from tritium.backends.cuda.linear.choice import Case, Choice, choice, choose, parsed, shipped
from tritium.backends.cuda.linear.spread import UNEVEN
from tritium.machine import tuned
from tritium.perf.tune import file as tune_file, racing as tune

GPU = "NVIDIA One/2, torch 9.9, triton 3.3"
ADA = (8, 9)
CASE = Case(300, 256, 8)
MINE = choice("gemm_plain", 32, 16, 32, 1, 8, 4)
SPLIT = choice("gemm_plain", 64, 16, 64, 2, 4, 3)

sizes = st.tuples(st.integers(1, 40_000), st.integers(1, 20_000), st.sampled_from([1, 2, 3, 8, 31, 32, 64, 128, 600]))
capabilities = st.sampled_from([HOPPER, ADA, (7, 5), (0, 0)])


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file of its own, and one GPU."""
    monkeypatch.setenv("TRITIUM_CACHE", str(tmp_path))
    monkeypatch.delenv("TRITIUM_TUNED", raising=False)
    monkeypatch.setattr(tuned, "gpu", lambda capability, processors: GPU)
    backends.retuned()
    yield tmp_path
    monkeypatch.undo()
    backends.retuned()


def keep(case: Case, c: Choice | str, gpu: str = GPU) -> None:
    tune_file.choose({tuned.product_key(case.n, case.k, case.m, gpu): tuned.Choice(str(c), "measured")})


# ---- words


@given(sizes, capabilities)
def test_what_a_choice_says_can_be_read(size: tuple[int, int, int], capability: tuple[int, int]) -> None:
    for c in cuda_tuned.candidates(Case(*size), capability)[::7]:
        assert parsed(str(c)) == c


@pytest.mark.parametrize(
    "text",
    ["", "gemv", "gemv()", "gemv(rows=1)", "gemm(rows=8, words=128, warps=4)", "gemv_plain(words=128, rows=8, warps=4)",
     "gemv_plain(rows=8, words=128, warps=x)", "gemv_plain(rows=8, words=128, warps=4) "],
)  # fmt: skip
def test_other_words_are_no_choice(text: str) -> None:
    assert parsed(text) is None


# ---- candidates


@given(sizes, capabilities, st.sampled_from([9, 20]))
def test_a_short_list_begins_with_what_is_shipped_and_has_some_of_every_kernel(
    size: tuple[int, int, int], capability: tuple[int, int], most: int
) -> None:
    case = Case(*size)
    listed = cuda_tuned.shortlist(case, capability, 132, most)
    every = cuda_tuned.candidates(case, capability)
    assert listed[0] == shipped(case, capability, 132)
    assert len(set(listed)) == len(listed) <= most + 2
    assert {c.kernel for c in listed} >= {c.kernel for c in every}
    assert all(cuda_tuned.fits(case, c) for c in listed)
    assert capability == HOPPER or {c.kernel for c in listed} <= set(cuda_tuned.PLAIN)


@pytest.mark.parametrize("codes", [True, False])
def test_tiles_of_two_powers_of_two_are_tried_from_the_next_smaller_one_on_and_shared(codes: bool) -> None:
    def tried(m: int) -> list[Choice]:
        return [c for c in cuda_tuned.wgmmas(Case(2560, 6912, m, codes)) if c.get("tokens") in UNEVEN]

    assert not tried(32)
    assert {c.get("tokens") for c in tried(33)} == {48}
    assert {c.get("tokens") for c in tried(2048)} >= {80, 96, 144, 160}
    assert {c.get("spread") for c in tried(96)} >= {0, -2, -3}


@given(sizes, st.booleans())
def test_tiles_are_candidates_that_fit_and_leave_room_for_results(size: tuple[int, int, int], codes: bool) -> None:
    case = Case(*size, codes)
    for c in cuda_tuned.wgmmas(case):
        rows, tokens, step, stages = (c.get(name) for name in ("rows", "tokens", "bytes", "stages"))
        nbytes = stages * step * (rows + tokens * (4 if codes else 1))
        assert cuda_tuned.fits(case, c)
        assert stages >= cuda_tuned.FEWEST_STAGES
        assert nbytes + 2 * rows * tokens <= cuda_tuned.ROOM or nbytes <= cuda_tuned.SHARED
        assert not cuda_tuned.is_beside(c) or 2 * (nbytes + 2 * rows * tokens) <= cuda_tuned.ROOM


@pytest.mark.parametrize(
    ("tokens", "fits"), [(128, True), (160, True), (192, True), (168, False), (224, False), (24, False)]
)
def test_a_tile_is_one_or_two_powers_of_two(tokens: int, fits: bool) -> None:
    cut = choice("wgmma", 128, tokens, 64, 0, 3, 168, 240, -2)
    assert cuda_tuned.fits(Case(2560, 2560, 2048), cut) == fits
    assert not cuda_tuned.fits(Case(2560, 2560, 2048, floats=True), cut)


def test_without_tensor_cores_for_int8_every_batch_takes_the_kernel_that_needs_none() -> None:
    for m in (1, 8, 100, 4000):
        case = Case(2560, 2560, m)
        listed = [shipped(case, (7, 5), 40), *cuda_tuned.candidates(case, (7, 5))]
        assert {c.kernel for c in listed} == {"gemv_plain"}
        assert cuda_tuned.fits(case, listed[0])


# ---- what was tuned


def test_what_was_tuned_for_a_case_is_followed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose(CASE, ADA, 128) == shipped(CASE, ADA, 128) != MINE
    keep(CASE, MINE)
    assert choose(CASE, ADA, 128) == MINE
    assert shipped(CASE, ADA, 128) != MINE
    monkeypatch.setenv("TRITIUM_TUNED", "0")
    tuned.forget()
    assert choose(CASE, ADA, 128) == shipped(CASE, ADA, 128)


@pytest.mark.parametrize(
    "other", ["NVIDIA Two, torch 9.9, triton 3.3", GPU.replace("9.9", "9.8"), GPU.replace("3.3", "3.4")]
)
def test_what_was_tuned_on_another_gpu_or_by_another_library_is_not_followed(cache: Path, other: str) -> None:
    keep(CASE, MINE, other)
    assert choose(CASE, ADA, 128) == shipped(CASE, ADA, 128)


def test_the_next_larger_batch_and_the_nearest_shape_are_followed_too(cache: Path) -> None:
    keep(CASE, MINE)
    keep(CASE._replace(n=3000), choice("gemm_plain", 128, 16, 32, 1, 8, 4))
    keep(CASE._replace(m=512), choice("gemm_plain", 128, 64, 32, 1, 8, 4))
    for m, followed in ((1, False), (2, True), (5, True), (9, False), (127, False), (128, True), (5000, True)):
        near = Case(310, 250, m)
        assert (choose(near, ADA, 128) != shipped(near, ADA, 128)) == followed, m
    assert choose(Case(310, 250, 5), ADA, 128) == MINE


def test_what_is_near_on_hopper_is_the_table_with_what_was_tuned(cache: Path) -> None:
    cut = choice("gemm_plain", 32, 16, 64, 1, 4, 2)
    keep(Case(2560, 2560, 8), cut)
    keep(Case(2560, 2560, 64), cut)
    assert choose(Case(2560, 2560, 8), HOPPER, 132) == choose(Case(2560, 2560, 64), HOPPER, 132) == cut
    assert choose(Case(2561, 2560, 7), HOPPER, 132) == cut
    for other in (Case(2560, 2560, 4), Case(2560, 2560, 9), Case(13824, 2560, 8), Case(2560, 2560, 63)):
        assert choose(other, HOPPER, 132) == shipped(other, HOPPER, 132)


def test_weights_of_int8_and_tokens_of_floats_are_as_shipped(cache: Path) -> None:
    keep(CASE, MINE)
    for other in (CASE._replace(codes=False), CASE._replace(floats=True)):
        assert choose(other, ADA, 128) == shipped(other, ADA, 128)


@pytest.mark.parametrize("words", ["gemv(rows=8, lanes=8, across=1, warps=1)", "splendid(rows=1)", "gemm_plain"])
def test_what_cannot_run_there_is_not_followed(cache: Path, words: str) -> None:
    keep(CASE, words)
    assert choose(CASE, ADA, 128) == shipped(CASE, ADA, 128)


def test_what_a_program_gave_comes_before_what_was_tuned(cache: Path) -> None:
    keep(CASE, MINE)
    cuda_tuned.use({CASE: SPLIT})
    try:
        assert choose(CASE, ADA, 128) == SPLIT
    finally:
        cuda_tuned.use({})
    assert choose(CASE, ADA, 128) == MINE


def test_who_remembers_a_choice_asks_again_when_it_changed(cache: Path) -> None:
    remembers = tuned.remembered(lambda: choose(CASE, ADA, 128))
    assert remembers() is remembers() == shipped(CASE, ADA, 128)
    keep(CASE, MINE)
    assert remembers() == MINE
    tune.clear("cuda")
    assert remembers() == shipped(CASE, ADA, 128)


# ---- what is chosen


@given(st.integers(1, 200_000), st.integers(1, 40_000), st.integers(1, 5000), st.booleans(), st.booleans())
def test_what_is_chosen_fits(n: int, k: int, m: int, codes: bool, hopper: bool) -> None:
    case = Case(n, k, m, codes)
    found = cuda_tuned.choose(case, (9, 0) if hopper else (8, 6), 132)
    assert cuda_tuned.fits(case, found)
    assert hopper or found.kernel in cuda_tuned.PLAIN


@given(st.integers(1, 40_000), st.integers(1, 8192), st.integers(1, 8))
def test_a_few_tokens_take_what_a_near_shape_took(n: int, k: int, m: int) -> None:
    found = cuda_tuned.choose(Case(n, k, m), (9, 0), 132)
    measured = [c for batches in cuda_tuned.TABLE.values() for c in batches.values()]
    assert found in measured or found == cuda_tuned._by_rule(Case(n, k, m), 132)


@given(st.integers(64, 40_000), st.integers(64, 40_000), st.integers(17, 9000), st.sampled_from([132, 114, 78]))
def test_many_tokens_take_the_candidate_of_the_least_time(n: int, k: int, m: int, processors: int) -> None:
    case = Case(n, k, m)
    found = cuda_tuned.choose(case, (9, 0), processors)
    times = [cuda_tuned.tile_us(case, c, processors) for c in cuda_tuned.wgmmas(case, processors)]
    assert cuda_tuned.tile_us(case, found, processors) == min(us for us in times if us is not None)


def test_a_choice_says_its_kernel_and_how_it_is_cut() -> None:
    assert str(choice("gemv_plain", 8, 128, 4)) == "gemv_plain(rows=8, words=128, warps=4)"
