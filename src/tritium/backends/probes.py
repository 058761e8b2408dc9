"""The devices of other libraries: which of them are here, found out before their backends are imported.

`mlx` is Apple's library; `torch` is PyTorch's CPU, `mps` its Apple GPU, `cuda` the GPUs it reaches through CUDA, or through ROCm
where it was built so. Modules for training in torch are elsewhere, in `tritium.torch`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
from typing import Any

from tritium.backends import Absent, Backend, Device
from tritium.errors import install_command

_DRIVERS = ("/proc/driver/nvidia", "/dev/dxg")  # of NVIDIA's GPUs, and within WSL2 of any
_KINDS = {"torch": "cpu", "mps": "mps"}  # what torch calls the devices of each kind
_MLX_REMEDY = f"{install_command('mlx')} (macOS on Apple silicon, or Linux), or use device='cpu'"


# ---- mlx


def mlx_units() -> tuple[str, ...] | Absent:
    """Return the units of MLX here, the one it would use itself first; or why there is none."""
    try:
        import mlx.core as mx
    except ImportError as error:
        if not isinstance(error, ModuleNotFoundError):
            return Absent(f"mlx cannot be imported: {error}", _MLX_REMEDY)
        is_made = platform.system() != "Darwin" or platform.machine() == "arm64"
        return Absent("mlx is not installed", _MLX_REMEDY, "mlx" if is_made else "")
    return ("gpu", "cpu") if mx.metal.is_available() else ("cpu",)


def make_mlx(device: Device) -> Backend:
    """Make the backend of one unit of MLX."""
    backend: Backend = importlib.import_module("tritium.backends.mlx.device").Mlx(device)
    return backend


# ---- torch and mps


def torch_units() -> tuple[str, ...] | Absent:
    """Return the devices of kind `torch`: the CPU, where torch is installed; or why there is none."""
    return _torch_absence() or ("cpu",)


def mps_units() -> tuple[str, ...] | Absent:
    """Return the devices of kind `mps`: the GPU of a Mac, where torch can use it; or why there is none."""
    if platform.system() != "Darwin":
        return Absent("mps is the GPU of a Mac, and this is not macOS", "use device='torch' or device='cpu'")
    if (absent := _torch_absence()) is not None:
        return absent
    mps = importlib.import_module("torch").backends.mps
    if mps.is_available():
        return ("0",)
    if not mps.is_built():
        return Absent("this PyTorch was built without mps", "install PyTorch's own wheel for Apple silicon")
    return Absent("mps needs macOS 14 or later and an Apple GPU", "update macOS, or use device='torch' or device='cpu'")


def _torch_absence(extra: str = "torch", is_possible: bool = True) -> Absent | None:
    """Return why torch cannot be used; None where it can. `is_possible`: whether the device would be here with it."""
    remedy = install_command(extra)
    if importlib.util.find_spec("torch") is None:
        return Absent("PyTorch is not installed", remedy, extra if is_possible else "")
    try:
        importlib.import_module("torch")
    except Exception as error:  # a damaged installation fails in ways of its own
        return Absent(f"PyTorch is installed but cannot be imported ({error})", f"{remedy} --force-reinstall")
    return None


def make_torch(device: Device) -> Backend:
    """Make the backend of a device of kind `torch` or `mps`."""
    backend: Backend = importlib.import_module("tritium.backends.torch.device").Torch(device, _KINDS[device.type])
    return backend


# ---- cuda


def cuda_units() -> tuple[str, ...] | Absent:
    """Return the numbers of the GPUs, or why there is none."""
    if (absent := _torch_absence("cuda", any(map(os.path.exists, _DRIVERS)))) is not None:
        return absent
    torch: Any = importlib.import_module("torch")
    if torch.cuda.is_available():
        return tuple(map(str, range(torch.cuda.device_count())))
    if torch.version.cuda is None and torch.version.hip is None:
        return Absent(
            f"this PyTorch ({torch.__version__}) was built for the CPU alone",
            "install one built for CUDA: pip install torch --index-url https://download.pytorch.org/whl/cu130",
        )
    return Absent("PyTorch finds no GPU, or no driver for one", "see what nvidia-smi says; update the driver")


def make_cuda(device: Device) -> Backend:
    """Make the backend of one GPU."""
    backend: Backend = importlib.import_module("tritium.backends.cuda.device").Cuda(device)
    return backend
