"""Arrays of other libraries, as operands and keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


class Lent:
    """An array of a library that speaks DLPack and nothing else."""

    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self.data = data

    def __dlpack__(self, **options: Any) -> Any:
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.data.__dlpack_device__()


def libraries() -> list[Any]:
    def torch_parameter(data: Any) -> Any:
        torch = pytest.importorskip("torch")
        return torch.nn.Parameter(torch.asarray(data))

    return [
        Lent,
        pytest.param(lambda a: pytest.importorskip("torch").asarray(a), id="torch"),
        pytest.param(torch_parameter, id="torch parameter"),
        pytest.param(lambda a: pytest.importorskip("jax.numpy").asarray(a), id="jax"),
        pytest.param(lambda a: pytest.importorskip("mlx.core").array(a), id="mlx"),
    ]
