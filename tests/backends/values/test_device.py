"""Devices that keep values: whatever is written is seen by every view, clones stay apart, and replayed calls are the same calls."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tritium as tt
from at import at
from op_cases import by_op
from tritium import buffer, ops, pure
from tritium.backends.values.namespace import Bound, Fitted
from tritium.dtype import dtype as as_dtype
from tritium.errors import BoundsError, DeviceError
from tritium.op import Kind, Op, outputs
from tritium.ops import Sample
from tritium.testing import LAYOUTS, arrays, as_laid, assert_close, call, cases, check_backend, expected, laid
from valued import LEFT_OUT, Valued

needs_native = pytest.mark.skipif(buffer.native is None, reason="replaying is native")


@pytest.fixture(scope="module")
def valued() -> Iterator[Valued]:
    tt.register("valued", Valued)
    try:
        backend = tt.device("valued").backend
        assert isinstance(backend, Valued)
        yield backend
    finally:
        tt.unregister("valued")


def there(x: Any) -> tt.Tensor:
    return tt.tensor(x).to("valued")


def test_the_conformance_kit_passes(valued: Valued) -> None:
    assert check_backend("valued") > 500


def stays_real(op: Op, sample: Sample) -> bool:
    """Return False if a row has complex numbers for a result, which this device does not store."""
    specs = tuple(None if draw is None else draw.spec for draw in sample.inputs)
    return not any(s.dtype.kind == "complex" for s in outputs(op.decide(specs, op.complete(dict(sample.attrs))).out))


READING = [
    (op, sample) for op, sample in cases() if op.name not in LEFT_OUT and sample.inputs and stays_real(op, sample)
]


@by_op(READING)
def test_rows_read_views(valued: Valued, op: Op, sample: Sample) -> None:
    attrs, drawn = dict(sample.attrs), arrays(op, sample)
    for how in LAYOUTS[1:]:
        if how == "broadcast" and op is ops.searchsorted:
            continue  # what is searched must be sorted
        data = [as_laid(x, how) for x in drawn]
        here = [None if x is None else laid(x, how) for x in data]
        with at(how):
            got = call(op, [None if x is None else _moved(x) for x in here], attrs)
            host = tuple(values(g) for g in got) if isinstance(got, tuple) else values(got)
            if op.kind is Kind.VIEW:
                np.testing.assert_array_equal(host, call(op, here, attrs).numpy())
            else:
                assert_close(op, host, expected(op, data, attrs), data, op.complete(attrs))


def _moved(x: tt.Tensor) -> tt.Tensor:
    """On the device with the same layout: the memory is moved, then looked at as x looks at its own."""
    if x.dtype.is_packed or not x.size:
        return x.to("valued")
    whole = tt.Tensor(x.storage, x.dtype, (x.storage.nbytes // x.dtype.nbytes,), (1,), 0).to("valued")
    return tt.Tensor(whole.storage, x.dtype, x.shape, x.strides, x.offset)


def values(x: tt.Tensor) -> np.ndarray[Any, Any]:
    return (ops.repack(x, "i8") if x.dtype.is_packed else x).to("cpu").numpy()


# ---- writing


def test_a_write_is_seen_by_views_and_not_by_clones(valued: Valued) -> None:
    x = there(np.arange(6, dtype=np.float32).reshape(2, 3))
    seen, apart = x.T[1:], x.clone()
    assert x.sharers == 2
    x += 1
    assert seen.tolist() == [[2, 5], [3, 6]]
    assert apart.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert x.sharers == apart.sharers == 1


def test_a_write_through_a_view_reaches_the_base(valued: Valued) -> None:
    x = there(np.zeros((3, 4), np.float32))
    apart = x.clone()
    x[1:, ::2] = 7.0
    x.T[0].copy_(-1.0)
    assert x.tolist() == [[-1, 0, 0, 0], [-1, 0, 7, 0], [-1, 0, 7, 0]]
    assert apart.tolist() == np.zeros((3, 4)).tolist()


def test_a_result_may_be_written_over_what_it_is_made_of(valued: Valued) -> None:
    data = np.arange(9, dtype=np.float32).reshape(3, 3)
    x = there(data)
    x += x.T
    assert x.tolist() == (data + data.T).tolist()
    tt.matmul(x, x, out=x)
    assert x.tolist() == ((data + data.T) @ (data + data.T)).tolist()


def test_read_only_memory_is_not_written(valued: Valued) -> None:
    x = there([1.0])
    x.storage.writable = False
    for _ in range(3):
        with pytest.raises(DeviceError, match="read-only"):
            tt.add(x, x, out=x)
    assert x.tolist() == [1]


def test_memory_that_nobody_wrote_can_be_read(valued: Valued) -> None:
    x = tt.empty((2, 3), device="valued")
    x[0] = 1.0
    assert x[0].tolist() == [1, 1, 1]
    assert tt.empty((0, 3), device="valued").tolist() == []


def test_there_is_no_address(valued: Valued) -> None:
    with pytest.raises(DeviceError, match="no address"):
        _ = there([1.0]).data_ptr


# ---- replay


@needs_native
def test_a_call_seen_before_is_replayed(valued: Valued) -> None:
    x, y = there(np.ones((3, 4), np.float32)), there(np.full((3, 4), 2, np.float32))
    tt.add(x, y)
    before = ops.add.hits
    assert tt.add(x, y).tolist() == [[3] * 4] * 3
    assert tt.add(x, y.reshape(4, 3).reshape(3, 4)).tolist() == [[3] * 4] * 3
    assert ops.add.hits == before + 2


@needs_native
@pytest.mark.parametrize("row", [ops.concat, ops.stack])
def test_a_call_of_several_tensors_is_replayed_however_they_are_given(valued: Valued, row: Op) -> None:
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    x, y = there(data), there(data + 10)
    wanted = row([tt.tensor(data), tt.tensor(data + 10)], axis=1).tolist()
    row([x, y], axis=1)
    before = row.hits
    assert row([x, y], axis=1).tolist() == row((x, y), axis=1).tolist() == row(x, y, axis=1).tolist() == wanted
    assert row.hits == before + 3
    assert row([y, x], axis=0).tolist() == row([tt.tensor(data + 10), tt.tensor(data)], axis=0).tolist()


def test_a_function_of_a_library_is_given_what_is_bound_after_its_operands() -> None:
    assert Bound(pow, (3,))(2) == 8
    assert Bound(sorted, (), {"reverse": True}, together=True)(1, 3, 2) == [3, 2, 1]


def test_a_fitted_function_is_chosen_by_the_specs_of_its_operands() -> None:
    class Space:
        dtype_of = staticmethod(lambda x: as_dtype(x.dtype))

    by_size = Fitted(Space, lambda x, y: (lambda *_: "none") if y is None else lambda *_: (x.shape, y.dtype.name))
    assert by_size(np.zeros((2, 3)), np.zeros(1, np.int8)) == ((2, 3), "i8")
    assert by_size(np.zeros(1), None) == "none"


@needs_native
def test_a_replayed_call_reads_views_and_numbers(valued: Valued) -> None:
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    x = there(data)
    for number in (2.0, 3.0, 2.5):
        assert (x.T * number).tolist() == (data.T * number).tolist()
        assert (x[::2] * number).tolist() == (data[::2] * number).tolist()


@needs_native
def test_a_replayed_call_writes_into_out(valued: Valued) -> None:
    x, out = there([1.0, 2.0]), there([0.0, 0.0])
    view, apart = out[1:], out.clone()
    for n in range(1, 4):
        assert tt.multiply(x, float(n), out=out) is out
        assert out.tolist() == [n, 2 * n]
        assert view.tolist() == [2 * n]
    assert apart.tolist() == [0, 0]


@needs_native
def test_rows_of_several_results_are_replayed(valued: Valued) -> None:
    x, y = there([7, 8]), there([2, 3])
    tt.divmod(x, y)
    before = ops.divmod.hits
    assert [t.tolist() for t in tt.divmod(x, y)] == [[3, 2], [1, 2]]
    assert ops.divmod.hits == before + 1


@needs_native
def test_devices_of_one_kind_are_told_apart() -> None:
    tt.register("pair", Valued, lambda: 2)
    try:
        xs = [tt.tensor([float(i)]).to(f"pair:{i}") for i in (0, 1)]
        for _ in range(3):
            assert [str((x + x).device) for x in xs] == ["pair", "pair:1"]
    finally:
        tt.unregister("pair")


@needs_native
def test_a_kernel_that_fails_raises_from_the_replay_too(valued: Valued) -> None:
    x, bad = there(np.arange(3.0, dtype=np.float32)), there([9])
    for _ in range(3):
        with pytest.raises(BoundsError):
            tt.take(x, bad, axis=0)


def test_spans_of_such_calls_wait_for_their_values(valued: Valued) -> None:
    seen: list[tt.Event] = []
    x = there([1.0])
    before = valued.settled
    tt.watch(seen.append)
    try:
        for _ in range(3):
            x + x
    finally:
        tt.unwatch(seen.append)
    assert [e.kernel for e in seen] == ["valued"] * 3
    assert valued.settled == before + 9  # two operands and a result each


def test_a_storage_and_its_value_go_with_the_last_tensor(valued: Valued) -> None:
    x = there(np.ones(4, np.float32)) * 2
    view = x[1:]
    alive = weakref.ref(x.storage)
    del x
    assert view.tolist() == [2, 2, 2]
    del view
    gc.collect()
    assert alive() is None


# ---- programs


def test_a_program_is_one_call_of_the_device_s_compiler(valued: Valued) -> None:
    data = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    weight = there(data.T.copy())
    fn = tt.compile(lambda x: (tt.relu(x) @ weight + 1, x.T))
    x = there(data)
    before = valued.compilations
    for scale in (1.0, 2.0):
        y, turned = fn(x * scale)
        np.testing.assert_allclose(y.to("cpu").numpy(), np.maximum(data * scale, 0) @ data.T + 1, rtol=1e-6)
        assert turned.tolist() == (data * scale).T.tolist()
    assert valued.compilations == before + 1
    assert "one call of the tests" in fn.explain(x)
    weight += 1
    np.testing.assert_allclose(fn(x)[0].to("cpu").numpy(), np.maximum(data, 0) @ (data.T + 1) + 1, rtol=1e-6)


def test_a_program_writes_donated_arguments(valued: Valued) -> None:
    def grow(cache: tt.Tensor, row: tt.Tensor) -> tt.Tensor:
        cache[1] = row
        return cache.sum()

    fn = tt.compile(grow, donate="cache")
    cache = there(np.zeros((3, 2), np.float32))
    apart, view = cache.clone(), cache[1]
    assert fn(cache, there([1.0, 2.0])).item() == 3
    assert view.tolist() == [1, 2]
    assert apart.tolist() == np.zeros((3, 2)).tolist()


@pytest.mark.parametrize("over", [False, True])
def test_a_donated_argument_may_be_written_at_once(valued: Valued, monkeypatch: pytest.MonkeyPatch, over: bool) -> None:
    monkeypatch.setattr(valued, "writes_arguments", over)

    def step(x: Any, y: Any) -> Any:
        before = x * 1
        x += y
        return before.sum() + x.sum()

    fn = tt.compile(step, donate="x")
    x, y = there([1.0, 2.0]), there([10.0, 20.0])
    apart, view = x.clone(), x[1:]
    assert fn(x, y).item() == 3 + 33
    assert (x.tolist(), view.tolist(), apart.tolist()) == ([11, 22], [22], [1, 2])
    assert fn(x, y).item() == 33 + 63


def test_what_is_wrong_with_values_is_told_at_once(valued: Valued) -> None:
    valued.doubt(np.array([False]), "nothing is wrong")
    with pytest.raises(BoundsError, match="the second is wrong"):
        valued.doubt(np.array([False, True]), "the second is wrong")


def test_a_thread_that_compiles_does_not_take_the_checks_of_another(valued: Valued) -> None:
    from concurrent.futures import ThreadPoolExecutor

    valued.tracing.append([])
    try:
        valued.doubt(np.array([True]), "kept for the program")
        with ThreadPoolExecutor(1) as other, pytest.raises(BoundsError):
            other.submit(valued.doubt, np.array([True]), "told at once").result()
    finally:
        assert [d.message for d in valued.tracing.pop()] == ["kept for the program"]


# ---- a program that is called with the same memory again


class Repeated:
    """A compiler that sees when the arguments are those of the last call, and then repeats it without them."""

    def __init__(self, run: Any) -> None:
        self.run, self.direct, self.repeated = run, None, 0

    def __call__(self, *values: Any) -> Any:
        def again() -> Any:
            self.repeated += 1
            return tuple(self.run(*values)[:1])

        self.direct = SimpleNamespace(again=again)
        return self.run(*values)


@pytest.mark.skipif(buffer.native is None, reason="needs the native library")
def test_the_same_memory_is_asked_for_by_no_python(valued: Valued, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Repeated] = []
    monkeypatch.setattr(valued, "compiled", lambda run, form: made.append(Repeated(run)) or made[-1])
    scale = there([10.0])
    fn = tt.compile(lambda x: x * scale + 1)
    x, y = there([1.0, 2.0]), there([3.0, 4.0])
    assert [fn(x).tolist() for _ in range(3)] == [[11, 21]] * 3
    assert made[0].repeated == 2
    assert fn(y).tolist() == [31, 41]  # other memory
    assert fn(y[:]).tolist() == [31, 41]
    x[0] = 5.0
    assert fn(x).tolist() == [51, 21]
    before = made[0].repeated
    scale[0] = 2.0
    assert fn(x).tolist() == [11, 5]  # what is captured has other memory now
    assert made[0].repeated == before
    with pytest.raises(TypeError):
        buffer.native.Again(len, type(x.storage), x.device, (1,), (), (), (tt.f32,), ((2,),), False)
    with pytest.raises(ValueError, match="results"):
        buffer.native.Again(len, type(x.storage), x.device, (x,), (), (), (), (), False)


# ---- Held


@pytest.fixture(params=["native", "pure"])
def held(request: pytest.FixtureRequest) -> Any:
    if request.param == "native" and buffer.native is None:
        pytest.skip("there is no native library")
    return buffer.Held if request.param == "native" else pure.Held


@given(st.lists(st.sampled_from(["share", "put", "leave"]), max_size=30))
def test_sharers_are_counted(kinds: list[str]) -> None:
    for made in {buffer.Held, pure.Held}:
        handles = [made("d", 8, "v0", (2,))]
        groups = [{0}]
        for n, kind in enumerate(kinds):
            at = n % len(handles)
            mine = next(g for g in groups if at in g)
            if kind == "share":
                handles.append(handles[at].share())
                mine.add(len(handles) - 1)
            elif kind in ("put", "leave"):
                handles[at].put(f"v{n}", (1,)) if kind == "put" else handles[at].leave()
                mine.discard(at)
                groups.append({at})
        for g in groups:
            for i in g:
                assert handles[i].sharers == len(g)


def test_a_handle_tells_what_it_holds(held: Any) -> None:
    h = held("a device", 12)
    assert (h.device, h.nbytes, h.value, h.shape, h.writable, h.fixed) == ("a device", 12, None, None, True, False)
    h.put("a value", (3, 4))
    assert (h.value, h.shape) == ("a value", (3, 4))


@needs_native
@pytest.mark.parametrize("wrong", [[3], ("x",), (1,) * 40, 7])
def test_a_shape_that_is_none_is_refused(wrong: Any) -> None:
    h = buffer.Held("d", 4, "v", (1,))
    with pytest.raises(TypeError):
        h.put("w", wrong)
    assert (h.value, h.shape) == ("v", (1,))


def test_without_a_compiler_a_program_runs_node_by_node(valued: Valued, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(valued, "compiled", lambda run, form: None)
    fn = tt.compile(lambda x: tt.relu(x) + 1)
    assert fn(there([-1.0, 2.0])).tolist() == [1, 3]
    assert "valued cannot use the tests here" in fn.explain(there([-1.0, 2.0]))
