"""The Metal kernel of exact ternary products, as far as it can be checked without a Mac: its guard, its text, its arithmetic."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tritium as tt
from tritium.backends.reference import packed

mx = pytest.importorskip("mlx.core", reason="MLX is not installed: pip install mlx", exc_type=ImportError)
mlx_metal, mlx_space = (import_module(f"tritium.backends.mlx.{n}") for n in ("metal", "space"))


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """What was found out about the kernel belongs to one test."""
    mlx_metal.refusal.cache_clear()
    yield
    mlx_metal.refusal.cache_clear()


def test_without_metal_the_kernel_is_never_called_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    monkeypatch.setattr(mlx_metal, "_kernel", lambda: pytest.fail("called without Metal"))
    assert "no Metal" in mlx_metal.refusal()
    assert not mlx_space.Space("gpu", print).metal
    assert tt.device("mlx").backend.describe()["Metal"].startswith("none: MLX here has no Metal")


def test_the_kernel_takes_rows_of_whole_words_only() -> None:
    assert mlx_metal.fits((2, 64), (5, 16))
    assert not mlx_metal.fits((2, 60), (5, 15))
    assert not mlx_metal.fits((2, 64), (5, 15))


def product(wrong: int = 0) -> Any:
    """A stand-in for the kernel, called as MLX calls it."""

    def run(inputs: Any, template: Any, grid: Any, threadgroup: Any, output_shapes: Any, output_dtypes: Any) -> Any:
        q, words = inputs
        sizes = dict(template)
        assert words.dtype == mx.uint32
        assert grid[0] == -(-sizes["N"] // sizes["ROWS"]) * threadgroup[0]
        assert (q.shape[1], grid[1], output_dtypes) == (sizes["K"], q.shape[0], [mx.int32])
        data = np.array(words).view(np.uint8)
        w = packed.decode(packed.Packed(data, tt.dtype.tern2, (sizes["N"], sizes["K"])))
        return [mx.array(np.array(q).astype(np.int32) @ w.T.astype(np.int32) + wrong).reshape(output_shapes[0])]

    return run


def failing(**call: Any) -> Any:
    raise RuntimeError("error: use of undeclared identifier")


@pytest.mark.parametrize(
    ("kernel", "why"), [(product(), ""), (product(1), "is wrong on this machine"), (failing, "undeclared identifier")]
)
def test_the_kernel_is_tried_before_it_is_trusted(monkeypatch: pytest.MonkeyPatch, kernel: Any, why: str) -> None:
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "stream", lambda unit: nullcontext())
    monkeypatch.setattr(mlx_metal, "_kernel", lambda: kernel)
    assert why in mlx_metal.refusal()
    assert bool(mlx_metal.refusal()) == bool(why)
    assert mlx_space.Space("gpu", print).metal == (not why)


def test_the_source_of_the_kernel_names_its_operands() -> None:
    source = mlx_metal.SOURCE
    assert source.count("{") == source.count("}")
    for name in (
        "q",
        "w",
        "out",
        "K",
        "N",
        "ROWS",
        "thread_index_in_simdgroup",
        "threadgroup_position_in_grid",
        "simd_sum",
    ):
        assert re.search(rf"\b{name}\b", source), name


# The body of the kernel is C++ but for three names, so a C++ compiler can check it: simd_sum is called by one thread after
# another, first to add up what each gives, then to tell the sum.
AS_CPP = """
#include <cstddef>
#include <cstdint>
#define device
using uint = unsigned int;
struct Place { uint x, y; };
static int given[64], count; static bool telling;
static int simd_sum(int v) { if (!telling) given[count] += v; return given[count++]; }
extern "C" void run(const int8_t* q, const uint32_t* w, int32_t* out, uint K, uint N, uint groups, uint tokens) {
    constexpr uint ROWS = %d;
    for (uint y = 0; y < tokens; ++y) for (uint x = 0; x < groups; ++x) {
        for (int& g : given) g = 0;
        for (int pass = 0; pass < 2; ++pass) for (uint thread_index_in_simdgroup = 0; thread_index_in_simdgroup < 32;
                                                  ++thread_index_in_simdgroup) {
            telling = pass; count = 0;
            const Place threadgroup_position_in_grid{x, y};
            [&] { %s }();
        }
    }
}
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler to check the source of the kernel with")
def test_the_source_of_the_kernel_computes_the_product(tmp_path: Path) -> None:
    source, library = tmp_path / "kernel.cpp", tmp_path / "kernel.so"
    source.write_text(AS_CPP % (mlx_metal.ROWS, mlx_metal.SOURCE))
    subprocess.run(["c++", "-std=c++17", "-w", "-fsigned-char", "-shared", "-fPIC", "-o", library, source], check=True)
    run = ctypes.CDLL(str(library)).run
    rng = np.random.default_rng(0)
    for m, n, k in ((1, 1, 16), (3, 9, 64), (2, 6, 1040)):
        q, w = (rng.integers(low, high, s).astype(np.int8) for low, high, s in ((-128, 128, (m, k)), (-1, 2, (n, k))))
        data = packed.pack(w, tt.dtype.tern2).data
        out = np.zeros((m, n), np.int32)
        run(*(x.ctypes.data_as(ctypes.c_void_p) for x in (q, data, out)), k, n, -(-n // mlx_metal.ROWS), m)
        np.testing.assert_array_equal(out, q.astype(np.int64) @ w.T.astype(np.int64))
