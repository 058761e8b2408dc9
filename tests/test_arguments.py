"""Every public name refuses what it does not take with an error of the package, in time and memory, and leaves no trace."""

from __future__ import annotations

import inspect
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest

import tritium as tt
from tritium import arguments
from tritium.arguments import Range, checked, checked_class
from tritium.errors import (
    ArgumentError,
    BoundsError,
    DeviceError,
    DTypeError,
    ExchangeError,
    OutOfMemoryError,
    RangeError,
    ShapeError,
    TritiumError,
    ViewError,
    shown,
)
from tritium.perf.suites.config import fraction

SCRIPT = Path(__file__).parent / "helpers" / "argument_calls.py"
CALLS = int(os.environ.get("TRITIUM_ARGUMENT_CALLS", "3"))  # of each name; .ci/long asks for many more
SEED = int(os.environ.get("TRITIUM_ARGUMENT_SEED", "1"))


@pytest.mark.slow
def test_wrong_arguments_end_in_errors_of_the_package(tmp_path: Path) -> None:
    """In a process of its own, with a limit on memory and on the time of each call; ordinary calls follow each name."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(SEED), str(CALLS)], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "TRITIUM_CACHE": str(tmp_path / "cache")},
        timeout=60 * CALLS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    *problems, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert not problems, "\n".join(map(str, problems[:20]))
    assert last["calls"] > 300 * CALLS


REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: tt.randn((2,), seed="x"), ArgumentError, "randn: seed must be an integer or None, given 'x'"),  # type: ignore[arg-type]
    (lambda: tt.randn((2,), seed=1.5), ArgumentError, "seed must be an integer or None, given 1.5"),  # type: ignore[arg-type]
    (lambda: tt.ones(3).view("i64"), ViewError, r"view: f32\[3\] .* cannot be read as i64: .*\.to\('i64'\)"),
    (
        lambda: tt.nn.BitLinear(512, 256),
        ArgumentError,
        "BitLinear: weight must be a Quantized .*from_float.* given 512",
    ),  # type: ignore[arg-type]
    (lambda: tt.from_torch(np.ones(3)), ArgumentError, "from_torch: a PyTorch tensor is needed.*from_numpy"),
    (lambda: tt.from_dlpack(b"x"), ArgumentError, "from_dlpack: b'x' has no __dlpack__"),
    (lambda: tt.from_dlpack(np.array(["a"])), ExchangeError, "cannot be taken"),
    (lambda: tt.ones(3).to("f16", "f32"), ArgumentError, "two dtypes were given, 'f16' and 'f32'"),
    (lambda: tt.ones(3).to("cpu", device="cpu"), ArgumentError, "two devices were given"),
    (lambda: f"{tt.ones((2, 2)):.2f}", ArgumentError, r"'.2f' formats one number, given f32\[2,2\]"),
    (lambda: tt.zeros((2,), dtpye="f32"), ArgumentError, "zeros: unknown argument 'dtpye'. Did you mean 'dtype'"),  # type: ignore[call-arg]
    (lambda: tt.diff(), ArgumentError, "diff: missing x. Signature: diff"),  # type: ignore[call-arg]
    (lambda: tt.zeros((2,), device=[1]), DeviceError, r"\(1,\) is not a device"),
    (lambda: tt.zeros((2,), dtype=[1]), DTypeError, r"\[1\] is not a dtype"),
    (lambda: tt.softmax(tt.ones(3), axis=10**5000), BoundsError, r"axis 2\*\*16609… does not exist"),
    (lambda: tt.eye(2.5), ArgumentError, "eye: n_rows must be an integer, given 2.5"),
    (lambda: tt.ones(3).copy_(10**5000), RangeError, "no float holds it"),
    (lambda: tt.ones(3)[slice("a", 2)], BoundsError, "not a slice of integers"),
    (lambda: tt.asarray(range(2**40)), ShapeError, "use tritium.arange"),
    (lambda: tt.zeros("ab"), ShapeError, "is not a shape"),
    (lambda: fraction("1"), ArgumentError, '1 could be 1 % or 100 %; write "1%"'),
    (lambda: fraction(1), ArgumentError, "1 could be 1 % or 100 %"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_a_message_says_what_was_needed(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        call()
    assert isinstance(caught.value, TritiumError)


def test_a_deeply_nested_list_is_refused() -> None:
    nested: list[Any] = []
    for _ in range(5000):
        nested = [nested]
    with pytest.raises(ShapeError, match="nested more than"):
        tt.asarray(nested)
    with pytest.raises(TritiumError):
        tt.broadcast_to(tt.ones(1), nested)


def test_what_numpy_takes_is_taken() -> None:
    assert tt.zeros(np.array([2, 3])).shape == tt.zeros(range(2, 4)).shape == (2, 3)
    assert tt.ones(6).reshape(np.array([2, 3])).shape == (2, 3)
    assert tt.randn((2,), seed=np.int64(3)).tolist() == tt.randn((2,), seed=3).tolist()
    assert tt.diff(np.array([1.0, 4.0])).tolist() == [3.0]
    assert tt.searchsorted(tt.asarray([1.0, 3.0]), 2).tolist() == 1
    assert f"{tt.asarray(1.5):.2f}" == "1.50"
    assert (fraction("100%"), fraction(1.0), fraction("1%")) == (1.0, 1.0, 0.01)


class Liar:
    """An object whose protocols raise."""

    def __index__(self) -> int:
        raise RuntimeError("no index")

    __float__ = __index__  # type: ignore[assignment]


# ---- the mechanism


@checked
def example(count: Annotated[int, Range(1, 9)], names: list[str] | None = None, *, rate: float = 1.0) -> Any:
    return count, names, rate


@checked_class
class Example:
    def __init__(self, path: Path | str) -> None:
        self.path = path

    @classmethod
    def of(cls, path: str) -> Example:
        return cls(path)

    def add(self, value: int) -> int:
        return value + 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: example(0), "example: count must be an integer from 1 to 9, given 0"),
        (lambda: example(1, "ab"), "names must be a list or tuple of strings or None, given 'ab'"),
        (lambda: example(1, ["a", 2]), "names must be"),
        (lambda: example(1, rate=float("nan")), "rate must be a number, given nan"),
        (lambda: example(1, rate=10**400), r"rate must be a number, given 2\*\*1328"),
        (lambda: example(1, None, 2), "takes 2 positional arguments, 3 were given; name the others: rate="),
        (lambda: example(1, count=2), "count was given twice"),
        (lambda: example(1, rates=2), "unknown argument 'rates'. Did you mean 'rate'"),
        (lambda: Example(3), "Example: path must be a path, given 3"),
        (lambda: Example("a\0b"), "path must be a path, given"),
        (lambda: Example.of(3), "Example.of: path must be a string, given 3"),
        (lambda: Example("x").add("y"), "Example.add: value must be an integer, given 'y'"),
        (
            lambda: Example("x").add(1, 2),
            r"takes 1 positional arguments, 2 were given. Signature: Example.add\(value\)",
        ),
    ],
)
def test_the_signature_is_the_check(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        call()


def test_values_pass_as_they_are_or_as_pythons_own() -> None:
    names = ["a"]
    assert example(np.int64(3), names, rate=2) == (3, names, 2)
    assert type(example(np.int64(3))[0]) is int
    assert Example.of("x").add(1) == 2
    assert example.__name__ == "example"


def test_a_value_in_a_message_is_short_and_has_no_address() -> None:
    class Silent:
        def __repr__(self) -> str:
            raise RuntimeError("no text")

    for value in (object(), Silent(), [object()], len, 10**5000, "x" * 5000, np.ones(1000)):
        assert "0x" not in shown(value)
        assert len(shown(value)) < 120


# ---- capsules of DLPack, in a process of its own: what this guards against ended the process

CAPSULE = """
import ctypes, numpy as np, tritium as tt
from tritium.errors import TritiumError

