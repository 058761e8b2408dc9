"""Launches laid out once: kinds of parameters in their order, and what a driver is called with."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sysconfig
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="launches on CUDA need PyTorch: pip install torch triton")
from tritium.backends.cuda import launcher  # noqa: E402
from tritium.backends.cuda.launcher import Launch  # noqa: E402

DRIVER = """
#include <stdint.h>
#include <string.h>
#include "cuda.h"
uint64_t seen[2][16]; unsigned grids[2][3]; unsigned threads[2]; unsigned attributes[2]; uint64_t streams[2];
int calls, wanted[2], contexts, result;
CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **params, void **extra) {
  int i = calls++ % 2;
  grids[i][0] = c->gridDimX; grids[i][1] = c->gridDimY; grids[i][2] = c->gridDimZ;
  threads[i] = c->blockDimX; attributes[i] = c->numAttrs; streams[i] = (uint64_t)c->hStream;
  for (int j = 0; j < wanted[i]; j++) memcpy(&seen[i][j], params[j], 8);
  return result;
}
CUresult cuTensorMapEncodeTiled(CUtensorMap *m, CUtensorMapDataType t, cuuint32_t rank, void *a, const cuuint64_t *sizes,
    const cuuint64_t *steps, const cuuint32_t *box, const cuuint32_t *ones, CUtensorMapInterleave i, CUtensorMapSwizzle s,
    CUtensorMapL2promotion l, CUtensorMapFloatOOBfill o) {
  memset(m, 0, sizeof *m);
  m->opaque[0] = (uint64_t)a; m->opaque[1] = sizes[0] << 32 | sizes[1]; m->opaque[2] = steps[0]; m->opaque[3] = box[0] << 16 | box[1];
  return 0;
}
CUresult cuTensorMapReplaceAddress(CUtensorMap *m, void *a) { m->opaque[0] = (uint64_t)a; return 0; }
CUresult cuCtxGetCurrent(CUcontext *c) { *c = contexts ? (CUcontext)1 : NULL; return 0; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) { *c = (CUcontext)(uint64_t)(d + 1); return 0; }
CUresult cuCtxSetCurrent(CUcontext c) { contexts++; return 0; }
CUresult cuGetErrorString(CUresult r, const char **text) { *text = "as asked"; return 0; }
"""


@pytest.fixture(name="modules", scope="module")
def _modules(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The module of launcher.c, and a library in the driver's place."""
    nvidia = pytest.importorskip("triton.backends.nvidia.driver", reason="CUDA's header comes with Triton")
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("launcher")
    (folder / "driver.c").write_text(DRIVER)
    headers = [f"-I{nvidia.include_dirs[0]}", f"-I{sysconfig.get_paths()['include']}"]
    named = "tritium_launcher" + sysconfig.get_config_var("EXT_SUFFIX")
    source = str(Path(launcher.__file__).with_name("launcher.c"))
    for text, to in ((str(folder / "driver.c"), "driver.so"), (source, named)):
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", text, "-o", str(folder / to), *headers], check=True)
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("tritium_launcher", folder / named)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(RuntimeError, match="open_driver"):
        module.Plan(0, ())
    module.open_driver(str(folder / "driver.so"))
    return module, ctypes.CDLL(str(folder / "driver.so"))


@pytest.fixture(name="built")
def _built(modules: Any) -> Any:
    for name, kind in (("wanted", ctypes.c_int * 2), ("contexts", ctypes.c_int * 1), ("calls", ctypes.c_int * 1)):
        numbers = of(modules[1], name, kind)
        numbers[:] = [0] * len(numbers)
    return modules


def of(library: Any, name: str, kind: Any) -> Any:
    return kind.in_dll(library, name)


def test_a_plan_launches_with_the_addresses_of_the_call(built: Any) -> None:
    module, driver = built
    first = (11, (3, 2, 1), 128, 64, True, (("s", 0), ("i", -5), ("f", 0.5), ("p", 77), ("l", 1 << 40)))
    second = (12, (9, 1, 1), 32, 0, False, (("t", 0), ("n", bytes(128))))
    wanted = of(driver, "wanted", ctypes.c_int * 2)
    wanted[0], wanted[1] = 5, 2
    plan = module.Plan(0, (first, second))
    plan.launch(1000, 2000, 7)
    seen = of(driver, "seen", (ctypes.c_uint64 * 16) * 2)
    assert list(seen[0])[:5] == [1000, 0xFFFFFFFFFFFFFFFB, 0x3F000000, 77, 1 << 40]
    assert list(seen[1])[:2] == [2000, 2000]  # the map begins with the address that replaced its own
    assert [list(g) for g in of(driver, "grids", (ctypes.c_uint * 3) * 2)] == [[3, 2, 1], [9, 1, 1]]
    assert list(of(driver, "threads", ctypes.c_uint * 2)) == [128, 32]
    assert list(of(driver, "attributes", ctypes.c_uint * 2)) == [1, 0]
    assert list(of(driver, "streams", ctypes.c_uint64 * 2)) == [7, 7]
    assert of(driver, "contexts", ctypes.c_int).value == 1  # the first call of a thread
    plan.launch(1001, 2002, 8)
    assert (seen[0][0], seen[1][0], seen[1][1]) == (1001, 2002, 2002)
    assert of(driver, "contexts", ctypes.c_int).value == 1


