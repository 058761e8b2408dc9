"""Devices: how they come and go, what may not be mixed, and how a backend without a kernel still computes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tritium as tt
from null import LOWERED, MISSING, Broken, Null
from op_cases import by_op
from tritium import backends, ops
from tritium.backends import Absent, Kernel
from tritium.backends.values.device import ValueBackend
from tritium.errors import DeviceError
from tritium.op import Op
from tritium.ops import Sample
from tritium.testing import arrays, assert_close, call, check_backend, expected, laid


@pytest.fixture
def null() -> Iterator[Null]:
    tt.register("null", Null)
    try:
        backend = tt.device("null").backend
        assert isinstance(backend, Null)
        yield backend
    finally:
        tt.set_default_device(None)
        tt.unregister("null")


def test_a_registered_device_is_listed_with_its_facts(null: Null) -> None:
    found = {d.name: d for d in tt.devices()}
    assert found["null"].available
    assert "reference" in found["null"].facts["kernels"]


def test_a_backend_is_made_when_first_used() -> None:
    made: list[backends.Device] = []

    def make(device: backends.Device) -> Null:
        made.append(device)
        return Null(device)

    tt.register("late", make)
    try:
        assert not made
        tt.zeros(2, device="late")
        tt.zeros(2, device="late")
        assert made == ["late"]
    finally:
        tt.unregister("late")


def test_a_name_is_registered_once(null: Null) -> None:
    with pytest.raises(DeviceError, match=r"named 'null' is registered already; unregister\('null'\)"):
        tt.register("null", Null)


@pytest.mark.parametrize("name", ["cpu", "nothing"])
def test_only_registered_devices_can_go(name: str) -> None:
    with pytest.raises(DeviceError, match=f"'{name}' is not a device that was registered; registered are: none"):
        tt.unregister(name)


def test_tensors_of_a_device_that_left_say_so() -> None:
    tt.register("brief", Null)
    x = tt.ones(2, device="brief")
    tt.unregister("brief")
    with pytest.raises(DeviceError, match="brief was unregistered"):
        x + x


def test_a_default_device_that_left_is_forgotten() -> None:
    tt.register("brief", Null)
    tt.set_default_device("brief")
    tt.unregister("brief")
    assert tt.default_device().device == "cpu"


def test_several_devices_of_a_kind_are_numbered() -> None:
    tt.register("pair", Null, lambda: 2)
    try:
        a, b = tt.ones(2, device="pair:0"), tt.ones(2, device="pair:1")
        assert (str(a.device), str(b.device)) == ("pair", "pair:1")
        assert tt.device("pair") is a.device
        with pytest.raises(DeviceError, match="pair and pair:1"):
            a + b
        with pytest.raises(DeviceError, match="'pair:2' does not exist: there is 2 of 'pair'"):
            tt.device("pair:2")
    finally:
        tt.unregister("pair")


def test_a_device_stays_one_object_through_a_pickle(null: Null) -> None:
    assert pickle.loads(pickle.dumps(null.device)) is null.device


# ---- what register refuses


class Empty(tt.Backend):
    """A backend without memory."""


class Bare(Null):
    """A backend with memory and no kernel."""

    def __init__(self, device: backends.Device) -> None:
        super().__init__(device)
        self.kernels, self.dynamic = {}, {}


class Unready(Null):
    """A backend whose constructor forgets that of its base."""

    def __init__(self, device: backends.Device) -> None:
        self.device = device


def with_tables(**tables: Any) -> type[Null]:
    """Return a backend whose tables hold something else than ops and kernels."""

    def build(self: Null, device: backends.Device) -> None:
        Null.__init__(self, device)
        self.__dict__.update(tables)

    return type("Odd", (Null,), {"__init__": build})


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((5, Null), "5 cannot be the name of a device; use letters"),
        (("a b:c", Null), "'a b:c' cannot be the name"),
        (("", Null), "'' cannot be the name"),
        (("cuda:1", Null), "'cuda:1' cannot be the name"),
        (("gpu", Null), "'gpu' means the first of cuda, mlx:gpu, mps that is here"),
        (("f32", Null), "'f32' means a dtype"),
        (("q", 3), r"make of 'q' must be callable, given 3; write register\('q', MyBackend\)"),
        (("q", None), "make of 'q' must be callable"),
        (("q", int), "int is not a subclass of tritium.Backend"),
        (("q", Null, 4), "probe of 'q' must be callable, given 4"),
        (("q", Empty), "'q' is incomplete: Empty lacks allocate, upload, download; define them"),
        (("q", ValueBackend), "ValueBackend lacks blank, reshape, strided, updated, from_host, to_host, is_true"),
        (("q", type("Named", (Null,), {"kernels": {"add": []}})), "has the key 'add', which is not an op: write"),
    ],
)
def test_register_refuses_what_cannot_be_a_device(args: tuple[Any, ...], text: str) -> None:
    before = backends.device_names()
    with pytest.raises(DeviceError, match=text):
        tt.register(*args)
    assert backends.device_names() == before
    assert (tt.ones(2) + 1).tolist() == [2, 2]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda device: 3, "registered for 'odd' returned int, not a tritium.Backend"),
        (lambda device: Empty(device), "'odd' is incomplete: Empty lacks allocate, upload, download"),
        (lambda: 3, "'odd' could not be made: TypeError: .* takes 0 positional arguments"),
        (lambda device: Null(tt.device("cpu")), r"Null.__init__ must call super\(\).__init__\(device\)"),
        (Unready, r"Unready.__init__ must call super\(\)"),
        (with_tables(kernels={ops.add: np.add}), r"Odd.kernels\[add\] must be a list of Kernel, given <ufunc"),
        (with_tables(kernels={ops.add: [Kernel("add", 3)]}), r"Odd.kernels\[add\] must be callable, given 3"),  # type: ignore[arg-type]
        (with_tables(dynamic={ops.nonzero: 3}), r"Odd.dynamic\[nonzero\] must be callable, given 3"),
        (with_tables(dynamic=[]), "Odd.dynamic must map ops to their entries, given list"),
        (with_tables(kernels={"sofmax": []}), "has the key 'sofmax', which is not an op;"),
    ],
)
def test_a_backend_that_cannot_work_is_refused_when_first_used(make: Any, text: str) -> None:
    tt.register("odd", make)
    try:
        for _ in range(2):
            with pytest.raises(DeviceError, match=text):
                tt.zeros(3, device="odd")
        listed = {d.name: d for d in tt.devices()}
        assert not listed["odd"].available
        assert listed["cpu"].available
        assert listed["odd"].why
        assert listed["odd"].remedy
    finally:
        tt.unregister("odd")


@pytest.mark.parametrize("units", [-1, 0, 1.5, None, "ab", ("a", 3), (), True, ("",)])
def test_a_probe_that_returns_something_else_means_no_device(units: Any) -> None:
    tt.register("odd", Null, lambda: units)
    try:
        with pytest.raises(DeviceError, match="'odd' is not available: its probe"):
            tt.zeros(3, device="odd")
        assert not {d.name: d for d in tt.devices()}["odd"].available
    finally:
        tt.unregister("odd")


def test_a_probe_that_fails_means_no_device() -> None:
    tt.register("odd", Null, lambda: 1 // 0)
    try:
        with pytest.raises(DeviceError, match="'odd' is not available: its probe failed: ZeroDivisionError"):
            tt.device("odd")
    finally:
        tt.unregister("odd")


def test_an_op_without_operands_and_kernel_names_itself_and_the_device() -> None:
    tt.register("bare", Bare)
    try:
        with pytest.raises(
            DeviceError, match=r"full has no kernel on bare\. It runs on cpu; create the tensor there and"
        ):
            tt.zeros(3, device="bare")
        x = tt.ones(3).to("bare")
        with pytest.raises(DeviceError, match=r"exp has no kernel on bare for f32\[3\]\. It runs on cpu; move"):
            tt.exp(x)
    finally:
        tt.unregister("bare")


@pytest.mark.parametrize("name", [5, None, [], "cpu", ("null",)])
def test_unregister_refuses_what_is_no_name(name: Any) -> None:
    with pytest.raises(DeviceError, match="is not a device that was registered"):
        tt.unregister(name)


# ---- mixing and moving


@pytest.mark.parametrize(
    "act",
    [
        tt.add,
        tt.matmul,
        lambda a, b: tt.where(a > 0, a, b),
        lambda a, b: tt.concat([a, b]),
    ],
)
def test_mixing_devices_is_an_error_that_says_what_to_do(null: Null, act: Any) -> None:
    here = tt.ones((2, 2))
    there = here.to("null")
    with pytest.raises(DeviceError, match=r"tensors are on cpu and null; move one with \.to\('cpu'\)"):
        act(here, there)
    with pytest.raises(DeviceError, match=r"tensors are on null and cpu; move one with \.to\('null'\)"):
        act(there, here)


def _assign(x: Any, out: Any) -> None:
    out[:] = x


@pytest.mark.parametrize("act", [lambda x, out: tt.exp(x, out=out), lambda x, out: tt.add(x, x, out=out), _assign])
def test_what_is_written_tells_where_the_others_go(null: Null, act: Any) -> None:
    here = tt.ones((2, 2))
    there = here.to("null")
    with pytest.raises(DeviceError, match=r"move one with \.to\('cpu'\): transfers"):
        act(there, here)
    with pytest.raises(DeviceError, match=r"\.to\('null'\) \(a NumPy array with tritium\.tensor\(a, device='null'\)\)"):
        act(here, there)
    with pytest.raises(DeviceError, match=r"device='null'"):
        act(np.ones((2, 2), np.float32), there)


def test_packing_tensors_of_two_devices_is_an_error(null: Null) -> None:
    with pytest.raises(DeviceError, match="move them to one device"):
        tt.pack([tt.ones(2), tt.ones(2, device="null")])


def test_a_number_goes_where_the_tensor_is(null: Null) -> None:
    assert (tt.ones(2, device="null") + 1).to("cpu").tolist() == [2, 2]


def test_to_moves_values_and_is_counted(null: Null) -> None:
    x = tt.tensor([[1.0, 2.0], [3.0, 4.0]])
    before = tt.memory.stats()
    y = x.T.to("null")
    after = tt.memory.stats()
    assert y.device is null.device
    assert null.uploads == 1
    assert null.downloads == 0
    assert after.transfers - before.transfers == 1
    assert after.transfer_bytes - before.transfer_bytes == 16
    assert y.to("cpu").tolist() == [[1, 3], [2, 4]]
    assert null.downloads == 1


def test_to_the_same_device_does_nothing(null: Null) -> None:
    x = tt.ones(2, device="null")
    before = (tt.memory.stats().transfers, null.uploads, null.downloads)
    assert x.to("null") is x
    assert x.to(x.device) is x
    assert x.to_device("null") is x
    assert (tt.memory.stats().transfers, null.uploads, null.downloads) == before


def test_a_move_that_may_not_copy_is_refused(null: Null) -> None:
    with pytest.raises(DeviceError, match=r"f32\[2\] is on cpu; it cannot come to null without a copy"):
        tt.ones(2).to("null", copy=False)


def test_a_transfer_is_an_event(null: Null) -> None:
    events: list[tt.Event] = []
    tt.watch(events.append)
    try:
        tt.ones(2).to("null")
    finally:
        tt.unwatch(events.append)
    moves = [e for e in events if e.op is None]
    assert [(e.kernel, e.device, e.cost.read, e.cost.written) for e in moves] == [("cpu->null", null.device, 8, 8)]
    assert moves[0].elapsed_ns >= 0


def test_computing_on_a_device_does_not_touch_the_host(null: Null) -> None:
    x = tt.ones((3, 3), device="null")
    before = null.downloads
    y = tt.softmax(x @ x.T + x, axis=0)
    y += y.T
    assert null.downloads == before
    assert y.device is null.device


def test_values_are_read_through_the_backend(null: Null) -> None:
    x = tt.tensor([1.0, 2.0]).to("null")
    assert x.tolist() == [1, 2]
    assert "device='null'" in repr(x)
    assert x.sum().item() == 3


def test_a_device_with_a_name_makes_tensors_there(null: Null) -> None:
    made = [
        tt.zeros(2, device="null"),
        tt.arange(3, device="null"),
        tt.rand(2, seed=1, device="null"),
        tt.asarray([1, 2], device="null"),
        tt.ones_like(tt.ones(2, device="null")),
    ]
    assert all(x.device is null.device for x in made)


def test_a_clone_stays_on_its_device_and_shares_until_written(null: Null) -> None:
    x = tt.ones(3, device="null")
    y = x.clone()
    assert y.device is null.device
    assert y.sharers == 2
    y += 1
    assert (x.to("cpu").tolist(), y.to("cpu").tolist()) == ([1, 1, 1], [2, 2, 2])


def test_packing_stays_on_the_device(null: Null) -> None:
    a, b = tt.pack([tt.ones(2, device="null"), tt.zeros(3, device="null")])
    assert a.storage is b.storage
    assert a.device is null.device
    assert b.to("cpu").tolist() == [0, 0, 0]


# ---- kernels


LOWERED_CASES = [(op, s) for op in LOWERED for s in op.samples]


@by_op(LOWERED_CASES)
def test_lowering_gives_the_same_result(null: Null, op: Op, sample: Sample) -> None:
    attrs, data = dict(sample.attrs), arrays(op, sample)
    got = call(op, [None if x is None else laid(x, "contiguous").to("null") for x in data], attrs)
    assert_close(op, got.to("cpu").numpy(), expected(op, data, attrs), data, op.complete(attrs))


def test_lowering_writes_into_out_in_its_dtype(null: Null) -> None:
    x = tt.tensor([1.0, 2.0]).to("null")
    out = tt.zeros(2, dtype="f64", device="null")
    assert tt.silu(x, out=out) is out
    np.testing.assert_allclose(out.to("cpu").numpy(), tt.silu(tt.tensor([1.0, 2.0])).numpy(), rtol=1e-6)


@pytest.mark.parametrize("row", MISSING, ids=lambda o: o.name)
def test_a_missing_kernel_is_named_with_dtypes_and_device(null: Null, row: Op) -> None:
    x = tt.ones(3, device="null")
    more = [tt.ones(3, dtype="bool", device="null")] if row is ops.masked else []
    with pytest.raises(
        DeviceError, match=rf"{row.name} has no kernel on null for f32\[3\].*It runs on cpu.*\.to\('cpu'\)"
    ):
        row(x, *more)


def test_the_first_kernel_that_accepts_is_chosen(null: Null) -> None:
    used: list[str] = []

    def kernel(name: str) -> Any:
        def fn(x: Any, *, out: Any) -> None:
            used.append(name)
            np.exp(x, out=out)

        return fn

    listed = [
        Kernel("flat", kernel("flat"), lambda specs, attrs, layouts: layouts[0].is_contiguous),
        Kernel("any", kernel("any")),
    ]
    null.kernels = dict(null.kernels) | {ops.exp: listed}
    x = tt.ones((2, 3), device="null")
    for y in (x, x.T, x.T, x):
        tt.exp(y)
    assert used == ["flat", "any", "any", "flat"]


def test_a_kernel_never_writes_over_what_it_still_reads(null: Null) -> None:
    seen: list[bool] = []

    def careless(x1: Any, x2: Any, *, out: Any) -> None:
        for x in (x1, x2):
            same = (x.ctypes.data, x.shape, x.strides) == (out.ctypes.data, out.shape, out.strides)
            seen.append(same or not np.shares_memory(x, out))
        for i in np.ndindex(out.shape):
            out[i] = np.broadcast_to(x1, out.shape)[i] + np.broadcast_to(x2, out.shape)[i]

    null.kernels = dict(null.kernels) | {ops.add: [Kernel("careless", careless)]}
    m = np.arange(9, dtype=np.float32).reshape(3, 3)
    x = tt.tensor(m).to("null")
    x += x.T
    m = m + m.T
    x[1:] += x[:-1]
    m[1:] = m[1:] + m[:-1]
    x += x[0]
    m = m + m[0]
    x += x
    assert x.tolist() == (m + m).tolist()
    assert len(seen) == 8
    assert all(seen)


def test_a_matrix_product_into_its_own_operand_is_right(null: Null) -> None:
    def careless(a: Any, b: Any, *, out: Any, algorithm: str) -> None:
        for i, j in np.ndindex(out.shape):
            out[i, j] = a[i] @ b[:, j]

    null.kernels = dict(null.kernels) | {ops.matmul: [Kernel("careless", careless)]}
    m = np.arange(9, dtype=np.float32).reshape(3, 3)
    x = tt.tensor(m).to("null")
    x @= x
    assert x.tolist() == (m @ m).tolist()


def test_the_conformance_kit_passes_on_a_copy_of_the_reference(null: Null) -> None:
    assert check_backend("null") > 500


def test_the_conformance_kit_passes_on_the_cpu() -> None:
    assert check_backend("cpu") > 500


def test_the_conformance_kit_lists_what_a_broken_backend_gets_wrong() -> None:
    tt.register("broken", Broken)
    try:
        with pytest.raises(AssertionError, match="disagreements on broken") as caught:
            check_backend("broken")
    finally:
        tt.unregister("broken")
    said = str(caught.value)
    assert "add f32[3,4],f32[3,4]: AssertionError" in said
    assert "exp f32[3,4]: RuntimeError: no such thing" in said
    assert "writes: " in said
    assert "subtract f32" not in said


def test_a_graph_runs_where_its_arguments_are(null: Null) -> None:
    graph = tt.trace(lambda x: tt.softmax(x * 2) + tt.ones(3), tt.Spec((3,)))
    x = tt.tensor([1.0, 2.0, 3.0])
    got = graph(x.to("null"))
    assert got.device is null.device
    np.testing.assert_allclose(got.to("cpu").numpy(), graph(x).numpy(), rtol=1e-6)


# ---- which device, and why


def test_the_default_is_the_cpu() -> None:
    choice = tt.default_device()
    assert choice.device == "cpu"
    assert "CPU is the default" in choice.why or "only kind" in choice.why


def test_the_default_can_be_set_and_says_why(null: Null) -> None:
    tt.set_default_device("null")
    assert tt.default_device() == (null.device, "set by set_default_device")
    assert tt.zeros(2).device is null.device
    assert tt.asarray(np.ones(2)).device is null.device
    tt.set_default_device(None)
    assert tt.zeros(2).device == "cpu"


def test_a_device_is_an_object_equal_to_its_name() -> None:
    cpu = tt.device("cpu")
    assert tt.device(cpu) is cpu is tt.ones(1).device
    assert cpu == "cpu"
    assert hash(cpu) == hash("cpu")
    assert repr(cpu) == "Device('cpu')"


@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps", "mlx", "torch", "gpu", "metal"])
def test_an_absent_device_says_why_and_what_to_do(name: str) -> None:
    if any(d.available and d.name.partition(":")[0] == name for d in tt.devices()):
        pytest.skip("it is here")
    with pytest.raises(DeviceError, match=f"Device '{name}' is not available: .+; .+"):
        tt.zeros(2, device=name)


def test_absent_devices_are_listed_with_reason_and_remedy() -> None:
    absent = [d for d in tt.devices() if not d.available]
    assert {"cuda"} <= {d.name for d in absent}
    assert all(d.why and d.remedy for d in absent)


def test_a_probe_may_explain_an_absence() -> None:
    tt.register("far", Null, lambda: Absent("no cable is plugged in", "plug it in"))
    try:
        with pytest.raises(DeviceError, match="'far' is not available: no cable is plugged in; plug it in"):
            tt.device("far")
        found = {d.name: d for d in tt.devices()}["far"]
        assert (found.available, found.why, found.remedy) == (False, "no cable is plugged in", "plug it in")
    finally:
        tt.unregister("far")


@pytest.mark.parametrize("name", ["cpuu", "tpu", "", "cpu:x", "cpu:-1"])
def test_a_bad_name_lists_the_valid_ones(name: str) -> None:
    with pytest.raises(DeviceError, match=r"is not a device\..*Valid here: cpu"):
        tt.device(name)


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | env, timeout=60
    )


def test_the_environment_names_the_default_device() -> None:
    done = python("import tritium as tt; print(tt.default_device().why, tt.zeros(1).device)", TRITIUM_DEVICE="cpu")
    assert done.stdout.split() == ["TRITIUM_DEVICE=cpu", "cpu"], done.stderr


def test_an_absent_device_in_the_environment_is_explained_at_first_use() -> None:
    done = python("import tritium as tt; print('imported'); tt.zeros(1)", TRITIUM_DEVICE="cuda")
    assert done.stdout == "imported\n"
    assert "DeviceError: TRITIUM_DEVICE=cuda: Device 'cuda' is not available" in done.stderr


def test_the_first_tensor_of_a_process_may_come_from_numpy() -> None:
    done = python("import numpy as np, tritium as tt; x = tt.from_numpy(np.ones(2)); print(x.device, (x + x).tolist())")
    assert done.stdout == "cpu [2.0, 2.0]\n", done.stderr


def test_a_device_made_by_hand_is_the_one_of_its_name() -> None:
    cpu = tt.device("cpu")
    assert tt.device(tt.Device("cpu", 0)) is tt.zeros(2, device=tt.Device("cpu")).device is cpu
    assert tt.Device("cpu", 0) == cpu == tt.Device("cpu")
    assert tt.Device("cpu", 1) != cpu
    assert hash(tt.Device("cpu")) == hash(cpu)
    x = tt.ones(2)
    assert x.to(tt.Device("cpu", 0)) is x


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (tt.Device("cpu", 7), "'cpu:7' does not exist: there is 1 of 'cpu'"),
        (tt.Device("nonsense", 3), "'nonsense:3' is not a device.*Valid here: cpu"),
        (tt.Device("cuda", 9), "'cuda:9' (is not available|does not exist)"),
        (tt.Device(3), "'3' is not a device"),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_a_device_made_by_hand_that_is_not_here_is_refused_and_leaves_nothing(wrong: tt.Device, says: str) -> None:
    for use in (tt.device, tt.set_default_device, lambda d: tt.zeros(2, device=d), tt.ones(2).to, tt.ones(2).to_device):
        with pytest.raises(DeviceError, match=says):
            use(wrong)
    assert tt.zeros(2).device == "cpu"
