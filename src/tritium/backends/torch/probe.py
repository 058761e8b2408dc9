"""PyTorch as a device: `torch` is its CPU, `mps` its Apple GPU. Here is how to find out what is there, without importing torch.

Knows nothing of tensors of ours or graphs. Modules for training in torch are elsewhere, in `tritium.torch`.
"""

from __future__ import annotations

import importlib
import importlib.util
import platform

from tritium.backends import Absent, Backend, Device
from tritium.errors import install_command

_KINDS = {"torch": "cpu", "mps": "mps"}  # what torch calls the devices of each kind
_REMEDY = install_command("torch")


def units() -> tuple[str, ...] | Absent:
    """The devices of kind `torch`: the CPU, where torch is installed."""
    return absence() or ("cpu",)


def mps_units() -> tuple[str, ...] | Absent:
    """The devices of kind `mps`: the GPU of a Mac, where torch can use it."""
    if (absent := absence()) is not None:
        return absent
    mps = importlib.import_module("torch").backends.mps
    if mps.is_available():
        return ("0",)
    if platform.system() != "Darwin":
        return Absent("mps is the GPU of a Mac, and this is not macOS", "use device='torch' or device='cpu'")
    if not mps.is_built():
        return Absent("this PyTorch was built without mps", "install PyTorch's own wheel for Apple silicon")
    return Absent("mps needs macOS 14 or later and an Apple GPU", "update macOS, or use device='torch' or device='cpu'")


def absence(remedy: str = _REMEDY) -> Absent | None:
    """Why torch cannot be used; None: it can."""
    if importlib.util.find_spec("torch") is None:
        return Absent("PyTorch is not installed", remedy)
    try:
        importlib.import_module("torch")
    except Exception as error:  # a damaged installation fails in ways of its own
        return Absent(f"PyTorch is installed but cannot be imported ({error})", f"{remedy} --force-reinstall")
    return None


def make(device: Device) -> Backend:
    """The backend of a device of kind `torch` or `mps`."""
    made: Backend = importlib.import_module("tritium.backends.torch.device").Torch(device, _KINDS[device.type])
    return made