def test_what_the_driver_refuses_is_raised(built: Any) -> None:
    module, driver = built
    result = of(driver, "result", ctypes.c_int)
    plan = module.Plan(0, ((11, (1, 1, 1), 32, 0, False, ()),))
    result.value = 700
    try:
        with pytest.raises(RuntimeError, match="launched: CUDA error 700, as asked"):
            plan.launch(1, 2, 3)
    finally:
        result.value = 0


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ((("x", 1),), ValueError),
        ((("m", b"short"),), ValueError),
        ((("i", "text"),), TypeError),
        ((("i",),), TypeError),
    ],
)
def test_parameters_of_no_kind_are_refused(built: Any, parameters: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        built[0].Plan(0, ((11, (1, 1, 1), 32, 0, False, parameters),))


def test_calls_with_other_arguments_are_refused(built: Any) -> None:
    plan = built[0].Plan(0, ())
    for args in ((), (1, 2), (1, 2, 3, 4)):
        with pytest.raises(TypeError, match="addresses"):
            plan.launch(*args)
    with pytest.raises(TypeError):
        plan.launch(1, 2, "stream")
    with pytest.raises(OSError, match=r"none\.so"):
        built[0].open_driver("/none.so")


def test_maps_have_the_innermost_axis_first(built: Any) -> None:
    made = built[0].encode(4096, 3, 2, 9, (16, 64), (100, 256), (256, 1))
    words = [int.from_bytes(made[8 * i : 8 * i + 8], "little") for i in range(4)]
    assert words == [4096, 256 << 32 | 100, 512, 64 << 16 | 16]
    with pytest.raises(ValueError, match="axes"):
        built[0].encode(4096, 3, 2, 9, (16, 64), (100,), (256, 1))


# ---- what is laid out


class Tensor:
    """What a launch is told of a tensor."""

    def __init__(self, address: int) -> None:
        self._address = address

    def data_ptr(self) -> int:
        return self._address


def launch(kinds: dict[str, Any], arguments: list[Any], **about: Any) -> Launch:
    usual = {
        "num_ctas": 1, "launch_cooperative_grid": False, "global_scratch_size": 0, "profile_scratch_size": 0, "num_warps": 4,
        "shared": 96, "launch_pdl": True, "tensordesc_meta": None,
    }  # fmt: skip
    compiled = SimpleNamespace(
        metadata=SimpleNamespace(**usual | about), src=SimpleNamespace(signature=kinds), function=5
    )
    return Launch(compiled, (3,), arguments)


def test_parameters_are_those_of_the_signature_without_its_constants() -> None:
    box = SimpleNamespace(base=Tensor(2000), shape=(10, 64), strides=[64, 1], padding="zero")
    kinds = {
        "x": "*fp32",
        "out": "*bf16",
        "w": "*u8",
        "box": "tensordesc<bf16[8, 32]>",
        "K": "constexpr",
        "n": "i32",
        "f": "fp32",
    }
    about = {"swizzle": 2, "elem_size": 2, "elem_type": 1, "block_size": [8, 32], "fp4_padded": False}
    given = launch(kinds, [Tensor(1000), Tensor(2000), Tensor(3000), box, 9, 33, 0.25], tensordesc_meta=[about])
    pytest.importorskip("triton", reason="types of tensor maps are Triton's")
    made = launcher._step(given, 1000, 2000, lambda *args: args)
    encoded = (2000, 2, 2, 1, (8, 32), (10, 64), (64, 1))
    assert made == (5, (3, 1, 1), 128, 96, True, (
        ("s", 1000), ("t", 2000), ("p", 3000), ("n", encoded), ("i", 10), ("i", 64), ("l", 64), ("l", 1), ("i", 33), ("f", 0.25),
        ("p", 0), ("p", 0),
    ))  # fmt: skip


@pytest.mark.parametrize(
    "refused",
    [
        launch({"x": "fp64"}, [1.0]),
        launch({"x": ("*fp32", "i32")}, [(1, 2)]),
        launch({"x": "i32"}, []),
        launch({"x": "i32"}, [1], num_ctas=2),
        launch({"x": "i32"}, [1], global_scratch_size=8),
    ],
)
def test_other_kernels_go_through_triton(monkeypatch: pytest.MonkeyPatch, refused: Launch) -> None:
    monkeypatch.setattr(launcher, "native", lambda: SimpleNamespace(encode=None, Plan=None))
    assert launcher.prepared([refused], 1, 2, 0) is None


def test_without_a_compiler_all_do() -> None:
    launcher.native.cache_clear()
    try:
        if launcher.native() is None:  # no Triton, no compiler or no driver: as on most machines that test this
            assert launcher.prepared([], 1, 2, 0) is None
    finally:
        launcher.native.cache_clear()


# ---- calls that find all as it was


class Calls:
    """What a module's call looks at on a GPU, as tensors of the CPU have it (their GPU is -1), each of which a test changes."""

    def __init__(self, module: Any) -> None:
        self.weight, self.bias = torch.nn.Parameter(torch.ones(4, 8), requires_grad=False), None
        self.parameters = {"weight": self.weight, "bias": self.bias}
        self.grad, self.current, self.stream, self.watched = False, -1, 7, None
        self.level = SimpleNamespace(_current_level=-1)
        self.made: list[Any] = []
        self.plans: dict[Any, Any] = {}
        functions = (
            lambda: self.grad,
            lambda: self.current,
            lambda index: self.stream,
            self.empty,
            lambda: self.watched,
        )
        args = -1, torch.Tensor, ("weight", "bias"), (self.weight, None), functions, self.plans, self.level
        self.call = module.Quick(*args).call

    def empty(self, shape: Any, strides: Any, dtype: Any) -> Any:
        self.made.append(torch.empty_strided(shape, strides, dtype=dtype))
        return self.made[-1]

    def plan(self, module: Any, x: Any) -> None:
        step = (11, (1, 1, 1), 32, 0, False, (("s", 0), ("t", 0)))
        key = (x.shape, x.dtype, 7, threading.get_ident())
        self.plans[key] = module.Plan(0, (step,)), (2, 4), (4, 1), torch.float16


def test_a_call_like_those_before_is_launched(built: Any) -> None:
    module, driver = built
    of(driver, "wanted", ctypes.c_int * 2)[0] = 2
    calls, x = Calls(module), torch.ones(2, 8)
    assert calls.call(x, calls.parameters) is None  # there is no plan
    calls.plan(module, x)
    y = calls.call(x, calls.parameters)
    assert y is calls.made[0]
    assert (y.shape, y.dtype) == ((2, 4), torch.float16)
    assert list(of(driver, "seen", (ctypes.c_uint64 * 16) * 2)[0])[:2] == [x.data_ptr(), y.data_ptr()]
    assert of(driver, "streams", ctypes.c_uint64 * 2)[0] == 7


def change(calls: Calls, what: str, x: Any) -> Any:
    """x as the call gets it, with one thing not as it was."""
    if what in ("current", "stream"):
        setattr(calls, what, 3)
    elif what == "watched":
        calls.watched = object()
    elif what == "level":
        calls.level._current_level = 0
    elif what == "written":
        with torch.no_grad():
            calls.weight.add_(1)
    elif what == "moved":
        calls.weight.data = torch.ones(4, 8)
    elif what == "another weight":
        calls.parameters["weight"] = torch.nn.Parameter(torch.ones(4, 8))
    elif what == "a bias":
        calls.parameters["bias"] = torch.nn.Parameter(torch.ones(4))
    elif what == "gradients":
        calls.grad, calls.weight.requires_grad = True, True
    elif what == "input's gradient":
        calls.grad, x.requires_grad = True, True
    return {
        "shape": x[:1], "dtype": x.double(), "strides": torch.ones(8, 2).t(), "address": torch.ones(17)[1:].view(2, 8),
        "subclass": torch.nn.Parameter(x),
    }.get(what, x)  # fmt: skip


@pytest.mark.parametrize(
    "what",
    ["current", "stream", "watched", "level", "written", "moved", "another weight", "a bias", "gradients", "input's gradient",
     "shape", "dtype", "strides", "address", "subclass"],
)  # fmt: skip
def test_a_call_that_differs_in_anything_is_not(built: Any, what: str) -> None:
    calls, x = Calls(built[0]), torch.ones(2, 8)
    calls.plan(built[0], x)
    x = change(calls, what, x)
    assert calls.call(x, calls.parameters) is None
    assert not calls.made


def test_errors_of_looks_are_raised(built: Any) -> None:
    calls, x = Calls(built[0]), torch.ones(2, 8)
    calls.plan(built[0], x)
    del calls.level._current_level
    with pytest.raises(AttributeError):
        calls.call(x, calls.parameters)
    with pytest.raises(TypeError, match="dict"):
        calls.call(x)
