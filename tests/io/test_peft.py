"""PEFT's folders: what does not fit a model is refused by name before its weights are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lora
from tritium.errors import FormatError, MissingFileError
from tritium.io import peft

Q = "base_model.model.model.layers.0.self_attn.q_proj.lora_"


def test_an_adapter_has_the_numbers_of_its_file(tmp_path: Path) -> None:
    folder = lora.write(tmp_path / "a", rank=4, ends=("q_proj", "down_proj"), kind=ml_dtypes.bfloat16, use_rslora=True)
    adapter = peft.open_adapter(folder, lora.SHAPES)
    assert adapter.rank == 4
    assert adapter.scaling == 8 / 2
    arrays = {name: (a.shape, b.shape) for name, a, b in adapter.arrays()}
    assert arrays["model.layers.1.mlp.down_proj"] == ((4, 512), (256, 4))
    assert len(arrays) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({Q + "A.weight": np.zeros((4, 256), np.float32)}, r"F32\[4, 256\]; the layer needs floats of \[3, 256\]"),
        ({Q + "B.weight": np.zeros((256, 3), np.int32)}, r"I32\[256, 3\]; the layer needs floats"),
        ({Q + "B.weight": None}, "only one of lora_A and lora_B"),
        ({"base_model.model.lm_head.lora_A.weight": np.zeros((3, 256), np.float32)}, r"no ternary layer of that name"),
        ({Q + "C.weight": np.zeros((3, 256), np.float32)}, r"no ternary layer of that name"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        peft.open_adapter(lora.write(tmp_path / "a", changes=changes), lora.SHAPES)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"r": 1 << 20}, "a rank from 1 to 65536 is needed"),
        ({"r": True}, "a rank from 1"),
        ({"lora_alpha": "8"}, "lora_alpha"),
        ({"use_dora": True}, "use_dora = True, which these layers do not compute"),
        ({"peft_type": "IA3"}, "only 'LORA' is read"),
    ],
)
def test_what_a_configuration_asks_for_besides_is_refused(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        peft.open_adapter(lora.write(tmp_path / "a", **config), lora.SHAPES)


def test_missing_files_and_numbers_that_are_none_are_told(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"no adapter_config\.json"):
        peft.open_adapter(tmp_path, lora.SHAPES)
    folder = lora.write(tmp_path / "a", changes={Q + "A.weight": np.full((3, 256), np.inf, np.float32)})
    with pytest.raises(FormatError, match="not finite"):
        list(peft.open_adapter(folder, lora.SHAPES).arrays())
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(MissingFileError, match=r"adapters in \.bin files are not read"):
        peft.open_adapter(folder, lora.SHAPES)
