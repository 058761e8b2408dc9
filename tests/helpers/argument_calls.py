"""Call every public function, class and method with arguments it does not expect; run as a script, in a process of its own.

    python tests/helpers/argument_calls.py SEED CALLS [PREFIX]

Prints one JSON line for each call that ended in an error that is not the package's own, ran too long, or left a trace.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import importlib
import inspect
import io
import json
import random
import resource
import signal
import sys
import tempfile
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tritium as tt
from tritium import arguments as argument_checks
from tritium.errors import TritiumError
from tritium.op import Op, Trait

MODULES = (
    "tritium", "tritium.memory", "tritium.quant", "tritium.nn", "tritium.io", "tritium.perf", "tritium.see",
    "tritium.serve",
)  # fmt: skip
LIMIT_BYTES = 6 << 30
LIMIT_S = 5.0
WAIT_S = 60.0  # for processes that a call has started, which take none of its own time

# Names that are called with nothing, and why.
SKIPPED: dict[str, str] = {
    "tritium.Backend": "a base class, for backends",
    "tritium.Op": "a row of the op table, for tables",
    "tritium.Program": "made by compile from a graph",
    "tritium.Model": "made by load from a file",
    "tritium.see.Profile": "made by profile and load_profile",
    "tritium.memory.resident_bytes": "reads a file of the kernel",
    "tritium.serve.serve": "serves until it is interrupted",
    "tritium.Tensor": "made by functions; Python itself refuses other arguments of its constructor",
    "tritium.Compiled": "made by compile",
    "tritium.memory.TensorCache.clock": "the clock of the caller",
    "tritium.quant.Pareto": "made by quant.pareto",
    "tritium.see.Source": "a base class, for sources of metrics",
    "tritium.Graph.run": "called by interpreters",
    "tritium.Graph.results": "called by interpreters",
    "tritium.see.measure_targets": "measures for minutes",
    "tritium.unwatch": "the other side of watch",
    "tritium.see.MemoryTracker.take": "called by the hub of events",
    "tritium.ceilings": "measures the machine for a minute",
    "tritium.register": "what it accepts stays for the whole process",
    "tritium.watch": "what it accepts is called at every op",
}


# Python itself refuses wrong counts and names of these: they run in the middle of every op or every span.
# Workers of another revision import the records of cases: they take nothing from tritium.errors but its errors.
HOT = ("tritium.device", "tritium.scope", "tritium.timed", "tritium.perf.benchmark")
WORKERS = ("tritium.perf.Case", "tritium.perf.Arm", "tritium.perf.Work")


# These work through whatever they are given, one item after another: a range of 2**40 takes its time.
STREAMS = ("tritium.Pipeline.run",)


class Late(BaseException):
    """The time of one call is over."""


class Waiting(BaseException):
    """A call that was accepted waits for processes that measure."""


class Strange:
    """An object of no kind that any function takes."""


class Liar:
    """An object whose protocols raise."""

    def __index__(self) -> int:
        raise RuntimeError("no index")

    def __len__(self) -> int:
        return 3

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no array")

    def __dlpack__(self, **_: Any) -> Any:
        return object()

    def __dlpack_device__(self) -> Any:
        return "cpu"


def deep(levels: int) -> list[Any]:
    out: list[Any] = []
    for _ in range(levels):
        out = [out]
    return out


def wrong_values() -> list[Any]:
    """Return values most parameters must refuse."""
    return [
        None, object(), Strange(), Liar(), "x", "", "a\nb", "nan", b"x", bytearray(3), float("nan"), float("inf"), -1.5, 1.5, 1j,
        [[1, 2], [3]], [[[]]], deep(40), deep(2000), [None], ["a"], {"a": 1}, {1, 2}, (), [], (2, "x"), (1.5,), True,
        2**31, 2**60, 10**400, 10**5000, -(2**63), -1, 0, 3, (2**31, 2**31), (2**60,), (-1, -1), (0, 2**62), [10**400],
        np.ones((2, 3), "float32"), np.array([object()]), np.array(["a"]), np.array([2, 3]), np.float32("nan"), np.int64(3),
        np.zeros((2, 2), complex), np.array("2020-01-01", "datetime64[D]"), memoryview(b"abc"), array.array("d", [1.0]),
        slice(0, 2**70), ..., NotImplemented, int, tt.Tensor, lambda *a, **k: None, iter([1]), range(2**40),
        tt.ones((2, 3)), tt.ones((0,)), tt.asarray(7), "float99", "cpu:99", "/nonexistent/x", "/proc/self/mem", Path("."),
    ]  # fmt: skip


def plausible(name: str, annotation: str) -> Any:
    """Return a value this parameter might take."""
    by_name: dict[str, Any] = {
        "shape": (2, 3), "dtype": "f32", "device": "cpu", "axis": 0, "seed": 1, "low": 0, "high": 5, "dim": 0, "n": 2,
        "equation": "ij,jk->ik", "subscripts": "ij,jk->ik", "fn": lambda *a: a[0] if a else None, "function": lambda *a: a,
        "batch_size": 2, "path": "file.json", "name": "name", "items": [1, 2, 3], "weight": tt.ones((256, 256)),
    }  # fmt: skip
    if name in by_name:
        return by_name[name]
    if "Tensor" in annotation or name in ("x", "a", "b", "w", "x1", "x2", "y"):
        return tt.ones((3, 3))
    for word, value in {"bool": True, "int": 2, "float": 0.5, "str": "x", "Path": "file", "Callable": lambda *a: a,
                        "Sequence": [1], "dict": {}, "Mapping": {}}.items():  # fmt: skip
        if word in annotation:
            return value
    return 1


def public_names(module: types.ModuleType) -> list[str]:
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return [name for name in listed if not name.startswith("_")]
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def instances() -> dict[str, Callable[[], Any]]:
    """Return how to make an object of a class whose methods are called."""
    return {
        "tritium.Tensor": lambda: tt.ones((2, 3)),
        "tritium.Graph": lambda: tt.trace(lambda x: x + 1, tt.ones(3)),
        "tritium.GraphBuilder": lambda: tt.GraphBuilder(),
        "tritium.Compiled": lambda: tt.compile(lambda *a, **k: tt.ones(1)),
        "tritium.Pipeline": lambda: tt.Pipeline([abs]),
        "tritium.Device": lambda: tt.device("cpu"),
        "tritium.DType": lambda: tt.f32,
        "tritium.memory.TensorPool": lambda: tt.memory.TensorPool(),
        "tritium.memory.TensorCache": lambda: tt.memory.TensorCache(3),
        "tritium.nn.RMSNorm": lambda: tt.nn.RMSNorm(tt.ones(4)),
        "tritium.see.MetricsCollector": lambda: tt.see.MetricsCollector(),
        "tritium.see.MemoryTracker": lambda: tt.see.MemoryTracker(),
        "tritium.see.BottleneckAnalyzer": lambda: tt.see.BottleneckAnalyzer(),
        "tritium.see.Collector": lambda: tt.see.Collector(),
    }


# Records that users write themselves; others are results of the package, and made by it.
WRITTEN = ("Config", "Rules", "FusionPattern", "Case", "Arm", "Work", "Plan", "TensorCache", "KVCache", "Block")


def is_result(value: Any) -> bool:
    record = dataclasses.is_dataclass(value) or hasattr(value, "_fields") or hasattr(value, "__struct_fields__")
    return record and not value.__name__.endswith(WRITTEN)


def surface() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield every public callable under its name."""
    makers = instances()
    seen: set[int] = set()
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in public_names(module):
            value, label = getattr(module, name), f"{module_name}.{name}"
            if not callable(value) or id(value) in seen:
                continue
            seen.add(id(value))
            if label not in SKIPPED and not (
                isinstance(value, type) and (issubclass(value, BaseException) or is_result(value))
            ):
                yield label, value
            if isinstance(value, type) and label in makers:
                for method in dir(value):
                    if (
                        method.startswith("_")
                        or f"{label}.{method}" in SKIPPED
                        or not callable(attribute := getattr(value, method))
                        or (isinstance(attribute, Op) and Trait.INTERNAL in attribute.traits)
                        or (issubclass(value, tuple) and hasattr(tuple, method))
                    ):
                        continue
                    yield f"{label}.{method}", _method(makers[label], method)


