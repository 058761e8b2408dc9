"""Errors by name, remedies, and values in messages; every message says what was given, what was needed and what to do."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any


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


class RangeError(TritiumError, OverflowError):
    """A number lies outside a dtype."""


class MissingFileError(TritiumError, FileNotFoundError):
    """There is no file of this name."""


class ExchangeError(TritiumError, BufferError):
    """Memory that another library cannot lend or take: DLPack's protocol asks for a BufferError."""


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


class RankError(TritiumError, RuntimeError):
    """One of the processes that share a model is gone, stopped, or was called with something else."""


class BusyError(TritiumError, RuntimeError):
    """There is no room for another request now; a later try may find some."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ' Did you mean x?' for the closest known word, else nothing."""

    from difflib import get_close_matches  # only a message needs it: it takes longer to import than this module

    close = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""


# Names that users of PyTorch and NumPy have in their fingers, and what to write here. A test evaluates every name on the right.
HINTS: dict[str, str] = {
    name: remedy
    for names, remedy in {
        "cat concatenate hstack vstack dstack": "tt.concat([a, b], axis)",
        "unsqueeze": "tt.expand_dims(x, axis), or x[:, None]",
        "masked_fill masked_fill_": "tt.where(mask, value, x), or x[mask] = value",
        "masked_select": "x[mask]",
        "index_select gather select": "tt.take(x, indices, axis) or tt.take_along_axis(x, indices, axis)",
        "index_add index_add_ scatter_add scatter_add_ index_copy": "tt.scatter(x, indices, values, axis, mode='add')",
        "numel nelement": "x.size",
        "dim ndimension": "x.ndim",
        "float": "x.to('f32')",
        "double": "x.to('f64')",
        "half": "x.to('f16')",
        "bfloat16": "x.to('bf16')",
        "int": "x.to('i32')",
        "long": "x.to('i64')",
        "short": "x.to('i16')",
        "byte": "x.to('u8')",
        "char": "x.to('i8')",
        "type type_as": "x.to(dtype)",
        "cpu": "x.to('cpu')",
        "cuda": "x.to('cuda')",
        "permute": "tt.permute_dims(x, axes), or x.permute(axes)",
        "transpose": "x.transpose(axis1, axis2), or tt.permute_dims(x, axes)",
        "t": "x.T",
        "H mH": "x.mT",
        "detach requires_grad requires_grad_ grad backward retain_grad": "tritium.torch, which trains; tensors here have no gradients",
        "ravel view_as reshape_as": "x.flatten() or x.reshape(shape)",
        "expand_as": "x.expand(shape), or tt.broadcast_to(x, shape)",
        "cumsum": "tt.cumulative_sum(x, axis)",
        "cumprod": "tt.cumulative_prod(x, axis)",
        "amax": "tt.max(x, axis)",
        "amin": "tt.min(x, axis)",
        "mm bmm dot mv": "tt.matmul(a, b), or a @ b",
        "addmm baddbmm": "c + a @ b",
        "inner outer": "tt.einsum('i,j->ij', a, b)",
        "array as_tensor as_array": "tt.asarray(data), or tt.tensor(data) for a copy",
        "eq": "x == y",
        "ne": "x != y",
        "lt": "x < y",
        "le": "x <= y",
        "gt": "x > y",
        "ge": "x >= y",
        "fmod": "tt.remainder(x, y)",
        "true_divide": "tt.divide(x, y)",
        "absolute fabs": "tt.abs(x)",
        "arccos": "tt.acos(x)",
        "arcsin": "tt.asin(x)",
        "arctan": "tt.atan(x)",
        "arctan2": "tt.atan2(y, x)",
        "power": "tt.pow(x, y)",
        "invert bitwise_not": "tt.bitwise_invert(x)",
        "argwhere flatnonzero": "tt.nonzero(x)",
        "unbind": "tt.unstack(x, axis)",
        "chunk array_split": "tt.split(x, parts, axis)",
        "repeat_interleave": "tt.repeat(x, repeats, axis)",
        "rollaxis movedim": "tt.moveaxis(x, source, destination)",
        "moveaxes": "tt.moveaxis(x, source, destination)",
        "fliplr flipud": "tt.flip(x, axis)",
        "std_mean": "tt.std(x, axis) and tt.mean(x, axis)",
        "no_grad inference_mode": "nothing: tensors here have no gradients",
        "seed": "tt.manual_seed(seed)",
        "random random_sample": "tt.rand(shape, seed=0)",
        "normal": "tt.randn(shape, seed=0)",
        "permutation": "tt.randperm(n)",
        "identity": "tt.eye(n)",
        "swapdims": "tt.swapaxes(x, axis1, axis2)",
        "scaled_dot_product_attention": "tt.attention(q, k, v)",
        "Linear": "tt.nn.BitLinear.from_float(weight) or tt.nn.QuantLinear.from_float(weight)",
        "jit": "tt.compile(fn)",
    }.items()
    for name in names.split()
}
ARGUMENT_HINTS = {
    "dim": "axis",
    "dims": "axis",
    "keepdim": "keepdims",
    "input": "x",
    "size": "shape",
    "other": "x2",
    "axes": "axis",
}


