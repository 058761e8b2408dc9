"""Triton's cache keys of kernels do not depend on the order in which a process uses them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

import tritium.backends

FOLDER = Path(tritium.backends.__file__).parent / "cuda"
KEYS = """
import sys
from importlib import import_module
from triton.runtime.jit import JITFunction
modules = [import_module(name) for name in sys.argv[2:]]
kernels = {f"{m.__name__}.{n}": k for m in modules for n, k in vars(m).items() if isinstance(k, JITFunction)}
for name in sorted(kernels, reverse=sys.argv[1] == "backward"):
    kernels[name].cache_key
print(*(f"{name} {kernels[name].cache_key}" for name in sorted(kernels)), sep="\\n")
"""


@cache
def modules_of_kernels() -> dict[str, ast.Module]:
    """Return the modules that define kernels, parsed."""
    parsed = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.rglob("*.py"))}
    return {
        ".".join(("tritium.backends.cuda", *path.relative_to(FOLDER).with_suffix("").parts)): tree
        for path, tree in parsed.items()
        if any(
            ast.unparse(d) in ("triton.jit", "gluon.jit")
            for f in tree.body
            if isinstance(f, ast.FunctionDef)
            for d in f.decorator_list
        )
    }


@pytest.mark.parametrize("name", modules_of_kernels())
def test_every_module_of_kernels_fixes_their_keys_at_its_end(name: str) -> None:
    assert ast.unparse(modules_of_kernels()[name].body[-1]) == "fix_cache_keys(globals())"


@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("triton", "torch")),
    reason="needs triton and torch: pip install triton torch",
)
def test_keys_are_the_same_in_any_order() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    outputs = [
        subprocess.run(
            [sys.executable, "-c", KEYS, order, *modules_of_kernels()],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for order in ("forward", "backward")
    ]
    assert outputs[0].count("\n") > 200
    assert outputs[0] == outputs[1]
