"""Stubs: fresh, and a type checker finds with them what is misspelt."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tritium as tt
from tritium import buffer
from tritium.op import OPS, Trait

ROOT = Path(__file__).parents[1]
SNIPPET = """
import numpy as np
import tritium as tt

x = tt.ones((2, 3))
tt.sofmax(x)  # error
x.sumn()  # error
tt.softmax(x, axes=-1)  # error
tt.softmax(x, "last")  # error
x.softmax(axs=1)  # error
x.exp_(3)  # error
tt.nn.BitLiner  # error
tt.nn.BitLinear.from_float(x).weigth  # error
tt.concat([x, x], dim=1)  # error
tt.compile(lambda a: a).grph  # error


@tt.compile
def double(a: tt.Tensor, k: int = 2) -> tt.Tensor:
    return a * k


@tt.compile(verify=True)
def triple(a: tt.Tensor) -> tt.Tensor:
    return a * 3


double(x, "2")  # error
double(x, l=2)  # error
triple()  # error
y: str = double(x)  # error


class Net:
    @tt.compile
    def run(self, a: tt.Tensor) -> tt.Tensor:
        return a


Net().run(x, 3)  # error

good: tt.Tensor = x.sum(0).softmax(-1).exp_().add_(1) + np.ones(3) - 1.5
both: tuple[tt.Tensor, tt.Tensor] = tt.divmod(x, 2)
tt.concat([x, x.T], 1).reshape(3, 2).view(tt.i32)
tt.exp(x, out=x).to("f16", "cpu")
name: str = tt.exp.name
tt.mean(x, (0, 1), keepdims=True).item()
tt.clip(x, 0, max=1).max().numpy().sum()
z: tt.Tensor = double(x, k=3) @ triple(x) ** 2
z = Net().run(x)
z[0, 1:] = 2
z = tt.nn.BitLinear.from_float(x)(x)
z = tt.where(x > 0, x, 0).sort(0).mean()
z = tt.nonzero(x)[0] + tt.arange(3, dtype="i64") + tt.full((2, 3), 1.0, tt.f32) + tt.randn((2, 3), seed=1)
double.graph(x)
tt.save("x", {"a": x})
tt.perf, tt.io, tt.errors.DTypeError
"""
# What the names of the snippet are declared in. Other modules are not followed: reading all of them takes half a minute.
READ = """__init__.py _table.pyi tensor.py functions.py arguments.py errors.py op.py buffer.py pure.py dtype.py layout.py compiler/compile.py
nn/__init__.py nn/linear.py"""


def script() -> Any:
    spec = importlib.util.spec_from_file_location("stubs", ROOT / "tools" / "stubs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_stubs_are_what_the_script_writes() -> None:
    stubs = script().stubs()
    assert len(stubs) == (1 if buffer.native is None else 2)
    for path, text in stubs.items():
        assert path.read_text() == text, f"{path.name} is stale; run python tools/stubs.py"


def test_every_public_row_and_every_attached_method_is_declared() -> None:
    text = (ROOT / "src" / "tritium" / "_table.pyi").read_text()
    declared = set(re.findall(r"^(\w+): _\w+$", text, re.MULTILINE))
    assert declared == {name for name, op in OPS.items() if Trait.INTERNAL not in op.traits}
    methods = set(re.findall(r"^    def (\w+)\(self", text, re.MULTILINE)) | set(
        re.findall(r"^    (?:def )?(\w+)", (ROOT / "src" / "tritium" / "tensor.py").read_text(), re.MULTILINE)
    )
    attached = {name for name in dir(tt.ones(2)) if name in vars(tt.Tensor)}
    internal = {name for name, op in OPS.items() if Trait.INTERNAL in op.traits}
    attached -= {name for name in attached if name.rstrip("_") in internal}
    assert attached - methods <= {"__module__", "__doc__", "__slots__"}


def test_a_type_checker_finds_what_is_misspelt_and_accepts_the_rest(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    file = tmp_path / "snippet.py"
    file.write_text(SNIPPET)
    package = ROOT / "src" / "tritium"
    cache = request.config.cache.mkdir("mypy") if request.config.cache else tmp_path
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=skip", "--no-error-summary",
         f"--cache-dir={cache}", *(str(package / name) for name in READ.split()), str(file)],
        capture_output=True, text=True, cwd=ROOT, check=False, timeout=300, env={"PATH": "", "MYPYPATH": str(ROOT / "src")},
    )  # fmt: skip
    reported = {int(line) for line in re.findall(r"snippet\.py:(\d+): error", done.stdout)}
    expected = {i for i, line in enumerate(SNIPPET.splitlines(), 1) if line.endswith("# error")}
    assert reported == expected, done.stdout + done.stderr
