"""Convert tensors to and from other libraries: NumPy, the buffer protocol, DLPack, pickle. Without copying where memory allows.

Handing memory out counts as a write: whoever has it may write to it.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from inspect import unwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from tritium import backends, buffer, dtype as dt, ops
from tritium.arguments import checked
from tritium.backends.reference import packed
from tritium.buffer import MAX_DIMS, Storage, host, quick
from tritium.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    ExchangeError,
    OutOfMemoryError,
    PackageError,
    ShapeError,
    TritiumError,
    shown,
)
from tritium.layout import Shape
from tritium.op import Spec
from tritium.tensor import Tensor, wrap

if TYPE_CHECKING:
    from tritium.backends.values.device import ValueBackend

_GPUS = (2, 10)  # DLPack's numbers for devices of CUDA and of ROCm

# DLPack before version 1.0 does not say whether memory may be written. These libraries let others write their arrays
# (NumPy does not export read-only ones that way), and these share memory between arrays that never change.
_WRITABLE = frozenset(("cupy", "numba", "numpy", "paddle", "torch", "tritium", "warp"))
_IMMUTABLE = frozenset(("jax", "jaxlib", "mlx", "tensorflow"))


@quick("numpy")
def to_numpy(x: Tensor) -> np.ndarray[Any, Any]:
    """Return the elements as a NumPy array. On the CPU it is the same memory: writes on either side are seen on the other."""
    if x.dtype.is_packed:
        raise DTypeError(
            f"{x.spec} is packed; see its integers with repack(w, 'i8').numpy(), its floats with dequantize()."
        )
    x = x._computed("numpy()")
    storage = x.storage
    if storage.device.type != "cpu":
        return storage.device.backend.download(x)
    storage.export()
    return host(x)


@quick("from_numpy")
@checked
def from_numpy(data: np.ndarray[Any, Any], *, copy: bool = False, device: Any = None) -> Tensor:
    """Return a tensor over a NumPy array's own memory; copied on request, when the layout or byte order is odd, and to a
    device that has memory of its own."""
    there = backends.device_for(device, data.size)
    if buffer.native is not None and not copy and there.type == "cpu":
        tensor: Tensor | None = buffer.native.tensor_over(data, dt.ALL)
        if tensor is not None:
            return tensor
    kind = dt.dtype(data.dtype)
    if data.ndim > MAX_DIMS:
        raise ShapeError(f"from_numpy: an array of {data.ndim} dimensions was given; at most {MAX_DIMS} are possible.")
    item = kind.nbytes
    odd = not data.dtype.isnative or any(s % item for s in data.strides) or data.ctypes.data % item
    if copy or odd or data.size == 0 or there.type != "cpu":
        backend = there.backend
        array = backend.new(Spec(data.shape, kind))
        backend.upload(np.ascontiguousarray(data).astype(kind.numpy, copy=False), array)
        return wrap(array)
    low, high = np.lib.array_utils.byte_bounds(data)
    storage = Storage.wrap(low, high - low, data, data.flags.writeable)
    strides = tuple(s // item for s in data.strides)
    return Tensor(storage, kind, data.shape, strides, (data.ctypes.data - low) // item)


view_array: Callable[..., Tensor] = unwrap(from_numpy)  # for callers whose arguments are checked already


def read_array(data: Any, what: str) -> np.ndarray[Any, Any]:
    """Return anything NumPy reads as an array of numbers; what it does not read is refused in our words."""
    if isinstance(data, range) and (data.stop - data.start) // data.step > 2**31:
        raise ShapeError(f"{what}: {shown(data)} is too long to be read as a list; use tritium.arange(…).")
    try:
        values = np.asarray(data)
    except MemoryError as error:
        raise OutOfMemoryError(
            f"{what}: {type(data).__name__} does not fit in memory ({error}); give fewer numbers."
        ) from None
    except Exception as error:  # of an object's own methods, too
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ArgumentError(f"{what}: {shown(data)} cannot be read as an array of numbers ({reason}).") from error
    if values.dtype.kind not in "biufc" and values.dtype != dt.bf16.numpy:
        raise ArgumentError(f"{what}: {shown(data)} is neither an array, a number nor nested lists of numbers.")
    return values


def is_foreign(x: Any) -> bool:
    """Return True for an array of another library than NumPy: it exports DLPack."""
    return (
        hasattr(x, "__dlpack__")
        and hasattr(x, "__dlpack_device__")
        and not isinstance(x, (Tensor, np.ndarray, np.generic, type))
    )


def adopt_foreign(x: Any, there: backends.Device | None = None) -> Tensor:
    """Return an array of another library as a tensor over its memory: of the device `there` where its library keeps that one,
    else of the device the array is on."""
    libraries = {c.__module__.partition(".")[0] for c in type(x).__mro__}
    if "torch" in libraries:
        same = there is not None and there.type == "torch" and x.device.type == "cpu"
        return from_torch(x, device=there if same else None)
    if "mlx" in libraries and there is not None and there.type == "mlx":
        return from_mlx(x, device=there)
    return from_dlpack(x)


def read_tensor(x: Any, what: str) -> Tensor:
    """Return anything that holds numbers as a tensor, over its own memory where possible."""
    if isinstance(x, Tensor):
        return x
    return adopt_foreign(x) if is_foreign(x) else from_numpy(read_array(x, what))


def array(x: Tensor, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
    """Return a NumPy array: NumPy's protocol `__array__`."""
    same = dtype is None or np.dtype(dtype) == x.dtype.numpy
    if not same and copy is False:
        raise ValueError(f"{x.spec} cannot be seen as {np.dtype(dtype)} without a copy.")
    data = to_numpy(x)
    return data.copy() if copy and same else data.astype(dtype or data.dtype, copy=not same)


