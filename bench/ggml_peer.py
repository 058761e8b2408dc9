"""ggml's matrix product as a peer of bench/ternary.py, from the libraries of any build: bitnet.cpp's I2_S, llama.cpp's TQ2_0.

    TRITIUM_GGML="bitnet.cpp=i2_s=BitNet/build/3rdparty/llama.cpp/ggml/src/libggml.so llama.cpp=tq2_0=llama.cpp/build/bin" \\
        python bench/ternary.py --peer bench/ggml_peer.py

Each entry is NAME=TYPE=PATH: a library, or a folder with libggml-base and libggml-cpu. The product is a graph of one ggml_mul_mat,
planned once for each copy of the weights and computed by ggml's own threads, as in a model; the library quantises weights and
activations itself. bench/peers.sh builds both libraries.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache, partial
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

TYPES = {"tq1_0": 34, "tq2_0": 35, "i2_s": 36, "q4_0": 2, "q8_0": 8}
F32 = 0
SCALE = 0.03125
COLD_BYTES = 512 << 20
OVERHEAD = 1 << 20  # bytes of a context beyond its tensors
TAIL = 64  # bytes behind the weights: I2_S keeps its scale there

Array = np.ndarray[Any, Any]
LIBRARIES: list[Any] = []  # those that were loaded


class InitParams(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class Plan(ctypes.Structure):
    """ggml_cplan, with room for fields that later versions have."""

    _fields_ = (
        ("work_size", ctypes.c_size_t),
        ("work_data", ctypes.c_void_p),
        ("n_threads", ctypes.c_int),
        ("threadpool", ctypes.c_void_p),
        ("rest", ctypes.c_byte * 64),
    )


class PoolParams(ctypes.Structure):
    """ggml_threadpool_params: its fields are left to the library."""

    _fields_ = (("rest", ctypes.c_byte * 1024),)


POINTER = ctypes.c_void_p
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "ggml_init": (POINTER, [InitParams]),
    "ggml_free": (None, [POINTER]),
    "ggml_new_tensor_2d": (POINTER, [POINTER, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]),
    "ggml_get_data": (POINTER, [POINTER]),
    "ggml_nbytes": (ctypes.c_size_t, [POINTER]),
    "ggml_quantize_chunk": (
        ctypes.c_size_t,
        [ctypes.c_int, POINTER, POINTER, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, POINTER],
    ),
    "ggml_mul_mat": (POINTER, [POINTER, POINTER, POINTER]),
    "ggml_new_graph": (POINTER, [POINTER]),
    "ggml_build_forward_expand": (None, [POINTER, POINTER]),
    "ggml_threadpool_params_default": (PoolParams, [ctypes.c_int]),
    "ggml_threadpool_new": (POINTER, [ctypes.POINTER(PoolParams)]),
    "ggml_threadpool_pause": (None, [POINTER]),
    "ggml_graph_plan": (Plan, [POINTER, ctypes.c_int, POINTER]),
    "ggml_graph_compute": (ctypes.c_int, [POINTER, ctypes.POINTER(Plan)]),
}


class Ggml:
    """The functions of one build of ggml, and its threads."""

    def __init__(self, path: Path, threads: int) -> None:
        names = ("libggml-base", "libggml-cpu", "libggml") if path.is_dir() else ()
        files = [path / f"{name}.so" for name in names if (path / f"{name}.so").exists()] if names else [path]
        if not files:
            raise SystemExit(
                f"{path} holds no libggml-base.so: give the folder with ggml's libraries, or libggml.so itself."
            )
        libraries = [ctypes.CDLL(str(file), mode=ctypes.RTLD_LOCAL) for file in files]
        for name, (result, arguments) in SIGNATURES.items():
            function = next((getattr(lib, name) for lib in libraries if hasattr(lib, name)), None)
            if function is None:
                raise SystemExit(f"{path} has no {name}: it is no ggml that this script knows.")
            function.restype, function.argtypes = result, arguments
            setattr(self, name.removeprefix("ggml_"), function)
        self.threads = threads
        params = self.call("threadpool_params_default", threads)
        self.pool = self.call("threadpool_new", ctypes.byref(params))

    def call(self, name: str, *arguments: Any) -> Any:
        return getattr(self, name)(*arguments)


class Product:
    """One matrix in ggml's memory, and the graph that multiplies it with `batch` tokens."""

    def __init__(self, lib: Ggml, kind: int, floats: Array, batch: int, like: Product | None = None) -> None:
        (n, k), call = floats.shape, lib.call
        self.lib, self.shape = lib, (batch, n)
        nbytes = n * k * 9 // 8 + 4 * batch * (n + k) + OVERHEAD  # no type has more bits than q8_0
        self.context = context = call("init", InitParams(nbytes, None, False))
        w = call("new_tensor_2d", context, kind, k, n)
        x = call("new_tensor_2d", context, F32, k, batch)
        self.nbytes, self.w = int(call("nbytes", w)), call("get_data", w)
        if like is None:
            call("quantize_chunk", kind, floats.ctypes.data, self.w, 0, n, k, None)
        else:
            ctypes.memmove(self.w, like.w, self.nbytes)
        y = call("mul_mat", context, w, x)
        self.x, self.y = call("get_data", x), call("get_data", y)
        self.graph = call("new_graph", context)
        call("build_forward_expand", self.graph, y)
        self.plan = call("graph_plan", self.graph, lib.threads, lib.pool)
        self.work = (ctypes.c_byte * max(self.plan.work_size, 1))()
        self.plan.work_data = ctypes.addressof(self.work)

    def __del__(self) -> None:
        if hasattr(self, "context"):
            self.lib.call("free", self.context)

    def __call__(self, x: Array) -> Array:
        ctypes.memmove(self.x, x.ctypes.data, x.nbytes)
        if self.lib.call("graph_compute", self.graph, ctypes.byref(self.plan)):
            raise RuntimeError("ggml_graph_compute failed")
        y = np.empty(self.shape, np.float32)
        ctypes.memmove(y.ctypes.data, self.y, y.nbytes)
        return y