def _method(make: Callable[[], Any], name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(make(), name)(*args, **kwargs)

    with contextlib.suppress(Exception):
        call.__signature__ = inspect.signature(getattr(make(), name))  # type: ignore[attr-defined]
    return call


def arguments(
    function: Callable[..., Any], values: list[Any], choice: random.Random
) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments of a call: some plausible, some wrong; now and then too many, too few, or misspelt."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):
        parameters = []
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    share = choice.choice((0.2, 0.5, 0.9))
    for p in parameters:
        if p.kind is p.VAR_KEYWORD or (p.default is not p.empty and choice.random() < 0.5):
            continue
        wrong = choice.random() < share
        value = choice.choice(values) if wrong else plausible(p.name, str(p.annotation))
        if p.kind is p.VAR_POSITIONAL:
            args += [choice.choice(values) if choice.random() < share else value for _ in range(choice.randrange(3))]
        elif p.kind is p.KEYWORD_ONLY or kwargs or (p.default is not p.empty and p.kind is not p.POSITIONAL_ONLY):
            kwargs[p.name] = value
        else:
            args.append(value)
    odd = choice.random()
    if odd < 0.1:
        kwargs[choice.choice([*(p.name for p in parameters), "key"]) + "s"] = choice.choice(values)
    elif odd < 0.15:
        args.extend(choice.choice(values) for _ in range(5))
    elif odd < 0.2 and args:
        args.pop()
    return args, kwargs


def brief(value: Any) -> str:
    try:
        text = repr(value) if not isinstance(value, (list, tuple)) or len(str(type(value))) < 20 else "…"
    except BaseException as error:  # deep lists have no text
        text = f"<{type(value).__name__}: {type(error).__name__}>"
    return text if len(text) < 60 else f"{text[:56]}…"


def late(*_: Any) -> None:
    raise Late


def waiting(*_: Any) -> None:
    raise Waiting


def ordinary() -> None:
    """Raise unless a few calls give the right answers."""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    t = tt.asarray(x)
    assert np.array_equal((t @ t.T).numpy(), x @ x.T)
    assert np.array_equal(tt.softmax(t, axis=1).numpy().argmax(1), x.argmax(1))
    assert np.array_equal(tt.compile(lambda a: tt.relu(a - 3.0) * 2.0)(t).numpy(), np.maximum(x - 3, 0) * 2)
    assert np.array_equal(tt.einsum("ij,kj->ik", t, t).numpy(), x @ x.T)
    assert np.array_equal(tt.zeros((2, 2)).numpy(), np.zeros((2, 2)))
    assert tt.randint(0, 5, (3,), seed=1).tolist() == tt.randint(0, 5, (3,), seed=1).tolist()
    assert tt.default_device() is not None


argument_checks._PATIENCE = 1  # the second call of a name runs the code that is generated for it
INITIAL = tt.memory.configuration()


def restore() -> None:
    """Undo what a successful call may legitimately have changed."""
    tt.memory.configure(INITIAL)  # first: a limit of a few bytes leaves no room for anything
    tt.set_num_threads(1)
    with contextlib.suppress(TritiumError):
        tt.disable_monitoring()


def one_call(
    label: str, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> dict[str, Any] | None:
    try:
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        signal.setitimer(signal.ITIMER_REAL, WAIT_S)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                result = function(*args, **kwargs)
                if isinstance(result, types.GeneratorType):
                    result.close()
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
        return None
    except TritiumError:
        return None
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        inside = [f for f in frames if "/tritium/" in f.filename] or list(frames)
        if (
            (label in HOT + WORKERS or label.startswith("tritium.Tensor."))
            and isinstance(error, TypeError)
            and "argument" in str(error)
        ):
            return None
        own = ("Array()", "int()", "invalid literal for int()")  # classes as the caller's function
        if isinstance(error, (TypeError, ValueError)) and str(error).startswith(own):
            return None
        if isinstance(error, Late) and label in STREAMS:
            return None
        if isinstance(error, Waiting) and label.startswith("tritium.perf."):
            return None
        where = f"{Path(inside[-1].filename).name}:{inside[-1].lineno}"
        return {
            "name": label, "error": f"{type(error).__name__}: {error}"[:200], "where": where,
            "call": f"({', '.join([*map(brief, args), *(f'{k}={brief(v)}' for k, v in kwargs.items())])})",
        }  # fmt: skip


def check_names(seed: int, calls: int, prefix: str, write: Callable[[str], Any]) -> None:
    """Call every name that begins so; write a JSON line for each problem, and one with the count at the end."""
    count = 0
    for label, function in surface():
        if not label.startswith(prefix):
            continue
        choice = random.Random(f"{seed} {label}")
        for _ in range(max(calls // 4, 1) if isinstance(function, Op) else calls):
            args, kwargs = arguments(function, wrong_values(), choice)
            count += 1
            problem = one_call(label, function, args, kwargs)
            restore()
            if problem is not None:
                write(json.dumps(problem) + "\n")
        try:
            ordinary()
        except BaseException as error:
            write(json.dumps({"name": label, "error": f"trace: {type(error).__name__}: {error}"}) + "\n")
    write(json.dumps({"calls": count}) + "\n")


def main() -> None:
    seed, calls, prefix = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else ""
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    signal.signal(signal.SIGPROF, late)
    signal.signal(signal.SIGALRM, waiting)
    output = sys.stdout
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        check_names(seed, calls, prefix, output.write)
    output.flush()


if __name__ == "__main__":
    main()