class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("index", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]

new = ctypes.pythonapi.PyCapsule_New
new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
memory = np.arange(8, dtype=np.float32)
kept = []

class Producer:
    def __init__(self, shape, strides=None, offset=0, data=memory.ctypes.data, ndim=None):
        ints = lambda v: None if v is None else (ctypes.c_int64 * max(len(v), 1))(*v)
        self.t = Tensor(data, 1, 0, len(shape or ()) if ndim is None else ndim, 2, 32, 1, ints(shape), ints(strides), offset)
        kept.append(self)
    def __dlpack_device__(self):
        return (1, 0)
    def __dlpack__(self, **_):
        return new(ctypes.addressof(self.t), b"dltensor", None)

assert tt.from_dlpack(Producer([2, 3])).tolist() == [[0, 1, 2], [3, 4, 5]]
assert tt.from_dlpack(Producer([3], [2], 4)).tolist() == [1, 3, 5]
assert tt.from_dlpack(Producer([3], [-1], 8)).tolist() == [2, 1, 0]
assert tt.from_dlpack(Producer([0, 3], data=None)).shape == (0, 3)
assert tt.from_dlpack(Producer([])).tolist() == 0
bad = [
    dict(shape=None, ndim=2), dict(shape=[2], offset=2**63), dict(shape=[2], offset=2**64 - 4), dict(shape=[2], data=None),
    dict(shape=[-1]), dict(shape=[-2, -3]), dict(shape=[2**62]), dict(shape=[2**40, 2**40]), dict(shape=[0, 2**62]),
    dict(shape=[2], strides=[2**62]), dict(shape=[2], strides=[-2**63]), dict(shape=[2**30, 2**20], strides=[2**40, 1]),
    dict(shape=[2], ndim=-1), dict(shape=[1] * 40), dict(shape=[2], offset=2),
]
for case in bad:
    try:
        tt.from_dlpack(Producer(**case))
    except TritiumError as error:
        assert "from_dlpack" in str(error), error
    else:
        raise AssertionError(case)
