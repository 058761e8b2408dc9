"""User benchmarks: a function under a name, usable like any op from config files, commands and tests.

A worker imports the function from its file, so it must be in one.

    @tt.perf.benchmark("custom_op", sizes=[(256, 256)])
    def custom_op(shape):
        x = tt.randn(shape, seed=0)       # before the yield: set-up, not timed
        yield lambda: tt.relu(x * x)      # what is timed
                                          # after the yield: tear-down

    @tt.perf.benchmark("parse")
    def parse():                          # no yield: the function itself is timed
        json.loads(TEXT)

A function may name any of `shape`, `dtype`, `device`, `threads`, `seed` and `candidate` as parameters, and gets those. One that takes
`candidate` ("tritium", "numpy", "torch" …) runs on every contender; one without it runs on Tritium's contenders only.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import tritium as tt
from tritium.errors import ArgumentError, FormatError
from tritium.perf.records.case import Case, Context, Made, Recipe, UnsupportedError, Work
from tritium.perf.words import nearest
from tritium.perf.work import canary, operations
from tritium.perf.work.libraries import OWN, settled
from tritium.perf.work.operations import dtype_named

F = TypeVar("F", bound=Callable[..., Any])
Shape = tuple[int, ...]
PARAMETERS = ("shape", "dtype", "device", "threads", "seed", "candidate")


@dataclass(frozen=True)
class Registered:
    """One user benchmark."""

    name: str
    fn: Callable[..., Any]
    file: str
    sizes: tuple[Shape, ...] = ()
    dtypes: tuple[str, ...] = ("f32",)
    work: Work | Callable[..., Work] | None = None
    expected: Callable[..., Any] | None = None
    tolerance: float = 1e-5

    @property
    def takes(self) -> tuple[str, ...]:
        """Return the names of its parameters."""
        return tuple(inspect.signature(self.fn).parameters)


_registered: dict[str, Registered] = {}


def registered() -> Mapping[str, Registered]:
    """Return the benchmarks known in this process, by name."""
    return dict(_registered)


def benchmark(
    name: str,
    *,
    sizes: Sequence[int | Sequence[int]] = (),
    dtypes: Sequence[str] = ("f32",),
    work: Work | Callable[..., Work] | None = None,
    expected: Callable[..., Any] | None = None,
    tolerance: float = 1e-5,
) -> Callable[[F], F]:
    """Register the function below under a name.

    sizes: shapes it is measured with; without, those of the grid or the config file. work: the work of one call
    (Work(flops=…, items=…, item="token")), or a function of the shape. expected: returns the right answer as a NumPy array,
    called with the same parameters; then every contender is checked.
    """
    if not isinstance(name, str) or not name.strip():
        value = repr(name) if isinstance(name, str) else type(name).__name__
        raise ArgumentError(f'benchmark: a name is needed, given {value}; write @benchmark("custom_op").')
    if work is not None and not isinstance(work, Work) and not callable(work):
        raise ArgumentError(
            f"benchmark {name!r}: work must be a Work or a function of the shape, given {type(work).__name__}."
        )

    def register(fn: F) -> F:
        reserved = (
            *operations.WORKLOADS,
            *operations.MODEL_WORKLOADS,
            *operations.MEMORY_ACTS,
            *operations.TRANSFER_ACTS,
        )
        if name in (*operations.NAMES, *reserved, *canary.SIZES):
            raise ArgumentError(f"benchmark: {name!r} is a case of Tritium; take another name.")
        file = _file_of(fn, name)
        known = _registered.get(name)
        if known is not None and known.file != file:
            raise ArgumentError(
                f"benchmark: {name!r} is registered in {known.file} already; take another name in {file}."
            )
        unknown = next((p for p in _needed(fn) if p not in PARAMETERS), None)
        if unknown is not None:
            raise ArgumentError(
                f"benchmark {name!r}: its parameter {unknown!r} is unknown.{nearest(unknown, PARAMETERS)} "
                f"It may take {', '.join(PARAMETERS)}, or parameters with defaults."
            )
        shapes = tuple((s,) if isinstance(s, int) else tuple(s) for s in sizes)
        kinds = tuple(dtype_named(d).name for d in dtypes)
        _registered[name] = Registered(name, fn, file, shapes, kinds, work, expected, tolerance)
        return fn

    return register


def _needed(fn: Callable[..., Any]) -> list[str]:
    """Return the parameters without a default."""
    return [
        p.name
        for p in inspect.signature(fn).parameters.values()
        if p.default is p.empty and p.kind is not p.VAR_KEYWORD
    ]


def _file_of(fn: Callable[..., Any], name: str) -> str:
    """Return the file of a function, or raise ArgumentError."""
    try:
        source = inspect.getsourcefile(inspect.unwrap(fn))
    except TypeError:
        source = None
    if source is None or not Path(source).is_file():
        raise ArgumentError(
            f"benchmark {name!r}: the function is in no file, so a worker process cannot import it; write it in a .py file."
        )
    return str(Path(source).resolve())


def load(path: str | Path) -> list[str]:
    """Import a file of benchmarks and return the names it registered."""
    file = Path(path).resolve()
    if not file.is_file():
        raise FormatError(f"{path}: there is no such file; give a .py file with @benchmark functions.")
    _import(file)
    names = [r.name for r in _registered.values() if r.file == str(file)]
    if not names:
        raise FormatError(f'{path}: nothing in it is registered; write @tt.perf.benchmark("name") above a function.')
    return names


def _import(file: Path) -> None:
    """Run a file as a module once. It can import modules beside it."""
    key = f"tritium_benchmarks_{hashlib.sha256(bytes(file)).hexdigest()[:12]}"
    if key in sys.modules or any(r.file == str(file) for r in _registered.values()):
        return
    spec = importlib.util.spec_from_file_location(key, file)
    if spec is None or spec.loader is None:
        raise FormatError(f"{file}: not a Python file; its name must end in .py.")
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    module = sys.modules[key] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[key]
        raise


def cases(
    name: str,
    shapes: Sequence[Sequence[int]] | None = None,
    dtypes: Sequence[str] | None = None,
    *,
    devices: Sequence[str] = ("cpu",),
    threads: int | None = None,
    seed: int = 0,
) -> list[Case]:
    """Return the cases of one benchmark: its own sizes if it has some, else these; a single case if it has no shape."""
    if name not in _registered:
        raise ArgumentError(
            f"{name!r} is not registered.{nearest(name, _registered)} Load its file first: --load FILE.py."
        )
    row = _registered[name]
    takes = row.takes
    sizes: Sequence[Shape | None] = row.sizes or [tuple(s) for s in shapes or ()] if "shape" in takes else [None]
    kinds = [dtype_named(d).name for d in dtypes or row.dtypes] if "dtype" in takes else ["f32"]
    if not sizes:
        raise ArgumentError(f"benchmark {name!r} takes a shape, and none was given; name sizes=[…] in its @benchmark.")
    listed = []
    for shape in sizes:
        for kind in dict.fromkeys(kinds):
            for device in devices if "device" in takes else ["cpu"]:
                words = [name, *(["x".join(map(str, shape))] if shape else []), *([kind] if "dtype" in takes else [])]
                words += [f"on {device}"] if device != "cpu" else []
                arguments: dict[str, Any] = {
                    "file": row.file, "name": name, "shape": list(shape) if shape else None, "dtype": kind, "device": device,
                    "threads": threads, "seed": seed,
                }  # fmt: skip
                context = Context(name, shape or (), kind, device, threads=threads or 1)
                listed.append(
                    Case(
                        " ".join(words),
                        Recipe("tritium.perf.work.registry:made", arguments),
                        context,
                        _work(row, shape),
                    )
                )
    return listed


def _work(row: Registered, shape: Shape | None) -> Work:
    """Return the work of one call."""
    if row.work is None or isinstance(row.work, Work):
        return row.work or Work()
    return row.work(shape) if shape is not None else row.work()


def made(candidate: str, *, file: str, name: str, **options: Any) -> Made:
    """Build the user's function in a worker."""
    if name not in _registered:
        _import(Path(file))
    if name not in _registered:
        raise ArgumentError(f"{file} registers no benchmark {name!r}.{nearest(name, _registered)}")
    row = _registered[name]
    if "candidate" not in row.takes and candidate.partition(":")[0] not in OWN:
        raise UnsupportedError(
            f"{name} is written for Tritium; give its function a parameter `candidate` to run it on {candidate}."
        )
    _settle(candidate, options)
    values = options | {"candidate": candidate, "shape": tuple(options["shape"] or ())}
    arguments = {p: values[p] for p in row.takes if p in values}
    expected: Callable[[], Any] | None = None
    if row.expected is not None:
        selected = {p: values[p] for p in inspect.signature(row.expected).parameters if p in values}
        right = partial(row.expected, **selected)
        expected = lambda: _answer(right())
    if not inspect.isgeneratorfunction(row.fn):
        return Made(lambda: row.fn(**arguments), _wait, _answer, expected, row.tolerance)
    running = row.fn(**arguments)
    call = next(running, None)
    if not callable(call):
        raise ArgumentError(
            f"benchmark {name!r}: its function must yield what is timed (a function without parameters), given {call!r}."
        )
    return Made(call, _wait, _answer, expected, row.tolerance, close=running.close)


def _settle(candidate: str, options: Mapping[str, Any]) -> None:
    """Set the requested threads and device."""
    if candidate.partition(":")[0] not in OWN:
        return
    if options.get("threads"):
        tt.set_num_threads(options["threads"])
    if device := candidate.partition(":")[2] or (options.get("device") if options.get("device") != "cpu" else None):
        tt.set_default_device(device)


def _wait(result: Any) -> None:
    """Wait until a result is computed, whichever library it is from."""
    first = result[0] if isinstance(result, (tuple, list)) and result else result
    library = type(first).__module__.partition(".")[0]
    if library in ("jax", "jaxlib"):
        sys.modules["jax"].block_until_ready(result)
    elif library == "mlx":
        sys.modules["mlx.core"].eval(result)
        sys.modules["mlx.core"].synchronize()
    elif library == "torch" and first.device.type != "cpu":
        getattr(sys.modules["torch"], first.device.type).synchronize()
    elif library == "tritium":
        settled(result)


def _answer(result: Any) -> np.ndarray[Any, Any]:
    return np.atleast_1d(np.asarray(result))