def array_function(x: Tensor, func: Any, types: tuple[type, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function of NumPy with NumPy arrays in the place of tensors: NumPy's protocol `__array_function__`.

    Without it NumPy calls methods of the same name, some of which exist here with other parameters.
    """
    if not all(issubclass(t, (Tensor, np.ndarray)) for t in types):
        return NotImplemented  # an array of another library decides
    name = getattr(func, "__name__", "function")
    return func(*_as_arrays(args, name), **_as_arrays(kwargs, name))


def _as_arrays(value: Any, name: str) -> Any:
    if isinstance(value, Tensor):
        return array(value._computed(f"np.{name}: the value"))
    if isinstance(value, dict):
        return {k: _as_arrays(v, name) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_as_arrays(v, name) for v in value)
    return value


def dlpack(
    x: Tensor, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
) -> Any:
    """Return a DLPack capsule of the same memory, for torch, JAX, MLX, CuPy, NumPy."""
    x = x._computed("__dlpack__")
    storage = x.storage
    if _value_backend(storage.device) is not None:
        options = {"stream": stream, "max_version": max_version, "dl_device": dl_device, "copy": copy}
        return _exported(x, "__dlpack__").__dlpack__(**{k: v for k, v in options.items() if v is not None})
    if storage.device.type != "cpu":
        raise ExchangeError(f"{x.spec} is on {storage.device}; move it with .to('cpu') first.")
    if stream is not None:
        raise ArgumentError("__dlpack__: a CPU tensor has no stream; leave stream out.")
    if dl_device is not None and tuple(dl_device) != (1, 0):
        raise ExchangeError(f"{x.spec} is on the CPU; it cannot be exported for DLPack device {dl_device}.")
    if buffer.native is not None and not x.dtype.is_complex:
        return buffer.native.dlpack(ops.copy(x) if copy else x, max_version, copy)
    if x.dtype is dt.bf16:
        raise ExchangeError(
            "bf16 cannot leave through NumPy's DLPack; install the native build, or cast with .to('f32')."
        )
    data = to_numpy(x)
    return data.__dlpack__(max_version=max_version, copy=copy)


def dlpack_device(x: Tensor) -> tuple[int, int]:
    x = x._computed("__dlpack_device__")
    if _value_backend(x.storage.device) is not None:
        device: tuple[int, int] = _exported(x, "__dlpack_device__").__dlpack_device__()
        return device
    return (1, 0)


def _exported(x: Tensor, what: str) -> Any:
    """Return a tensor as the value other libraries may see."""
    return _values_of(x, what).exported(x)


def _theirs(x: Tensor, what: str) -> Any:
    """Return the value of the device's own library that a tensor holds."""
    return _values_of(x, what).handed(x)


def _values_of(x: Tensor, what: str) -> ValueBackend:
    backend = _value_backend(x._memory(what).device)
    if x.dtype.is_packed:
        raise DTypeError(
            f"{what}: {x.spec} is packed; take its integers with repack(w, 'i8'), its floats with dequantize()."
        )
    assert backend is not None
    return backend


def _value_backend(device: backends.Device) -> ValueBackend | None:
    """Return the backend of a device whose own library keeps the memory; None for every other device."""
    if device.type == "cpu":
        return None
    from tritium.backends.values.device import ValueBackend  # programs on the CPU do without it

    return device.backend if isinstance(device.backend, ValueBackend) else None


@checked
def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """Return a tensor over the memory of any DLPack array; copied only on request.

    It is read-only where the producer says so, where its library's arrays are immutable (JAX, TensorFlow, MLX), and where
    neither the capsule nor the library is known to allow writes. Write to a copy: copy=True, or x.clone().
    """
    if type(x).__module__.partition(".")[0] == "mlx":  # whose memory several arrays may be on: it is not written
        tensor = shared(from_mlx(x), backends.device("cpu"))
        return _placed(ops.copy(tensor) if copy else tensor, device)
    if getattr(x, "requires_grad", False) is True and callable(getattr(x, "detach", None)):
        x = x.detach()  # torch exports no tensor with a gradient; here there is none to lose
    where = _dlpack_place(x)
    if where[0] in _GPUS and _has_cuda():
        import torch

        tensor = from_torch(torch.from_dlpack(x))
        tensor.storage.writable = _may_write(x) is True  # torch does not tell what the capsule said
        return _placed(ops.copy(tensor) if copy else tensor, device)
    if where[0] != 1:
        raise ExchangeError(f"from_dlpack: the array is on DLPack device {tuple(where)}; move it to the CPU first.")
    tensor = _import(x)
    return _placed(ops.copy(tensor) if copy else tensor, device)


def _dlpack_place(x: Any) -> tuple[int, int]:
    """Return the type and the number of the device of a DLPack array."""
    remedy = "give an array of a library that exports DLPack (torch, JAX, CuPy, NumPy), or use tritium.asarray(…)."
    if isinstance(x, type) or not hasattr(x, "__dlpack__") or not hasattr(x, "__dlpack_device__"):
        raise ArgumentError(f"from_dlpack: {shown(x)} has no __dlpack__; {remedy}")
    try:
        kind, index = x.__dlpack_device__()
        return int(kind), int(index)
    except Exception as error:
        raise ArgumentError(f"from_dlpack: {shown(x)} does not say where it is ({error}); {remedy}") from error


def _has_cuda() -> bool:
    try:
        return backends.device("cuda") is not None
    except DeviceError:
        return False


def _placed(x: Tensor, device: Any) -> Tensor:
    return x if device is None else x.to(device=device)


def _may_write(x: Any) -> bool | None:
    """Return True if the library of a DLPack array allows others to write it, False if not, None if unknown."""
    libraries = {c.__module__.partition(".")[0] for c in type(x).__mro__}
    if libraries & _IMMUTABLE:
        return False
    return True if libraries & _WRITABLE else None


def _is_complex(x: Any) -> bool:
    """Return True if an array of another library has a complex dtype: such capsules are read by NumPy."""
    try:
        return dt.dtype(x.dtype).is_complex
    except Exception:  # it has no dtype, or one that is unknown here: the capsule itself tells
        return False


def _import(x: Any) -> Tensor:
    may_write = _may_write(x)
    if buffer.native is None or _is_complex(x):
        try:
            data = np.from_dlpack(x)  # of an unversioned capsule read-only, whoever made it
        except Exception as error:
            raise ExchangeError(f"from_dlpack: {shown(x)} cannot be taken: {error}") from error
        if may_write is False:
            data.flags.writeable = False
        return from_numpy(data)
    try:
        return _import_capsule(x, may_write)
    except TritiumError:
        raise
    except Exception as error:  # of the producer, or of a capsule that is damaged
        raise ExchangeError(f"from_dlpack: {shown(x)} cannot be taken: {error}") from error


def _import_capsule(x: Any, may_write: bool | None) -> Tensor:
    assert buffer.native is not None
    try:
        # An unversioned capsule of an immutable array cannot claim to be writable.
        capsule = x.__dlpack__() if may_write is False else x.__dlpack__(max_version=(1, 0))
    except TypeError:  # a producer of the first version of the protocol
        capsule = x.__dlpack__()
    storage, code, shape, strides, offset = buffer.native.from_dlpack_capsule(capsule, may_write is True)
    return Tensor(storage, dt.ALL[code], shape, strides, offset)


def rebuild(data: Any, kind: str, shape: Shape, device: str) -> Tensor:
    """Unpickle a tensor: bytes out of band are viewed in place, those inside the pickle are copied."""
    t = dt.dtype(kind)
    flat = np.frombuffer(data, np.uint8)
    in_place = flat.size > 0 and flat.ctypes.data % t.numpy.itemsize == 0
    if device == "cpu" and isinstance(data, (bytearray, memoryview, pickle.PickleBuffer)) and in_place:
        storage = Storage.wrap(flat.ctypes.data, flat.nbytes, flat, flat.flags.writeable)
        return Tensor(storage, t, shape, Spec(shape, t).strides, 0)
    there = backends.device(device).backend
    array = there.new(Spec(shape, t))
    there.upload(np.frombuffer(flat.tobytes(), t.numpy).reshape(_seen_shape(shape, t)), array)
    return wrap(array)


def _seen_shape(shape: Shape, t: dt.DType) -> Shape:
    """Return the shape in which a backend's upload and download see a tensor: of packed dtypes they see bytes."""
    return packed.empty(shape, t).data.shape if t.is_packed else shape


def reduce_ex(x: Tensor, protocol: Any) -> tuple[Any, ...]:
    """Pickle a tensor; with protocol 5 the bytes can travel out of band, without a copy."""
    x = x._computed("pickle")
    if int(protocol) >= 5 and _value_backend(x.storage.device) is None:
        x.storage.export()  # before looking: it may move the bytes
    data = np.ascontiguousarray(x.storage.device.backend.download(x))
    raw = data.reshape(-1).view(np.uint8)
    if int(protocol) >= 5:
        payload: Any = pickle.PickleBuffer(raw)  # type: ignore[arg-type]
    else:
        payload = raw.tobytes()
    return rebuild, (payload, x.dtype.name, x.shape, str(x.device))


def _check_library(x: Any, library: str, what: str, noun: str) -> None:
    """Raise unless x is an array of this library, or of a class that inherits from one."""
    if isinstance(x, type) or library not in {c.__module__.partition(".")[0] for c in type(x).__mro__}:
        other = "from_numpy" if isinstance(x, np.ndarray) else "asarray"
        raise ArgumentError(f"{what}: a {noun} is needed, given {shown(x)}; use tritium.{other}(…) for this one.")


@checked
def from_torch(x: Any, *, device: Any = None) -> Tensor:
    """Return a tensor on the memory of a torch tensor; both see each other's writes. One in the host's memory is a tensor of the
    CPU, or of torch itself with device='torch'; others are tensors of the device they are on."""
    _check_library(x, "torch", "from_torch", "PyTorch tensor")
    target = None if device is None else backends.device(device)
    if x.is_conj() or x.is_neg():
        raise ExchangeError(
            "from_torch: the tensor is a view that torch conjugates or negates as it is read, which no other library sees; resolve it "
            "first: t.resolve_conj().resolve_neg()."
        )
    if x.device.type == "cpu" and (target is None or target.type == "cpu"):
        return from_dlpack(x.detach())
    return _adopted(x, target or backends.device("torch" if x.device.type == "cpu" else str(x.device)), "from_torch")


def to_torch(x: Tensor) -> Any:
    """Return a torch tensor on the same memory; of a tensor on mlx a copy, since torch could write what MLX takes for constant."""
    try:
        import torch
    except ImportError as error:
        raise PackageError("PyTorch is not installed; pip install torch.") from error
    x = x._computed("torch()")
    here = x.storage.device
    if here.type in ("torch", "mps", "cuda"):
        return _theirs(x, "torch()")
    return torch.from_dlpack(x.to(device="cpu") if here.type == "mlx" else x)


@checked
def from_mlx(x: Any, *, device: Any = "mlx") -> Tensor:
    """Return a tensor on an MLX array itself: nothing is copied."""
    _check_library(x, "mlx", "from_mlx", "MLX array")
    return _adopted(x, backends.device(device), "from_mlx")


def to_mlx(x: Tensor) -> Any:
    """Return the MLX array of a tensor: itself where the tensor is on mlx, else a copy there (MLX copies its input)."""
    x = x._computed("mlx()")
    here = x.storage.device
    return _theirs(x if here.type == "mlx" else x.to(device="mlx"), "mlx()")


def shared(x: Tensor, there: backends.Device) -> Tensor:
    """Return the same memory as a tensor of another device, where both see the host's: cpu and torch:cpu; mlx:cpu to read."""
    x = x._computed("to")
    here = x.storage.device
    if not x.dtype.is_packed:
        if here.type == "cpu" and there.type == "torch" and there.unit == "cpu":
            return from_torch(to_torch(x), device=there)
        if there.type == "cpu" and here.type == "torch" and here.unit == "cpu":
            return from_torch(to_torch(x))
        if there.type == "cpu" and here.type == "mlx":
            data = here.backend.download(x)
            data.flags.writeable = False
            return from_numpy(data, device="cpu")
    raise DeviceError(f"{x.spec} is on {here}; it cannot come to {there} without a copy; leave copy=False out.")


def _adopted(x: Any, there: backends.Device, what: str) -> Tensor:
    backend = _value_backend(there)
    if backend is None:
        raise ArgumentError(f"{what}: {there} does not keep arrays of that library; leave device out.")
    return wrap(backend.adopt(x))


def namespace(x: Tensor, /, *, api_version: str | None = None) -> Any:
    """Return the array API standard's namespace: this package."""
    if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12"):
        raise DTypeError(f"The array API version {api_version!r} is not supported; use 2024.12.")
    return sys.modules[__package__]  # named without an import, which would go up


# ---- einops: it asks its own classes only which library a tensor belongs to


def _register_einops(module: Any) -> None:
    """Give einops a backend for tensors: its functions then take them as they take those of other libraries."""

    class TritiumBackend(module.AbstractBackend):  # type: ignore[misc]
        """Tensors of this package, as einops sees them."""

        framework_name = __package__

        def __init__(self) -> None:
            self.tt = sys.modules[__package__]

        def is_appropriate_type(self, tensor: Any) -> bool:
            return isinstance(tensor, Tensor)

        def from_numpy(self, x: Any) -> Tensor:
            return from_numpy(x)

        def to_numpy(self, x: Tensor) -> np.ndarray[Any, Any]:
            return to_numpy(x)

        def arange(self, start: int, stop: int) -> Tensor:
            return ops.arange(start, stop)

        def transpose(self, x: Tensor, axes: Any) -> Tensor:
            return ops.permute_dims(x, tuple(axes))

        def stack_on_zeroth_dimension(self, tensors: list[Tensor]) -> Tensor:
            return ops.stack(tensors)

        def add_axis(self, x: Tensor, new_position: int) -> Tensor:
            return ops.expand_dims(x, new_position)

        def tile(self, x: Tensor, repeats: tuple[int, ...]) -> Tensor:
            return self.tt.tile(x, repeats)

        def concat(self, tensors: list[Tensor], axis: int) -> Tensor:
            return ops.concat(tensors, axis)

        def is_float_type(self, x: Tensor) -> bool:
            return x.dtype.is_float

        def einsum(self, pattern: str, *x: Tensor) -> Tensor:
            return self.tt.einsum(pattern, *x)

    module.TritiumBackend = TritiumBackend  # einops finds subclasses, which nobody else keeps alive


class _Watcher:
    """A finder of modules that calls a function with a module once it is imported, and is gone then."""

    def __init__(self, name: str, action: Callable[[Any], None]) -> None:
        self.name, self.action = name, action

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.name:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                self.action(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def when_imported(name: str, action: Callable[[Any], None]) -> None:
    """Call a function with a module: now if it is imported, else once it is, which may be never."""
    if name in sys.modules:
        action(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Watcher(name, action))


when_imported("einops._backends", _register_einops)


for _name, _function in {
    "numpy": to_numpy,
    "torch": to_torch,
    "mlx": to_mlx,
    "_shared": shared,
    "__array__": array,
    "__array_function__": array_function,
    "__dlpack__": dlpack,
    "__dlpack_device__": dlpack_device,
    "__reduce_ex__": reduce_ex,
    "__array_namespace__": namespace,
}.items():
    setattr(Tensor, _name, _function)