print("refused", len(bad))
"""


@pytest.mark.skipif(tt.buffer.native is None, reason="NumPy reads the capsules of the pure build")
def test_a_damaged_capsule_is_refused() -> None:
    done = subprocess.run([sys.executable, "-c", CAPSULE], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["refused", "15"]), done.stderr[-2000:]


def test_the_long_run_knows_its_checks() -> None:
    script = Path(__file__).parents[1] / ".ci" / "long"
    done = subprocess.run([str(script), "unknown"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "unknown is no long check; there are: arguments" in done.stderr


# ---- calls that are not bound


@pytest.mark.parametrize(
    "annotation",
    [
        int, float, bool, str, bytes, None, Path, Any, int | None, str | Path, float | str | None, Annotated[int, Range(1, 9)],
        Annotated[float, Range(0)], Literal["a", 1, True], list[int], tuple[int, ...], tuple[int, str], list[str | None],
        Sequence[float], Iterable[str], Mapping[str, int], dict[str, float], Callable[[], int], tt.Tensor, tt.Tensor | float,
        os.PathLike[str], list, type, set[int],
    ],
)  # fmt: skip
def test_what_is_accepted_without_binding_is_what_binding_leaves_as_it_is(
    annotation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By position, by name and among the rest."""
    monkeypatch.setattr(arguments, "_PATIENCE", 0)
    values: list[Any] = [
        0, 1, 9, 10, -1, 2**60, 10**400, True, False, None, 0.0, 1.5, -2.0, float("nan"), float("inf"), "", "a", "b", "a\0b",
        b"a", bytearray(b"a"), (), (1,), (1, "a"), (1, 2.5), [1, 2], ["a"], ["a", None], [float("nan")], [True], {}, {"a": 1},
        {1: "a"}, {1}, Path("x"), print, len, int, test_a_deeply_nested_list_is_refused, np.int64(3), np.float32(2),
        np.bool_(True), np.ones(2), tt.ones(2), object(), range(3), slice(1), 1j,
    ]  # fmt: skip

    def function(*rest: Any, **named: Any) -> tuple[Any, ...]:
        return (*rest, *named.values())

    def first(value, other=None, *, third=None):  # type: ignore[no-untyped-def]
        return function(value, third)

    def several(*value):  # type: ignore[no-untyped-def]
        return function(*value)

    first.__annotations__ = {"value": annotation, "third": annotation}
    several.__annotations__ = {"value": annotation}
    calls: list[Callable[[Any], tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]] = [
        lambda v: (first, (v,), {}), lambda v: (first, (1, 2), {"third": v}), lambda v: (first, (), {"value": v}),
        lambda v: (several, (v,), {}),
    ]  # fmt: skip
    wrapped = {plain: (checked(plain), arguments._Parameters(plain, ())) for plain in (first, several)}
    for value in values:
        for call in calls:
            plain, args, kwargs = call(value)
            function_checked, parameters = wrapped[plain]
            try:
                bound, named = parameters.bind(args, kwargs)
            except TritiumError as error:
                with pytest.raises(type(error)):
                    function_checked(*args, **kwargs)
                continue
            results = function_checked(*args, **kwargs)
            expected = plain(*bound, **named)
            for result, same in zip(results, expected, strict=True):
                assert result is same or (type(result) is type(same) and repr(result) == repr(same))


