"""What was tuned: read once, followed where it changes no bits, and never trusted when it belongs elsewhere."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings as settings_of_hypothesis, strategies as st

import tritium as tt
from isas import ISAS
from null import Null
from tritium import backends, ops, settings
from tritium.backends.cpu import device as cpu
from tritium.buffer import native
from tritium.machine import tuned
from tritium.machine.facts import this_machine
from tritium.op import Spec

needs_native = pytest.mark.skipif(native is None, reason="there is no native library")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("TRITIUM_CACHE", str(tmp_path))
    monkeypatch.delenv("TRITIUM_TUNED", raising=False)
    backends.retuned()
    yield tmp_path
    monkeypatch.undo()
    backends.retuned()


def body_of(choices: dict[str, tuned.Choice]) -> dict[str, Any]:
    here = {"machine": asdict(this_machine()), "build": tuned.build(), "version": tuned.version()}
    return {**here, "choices": {n: asdict(c) for n, c in choices.items()}, "tunings": []}


def write(kept: dict[str, tuned.Choice], **changes: Any) -> Path:
    path = tuned.path()
    path.write_text(json.dumps(tuned.document(body_of(kept) | changes)))
    backends.retuned()
    return path


def test_without_a_file_nothing_is_chosen(cache: Path) -> None:
    assert tuned.choices() == {}


def test_a_choice_that_was_kept_is_read(cache: Path) -> None:
    write({"storage": tuned.Choice("tern2", "faster")})
    assert tuned.choices()["storage"] == tuned.Choice("tern2", "faster")


@pytest.mark.parametrize(("said", "names"), [("0", set()), ("", {"a"}), ("1", {"a"}), ("all", {"a", "b"})])
def test_the_environment_says_how_much_is_followed(
    cache: Path, monkeypatch: pytest.MonkeyPatch, said: str, names: set[str]
) -> None:
    monkeypatch.setenv("TRITIUM_TUNED", said)
    write({"a": tuned.Choice(1, ""), "b": tuned.Choice(2, "", exact=False)})
    assert set(tuned.choices()) == names


@pytest.mark.parametrize(
    ("changes", "says", "level"),
    [
        ({"build": "1-1"}, "another native library", logging.INFO),
        ({"version": "0.0.1"}, "another version", logging.INFO),
        ({"machine": {"cpu": "other"}}, "another machine", logging.INFO),
        ({"choices": {"a": {"value": 1.5, "why": ""}}}, "fields of the wrong type", logging.WARNING),
        ({"choices": {"a": {"worth": 1}}}, "worth", logging.WARNING),
        ({"choices": []}, "no choices", logging.WARNING),
    ],
)
def test_a_file_of_elsewhere_is_reported_and_ignored(
    cache: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], says: str, level: int
) -> None:
    with caplog.at_level(logging.INFO, "tritium"):
        write({"a": tuned.Choice(1, "")}, **changes)  # a backend that is there already reads it at once
        assert tuned.choices() == {}
        backends.retuned()
        assert tuned.choices() == {}
    assert says in caplog.text
    assert [record.levelno for record in caplog.records if "is not used" in record.message] == [level]  # once
    assert says in tuned.unused_reason()


def test_a_file_that_is_used_or_absent_has_no_reason(cache: Path) -> None:
    assert tuned.unused_reason() == ""
    write({"a": tuned.Choice(1, "")})
    assert tuned.unused_reason() == ""


@pytest.mark.parametrize("command", [["devices"], ["ops"], ["baseline", "list"]])
def test_a_stale_file_is_silent_in_commands_and_shown_at_level_info(cache: Path, command: list[str]) -> None:
    write({"a": tuned.Choice(1, "")}, build="1-1")

    def errors(**more: str) -> str:
        env = os.environ | {"TRITIUM_CACHE": str(cache)} | more
        run = subprocess.run([sys.executable, "-m", "tritium", *command], capture_output=True, text=True, env=env)
        assert run.returncode == 0, run.stderr
        return run.stderr

    assert errors() == ""
    if command == ["devices"]:
        assert "is not used (it belongs to another native library)" in errors(TRITIUM_LOG="info")


@given(st.data())
def test_a_damaged_file_is_ignored(data: st.DataObject) -> None:
    whole = json.dumps(tuned.document(body_of({"a": tuned.Choice(1, "because")}))).encode()
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = data.draw(
        st.one_of(
            st.just(whole[:at]),
            st.integers(1, 255).map(lambda x: whole[:at] + bytes([whole[at] ^ x]) + whole[at + 1 :]),
        )
    )
    try:
        read = tuned.checked(json.loads(damaged), this_machine())
    except (ValueError, TypeError, KeyError, RecursionError):
        return
    assert read == json.loads(whole)["tuned"]  # white space may change, contents may not


def test_a_file_without_end_is_not_read(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuned, "MAX_FILE_BYTES", 10)
    write({"a": tuned.Choice(1, "")})
    assert tuned.choices() == {}


def test_what_is_no_plain_file_is_not_read(cache: Path) -> None:
    os.mkfifo(tuned.path())  # reading it would wait for ever
    tuned.forget()
    assert tuned.choices() == {}


def test_the_file_is_read_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write({"a": tuned.Choice(1, "")})
    reads: list[Any] = []
    read_file = tuned.read_file
    monkeypatch.setattr(tuned, "read_file", lambda *args: reads.append(args) or read_file(*args))
    tuned.forget()
    for _ in range(3):
        assert "a" in tuned.choices()
    assert len(reads) == 1


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_sizes_of_one_class_differ_by_less_than_four_times(a: int, b: int) -> None:
    if tuned.size_class(a) == tuned.size_class(b):
        assert max(a, b) < 4 * max(min(a, b), 1)
    assert (tuned.size_class(a) <= tuned.size_class(b)) or a > b


def test_a_key_names_row_dtypes_and_classes() -> None:
    specs = (Spec((1, 64)), Spec((64, 64), tt.tern2), None)
    assert tuned.kernel_key("quantized_matmul", specs) == "kernel/quantized_matmul/f32:4,tern2:7,-"


# ---- who reads it


def product(tokens: int = 1) -> tuple[tt.Tensor, ...]:
    rng = np.random.default_rng(0)
    x = tt.tensor(rng.standard_normal((tokens, 128)).astype(np.float32))
    return x, tt.repack(tt.tensor(rng.integers(-1, 2, (64, 128), np.int8)), tt.tern2), tt.tensor(0.5)


@needs_native
@pytest.mark.parametrize("isa", ISAS)
def test_the_kernel_that_was_tuned_is_chosen_and_gives_the_same_bits(
    cache: Path, monkeypatch: pytest.MonkeyPatch, isa: str
) -> None:
    monkeypatch.delenv("TRITIUM_ISA", raising=False)
    x, w, scale = product()
    specs = (x.spec, w.spec, scale.spec, None)
    want = tt.quantized_matmul(x, w, scale, None).numpy()
    write({tuned.kernel_key("quantized_matmul", specs): tuned.Choice(isa, "")})
    chosen = tt.device("cpu").backend.choose(ops.quantized_matmul, specs, {"group": 0}, (None,) * 4)
    expected = next(
        k for k in cpu.alternatives(ops.quantized_matmul, isa) if k.accepts(specs, {"group": 0}, (None,) * 4)
    )
    assert chosen is not None
    assert chosen.name == expected.name
    assert np.array_equal(tt.quantized_matmul(x, w, scale, None).numpy(), want)
    both = tt.compile(lambda x: tt.relu(tt.quantized_matmul(x, w, scale, None)) + 1.0)
    assert np.array_equal(both(x).numpy(), np.maximum(want, 0) + 1)


@needs_native
def test_other_sizes_keep_the_shipped_kernel(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITIUM_ISA", raising=False)
    x, w, scale = product()
    write({tuned.kernel_key("quantized_matmul", (x.spec, w.spec, scale.spec, None)): tuned.Choice("portable", "")})
    backend = tt.device("cpu").backend

    def kernel(tokens: int) -> str:
        specs = (Spec((tokens, 128)), w.spec, scale.spec, None)
        found = backend.choose(ops.quantized_matmul, specs, {"group": 0}, (None,) * 4)
        assert found is not None
        return found.name

    assert kernel(1) == "portable"
    assert kernel(64) == native.isa_base(native.isa())


@needs_native
def test_rows_that_are_not_exact_have_no_alternatives() -> None:
    assert cpu.alternatives(ops.exp, "portable") == []
    assert cpu.alternatives(ops.matmul, "portable") == []
    assert {k.name for k in cpu.alternatives(ops.add, "portable")} == {"portable"}
    assert cpu.alternatives(ops.add, "riscv") == []


@needs_native
def test_a_forced_instruction_set_is_stronger(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write({"storage": tuned.Choice("tern2", ""), "tiling/tern2": tuned.Choice("tern2", "")})
    backend = tt.device("cpu").backend
    assert (backend.densest(), backend.tiling(tt.tern2)) == (tt.tern2, tt.tern2)
    monkeypatch.setenv("TRITIUM_ISA", "portable")
    backends.retuned()
    assert backend.densest() is cpu.shipped_storage()


@needs_native
def test_the_device_tells_how_many_choices_it_follows(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITIUM_ISA", raising=False)
    assert "tuned" not in tt.device("cpu").backend.describe()
    write({"storage": tuned.Choice("tern2", "")})
    assert tt.device("cpu").backend.describe()["tuned"].startswith("1 choice")


@needs_native
def test_words_that_mean_nothing_leave_the_shipped_choice(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITIUM_ISA", raising=False)
    shipped = tt.device("cpu").backend.tiling(tt.tern2)
    write({"storage": tuned.Choice("tern9", ""), "tiling/tern2": tuned.Choice("f32", "")})
    backend = tt.device("cpu").backend
    assert (backend.densest(), backend.tiling(tt.tern2)) == (cpu.shipped_storage(), shipped)


@pytest.fixture
def other() -> Iterator[None]:
    tt.register("other", Null)
    yield
    tt.unregister("other")


def test_a_tuned_device_is_followed_only_when_all_is(cache: Path, monkeypatch: pytest.MonkeyPatch, other: None) -> None:
    monkeypatch.delenv("TRITIUM_DEVICE", raising=False)
    write({"device": tuned.Choice("other", "twice as fast", exact=False)})
    assert str(tt.default_device().device) == "cpu"
    monkeypatch.setenv("TRITIUM_TUNED", "all")
    backends.retuned()
    assert (str(tt.default_device().device), tt.default_device().why) == ("other", "tuned: twice as fast")
    monkeypatch.setenv("TRITIUM_DEVICE", "cpu")
    assert str(tt.default_device().device) == "cpu"


def test_a_tuned_device_that_is_gone_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch, other: None) -> None:
    monkeypatch.delenv("TRITIUM_DEVICE", raising=False)
    monkeypatch.setenv("TRITIUM_TUNED", "all")
    write({"device": tuned.Choice("another", "", exact=False)})
    assert str(tt.default_device().device) == "cpu"


def by_size(*devices: tuple[int, str], op: str = "matmul") -> dict[str, tuned.Choice]:
    return {tuned.device_key(op, n): tuned.Choice(name, f"{name} at {n}", exact=False) for n, name in devices}


@pytest.fixture
def followed(cache: Path, monkeypatch: pytest.MonkeyPatch, other: None) -> None:
    monkeypatch.delenv("TRITIUM_DEVICE", raising=False)
    monkeypatch.setenv("TRITIUM_TUNED", "all")


@given(
    st.dictionaries(st.integers(0, 2000), st.sampled_from(["cpu", "other", "gone"]), min_size=1, max_size=5),
    st.integers(0, 2500),
)
@settings_of_hypothesis(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_default_device_is_that_of_the_largest_measured_size_up_to_the_work(
    followed: None, measured: dict[int, str], size: int
) -> None:
    write(by_size(*measured.items()))
    choice = tt.default_device(size=size)
    assert choice == tt.default_device(size=(size,), op="matmul") == tt.default_device(size=[size, 1])
    below = [n for n in measured if n <= size]
    if not below:
        assert choice.device == "cpu"
        assert f"below {min(measured):,} elements, the smallest size measured" in choice.why
    elif measured[max(below)] == "gone":
        assert choice.device == "cpu"
        assert "'gone' was tuned, but cannot be used ('gone' is not a device" in choice.why
    else:
        assert choice.device == measured[max(below)]
        assert choice.why == f"tuned, from {max(below):,} elements on: {choice.device} at {max(below)}"


def test_new_tensors_are_on_the_default_device_of_their_size(followed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    write(by_size((1, "cpu"), (100, "other")))
    create: list[Any] = [
        tt.zeros, tt.ones, tt.empty, tt.arange, tt.randn, lambda n: tt.full((n, 1), 2.0), lambda n: tt.asarray([1] * n),
        lambda n: tt.tensor([[1.0] * n]), lambda n: tt.asarray(np.ones(n)), lambda n: tt.linspace(0, 1, n),
        tt.memory.TensorPool().get_or_create_tensor,
    ]  # fmt: skip
    for new in create:
        for n, name in ((3, "cpu"), (99, "cpu"), (100, "other"), (500, "other"), (3, "cpu")):
            assert new(n).device == name
    with pytest.raises(tt.errors.DeviceError, match="tensors are on cpu and other; move one"):
        tt.zeros((1, 3)) + tt.zeros((100, 3))
    assert tt.zeros(500, device="cpu").device == tt.zeros_like(tt.zeros(500, device="cpu")).device == "cpu"
    tt.set_default_device("other")
    try:
        assert tt.zeros(3).device == "other"
        assert tt.default_device(size=3) == (tt.device("other"), "set by set_default_device")
    finally:
        tt.set_default_device(None)
    monkeypatch.setenv("TRITIUM_DEVICE", "cpu")
    backends.forget()
    assert tt.zeros(500).device == "cpu"
    assert tt.default_device(size=500).why == "TRITIUM_DEVICE=cpu"
    monkeypatch.delenv("TRITIUM_DEVICE")
    monkeypatch.delenv("TRITIUM_TUNED")
    backends.retuned()
    assert tt.zeros(500).device == "cpu"


@pytest.fixture
def auto(cache: Path, monkeypatch: pytest.MonkeyPatch, other: None) -> Iterator[None]:
    """The environment variable, or the function: both mean the same."""
    backends._warn_unmeasured.cache_clear()
    monkeypatch.setenv("TRITIUM_DEVICE", "auto")
    backends.forget()
    yield
    monkeypatch.delenv("TRITIUM_DEVICE", raising=False)
    backends.forget()


def test_auto_follows_measured_devices_by_size_and_nothing_else(auto: None, monkeypatch: pytest.MonkeyPatch) -> None:
    write({**by_size((1, "cpu"), (100, "other")), "threads": tuned.Choice(1, "", exact=False)})
    assert "threads" not in tuned.choices()
    assert [str(tt.zeros(n).device) for n in (99, 100, 5)] == ["cpu", "other", "cpu"]
    assert tt.default_device(size=100).why == "tuned, from 100 elements on: other at 100"
    assert tt.default_device().why.startswith("measured: no device is clearly faster at 100 elements")
    monkeypatch.delenv("TRITIUM_DEVICE")
    backends.forget()
    assert tt.zeros(100).device == "cpu"
    tt.set_default_device("auto")
    try:
        assert tt.zeros(100).device == "other"
    finally:
        tt.set_default_device(None)
    assert tt.zeros(100).device == "cpu"


def test_auto_without_measurements_is_the_cpu_and_says_so_once(
    auto: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert tt.zeros(10).device == tt.zeros(20).device == "cpu"
    (record,) = caplog.records
    assert "nothing was measured on this machine" in record.getMessage()
    for choice in (tt.default_device(), tt.default_device(size=9), tt.default_device(size=9, op="add")):
        assert choice.device == "cpu"
        assert choice.why.startswith("auto, but devices were not compared")
        assert "`tritium tune --op device` measures it" in choice.why
    monkeypatch.setenv("TRITIUM_TUNED", "0")
    backends.retuned()
    assert tt.default_device().why == "auto, but TRITIUM_TUNED=0 ignores what was measured; unset it"


def test_auto_is_no_name_for_a_device() -> None:
    with pytest.raises(tt.errors.DeviceError, match="'auto' means the device that was measured"):
        tt.register("auto", Null)


def test_a_size_without_measurements_is_the_cpu_and_says_so(followed: None) -> None:
    choice = tt.default_device(size=10**9)
    assert choice.device == "cpu"
    assert "not compared by size (`tritium tune --op device` measures it, TRITIUM_DEVICE=auto applies" in choice.why
    write({**by_size((1, "other")), "device/matmul/x": tuned.Choice("gone", "", exact=False)})
    assert tt.default_device(size=1).device == "other"
    assert tt.default_device(op="matmul").device == "other"
    assert tt.default_device().device == "cpu"  # one device for all sizes was not clearly faster
    choice = tt.default_device(size=1, op="add")
    assert choice.device == "cpu"
    assert "devices were not compared for add" in choice.why
    write(by_size((10, "other"), op="add"))
    assert [str(tt.default_device(size=n, op="add").device) for n in (9, 10)] == ["cpu", "other"]
    assert tt.default_device(size=10).device == "cpu"
    write({"device": tuned.Choice("other", "twice as fast", exact=False)})
    assert tt.default_device(size=1) == (tt.device("other"), "tuned, but not by size: twice as fast")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": -1}, "default_device: size must be an integer of at least 0"),
        ({"size": (2, -1)}, "size must be"),
        ({"size": "big"}, "size must be .* given 'big'"),
        ({"size": 1.5}, "size must be"),
        ({"op": "matmull"}, "'matmull' is not an op. Did you mean 'matmul'?"),
        ({"op": 3}, "op must be a string or None, given 3"),
        ({"sise": 3}, "unknown argument 'sise'. Did you mean 'size'"),
    ],
)
def test_a_size_or_op_that_is_none_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(tt.errors.ArgumentError, match=message):
        tt.default_device(**options)


@needs_native
@pytest.mark.parametrize(
    ("variables", "count"), [({"TRITIUM_TUNED": "all"}, "3"), ({"TRITIUM_TUNED": "all", "OMP_NUM_THREADS": "1"}, "1")]
)
def test_tuned_threads_are_used_where_all_is_followed(cache: Path, variables: dict[str, str], count: str) -> None:
    write({"threads": tuned.Choice(3, "", exact=False)})
    clean = {k: v for k, v in os.environ.items() if k not in ("TRITIUM_NUM_THREADS", "OMP_NUM_THREADS")}
    code = "import tritium as tt; print(tt.get_num_threads())"
    env = clean | {"TRITIUM_CACHE": str(cache)} | variables
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=60, check=True)
    assert done.stdout.strip() == count


def test_the_setting_has_three_values(monkeypatch: pytest.MonkeyPatch) -> None:
    for said, means in (("0", "none"), ("all", "all"), ("", "exact"), ("yes", "exact")):
        monkeypatch.setenv("TRITIUM_TUNED", said)
        assert settings.tuned() == means


# ---- GPUs


def torch_of(*gpus: tuple[str, int, int]) -> Any:
    """A torch with these GPUs: name, major version of the capability, multiprocessors."""
    found = [SimpleNamespace(name=n, major=c, minor=0, multi_processor_count=p) for n, c, p in gpus]
    cuda = SimpleNamespace(
        is_available=lambda: bool(found), device_count=lambda: len(found), get_device_properties=found.__getitem__
    )
    return SimpleNamespace(__version__="9.9", cuda=cuda)


def test_a_gpu_is_named_with_what_makes_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.3"))
    monkeypatch.setitem(
        sys.modules, "torch", torch_of(("One", 9, 132), ("Two", 8, 108), ("Three", 8, 108), ("One", 9, 132))
    )
    assert tuned.gpu((9, 0), 132) == "One, torch 9.9, triton 3.3"
    assert tuned.gpu((0, 0), 132) == "One, torch 9.9, triton 3.3"  # whatever its capability
    assert tuned.gpu((9, 0), 100) == ""
    assert tuned.gpu((8, 0), 108) == ""  # which of the two is meant cannot be told


@pytest.mark.parametrize("missing", ["torch", "triton", "gpu"])
def test_without_a_gpu_torch_or_triton_there_is_no_name(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    found = {
        "torch": torch_of(*([] if missing == "gpu" else [("One", 9, 132)])),
        "triton": SimpleNamespace(__version__="3.3"),
    }
    for name, module in found.items():
        monkeypatch.setitem(sys.modules, name, None if name == missing else module)
    assert tuned.gpu((9, 0), 132) == ""


def test_a_choice_for_a_gpu_is_read_by_its_name(cache: Path) -> None:
    gpus = ("NVIDIA One/2, torch 9.9, triton 3.3", "NVIDIA Two, torch 9.9, triton 3.3")
    write({tuned.product_key(2560, 6912, m, gpu): tuned.Choice(gpu, "") for m, gpu in enumerate(gpus, 1)})
    assert {sizes: c.value for sizes, c in tuned.products(gpus[0]).items()} == {(2560, 6912, 1): gpus[0]}
    assert set(tuned.products(gpus[1])) == {(2560, 6912, 2)}
    assert tuned.products("") == tuned.products("NVIDIA One") == {}
