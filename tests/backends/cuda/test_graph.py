"""Programs as CUDA graphs: they see new values, copy nothing where nothing moved, and raise at the next wait what they found.

Skipped without a GPU.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import tritium as tt
from tritium import nn
from tritium.backends import Absent, probes
from tritium.backends.values.device import Form
from tritium.errors import BoundsError, OutOfMemoryError

torch = pytest.importorskip("torch", reason="CUDA needs PyTorch: pip install torch triton")
if isinstance(probes.cuda_units(), Absent):
    pytest.skip(f"needs a GPU of CUDA: {probes.cuda_units().why}", allow_module_level=True)  # type: ignore[union-attr]


def there(*values: float) -> Any:
    return tt.tensor(list(values), dtype="f32", device="cuda")


def run_of(fn: Any, *args: Any) -> Any:
    return fn.program(*args).foreign._run


def test_results_are_the_caller_s_own() -> None:
    fn = tt.compile(lambda x: x * 2)
    x = there(1, 2)
    kept = [fn(x) for _ in range(5)]
    assert run_of(fn, x).alone == ""
    x += 1
    kept.append(fn(x))
    assert [k.tolist() for k in kept] == [[2, 4]] * 5 + [[4, 6]]
    kept[0] += 10
    assert kept[1].tolist() == [2, 4]


def test_the_same_memory_is_read_where_it_lies() -> None:
    fn = tt.compile(lambda x, y: tt.relu(x * y + x))
    x, y = there(1, -2), there(3, 4)
    theirs = x.torch()
    for n in range(6):
        theirs += n
        want = np.maximum(x.numpy() * y.numpy() + x.numpy(), 0)
        np.testing.assert_array_equal(fn(x, y).numpy(), want)
    assert run_of(fn, x, y).direct is not None


def test_a_program_of_large_results_is_launched_call_by_call() -> None:
    fn = tt.compile(lambda x: tt.relu(x + 1))
    x = tt.randn((1 << 24,), seed=3).to("cuda")
    for _ in range(4):
        np.testing.assert_array_equal(fn(x).numpy(), np.maximum(x.numpy() + 1, 0))
    assert run_of(fn, x).direct is None
    assert "runs call by call: its results are so large" in fn.explain(x)
    same = tt.compile(lambda x: x.reshape(1 << 12, 1 << 12).T)(x)
    assert same.torch().data_ptr() != x.torch().data_ptr()
    assert "runs as one call of CUDA graphs" in fn.explain(x[: 1 << 20])


def test_large_results_share_no_memory() -> None:
    def fn(x: tt.Tensor) -> tuple[tt.Tensor, ...]:
        y = x + 1
        return y, y, y.reshape(1 << 12, 1 << 12), x

    x = tt.randn((1 << 24,), seed=3).to("cuda")
    found = tt.compile(fn)(x)
    assert len({r.torch().data_ptr() for r in (*found, x)}) == 5
    for got, want in zip(found, fn(x), strict=True):
        np.testing.assert_array_equal(got.numpy(), want.numpy())


def test_large_arguments_are_not_copied() -> None:
    fn = tt.compile(lambda x: tt.relu(x + 1).sum())
    kept = [tt.randn((1 << 25,), seed=i).to("cuda") for i in (1, 2)]
    want = [fn(x).item() for x in kept]
    run = run_of(fn, kept[0])
    assert [fn(x).item() for x in (*kept, *kept)] == [*want, *want]  # others at every call
    assert run.direct is None
    assert [fn(kept[1]).item() for _ in range(4)] == [want[1]] * 4
    assert run.direct is not None
    assert not run._kept


def test_a_program_of_large_results_runs_into_a_capture_of_someone_else() -> None:
    fn = tt.compile(lambda table, at: tt.take(table, at, axis=0) * 2)
    table, at = tt.randn((1 << 13, 1 << 12), seed=3).to("cuda"), tt.arange(1 << 13).to("cuda")
    want = fn(table, at)
    assert run_of(fn, table, at).alone
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = fn(table, at)
    graph.replay()
    np.testing.assert_array_equal(found.numpy(), want.numpy())


def test_what_was_handed_out_is_not_written_while_someone_holds_a_view_of_it() -> None:
    fn = tt.compile(lambda x: x + 1)
    x = there(1, 2, 3)
    for _ in range(3):
        fn(x)
    view = fn(x)[1:]
    x += 5
    assert fn(x).tolist() == [7, 8, 9]
    assert view.tolist() == [3, 4]


def test_donated_arguments_are_written_in_place_and_clones_are_not() -> None:
    def step(cache: Any, x: Any) -> Any:
        cache += x
        return cache.sum()

    fn = tt.compile(step, donate="cache")
    cache, x = there(0, 0), there(1, 2)
    pointer = cache.torch().data_ptr()
    for n in range(1, 6):
        assert fn(cache, x).item() == 3 * n
        if n == 3:
            apart = cache.clone()
    assert cache.tolist() == [5, 10]
    assert apart.tolist() == [3, 6]
    assert cache.torch().data_ptr() == pointer


def test_a_result_may_be_what_a_donated_argument_was() -> None:
    def step(count: Any, x: Any) -> Any:
        before = count.clone()
        count += x
        return before

    fn = tt.compile(step, donate="count")
    count, x = there(0, 0), there(1, 2)
    assert [fn(count, x).tolist() for _ in range(5)] == [[n, 2 * n] for n in range(5)]
    assert count.tolist() == [5, 10]


def test_captured_tensors_may_change() -> None:
    scale = there(2)
    fn = tt.compile(lambda x: x * scale)
    x = there(1, 2)
    assert [fn(x).tolist() for _ in range(4)] == [[2, 4]] * 4
    scale[0] = 5.0
    assert [fn(x).tolist() for _ in range(4)] == [[5, 10]] * 4


def test_int8_weights_may_change_after_a_capture() -> None:
    w = tt.tensor(np.ones((3, 5), np.int8), device="cuda")
    fn = tt.compile(lambda q: tt.integer_matmul(q, w))
    q = tt.tensor(np.ones((1, 5), np.int8), device="cuda")
    assert [fn(q).tolist() for _ in range(4)] == [[[5, 5, 5]]] * 4
    w[0] = 2
    assert [fn(q).tolist() for _ in range(4)] == [[[10, 5, 5]]] * 4


def test_a_bad_index_is_raised_at_the_next_wait_and_once() -> None:
    fn = tt.compile(lambda t, i: tt.take(t, i, axis=0))
    t = there(1, 2, 3)
    good, bad = (tt.tensor(v, device="cuda") for v in ([0, 2], [0, 9]))
    assert fn(t, good).tolist() == [1, 3]
    made = fn(t, bad)
    with pytest.raises(BoundsError):
        made.numpy()
    assert fn(t, good).tolist() == [1, 3]


def test_of_several_doubts_the_one_that_is_true_is_raised() -> None:
    fn = tt.compile(lambda t, i, j: tt.take(t, i, axis=0) + t[:2][j])
    t = there(1, 2, 3)
    good, second, third = (tt.tensor([n, 0], dtype="i32", device="cuda") for n in (1, 2, 3))
    for _ in range(4):  # by copies, and then where they lie
        assert fn(t, good, good).tolist() == [4, 2]
        assert fn(t, second, good).tolist() == [5, 2]
        for at, message in (((third, good), "take: .* axis of size 3"), ((good, second), "index: .* axis of size 2")):
            made = fn(t, *at)
            with pytest.raises(BoundsError, match=message):
                made.numpy()
            assert made.tolist() == made.tolist()  # once


def test_what_was_found_stays_found_while_good_calls_follow() -> None:
    fn = tt.compile(lambda t, i: tt.take(t, i, axis=0))
    t = there(1, 2, 3)
    at = tt.tensor([0, 1], device="cuda")
    for _ in range(4):
        fn(t, at)
    theirs = at.torch()
    theirs[1] = 7
    fn(t, at)
    theirs[1] = 2
    for _ in range(3):
        fn(t, at)
    with pytest.raises(BoundsError):
        tt.device("cuda").backend.synchronize()
    assert fn(t, at).tolist() == [1, 3]


def test_a_capture_tells_nothing_by_itself() -> None:
    """What its rehearsal found is found again where the graph runs, and is raised once."""
    fn = tt.compile(lambda t, i: tt.take(t, i, axis=0))
    t, bad = there(1, 2, 3), tt.tensor([0, 9], device="cuda")
    for _ in range(4):
        made = fn(t, bad)
        with pytest.raises(BoundsError):
            made.numpy()
        tt.device("cuda").backend.synchronize()


def test_graphs_on_two_streams_wait_for_each_other() -> None:
    fn = tt.compile(lambda x: (x @ x).sum())
    x = tt.ones((256, 256), device="cuda")
    want = fn(x).item()
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    found = []
    for n in range(8):
        with torch.cuda.stream(other if n % 2 else torch.cuda.current_stream()):
            found.append(fn(x).item())
    assert found == [want] * 8


def test_a_pool_outlives_the_first_program() -> None:
    for n in range(3):
        fn = tt.compile(lambda x, n=n: x + n)
        assert fn(there(1)).tolist() == [1 + n]
        assert run_of(fn, there(1)).alone == ""
        del fn


def test_a_program_that_cannot_be_captured_runs_and_harms_no_other() -> None:
    def waits(x: Any) -> Any:
        return x + float(
            torch.ones(1, device="cuda").item()
        )  # a constant: it is read while the function is written down

    x = there(1, 2)
    assert tt.compile(waits)(x).tolist() == [2, 3]
    broken = tt.device("cuda").backend.graphs.program(lambda v: [v * float(v.sum().item())], Form(1, (), 1, list))
    value = torch.tensor([1.0, 2.0], device="cuda")
    assert broken(value)[0].tolist() == [3, 6]
    assert broken.alone
    fn = tt.compile(lambda v: v * 3)
    assert fn(x).tolist() == [3, 6]
    assert run_of(fn, x).alone == ""


def test_nothing_is_collected_while_a_graph_is_captured() -> None:
    seen: list[bool] = []

    def run(v: Any) -> list[Any]:
        seen.append(gc.isenabled())
        return [v + 1]

    program = tt.device("cuda").backend.graphs.program(run, Form(1, (), 1, list))
    assert program(torch.ones(2, device="cuda"))[0].tolist() == [2, 2]
    assert seen == [True, False]  # rehearsed, captured
    assert gc.isenabled()
    assert program.alone == ""


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_half_floats_become_f32_as_outside_of_a_program(kind: str) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.int16)
    halves = tt.from_torch(torch.from_numpy(every).cuda().view(torch.float16 if kind == "f16" else torch.bfloat16))
    fn = tt.compile(lambda x: x.astype("f32"))
    for x in (halves, halves.reshape(256, 256).T):
        want = x.astype("f32").numpy().view(np.int32)
        for _ in range(3):
            found = fn(x).numpy()
            nan = np.isnan(found)
            np.testing.assert_array_equal(nan, np.isnan(want.view(np.float32)))
            np.testing.assert_array_equal(found.view(np.int32)[~nan], want[~nan])


def test_a_whole_decode_step_is_one_graph() -> None:
    model = tt.load(device="cuda")
    session = model.session()
    session.extend(0, [1, 2, 3])
    for token in (4, 5, 6, 7):
        session.extend(0, [token])
    for token in (4, 5, 6, 7):
        session.pick([0], [token])
    entries = [e for program in session._programs if program for e in program._entries.values()]
    assert len(entries) > 2
    assert all(e.program.foreign is not None and e.program.foreign._run.alone == "" for e in entries)


def test_layers_have_the_bits_of_the_cpu_at_every_batch() -> None:
    near = nn.BitLinear.from_float(tt.randn((130, 300), seed=1), tt.randn((130,), seed=2))
    far = near.to("cuda")
    for tokens in (1, 2, 7, 8, 9, 16, 33, 64, 129, 512):
        x = tt.randn((tokens, 300), seed=tokens)
        np.testing.assert_array_equal(far(x.to("cuda")).numpy(), near(x).numpy(), err_msg=str(tokens))


def test_no_room_says_what_was_asked_and_what_to_try() -> None:
    with pytest.raises(OutOfMemoryError, match=r"no room for .* GiB.* are free.*trim"):
        tt.zeros((1 << 40,), device="cuda")


def test_transfers_keep_every_dtype() -> None:
    for t in ("f32", "f16", "bf16", "f64", "i8", "u64", "bool"):
        x = tt.arange(6, dtype="f32").to(t)
        assert x.to("cuda").to("cpu").tolist() == x.tolist()


def test_what_is_brought_is_what_was_there_and_keeps_its_memory_until_it_is_written() -> None:
    backend = tt.device("cuda").backend
    for t in ("f32", "bf16", "i64", "bool"):
        x = tt.arange(6, dtype="f32").to(t).to("cuda")
        assert backend.bring(x)().tolist() == x.tolist()
    assert backend.bring(tt.ones((300, 300), device="cuda"))().sum() == 90000  # too large for a kernel to tell
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)  # a tenth of a second: the device has not come to the next calls yet
    there = backend.bring(tt.ones((4,), device="cuda"))
    backend.bring(tt.zeros((4,), device="cuda"))  # nobody asks for it
    assert [done.query() for done, _ in backend._held] == [False, False]
    assert there().tolist() == [1, 1, 1, 1]
    torch.cuda.synchronize()
    assert backend.bring(tt.ones((4,), device="cuda"))().tolist() == [1, 1, 1, 1]
    assert len(backend._held) <= 1  # of the two before nothing is kept any more; the last may have been written already
