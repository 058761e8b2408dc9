"""Tritium runs, compiles and measures ternary (1.58-bit, BitNet) networks.

`import tritium as tt` gives the tensor library: `tt.add`, `tt.matmul`, … are the rows of one table (`tritium ops`).
"""

import sys
from importlib import import_module
from math import e, inf, nan, pi
from typing import TYPE_CHECKING, Any

from tritium import settings

__version__ = "0.1.0"  # before the rest: what was tuned belongs to one version, and is read while the rest is imported
settings.start_logging()

__array_api_version__ = "2024.12"
newaxis = None

__all__ = [
    "Backend", "Compiled", "Cost", "DType", "Device", "Event", "FusionPattern", "Generator", "Graph", "GraphBuilder",
    "Kernel", "Model", "Op", "Pipeline", "Program", "Spec", "Tensor", "__array_api_version__",
    "__array_namespace_info__", "__version__", "abs", "acos", "acosh", "add", "add_pattern", "all", "allclose", "any",
    "arange", "argmax", "argmin", "argsort", "asarray", "asin", "asinh", "astype", "atan", "atan2", "atanh",
    "attention", "bf16", "bfloat16", "bitwise_and", "bitwise_invert", "bitwise_left_shift", "bitwise_or",
    "bitwise_right_shift", "bitwise_xor", "bool", "broadcast_arrays", "broadcast_to", "c64", "c128", "can_cast",
    "causal_conv1d", "ceil", "ceilings", "clip", "compile", "complex64", "complex128", "concat", "conj", "copy",
    "copysign", "cos", "cosh", "count_nonzero", "cumulative_prod", "cumulative_sum", "default_device", "dequantize",
    "device", "devices", "diff", "disable_monitoring", "divide", "divmod", "e", "einsum", "einsum_path", "empty",
    "empty_like", "enable_monitoring", "equal", "erf", "exp", "expand_dims", "expert_matmul", "expm1", "eye", "f16",
    "f32", "f64", "fetch", "fft", "find_optimal_batch_size", "finfo", "flip", "float16", "float32", "float64", "floor",
    "floor_divide", "from_dlpack", "from_mlx", "from_numpy", "from_torch", "full", "full_like", "gated_delta_rule",
    "gelu", "get_num_threads", "get_optimal_config", "get_tensor_metrics", "greater", "greater_equal", "hadamard",
    "hypot", "i4", "i8", "i16", "i32", "i64", "iinfo", "imag", "inf", "int8", "int16", "int32", "int64",
    "integer_matmul", "io", "isclose", "isdtype", "isfinite", "isinf", "isnan", "layer_norm", "lazy", "less",
    "less_equal", "linalg", "linear", "linspace", "load", "load_program", "load_tensors", "log", "log1p", "log2",
    "log10", "log_softmax", "logaddexp", "logical_and", "logical_not", "logical_or", "logical_xor", "logsumexp",
    "manual_seed", "matmul", "matrix_transpose", "max", "maximum", "mean", "median", "memory", "meshgrid", "min",
    "minimum", "moveaxis", "multiply", "nan", "negative", "newaxis", "nextafter", "nn", "nonzero", "not_equal",
    "one_hot", "ones", "ones_like", "pack", "pad", "permute_dims", "pi", "positive", "pow", "process_in_batches",
    "prod", "profile", "quant", "quantile", "quantize", "quantize_activations", "quantize_int4", "quantize_int8",
    "quantize_ternary", "quantized_attention", "quantized_matmul", "rand", "randint", "randn", "randperm", "real", "reciprocal", "register",
    "relu", "relu2", "remainder", "remove_pattern", "repack", "repeat", "reshape", "result_type", "rms_norm", "roll",
    "rope", "round", "rsqrt", "save", "scatter", "scope", "searchsorted", "set_default_device", "set_num_threads",
    "sigmoid", "sign", "signbit", "silu", "sin", "sinh", "softmax", "sort", "split", "sqrt", "square", "squeeze",
    "stack", "stats", "std", "subtract", "sum", "swapaxes", "swish", "take", "take_along_axis", "take_rows", "tan",
    "tanh", "tensor", "tensordot", "tern2", "tern5", "threads", "tile", "timed", "topk", "trace", "track_memory",
    "tril", "triu", "trunc", "try_fuse", "tune", "u8", "u16", "u32", "u64", "uint8", "uint16", "uint32", "uint64",
    "unique_all", "unique_counts", "unique_inverse", "unique_values", "unregister", "unstack", "unwatch",
    "update_cache", "update_quantized_cache", "var", "vecdot", "vmap", "watch", "where", "zeros", "zeros_like",
]  # fmt: skip