def hint_argument(name: str, known: Iterable[str]) -> str:
    """Return ' Did you mean x?' for an argument of another library, or for the closest known one; else nothing."""
    known = list(known)
    other = ARGUMENT_HINTS.get(name)
    return f" Did you mean {other!r}?" if other in known else nearest(name, known)


def missing_name(owner: str, name: str, known: Iterable[str]) -> str:
    """Return the message for a name that does not exist: what to write instead, or the closest known one."""
    hint = f" Use {HINTS[name]}." if name in HINTS else nearest(name, known)
    return f"{owner} has no attribute {name!r}.{hint}"


class ContextError(TritiumError, ValueError):
    """More tokens than a model's context or a cache can hold."""


class PerformanceError(TritiumError, AssertionError):
    """A measured speed lies below the floor it must keep."""


class SaveError(TritiumError, OSError):
    """A file could not be written; what was there before it is as it was, and what was to be written is still in memory."""


class FetchError(TritiumError, OSError):
    """A model could not be fetched by its name: no network, no such repository, no access, no usable file, no room."""


class BaselineError(TritiumError, LookupError):
    """There is no baseline of this name."""


class TuneError(TritiumError, RuntimeError):
    """No candidate of a race could run, or the one that was kept no longer does."""


class ClusterError(TritiumError, RuntimeError):
    """The machines of a cluster cannot be reached, or do not measure the same program."""


class BuildError(TritiumError, RuntimeError):
    """Another revision of the package could not be checked out or built."""


# ---- remedies
#
# Tritium is on no package index: `pip install` finds its extras only in a checkout, so errors and pages name the packages.

EXTRAS = {  # as in pyproject.toml; a test compares them
    "run": ("tokenizers>=0.21", "jinja2>=3.1.6", "huggingface_hub>=1.0", "h11>=0.16", "llguidance>=1.7"),
    "otel": ("opentelemetry-api>=1.27",),
    "torch": ("torch>=2.5",),
    "cuda": ("torch>=2.9", "triton>=3.5; sys_platform == 'linux'", "nvidia-ml-py>=12; sys_platform == 'linux'"),
    "mlx": ("mlx>=0.32; sys_platform == 'darwin'", "mlx[cpu]>=0.32; sys_platform == 'linux'"),
    "dask": ("distributed>=2024.8",),
    "vllm": ("vllm>=0.30",),
    "png": ("resvg_py>=0.5",),
}

_REQUIREMENT = r"[\w.-]+(?:\[[\w,-]+\])?"
_MODULES = {"opentelemetry-api": "opentelemetry"}  # packages that are imported by another name


def install_command(*extras: str, platform: str = sys.platform) -> str:
    """Return the pip command that installs the packages of extras on a platform; of an extra made for none of it, all of them."""
    names: list[str] = []
    for extra in extras:
        split = [requirement.partition(";") for requirement in EXTRAS[extra]]
        usable = [r for r, _, marker in split if not marker or f"'{platform}'" in marker]
        names += [match[0] for r in usable or [r for r, _, _ in split] if (match := re.match(_REQUIREMENT, r))]
    return pip_install(names)


def pip_install(names: Iterable[str]) -> str:
    """Return the pip command that installs packages."""
    import shlex

    return f"pip install {' '.join(map(shlex.quote, dict.fromkeys(names)))}"


def absent(packages: Iterable[str]) -> list[str]:
    """Return those of some packages that are not installed; none is imported."""
    from importlib.util import find_spec

    modules = {package: _MODULES.get(package, package) for package in packages}
    return [p for p, m in modules.items() if (sys.modules[m] if m in sys.modules else find_spec(m)) is None]


def require(use: str, *packages: str) -> None:
    """Raise one PackageError that names all of these packages that are not installed; `use`, which needs them, begins its sentence."""
    if missing := absent(packages):
        *others, last = map(repr, missing)
        names = f"packages {', '.join(others)} and {last}, which are" if others else f"package {last}, which is"
        raise PackageError(f"{use} needs the {names} not installed; {pip_install(missing)}.")


def imported(use: str, package: str, *modules: str) -> Any:
    """Return a package that only some uses need, and import modules of it; raise PackageError where it is not installed, or damaged."""
    require(use, package)
    module = _MODULES.get(package, package)
    from importlib import import_module

    try:
        for name in modules:
            import_module(f"{module}.{name}")
        return import_module(module)
    except ImportError as error:
        remedy = f"{pip_install([package])} --force-reinstall"
        raise PackageError(
            f"{use} needs the package {package!r}, which cannot be imported ({error}); {remedy}."
        ) from error


# ---- messages

_LONGEST = 80  # characters of a value in a message


def shown(value: Any) -> str:
    """Return a value for a message: short, without addresses, whatever its own text does."""
    kind: Any = type(value)
    if isinstance(value, int) and abs(value).bit_length() > 128:  # Python refuses to write thousands of digits
        return f"{'-' if value < 0 else ''}2**{abs(value).bit_length() - 1}…"
    if not (
        value is None or value is Ellipsis or kind.__module__ == "builtins" or kind.__repr__ is not object.__repr__
    ):
        return f"an object of type {kind.__name__}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value) or kind is object:
        return f"an object of type {kind.__name__}"
    try:
        text = " ".join(repr(value).split())
    except (Exception, RecursionError):
        return f"an object of type {kind.__name__}"
    text = re.sub(r" (object )?at 0x[0-9a-f]+", "", text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}… ({kind.__name__})"