def test_plain_types_are_accepted_without_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    @checked
    def sample(count: int, names: list[str], x: tt.Tensor, *, eps: float = 1e-5, mode: Literal["a", "b"] = "a") -> int:
        return count

    def refuse(*_: Any) -> Any:
        raise AssertionError("the arguments were bound")

    monkeypatch.setattr(arguments, "_PATIENCE", 0)
    monkeypatch.setattr(arguments._Parameters, "bind", refuse)
    assert sample(3, ["a"], tt.ones(2), eps=1e-3, mode="b") == 3
    with pytest.raises(AssertionError, match="bound"):
        sample(np.int64(3), ["a"], tt.ones(2))  # type: ignore[arg-type]


def test_importing_the_package_imports_neither_pathlib_nor_difflib() -> None:
    code = "import numpy, sys; before = set(sys.modules); import tritium; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "tritium.errors" in done.stdout.split()
    assert not {"pathlib", "difflib", "urllib.parse"} & set(done.stdout.split())


def random_function(choice: random.Random) -> Callable[..., Any]:
    """Return a function of random parameters that returns what it was called with."""
    kinds = {"int": "3", "float": "1.5", "str": "'a'", "Any": "None", "int | None": "None", "list[int]": "()"}
    parts, names, optional = [], [], False
    slash = choice.randrange(3)
    for i in range(choice.randrange(4)):
        annotation, default = choice.choice(list(kinds.items()))
        optional = optional or choice.random() < 0.4
        parts.append(f"p{i}: {annotation}" + (f" = {default}" if optional else ""))
        names.append(f"p{i}")
        if i + 1 == slash:
            parts.append("/")
    rest = choice.random() < 0.3
    named = choice.randrange(3)
    if rest or named:
        parts.append("*rest: int" if rest and choice.random() < 0.5 else "*rest" if rest else "*")
    if parts and parts[-1] == "*" and not named:
        parts.pop()
    for i in range(named):
        annotation, default = choice.choice(list(kinds.items()))
        parts.append(f"k{i}: {annotation}" + (f" = {default}" if choice.random() < 0.6 else ""))
        names.append(f"k{i}")
    if choice.random() < 0.15:
        parts.append("**more")
        names.append("sorted(more.items())")
    text = f"def sample({', '.join(parts)}):\n    return ({''.join(n + ', ' for n in [*names, *(['rest'] if rest else [])])})"
    space: dict[str, Any] = {"Any": Any}
    exec(text, space)
    space["sample"].__module__ = __name__
    return space["sample"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("seed", range(int(os.environ.get("TRITIUM_ARGUMENT_CALLS", "3")) * 20))
def test_generated_code_takes_what_binding_takes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For functions of random parameters and calls with too few, too many, double and unknown ones."""
    monkeypatch.setattr(arguments, "_PATIENCE", 0)
    choice = random.Random(seed)
    plain = random_function(choice)
    call, parameters = checked(plain), arguments._Parameters(plain, ())
    values = [
        0,
        7,
        True,
        2.5,
        float("nan"),
        "a",
        "",
        None,
        [1, 2],
        ["a"],
        (),
        np.int64(3),
        np.float32(2),
        10**400,
        object(),
    ]
    for _ in range(40):
        args = [choice.choice(values) for _ in range(choice.randrange(6))]
        kwargs = {n: choice.choice(values) for n in ("p0", "p1", "p2", "k0", "k1", "k9") if choice.random() < 0.35}
        try:
            bound, named = parameters.bind(tuple(args), kwargs)
            expected = plain(*bound, **named)
        except ArgumentError as error:
            with pytest.raises(ArgumentError) as caught:
                call(*args, **kwargs)
            one = len(kwargs) < 2  # of several wrong arguments any may be named
            assert not one or str(caught.value) == str(error)  # noqa: PT017
        else:
            assert list(map(repr, call(*args, **kwargs))) == list(map(repr, expected))


def test_code_is_generated_for_functions_that_are_called_often() -> None:
    @checked
    def sample(x: int, y: int = 2) -> int:
        """Add."""
        return x + y

    files = set()
    for i in range(2 * arguments._PATIENCE):
        assert sample(i, y=1) == i + 1
        files.add(sample.__code__.co_filename)
    assert files == {arguments.__file__, arguments.GENERATED}
    assert (sample.__name__, sample.__doc__, str(inspect.signature(sample))) == (
        "sample", "Add.", "(x: 'int', y: 'int' = 2) -> 'int'"
    )  # fmt: skip


def test_code_is_generated_while_other_threads_call() -> None:
    for _ in range(20):

        @checked
        def sample(x: int, *, y: float = 2.0) -> float:
            return x + y

        with ThreadPoolExecutor(4) as pool:
            sums = list(pool.map(lambda i, call=sample: call(i, y=0.5), range(60)))  # type: ignore[misc]
        assert sums == [i + 0.5 for i in range(60)]


@pytest.mark.parametrize("patience", [0, 1000])
def test_an_error_of_python_that_an_argument_causes_is_explained(
    patience: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arguments, "_PATIENCE", patience)

    @checked
    def write(value: Any, *, name: Any = None) -> str:
        return f"{value!r} {name!r}"

    @checked
    def convert(*values: Any) -> list[float]:
        return [float(v) for v in values]

    @checked
    def collect(values: Any) -> list[Any]:
        return list(values)

    own: list[Any] = []
    own.append(own)
    deep = own
    for _ in range(5000):
        deep = [deep]
    assert write(own) == "[[...]] None"  # Python has words for it
    with pytest.raises(ArgumentError, match="write: value is nested more than 100 levels deep"):
        write(deep)
    with pytest.raises(ArgumentError, match="write: name is nested more than 100"):
        write(1, name={"a": (deep,)})
    with pytest.raises(ArgumentError, match=r"write: value is too large, or holds a number that is: 2\*\*16609"):
        write([1, {10**5000: 2}])
    with pytest.raises(ArgumentError, match=r"convert: values is too large, or holds a number that is: 2\*\*1328"):
        convert(1, 10**400)
    with pytest.raises(OutOfMemoryError, match="collect: this process has no room for what was asked"):
        collect(range(2**60))
    with pytest.raises(ValueError, match="could not convert string to float"):  # not the argument's size: as it was
        convert("x")


def test_errors_of_a_callers_function_stay_as_they_are() -> None:
    @checked
    def apply(function: Callable[[], Any]) -> Any:
        return function()

    def endless() -> Any:
        return endless()

    with pytest.raises(RecursionError):
        apply(endless)
    with pytest.raises(OverflowError):
        apply(lambda: float(10**400))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tt.set_num_threads(10**5000), "2.* is not a number of threads"),
        (lambda: tt.set_num_threads(2**40), "is not a number of threads; give 1 or more, up to 65536"),
        (lambda: tt.nn.RoPE(8, theta=(2, "x")), "positive theta are needed, given 8 and"),  # type: ignore[arg-type]
        (lambda: tt.nn.RoPE(10**5000), "an even size"),
        (lambda: tt.perf.BenchmarkConfig(tensor_sizes=np.array(3)), "a list of sizes"),  # type: ignore[arg-type]
        (lambda: tt.perf.BenchmarkConfig(batch_sizes=range(1, 2**40)), "at most 4096"),  # type: ignore[arg-type]
        (lambda: tt.perf.assert_performance([[[]]]), "a timing, a run or a number is needed"),  # type: ignore[arg-type]
        (lambda: tt.perf.assert_performance(3.0, at_least="x"), "numbers are compared"),  # type: ignore[arg-type]
        (lambda: tt.perf.benchmark_quantization(tt.Tensor), "shape must be"),  # type: ignore[arg-type]
        (lambda: tt.perf.benchmark_quantization((2**31, 2**31)), "more than can be addressed"),
        (lambda: tt.perf.benchmark_matmul_with_size([10**400]), "more than can be addressed"),
        (lambda: tt.from_numpy(np.zeros((1,) * 40)), "an array of 40 dimensions was given; at most 32"),
        (lambda: tt.memory.pack(np.array(3)), "a list of tensors is needed"),  # type: ignore[arg-type]
        (lambda: tt.compile(lambda x: x).run_many(np.array(3)), "inputs must be a list or tuple, given array"),
        (lambda: tt.split(tt.ones((3, 3)), np.ones((2, 3)), axis=0), "parts must be"),  # type: ignore[arg-type]
        (lambda: tt.split(tt.ones(3), np.array([1.5, 1.5])), "parts must be"),  # type: ignore[arg-type]
        (lambda: tt.ones((2, 2)).quantize_int8(axis=0, group=10**5000), "group must be 0"),
        (lambda: tt.memory.configure(limit=Liar()), "limit=an object of type Liar is not a size"),  # type: ignore[arg-type]
        (lambda: tt.memory.TensorPool(Liar()), "max_size must be an integer"),  # type: ignore[arg-type]
        (lambda: tt.perf.EnergyConfig(monitoring_interval_s=Liar()), "a duration above 0 is needed"),  # type: ignore[arg-type]
        (lambda: tt.perf.benchmark_dispatch(-1), "is not a shape"),
        (lambda: tt.perf.benchmark_dispatch(0), "add: every size must be 1 or more"),
        (lambda: tt.perf.benchmark_quantization((0, 4)), "each 1 or more, is needed"),
        (lambda: tt.tile(tt.ones(3), np.array("2020-01-01", "datetime64[D]")), "repetitions are integers"),  # type: ignore[arg-type]
        (lambda: tt.tile(tt.ones(3), Liar()), "repetitions are integers"),  # type: ignore[arg-type]
        (lambda: tt.memory.pack(range(2**40)), "a list of tensors is needed, given 0"),  # type: ignore[arg-type]
        (lambda: tt.compile(lambda x: x).run_many(range(2**60)), "no room for what was asked"),
    ],
)  # fmt: skip
def test_what_is_too_large_or_of_the_wrong_kind_is_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TritiumError, match=message):
        call()


def test_the_state_of_a_desk_is_a_path_or_text(tmp_path: Path) -> None:
    assert tt.see.Desk(state=str(tmp_path / "alerts.json")).state == tmp_path / "alerts.json"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (42.2, "42 s"),
        (99.9, "100 s"),
        (100, "2 min"),
        (200, "3 min"),
        (5999, "100 min"),
        (6000, "1.7 h"),
        (9e4, "25.0 h"),
    ],
)
def test_a_duration_is_for_people(seconds: float, text: str) -> None:
    assert arguments.duration_text(seconds) == text
