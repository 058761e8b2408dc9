"""Batches: order and numbers of items are kept, errors name their batch, and a size comes with its reasons."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tritium as tt
from tritium.batching.batches import BatchSize, available_memory, bytes_per_sample
from tritium.errors import ArgumentError, BatchError

# ---- process_in_batches


def doubled(batch: list[int]) -> list[int]:
    return [2 * x for x in batch]


@given(st.lists(st.integers()), st.integers(1, 7), st.booleans(), st.booleans())
def test_the_results_are_those_of_a_loop(data: list[int], size: int, lazily: bool, stream: bool) -> None:
    given = (x for x in data) if lazily else data
    assert list(tt.process_in_batches(doubled, given, size, stream=stream)) == [2 * x for x in data]


@given(st.integers(0, 20), st.integers(1, 7))
def test_batches_are_full_but_for_the_last(n: int, size: int) -> None:
    seen: list[int] = []
    tt.process_in_batches(lambda b: seen.append(len(b)) or b, range(n), size)
    assert seen == [size] * (n // size) + [n % size] * (n % size > 0)


def test_without_a_size_a_batch_has_32_items() -> None:
    sizes: list[int] = []
    assert tt.process_in_batches(lambda b: sizes.append(len(b)) or b, range(70)) == list(range(70))
    assert sizes == [32, 32, 6]


@pytest.mark.parametrize("n", [0, 1, 6, 7, 13])
def test_a_tensor_is_cut_along_its_first_axis(n: int) -> None:
    x = tt.arange(3 * n, dtype="f32").reshape(n, 3)
    got = tt.process_in_batches(lambda b: tt.relu(b).sum(axis=1), x, 3)
    assert isinstance(got, tt.Tensor)
    assert got.tolist() == tt.relu(x).sum(axis=1).tolist()
    assert got.shape == (n,)


def test_an_array_gives_an_array() -> None:
    x = np.arange(10, dtype=np.int16).reshape(5, 2)
    got = tt.process_in_batches(lambda b: b[:, 0], x, 2)
    assert isinstance(got, np.ndarray)
    assert got.dtype == np.int16
    assert got.tolist() == [0, 2, 4, 6, 8]


def test_tensors_made_of_lists_are_joined() -> None:
    got = tt.process_in_batches(lambda b: tt.tensor(b, dtype="f32"), iter([1, 2, 3]), 2)
    assert isinstance(got, tt.Tensor)
    assert got.tolist() == [1, 2, 3]


def test_a_generator_may_be_returned() -> None:
    assert tt.process_in_batches(lambda b: (x + 1 for x in b), [1, 2, 3], 2) == [2, 3, 4]


@pytest.mark.parametrize("size", [2, 9])
def test_the_result_is_the_callers_own(size: int) -> None:
    x = tt.zeros(3)
    got = tt.process_in_batches(lambda b: b, x, size)
    got += 1
    assert x.tolist() == [0, 0, 0]


def test_no_items_in_a_list_call_nothing() -> None:
    assert tt.process_in_batches(lambda b: 1 / 0, []) == []


def test_a_stream_reads_only_what_it_needs() -> None:
    read: list[int] = []

    def source() -> Iterator[int]:
        i = 0
        while True:
            read.append(i)
            yield i
            i += 1

    results = tt.process_in_batches(doubled, source(), 4, stream=True)
    assert read == []
    assert [next(results) for _ in range(5)] == [0, 2, 4, 6, 8]
    assert len(read) == 8


def test_a_stream_of_a_tensor_gives_rows() -> None:
    rows = list(tt.process_in_batches(lambda b: b * 2.0, tt.ones((3, 2)), 2, stream=True))
    assert [r.tolist() for r in rows] == [[2, 2]] * 3


def failing(batch: list[int]) -> list[int]:
    if 7 in batch:
        raise KeyError("seven")
    return batch


@pytest.mark.parametrize(
    ("size", "says"),
    [
        (4, r"batch 1 \(items 4 to 7\) failed: KeyError: 'seven'"),
        (1, r"batch 7 \(item 7\) failed"),
        (5, r"batch 1 \(items 5 to 8\) failed"),
    ],
)
def test_an_error_names_its_batch_and_keeps_its_cause(size: int, says: str) -> None:
    with pytest.raises(BatchError, match=says) as caught:
        tt.process_in_batches(failing, range(9), size)
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_error_of_the_data_names_the_item() -> None:
    def source() -> Iterator[int]:
        yield from range(6)
        raise OSError("unplugged")

    with pytest.raises(
        BatchError, match="the data failed at item 6, while batch 1 was read: OSError: unplugged"
    ) as caught:
        tt.process_in_batches(doubled, source(), 4)
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize(
    ("fn", "says"),
    [
        (lambda b: b[1:], r"batch 0 \(items 0 to 3\) gave 3 results for 4 items"),
        (lambda b: tt.ones(5), "gave 5 results for 4 items"),
        (lambda b: None, "gave NoneType; return a sequence or tensor of 4 results"),
        (lambda b: tt.ones(()), "gave a 0-d tensor"),
    ],
)
def test_a_wrong_number_of_results_is_an_error(fn: Any, says: str) -> None:
    with pytest.raises(BatchError, match=says):
        tt.process_in_batches(fn, [1, 2, 3, 4], 32)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((doubled, [1], 0), "size must be 1 or more items, given 0"),
        ((doubled, [1], -3), "size"),
        ((doubled, [1], 2.0), "size"),
        ((doubled, [1], True), "size"),
        ((3, [1]), "3 cannot be called"),
        ((doubled, 5), "int is not a tensor, list or generator"),
        ((doubled, tt.ones(())), "0-d tensor has no items"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_arguments_that_make_no_sense_are_refused_at_once(args: Any, says: str, stream: bool) -> None:
    with pytest.raises(ArgumentError, match=says):
        tt.process_in_batches(*args, stream=stream)


# ---- find_optimal_batch_size


class Program(NamedTuple):
    bytes_per_call: int


def test_memory_bounds_the_batch() -> None:
    got = tt.find_optimal_batch_size(Program(1 << 20), memory=5 << 20, threads=8)
    assert got == got.size == 5
    assert got.why == "5 MiB of memory at 1 MiB per sample hold 5; 2 x 8 threads could use 16"


def test_threads_bound_the_batch() -> None:
    got = tt.find_optimal_batch_size(Program(1 << 10), memory=1 << 30, threads=3)
    assert (got.size, str(got)) == (6, "6: 2 x 3 threads; 1 GiB of memory at 1 KiB per sample would hold 1048576")


def test_a_batch_has_at_least_one_sample() -> None:
    got = tt.find_optimal_batch_size(Program(100), memory=99, threads=1)
    assert got == 1
    assert "one sample needs 100 B, more than the 99 B" in got.why


@given(st.integers(0, 10**6), st.integers(0, 10**7), st.integers(1, 64))
def test_the_formula(per_sample: int, memory: int, threads: int) -> None:
    got = tt.find_optimal_batch_size(Program(per_sample), memory=memory, threads=threads)
    assert got == max(1, min(memory // max(per_sample, 1), 2 * threads))


def test_by_default_the_machine_is_asked() -> None:
    got = tt.find_optimal_batch_size(Program(1))
    assert 1 <= got <= 2 * tt.get_num_threads()
    assert available_memory() > 0


def test_a_graph_needs_its_arguments_results_and_what_is_alive_between() -> None:
    weight = tt.ones((8, 100))  # captured: there anyway
    graph = tt.trace(lambda x: tt.relu(x @ weight).sum(), tt.Spec((4, 8)))
    argument, product, result = 4 * 8 * 4, 4 * 100 * 4, 4
    assert bytes_per_sample(graph) == argument + 2 * product
    assert bytes_per_sample(tt.trace(lambda x: (x @ weight).sum(), tt.Spec((4, 8)))) == argument + product + result
    assert bytes_per_sample(tt.trace(lambda x: x.T.reshape(-1), tt.Spec((1, 8)))) == 32


def test_a_compiled_program_tells_what_it_needs() -> None:
    program = tt.compile(lambda x: tt.exp(x) @ x.mT).program(tt.ones((4, 8)))
    needed = bytes_per_sample(program)
    assert needed >= 4 * 8 * 4 + 4 * 4 * 4
    assert tt.find_optimal_batch_size(program, memory=3 * needed, threads=8) == 3


def test_a_batch_size_is_an_int_that_survives_pickling() -> None:
    size = tt.find_optimal_batch_size(Program(1), memory=100, threads=2)
    for other in (pickle.loads(pickle.dumps(size)), copy.deepcopy(size)):
        assert isinstance(other, BatchSize)
        assert (other, other.why) == (size, size.why)
    assert f"{size}" == "4"
    assert len(tt.process_in_batches(doubled, range(9), size)) == 9


def test_the_measured_size_with_the_least_time_per_item_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    took = {1: 10.0, 2: 12.0, 4: 16.0, 8: 64.0}  # per item: 10, 6, 4, 8
    monkeypatch.setattr("tritium.batching.batches.perf_counter", lambda: clock[0])
    calls: list[int] = []

    def measure(n: int) -> None:
        calls.append(n)
        clock[0] += took[n] * (100 if calls.count(n) == 1 else 1)  # the first run is slow and not counted

    got = tt.find_optimal_batch_size(measure=measure, sizes=(8, 1, 2, 4))
    assert got == 4
    assert calls == [1] * 4 + [2] * 4 + [4] * 4 + [8] * 4
    assert "1: 10 s, 2: 6 s, 4: 4 s, 8: 8 s; median of 3 runs" in got.why
    assert got.trials[2].seconds == (16.0, 16.0, 16.0)


def test_a_measured_size_stays_within_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("tritium.batching.batches.perf_counter", lambda: clock[0])
    tried: set[int] = set()

    def measure(n: int) -> None:
        tried.add(n)
        clock[0] += 1.0  # larger is always better
        tt.ones((n, 1024)) + 1.0

    gc.collect()  # what other tests left would count against the peak if it went meanwhile
    got = tt.find_optimal_batch_size(measure=measure, memory=70 << 10)
    assert got == 8
    assert tried == {1, 2, 4, 8}
    assert "16 and more would take about 128 KiB, and 70 KiB may be used" in got.why
    assert tt.find_optimal_batch_size(Program(40 << 10), memory=70 << 10, measure=measure) == 1


def test_a_size_that_turns_out_too_large_does_not_win(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("tritium.batching.batches.perf_counter", lambda: clock[0])

    def measure(n: int) -> None:
        clock[0] += 1.0
        tt.ones(n**3 * 64)

    got = tt.find_optimal_batch_size(measure=measure, sizes=(1, 2, 4), memory=8 << 10)
    assert got == 2
    assert "over the 8 KiB that may be used: 4" in got.why


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({}, "give a graph of one sample, or measure="),
        ({"graph": 3}, "int is not a graph or a program"),
        ({"graph": Program(1), "memory": -1}, "memory must be"),
        ({"graph": Program(1), "memory": 1.5}, "memory must be"),
        ({"graph": Program(1), "threads": 0}, "threads must be"),
        ({"measure": print, "runs": 0}, "runs must be"),
        ({"measure": 3}, "measure must be a function"),
        ({"measure": print, "sizes": ()}, "sizes"),
        ({"measure": print, "sizes": (0, 1)}, "sizes"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(args: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        tt.find_optimal_batch_size(**args)


# ---- by name: the largest size and a function


def rates(of: dict[int, float]) -> Any:
    """A function that says how long a batch took, from items a second."""
    return lambda n: n / of[n]


def test_the_smallest_within_two_percent_of_the_highest_rate_wins() -> None:
    got = tt.find_optimal_batch_size("v", 8, rates({1: 10.0, 2: 50.0, 4: 99.0, 8: 100.0}))
    assert got == 4
    assert "1: 10/s, 2: 50/s, 4: 99/s, 8: 100/s; median of 5 runs" in got.why
    assert [t.size for t in got.trials] == [1, 2, 4, 8]
    assert [round(t.items_per_s) for t in got.trials] == [10, 50, 99, 100]


def test_a_function_may_return_a_timedelta() -> None:
    got = tt.find_optimal_batch_size("vector_operations", 128, lambda n: timedelta(microseconds=100 + n))
    assert got == 128
    assert len(got.trials[0].seconds) == 5


@given(st.integers(1, 300))
def test_any_maximum_works_and_is_itself_tried(maximum: int) -> None:
    got = tt.find_optimal_batch_size("v", maximum, lambda n: 1.0, runs=1)
    assert 0.98 * maximum <= got <= maximum
    sizes = [t.size for t in got.trials]
    assert (sizes[0], sizes[-1]) == (1, maximum)
    assert all(a < b <= 2 * a for a, b in pairwise(sizes))


def test_it_is_timed_where_nothing_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("tritium.batching.batches.perf_counter", lambda: clock[0])
    calls: list[int] = []

    def fn(n: int) -> None:
        calls.append(n)
        clock[0] += 1.0

    assert tt.find_optimal_batch_size("v", 4, fn, runs=3) == 4
    assert calls[:3] == [1, 2, 4]  # once, the smallest first
    assert [sorted(calls[3 * i : 3 * i + 3]) for i in (1, 2, 3)] == [[1, 2, 4]] * 3
    assert len({tuple(calls[3 * i : 3 * i + 3]) for i in range(1, 4)}) > 1  # in random order


def test_out_of_memory_ends_the_search() -> None:
    tried: list[int] = []

    def fn(n: int) -> float:
        tried.append(n)
        if n > 4:
            raise MemoryError
        return 1.0

    got = tt.find_optimal_batch_size("v", 64, fn)
    assert got == 4
    assert max(tried) == 8
    assert got.trials[-1].failed == "out of memory"
    assert got.why.endswith("8 ran out of memory, larger ones were not tried")


def test_the_memory_limit_ends_the_search() -> None:
    def fn(n: int) -> float:
        tt.ones((n, 1024)) + 1.0
        return 1.0

    got = tt.find_optimal_batch_size("v", 256, fn, memory=70 << 10)
    assert got == 8
    assert "16 and more would take about 128 KiB, and 70 KiB may be used" in got.why


def test_a_size_that_takes_more_than_was_expected_is_left_out() -> None:
    def fn(n: int) -> float:
        tt.ones(n**3 * 64)
        return 1.0

    got = tt.find_optimal_batch_size("v", 4, fn, memory=8 << 10)
    assert got == 2
    assert "takes 16 KiB" in got.trials[-1].failed


def test_a_size_that_fails_is_recorded_and_passed_over() -> None:
    def fn(n: int) -> float:
        if n == 2:
            raise ValueError("odd sizes only")
        return 1.0

    got = tt.find_optimal_batch_size("v", 4, fn)
    assert (got, got.trials[1].failed) == (4, "ValueError: odd sizes only")


def test_when_nothing_runs_it_is_an_error() -> None:
    with pytest.raises(BatchError, match="no batch of 'v' ran: out of memory"):
        tt.find_optimal_batch_size("v", 4, lambda n: [][n] if n > 1 else exec("raise MemoryError"))


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("v", 0, print), "needs the largest size"),
        (("v", None, print), "needs the largest size"),
        (("v", 1.5, print), "needs the largest size"),
        (("v", 8), "needs the largest size"),
        (("v", 8, 3), "a function of a size"),
        ((Program(1), 8, print), "maximum and fn go with a name"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(args: Any, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        tt.find_optimal_batch_size(*args)


def test_a_size_found_under_a_name_is_used_under_that_name() -> None:
    tt.find_optimal_batch_size("doubling", 8, rates({1: 1.0, 2: 2.0, 4: 9.0, 8: 3.0}))
    seen: list[int] = []
    tt.process_in_batches(lambda b: seen.append(len(b)) or b, range(10), op="doubling")
    assert seen == [4, 4, 2]
    with pytest.raises(ArgumentError, match="no size was measured under 'unknown'"):
        tt.process_in_batches(doubled, [1], op="unknown")


def test_a_tiny_batch_is_warned_of_with_what_was_measured() -> None:
    tt.find_optimal_batch_size("doubling", 64, lambda n: 1.0 + n / 64)
    with pytest.warns(
        UserWarning, match=r"doubling: a batch of 3 is small: 2 at a time gave 1.94 items/s, 64 gave 32 items/s"
    ):
        tt.process_in_batches(doubled, [1, 2, 3], 3, op="doubling")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tt.process_in_batches(doubled, [1, 2, 3], 64, op="doubling")
        tt.process_in_batches(doubled, [1, 2, 3], 3)  # nothing was measured of it


def test_where_small_batches_are_as_fast_there_is_no_warning() -> None:
    tt.find_optimal_batch_size("even", 64, lambda n: n / 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tt.process_in_batches(doubled, [1, 2], 1, op="even")
        assert tt.perf.advise_batch(lambda n: n / 10, 1) == 1


def test_advice_measures_a_size_beside_larger_ones() -> None:
    with pytest.warns(
        UserWarning, match=r"a batch of 4 is small: 4 at a time gave 4 items/s, 128 gave 128 items/s, 32.0 times"
    ):
        got = tt.perf.advise_batch(lambda n: 1.0, 4)
    assert got == 128
    assert [t.size for t in got.trials] == [4, 8, 16, 32, 64, 128]
    with pytest.raises(ArgumentError, match="size must be 1 or more"):
        tt.perf.advise_batch(lambda n: 1.0, 0)


def test_noise_alone_is_no_evidence() -> None:
    took = iter([1.0, 5.0] * 100)
    size = tt.find_optimal_batch_size("noisy", 2, lambda n: next(took) * n)
    assert not size.advice(1)


# ---- results of several parts


class Pair(NamedTuple):
    """A result of two parts."""

    total: Any
    doubled: Any


@given(st.integers(0, 20), st.integers(1, 7))
def test_a_dict_or_tuple_of_tensors_is_joined_part_by_part(n: int, size: int) -> None:
    x = tt.arange(3 * n, dtype="f32").reshape(n, 3)
    data = x.numpy()

    def fn(b: Any) -> Any:
        return {"pair": Pair(b.sum(axis=1), b * 2), "array": b.numpy()[:, 0], "both": (b, {"x": b + 1})}

    result = tt.process_in_batches(fn, x, size)
    assert type(result["pair"]) is Pair
    assert isinstance(result["array"], np.ndarray)
    parts = [*result["pair"], result["array"], result["both"][0], result["both"][1]["x"]]
    for got, want in zip(parts, [data.sum(axis=1), data * 2, data[:, 0], data, data + 1], strict=True):
        np.testing.assert_array_equal(np.asarray(got), want)
    items = list(tt.process_in_batches(fn, x, size, stream=True))
    assert [i["pair"].doubled.tolist() for i in items] == (data * 2).tolist()


def test_tuples_that_are_no_rows_are_items() -> None:
    assert tt.process_in_batches(lambda b: tuple(2 * x for x in b), range(5), 2) == [0, 2, 4, 6, 8]
    results = tt.process_in_batches(lambda b: tuple(tt.ones(3) for _ in b), range(5), 2)
    assert [r.tolist() for r in results] == [[1.0] * 3] * 5


def test_parts_that_do_not_fit_are_named() -> None:
    x = tt.ones((5, 2))
    with pytest.raises(BatchError, match=r"batch 0 \(items 0 to 1\) gave .*a row for each of the 2 items"):
        tt.process_in_batches(lambda b: {"a": b, "b": b[:1]}, x, 2)
    with pytest.raises(BatchError, match="one batch gave a dict of 'a', another a dict of 'b'"):
        tt.process_in_batches(lambda b: {"a" if len(b) == 2 else "b": b}, x, 2)
    with pytest.raises(BatchError, match="others did not"):
        tt.process_in_batches(lambda b: {"a": b} if len(b) == 2 else b, x, 2)


def test_a_compiled_function_is_sized_by_its_last_program() -> None:
    fn = tt.compile(lambda x: tt.softmax(x * 2) @ tt.ones((64, 8)))
    with pytest.raises(ArgumentError, match="was not called yet; call it with one sample"):
        tt.find_optimal_batch_size(fn)
    fn(tt.ones((1, 64)))
    size = tt.find_optimal_batch_size(fn, memory=1 << 16, threads=64)
    assert size == tt.find_optimal_batch_size(fn.program(tt.ones((1, 64))), memory=1 << 16, threads=64)
    assert tt.find_optimal_batch_size("compiled", 4, tt.compile(lambda n: tt.ones(8) * n)) in (1, 2, 4)
    assert tt.find_optimal_batch_size(fn, measure=lambda n: fn(tt.ones((1, 64))), sizes=(1, 2), runs=1) in (1, 2)