# What a type checker reads, with the signatures of the rows' rules, which an Op does not show: tools/stubs.py writes them.
if TYPE_CHECKING:
    from tritium._table import *
    from tritium.backends import (
        Backend,
        Device,
        Kernel,
        default_device,
        device,
        devices,
        register,
        set_default_device,
        unregister,
    )
    from tritium.dtype import (
        DType,
        bf16,
        c64,
        c128,
        f16,
        f32,
        f64,
        finfo,
        i4,
        i8,
        i16,
        i32,
        i64,
        iinfo,
        tern2,
        tern5,
        u8,
        u16,
        u32,
        u64,
    )
    from tritium.dtype import bool_ as bool
    from tritium.functions import (
        Generator,
        __array_namespace_info__,
        allclose,
        asarray,
        astype,
        broadcast_arrays,
        can_cast,
        diff,
        empty_like,
        full_like,
        isclose,
        isdtype,
        logsumexp,
        manual_seed,
        median,
        meshgrid,
        ones,
        ones_like,
        pad,
        quantile,
        rand,
        randint,
        randn,
        randperm,
        repeat,
        reshape,
        result_type,
        searchsorted,
        split,
        swapaxes,
        swish,
        tensor,
        tensordot,
        tile,
        unique_all,
        unique_counts,
        unique_inverse,
        unique_values,
        unstack,
        vecdot,
        zeros,
        zeros_like,
    )
    from tritium.interop import from_dlpack, from_mlx, from_numpy, from_torch
    from tritium.launch import Event, unwatch, watch
    from tritium.op import Cost, Op, Spec
    from tritium.recording import scope
    from tritium.tensor import Tensor
    from tritium.threads import get_num_threads, set_num_threads
    from tritium import errors as errors, fft, io, linalg, memory, nn, perf as perf, quant, see as see
    from tritium.batching.batches import find_optimal_batch_size, process_in_batches
    from tritium.compiler.builder import GraphBuilder
    from tritium.compiler.compile import Compiled, compile, load_program, try_fuse
    from tritium.contract.einsum import einsum, einsum_path
    from tritium.counts import stats
    from tritium.compiler.lazy import lazy
    from tritium.graph.graph import Graph, trace
    from tritium.machine.ceilings import ceilings
    from tritium.memory import pack
    from tritium.models.hub import fetch
    from tritium.models.load import Model, load
    from tritium.models.tensors import load_tensors, save
    from tritium.perf.tune.racing import get_optimal_config, tune
    from tritium.compiler.patterns import FusionPattern, add_pattern, remove_pattern
    from tritium.batching.pipeline import Pipeline
    from tritium.batching.vmap import vmap
    from tritium.compiler.program import Program
    from tritium.see.memory.allocations import track_memory
    from tritium.see.monitor.tensor_metrics import disable_monitoring, enable_monitoring, get_tensor_metrics
    from tritium.see.profile.profile import profile, timed

    float16, bfloat16, float32, float64 = f16, bf16, f32, f64
    complex64, complex128 = c64, c128
    int8, int16, int32, int64 = i8, i16, i32, i64
    uint8, uint16, uint32, uint64 = u8, u16, u32, u64

