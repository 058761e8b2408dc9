"""Types where people stand: type checkers find every wrong use of the public names, and accept the right ones."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from tritium.models.sampling import Sampler, SamplingOptions
from tritium.models.session import KV, KVDType
from tritium.models.weights import STORAGES, Storage
from tritium.nn.linear import ACTIVATIONS as WORDS
from tritium.ops import ACTIVATIONS

ROOT = Path(__file__).parents[1]
USES = ROOT / "tests" / "typing"
# What the names of these uses are declared in. Other modules are not followed: reading all of them takes mypy half a minute.
READ = """__init__.py _table.pyi arguments.py backends/__init__.py buffer.py compiler/compile.py dtype.py errors.py functions.py
io/model/opening.py layout.py models/generation.py models/load.py models/sampling.py models/session.py models/text/chat.py
models/text/constraints.py models/text/tokenizer.py models/weights.py nn/__init__.py nn/linear.py op.py ops.py pure.py tensor.py"""
Error = tuple[str, int, str]  # the file, the line, and the kind of error
Checker = Callable[[Path, Path], Iterator[Error]]


def mypy(folder: Path, cache: Path) -> Iterator[Error]:
    package = ROOT / "src" / "tritium"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=skip", "--no-error-summary",
         f"--cache-dir={cache}", *(str(package / name) for name in READ.split()), *map(str, sorted(folder.glob("*.py")))],
        capture_output=True, text=True, cwd=ROOT, check=False, timeout=300, env={"PATH": "", "MYPYPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    for name, line, kind in re.findall(r"(\w+_uses\.py):(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE):
        yield name, int(line), kind


def pyright(folder: Path, cache: Path) -> Iterator[Error]:
    (folder / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT / "src")]}))
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    for found in json.loads(done.stdout)["generalDiagnostics"]:
        yield Path(found["file"]).name, found["range"]["start"]["line"] + 1, found["rule"]


def marks(checker: str) -> Iterator[Error]:
    """Yield the errors that the files themselves name: `# error: mypy[call-arg] pyright[reportCallIssue]`."""
    for file in USES.glob("*.py"):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            for kind in re.findall(rf"# error:.* {checker}\[([\w-]+)\]", line):
                yield file.name, number, kind


@pytest.mark.slow
@pytest.mark.parametrize("checker", [mypy, pyright], ids=lambda checker: checker.__name__)
def test_a_type_checker_finds_what_is_wrong_and_accepts_the_rest(
    checker: Checker, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if find_spec(checker.__name__) is None:
        pytest.skip(f"{checker.__name__} is not installed")
    for file in USES.glob("*.py"):
        shutil.copy(file, tmp_path)
    found = set(checker(tmp_path, request.config.cache.mkdir("mypy") if request.config.cache else tmp_path / "cache"))
    meant = set(marks(checker.__name__))
    assert {error[:2] for error in found} == {error[:2] for error in meant}, sorted(found ^ meant)
    assert meant <= found  # a checker may say more of a line


def test_right_uses_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("llguidance", "jinja2"):
        pytest.importorskip(package, reason="needs the extra 'run'")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(USES / "right_uses.py"))


def test_types_name_what_the_tables_have() -> None:
    assert get_type_hints(SamplingOptions) == get_type_hints(Sampler)
    assert set(get_args(KVDType)) == set(KV)
    assert set(get_args(Storage)) == set(STORAGES)
    assert set(ACTIVATIONS) == set(WORDS)
