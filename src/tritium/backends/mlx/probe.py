"""MLX as a device: which of its units are here, found out without importing the backend.

Knows nothing of kernels.
"""

from __future__ import annotations

import importlib

from tritium.backends import Absent, Backend, Device
from tritium.errors import install_command

REMEDY = f"{install_command('mlx')} (macOS on Apple silicon, or Linux), or use device='cpu'"


def units() -> tuple[str, ...] | Absent:
    """Return the units of MLX here, the one it would use itself first; or why there is none."""
    try:
        import mlx.core as mx
    except ImportError as error:
        why = "mlx is not installed" if isinstance(error, ModuleNotFoundError) else f"mlx cannot be imported: {error}"
        return Absent(why, REMEDY)
    return ("gpu", "cpu") if mx.metal.is_available() else ("cpu",)


def make(device: Device) -> Backend:
    """Make the backend of one unit."""
    backend: Backend = importlib.import_module("tritium.backends.mlx.device").Mlx(device)
    return backend