# The same names by their modules, beside the rows of the table. First those of the runtime, then those imported when they are first asked
# for: most programs need only some of them, and all would double the time of import.
_RUNTIME = {
    "backends": "Backend Device Kernel default_device device devices register set_default_device unregister",
    "dtype": """DType bf16 c64 c128 f16 f32 f64 finfo i4 i8 i16 i32 i64 iinfo tern2 tern5 u8 u16 u32 u64 bool_:bool
        f16:float16 bf16:bfloat16 f32:float32 f64:float64 c64:complex64 c128:complex128
        i8:int8 i16:int16 i32:int32 i64:int64 u8:uint8 u16:uint16 u32:uint32 u64:uint64""",
    "functions": """Generator __array_namespace_info__ allclose asarray astype broadcast_arrays can_cast diff empty_like
        full_like isclose isdtype logsumexp manual_seed median meshgrid ones ones_like pad quantile rand randint randn
        randperm repeat reshape result_type searchsorted split swapaxes swish tensor tensordot tile unique_all
        unique_counts unique_inverse unique_values unstack vecdot zeros zeros_like""",
    "interop": "from_dlpack from_mlx from_numpy from_torch",
    "launch": "Event unwatch watch",
    "op": "Cost Op Spec",
    "recording": "scope",
    "tensor": "Tensor",
    "threads": "get_num_threads set_num_threads",
}
_LATER = {
    "compiler.compile": "Compiled compile load_program try_fuse",
    "compiler.program": "Program",
    "compiler.lazy": "lazy",
    "graph.graph": "Graph trace",
    "compiler.builder": "GraphBuilder",
    "contract.einsum": "einsum einsum_path",
    "compiler.patterns": "FusionPattern add_pattern remove_pattern",
    "batching.pipeline": "Pipeline",
    "batching.batches": "process_in_batches find_optimal_batch_size",
    "batching.vmap": "vmap",
    "counts": "stats",
    "see.monitor.tensor_metrics": "enable_monitoring disable_monitoring get_tensor_metrics",
    "machine.ceilings": "ceilings",
    "memory": "memory pack",
    "fft": "fft",
    "io": "io",
    "linalg": "linalg",
    "models.tensors": "save load_tensors",
    "nn": "nn",
    "quant": "quant",
    "models.hub": "fetch",
    "models.load": "load Model",
    "see.profile.profile": "profile timed",
    "see.memory.allocations": "track_memory",
    "perf": "perf",
    "see": "see",
    "perf.tune.racing": "tune get_optimal_config",
}
_MODULES = ("fft", "io", "linalg", "memory", "nn", "perf", "quant", "see")  # that are names of the package themselves
_PACKAGES = ("errors", "parallel", "serve", "testing", "torch")  # public too, shown where they are imported
_GRAPHS = ("graph.picture", "compiler.explain")  # what a graph asks of them
_LATE = {name: module for module, names in _LATER.items() for name in names.split()}


def _rows() -> dict[str, Any]:
    """Return the rows of the op table that are public."""
    op = import_module("tritium.op")
    return {name: row for name, row in op.OPS.items() if op.Trait.INTERNAL not in row.traits}


def _load() -> None:
    """Import the runtime and give the package its names; the command line does so when a command runs."""
    for module in ("eager", "indexing", "threads"):
        import_module(f"tritium.{module}")
    globals().update(_rows())
    for module, names in _RUNTIME.items():
        source = import_module(f"tritium.{module}")
        for name, _, alias in (name.partition(":") for name in names.split()):
            globals()[alias or name] = getattr(source, name)
    if settings.live():
        import_module("tritium.see.live.publisher").start()


if not TYPE_CHECKING:  # to a type checker, a name that is not listed does not exist

    def __getattr__(name: str) -> Any:
        if name.startswith("__"):  # a protocol's question, asked often
            raise AttributeError(f"module 'tritium' has no attribute {name!r}")
        if "Tensor" not in globals():  # the runtime is not imported yet, or is just now, which asks for modules
            if name in __all__ and "tritium.eager" not in sys.modules:
                _load()
                return getattr(sys.modules[__name__], name)
            raise AttributeError(f"module 'tritium' has no attribute {name!r} yet")
        if name in (rows := _rows()):  # one that was added since
            row = globals()[name] = rows[name]
            return row
        if name not in _LATE:
            from tritium.errors import missing_name

            raise AttributeError(
                missing_name("module 'tritium'", name, __dir__()), name=name, obj=sys.modules[__name__]
            )
        module = import_module(f"tritium.{_LATE[name]}")
        if "tritium.graph.graph" in sys.modules:
            for other in _GRAPHS:
                import_module(f"tritium.{other}")
        value = globals()[name] = module if name in _MODULES else getattr(module, name)
        return value


def __dir__() -> list[str]:
    dunders = (name for name in globals() if name.startswith("__"))
    return sorted({*__all__, *_LATE, *_rows(), *dunders, *(name for name in _PACKAGES if name in globals())})


if "tritium_cli" not in sys.modules:  # the command line alone has a use for less: its help
    _load()