@cache
def library(path: str, threads: int) -> Ggml:
    LIBRARIES.append(Ggml(Path(path), threads))
    return LIBRARIES[-1]


def quiet() -> None:
    """Let the threads sleep that wait for the next graph; it wakes them."""
    for lib in LIBRARIES:
        lib.call("threadpool_pause", lib.pool)


def turns(products: list[Product]) -> Callable[[Array], Array]:
    following = cycle(products).__next__
    return lambda x: following()(np.ascontiguousarray(x))


def entries() -> list[tuple[str, str, str]]:
    """Return (name, type, path) of each build that TRITIUM_GGML names."""
    text = os.environ.get("TRITIUM_GGML", "")
    parts = [part.split("=") for part in text.split()]
    wrong = [part for part in parts if len(part) != 3 or part[1] not in TYPES]
    if wrong or not parts:
        raise SystemExit(f"TRITIUM_GGML={text!r}: NAME=TYPE=PATH is needed, with a TYPE of {', '.join(TYPES)}.")
    return [(name, kind, path) for name, kind, path in parts]


def candidates(n: int, k: int, batch: int, threads: int) -> dict[str, Callable[[Array], Array]]:
    """Return the product of every build, over as many copies as it takes to be cold."""
    weights = np.random.default_rng(0).integers(-1, 2, (n, k), dtype=np.int8).astype(np.float32) * np.float32(SCALE)
    made = {}
    for name, kind, path in entries():
        one = partial(Product, library(path, threads), TYPES[kind], weights, batch)
        first = one()
        copies = min(COLD_BYTES // (first.nbytes + TAIL) + 1, 64)
        made[f"{name} {kind}"] = turns([first, *(one(like=first) for _ in range(copies - 1))])
    return made
