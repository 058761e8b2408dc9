"""The devices of this machine whose own library keeps the memory."""

from __future__ import annotations

import os
from importlib.util import find_spec

from tritium.backends import Absent, probes

HERE = [name for name in ("torch", "mlx") if find_spec(name) is not None]
HERE += ["cuda"] if find_spec("torch") is not None and not isinstance(probes.cuda_units(), Absent) else []
HERE = [name for name in HERE if name in os.environ.get("TRITIUM_TEST_DEVICES", name)]  # some of them: "cuda,mlx"
