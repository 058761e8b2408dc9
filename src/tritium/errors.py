"""Errors by name, and remedies; every message says what was given, what was needed and what to do.

Knows nothing else of the package.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable


class TritiumError(Exception):
    """The parent of every error raised on purpose."""


class ShapeError(TritiumError, ValueError):
    """The shapes given to an operation do not fit together."""


class DTypeError(TritiumError, TypeError):
    """An operation is not defined for the dtypes given."""


class DeviceError(TritiumError, RuntimeError):
    """A device is absent, unknown, or two devices were mixed."""


class OutOfMemoryError(TritiumError, MemoryError):
    """A device has no room for what was asked."""


class ArgumentError(TritiumError, TypeError):
    """An argument is unknown, missing or of the wrong type."""


class BoundsError(TritiumError, IndexError):
    """An index or axis lies outside the tensor."""


class QuantError(TritiumError, ValueError):
    """A value that cannot be quantised, or a code that means nothing."""


class TraceError(TritiumError, TypeError):
    """Something that needs values was asked while only a graph is being written down."""


class ViewError(TritiumError, ValueError):
    """A view was asked where only a copy is possible, or a write where none is allowed."""


class PoolError(TritiumError, ValueError):
    """A tensor was given to a pool that did not lend it, or twice."""


class FormatError(TritiumError, ValueError):
    """A model file, or a part of one, is damaged, unsafe or of a kind that cannot be read or written."""


class VerifyError(TritiumError, AssertionError):
    """An optimised graph, or a user's fusion, does not give what the rows as written give."""


class BatchError(TritiumError, RuntimeError):
    """A batch failed, or gave another number of results than it has items."""


class PipelineError(TritiumError, RuntimeError):
    """A stage of a pipeline failed (stage None: the source of its items), at which item."""

    def __init__(self, message: str, *, stage: int | None = None, item: int = 0) -> None:
        super().__init__(message)
        self.stage, self.item = stage, item


class PackageError(TritiumError, ImportError):
    """A package that only some uses need is not installed."""


class BusyError(TritiumError, RuntimeError):
    """There is no room for another request now; a later try may find some."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ' Did you mean x?' for the closest known word, else nothing."""
    from difflib import get_close_matches  # imported for a message only

    close = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""


class ContextError(TritiumError, ValueError):
    """More tokens than a model's context or a cache can hold."""


class PerformanceError(TritiumError, AssertionError):
    """A measured speed lies below the floor it must keep."""


class SaveError(TritiumError, OSError):
    """A file could not be written; what was there before it is as it was, and what was to be written is still in memory."""


class BaselineError(TritiumError, LookupError):
    """There is no baseline of this name."""


class TuneError(TritiumError, RuntimeError):
    """No candidate of a race could run, or the one that was kept no longer does."""


class BuildError(TritiumError, RuntimeError):
    """Another revision of the package could not be checked out or built."""


# ---- remedies
#
# Tritium is on no package index: `pip install` finds its extras only in a checkout, so errors and pages name the packages.

EXTRAS = {  # as in pyproject.toml; a test compares them
    "model": ("tokenizers>=0.21", "jinja2>=3.1.6"),
    "serve": ("h11>=0.16", "tokenizers>=0.21", "jinja2>=3.1.6"),
    "torch": ("torch>=2.5",),
    "cuda": ("torch>=2.9", "triton>=3.5; sys_platform == 'linux'", "nvidia-ml-py>=12; sys_platform == 'linux'"),
    "mlx": ("mlx>=0.32; sys_platform == 'darwin'", "mlx[cpu]>=0.32; sys_platform == 'linux'"),
    "png": ("resvg_py>=0.5",),
}

_REQUIREMENT = re.compile(r"[\w.-]+(?:\[[\w,-]+\])?")


def install_command(extra: str, platform: str = sys.platform) -> str:
    """Return the pip command that installs the packages of an extra on a platform; all of them where none is made for it."""
    split = [requirement.partition(";") for requirement in EXTRAS[extra]]
    usable = [r for r, _, marker in split if not marker or f"'{platform}'" in marker]
    names = [match[0] for r in usable or [r for r, _, _ in split] if (match := _REQUIREMENT.match(r))]
    import shlex

    return f"pip install {' '.join(map(shlex.quote, names))}"
