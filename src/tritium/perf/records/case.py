"""Cases to measure: a name, a recipe a worker can follow in another process, the work one call does, and the terms it
is filtered by.

A recipe is a function `recipe(candidate, **arguments) -> Made`, named so that a fresh process can import it:
"package.module:function" or "/path/to/file.py:function".
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tritium.errors import TritiumError

THREADS = (  # variables that set the threads of libraries
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "TRITIUM_NUM_THREADS",
)  # fmt: skip


class UnsupportedError(TritiumError, RuntimeError):
    """This candidate cannot do this case; the message says why. The case is skipped there, and the reason recorded."""


@dataclass(frozen=True)
class Work:
    """The work of one call: arithmetic, bytes that must be moved at least once, and countable items."""

    flops: int = 0
    read: int = 0
    written: int = 0
    integer: bool = False  # the arithmetic is int8 products
    items: float = 1
    item: str = "call"  # "token", "element" …

    @property
    def moved(self) -> int:
        return self.read + self.written


@dataclass(frozen=True)
class Context:
    """The setting of a case, in the terms people filter by."""

    operation: str
    shape: tuple[int, ...] = ()
    precision: str = "f32"
    device: str = "cpu"
    batch: int | None = None
    sequence_length: int | None = None
    parameters: int | None = None
    optimisation: str = ""  # "avx512vnni", "portable", "numpy", "torch.compile" …
    threads: int = 1
    transfer: str = ""  # "included": inputs go to the device and the result comes back inside the clock


@dataclass(frozen=True)
class Recipe:
    """The function that makes a case, by its import name, and its arguments (plain JSON values)."""

    target: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One thing to measure, on as many contenders as support it."""

    name: str  # unique in a suite: "matmul 1024x1024 f32"
    recipe: Recipe
    context: Context
    work: Work = field(default_factory=Work)
    timeout_s: float | None = None  # None: the plan's


@dataclass(frozen=True)
class Arm:
    """A contender: how its worker process is started, and the candidate that the recipe makes there."""

    name: str  # as printed: "tritium", "tritium portable", "numpy", "base", "head"
    candidate: str = (
        "tritium"  # what the recipe gets: "tritium", "tritium:mlx", "reference", "numpy", "torch", "torch.compile" …
    )
    python: str = sys.executable
    environment: tuple[tuple[str, str], ...] = ()  # added to this process's: TRITIUM_ISA, PYTHONPATH …
    optimisation: str = ""  # for the context: "avx512vnni", "portable", "numpy 2.4" …

    def variables(self) -> dict[str, str]:
        return os.environ | dict(self.environment)


@dataclass
class Made:
    """The result of a recipe. `call` does the work once; `wait` consumes its result before the clock stops."""

    call: Callable[[], Any]
    wait: Callable[[Any], Any] | None = None  # until the result is computed: lazy and asynchronous devices need it
    answer: Callable[[Any], Any] | None = None  # the result of a call as a NumPy array
    expected: Callable[[], Any] | None = None  # the right answer as a NumPy array; computed once, before timing
    tolerance: float = 0.0  # largest |answer - expected| / max |expected|; 0: the same values
    facts: Mapping[str, Any] = field(default_factory=dict)  # facts of the case: kernel, bytes, error …
    work: Work | None = None  # when the candidate's differs from the case's
    close: Callable[[], Any] | None = None
