"""How a file of tests uses Triton: not at all, in its interpreter, or compiled, on CUDA where there is a device.

Which of them Triton does is settled when it is imported, so such a file runs itself once more for each of the last two.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

MODE = os.environ.get("TRITIUM_TEST_TRITON", "")  # of this run: "interpreted", "compiled", or "" for not at all
INTERPRETED = MODE == "interpreted"
PLACE = "cpu" if INTERPRETED else "cuda"


def _has_gpu() -> bool:
    if find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


CUDA = MODE == "compiled" and _has_gpu()
runs = pytest.mark.skipif(not (INTERPRETED or CUDA), reason="runs in Triton's interpreter, and on CUDA")
compiles = pytest.mark.skipif(MODE != "compiled", reason="runs where Triton compiles")


def in_both_modes(test: Callable[[str], None]) -> Any:
    """Marks the test of a file that runs it in each of the modes."""
    modes = pytest.mark.parametrize("mode", ["interpreted", "compiled"])
    return pytest.mark.skipif(bool(MODE), reason="this is such a run")(modes(test))


def kernels_of(name: str) -> Callable[[], Any]:
    """What gives a module of kernels, imported when it is first asked for."""

    def kernels() -> Any:
        if INTERPRETED:
            import_module("interpreted")  # a tensor of one element is a number
        return import_module(f"tritium.backends.cuda.{name}")

    return kernels


def gpu_rows() -> tuple[Any, list[Any]]:
    """The kernels of a GPU's rows, and the doubts they had: whether one holds, its message and its error."""
    from tritium.errors import BoundsError

    torch = import_module("torch")
    cuda_rows, torch_rows = (import_module(f"tritium.backends.{name}.rows") for name in ("cuda", "torch"))
    doubts: list[Any] = []

    def doubt(bad: Any, message: str, error: type[Exception] = BoundsError) -> None:
        doubts.append((bool(bad.any()), message, error))

    space = import_module("tritium.backends.torch.space").Space(torch.device(PLACE), doubt)
    space.on_host = False
    return cuda_rows.kernels(space, torch_rows.kernels(space), True), doubts


def passes(file: str, mode: str) -> None:
    """All of a file in one of the modes."""
    env = os.environ | {"TRITIUM_TEST_TRITON": mode, "TRITON_INTERPRET": str(int(mode == "interpreted"))}
    args = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", file]
    done = subprocess.run(args, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def built(
    kernel: Any, types: dict[str, Any], fixed: dict[str, Any], capability: int, even: Iterable[str] = (), **options: Any
) -> Any:
    """A kernel of Triton's or Gluon's compiled for a GPU that need not be here: the types of its arguments (others are i32; tuples
    of types are those of tuples), which are constants, and which multiples of 16, of tuples all elements."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    kinds = dict.fromkeys(kernel.arg_names, "i32") | types | dict.fromkeys(fixed, "constexpr")
    at = kernel.arg_names.index
    constants = {(at(name),): value for name, value in fixed.items()}
    leaves = [
        (at(name), *tail)
        for name in even
        for tail in ([(i,) for i in range(len(kinds[name]))] if isinstance(kinds[name], tuple) else [()])
    ]
    aligned = {path: [["tt.divisibility", 16]] for path in leaves}
    source = (GluonASTSource if kernel.is_gluon() else ASTSource)(kernel, kinds, constants, aligned)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def spilled(made: Any) -> int:
    """Bytes of a thread that a compiled kernel keeps in memory for want of registers."""
    return _used(made, "STACK")


def spills_at_most(made: Any, most: int) -> bool:
    """Return True if a kernel whose registers are all in use spills no more bytes than it did with the assembler of Triton 3.6; others
    allocate in their own ways, and the kernel is only slower by what they spill."""
    import triton

    return not triton.__version__.startswith("3.6.") or spilled(made) <= most


def registers(made: Any) -> int:
    """Of a thread."""
    return _used(made, "REG")


def _used(made: Any, what: str) -> int:
    """Only the last compiler knows it."""
    import triton

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        said = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        used = subprocess.run(said, capture_output=True, text=True, check=True).stdout
    found = re.search(rf"{what}:(\d+)", used)
    assert found is not None, used
    return int(found[1])
