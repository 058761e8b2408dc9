"""Cases of memory and transfers: allocating, cloning, reusing; from NumPy and back, to a device and back.

A view moves no bytes, and its work counts none.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

import tritium as tt
from tritium.errors import ArgumentError
from tritium.perf.records.case import Case, Context, Made, Recipe, UnsupportedError, Work
from tritium.perf.words import bytes_text, nearest
from tritium.perf.work.libraries import OWN, Library, library_of
from tritium.perf.work.operations import MEMORY_ACTS as MEMORY_ACTS, TRANSFER_ACTS as TRANSFER_ACTS, dtype_named

Data = np.ndarray[Any, Any]
SIZES = (("small", 1 << 10), ("large", 16 << 20))


# ---- memory


def memory(
    sizes: Sequence[tuple[str, int]] = SIZES,
    what: Sequence[str] = MEMORY_ACTS,
    *,
    device: str = "cpu",
    threads: int | None = None,
    seed: int = 0,
) -> list[Case]:
    """Return cases of allocating, cloning (copy-on-write), writing to a clone, and taking a tensor from a pool: small and large."""
    cases = []
    for act in what:
        _check_name(act, MEMORY_ACTS, "memory")
        for size, nbytes in sizes:
            arguments = {"act": act, "nbytes": nbytes, "seed": seed, "threads": threads, "device": device}
            copied = nbytes if act == "write" else 0
            work = Work(read=copied, written=copied)
            context = Context(act, (nbytes // 4,), "f32", device, threads=threads or 1)
            recipe = Recipe("tritium.perf.work.moves:held", arguments)
            cases.append(Case(f"{act} {size} ({bytes_text(nbytes)})", recipe, context, work))
    return cases


def _check_name(act: str, known: Sequence[str], what: str) -> None:
    """Raise ArgumentError unless the name is known."""
    if act not in known:
        raise ArgumentError(f"{what}: {act!r} is unknown.{nearest(act, known)} There are {', '.join(known)}.")


def held(
    candidate: str, *, act: str, nbytes: int, seed: int = 0, threads: int | None = None, device: str = "cpu"
) -> Made:
    """Build one case of memory."""
    _check_name(act, MEMORY_ACTS, "memory")
    library = library_of(candidate, device, threads)
    if library.compiles and library.name in OWN:
        raise UnsupportedError("memory is not compiled.")
    shape = (max(1, nbytes // 4),)
    if act == "allocate":
        empty = library.function("empty")
        return Made(lambda: empty(shape), library.wait, lambda x: np.asarray(tuple(x.shape)), lambda: np.asarray(shape))
    if act == "reuse":
        return _reuse(library, shape)
    data = np.random.default_rng(seed).standard_normal(shape, np.float32)
    x, clone = library.array(data), library.function("clone")
    copies = library.name not in OWN
    work = Work(read=data.nbytes, written=data.nbytes) if copies else None
    facts = {"clone": "a copy at once" if copies else "shared until written"}
    if act == "clone":
        return Made(lambda: clone(x), library.wait, library.back, lambda: data, 0.0, facts, work)
    if library.name == "jax":
        raise UnsupportedError("jax arrays cannot be written.")

    def write() -> Any:
        y = clone(x)
        y[0] = 1.0
        return y

    return Made(
        write, library.wait, library.back, lambda: np.concatenate([[np.float32(1)], data[1:]]), 0.0, facts, work
    )


def _reuse(library: Library, shape: tuple[int, ...]) -> Made:
    """Build the case of taking a tensor from a pool and returning it."""
    if library.name not in OWN:
        raise UnsupportedError(f"{library.name} has no tensor pool.")
    pool = tt.memory.TensorPool()

    def lend() -> Any:
        x = pool.get_or_create_tensor(shape, tt.f32, library.device)
        pool.return_to_pool(x)
        return x

    return Made(lend, library.wait, lambda x: np.asarray(tuple(x.shape)), lambda: np.asarray(shape))


# ---- transfers


def transfer(
    shapes: Sequence[Sequence[int]] = ((1024, 1024),),
    dtypes: Sequence[str] = ("f32",),
    what: Sequence[str] = TRANSFER_ACTS,
    *,
    device: str = "cpu",
    threads: int | None = None,
    seed: int = 0,
) -> list[Case]:
    """Return cases of transfers between the host's NumPy arrays and a device.

    On the CPU `from_numpy` and `dlpack` share memory; `upload` and `download` copy it.
    """
    cases = []
    for act in what:
        _check_name(act, TRANSFER_ACTS, "transfer")
        for shape in map(tuple, shapes):
            for kind in dict.fromkeys(dtype_named(d).name for d in dtypes):
                arguments = {
                    "act": act, "shape": list(shape), "dtype": kind, "seed": seed, "threads": threads, "device": device
                }  # fmt: skip
                copied = prod(shape) * dtype_named(kind).nbytes if act in ("upload", "download") else 0
                name = f"{act} {'x'.join(map(str, shape))} {kind}" + (f" on {device}" if device != "cpu" else "")
                context = Context(act, shape, kind, device, threads=threads or 1)
                work = Work(read=copied, written=copied, items=copied or 1, item="byte" if copied else "call")
                cases.append(Case(name, Recipe("tritium.perf.work.moves:moved", arguments), context, work))
    return cases


def moved(
    candidate: str,
    *,
    act: str,
    shape: Sequence[int],
    dtype: str = "f32",
    seed: int = 0,
    threads: int | None = None,
    device: str = "cpu",
) -> Made:
    """Build one transfer."""
    _check_name(act, TRANSFER_ACTS, "transfer")
    library = library_of(candidate, device, threads)
    if library.compiles and library.name in OWN:
        raise UnsupportedError("transfers are not compiled.")
    if dtype not in library.dtypes:
        raise UnsupportedError(f"{library.name} does not support {dtype}.")
    data = np.random.default_rng(seed).standard_normal(tuple(shape), np.float32).astype(dtype_named(dtype).numpy)
    if act == "download":
        x = library.array(data)
        return Made(lambda: np.array(library.back(x)), None, np.asarray, lambda: data)
    if dtype == "bf16" and library.name not in (*OWN, "numpy"):
        raise UnsupportedError(f"NumPy's bf16 reaches {library.name} only by way of another dtype.")
    if act == "dlpack" and dtype == "bf16":
        raise UnsupportedError("NumPy's bf16 has no DLPack.")
    make = library.function(act)
    return Made(lambda: make(data), library.wait, library.back, lambda: data)
