"""The GPUs that torch reaches through CUDA, or through ROCm where it was built so: which there are, without importing torch.

Knows nothing of tensors of ours, graphs or kernels.
"""

from __future__ import annotations

import importlib
from typing import Any

from tritium.backends import Absent, Backend, Device
from tritium.backends.torch.probe import absence
from tritium.errors import install_command


def units() -> tuple[str, ...] | Absent:
    """The numbers of the GPUs, or why there is none."""
    if (absent := absence(install_command("cuda"))) is not None:
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


def make(device: Device) -> Backend:
    """The backend of one GPU."""
    made: Backend = importlib.import_module("tritium.backends.cuda.device").Cuda(device)
    return made
