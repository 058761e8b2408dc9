"""A model with experts on a GPU: the logits of the CPU, and decode steps that are one CUDA graph."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

import families
import tritium as tt

torch = pytest.importorskip("torch", reason="models on CUDA need PyTorch: pip install torch triton")
pytest.importorskip("triton", reason="experts on CUDA need Triton: pip install torch triton")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="runs on a GPU alone")

IDS = np.random.default_rng(5).integers(0, 80, 40).tolist()


@pytest.mark.parametrize("group", [0, 32])
def test_a_model_with_experts_has_the_logits_of_the_cpu(
    tmp_path: Path, group: int, caplog: pytest.LogCaptureFixture
) -> None:
    config = families.CONFIGS["maple"] | {"moe_intermediate_size": 64}
    model = tt.load(families.write_gguf(tmp_path / "m.gguf", families.random(config, 1, group=group)), kv="f32")
    assert model.activations == ("group" if group else "token")
    with caplog.at_level(logging.WARNING, "tritium"):
        for chunks in ((40,), (17, 1, 22), (1,) * 40):
            ends = np.cumsum(chunks).tolist()
            found = []
            for one in (model, model.to("cuda")):
                session = one.session()
                found.append([session.extend(0, IDS[a:b]) for a, b in zip([0, *ends], ends, strict=False)])
            there, here = (np.stack(logits) for logits in found)
            np.testing.assert_allclose(here, there, atol=2e-3 * np.abs(there).max())
    assert not [r.getMessage() for r in caplog.records if "captured" in r.getMessage()]


def test_sequences_decode_together_as_alone(tmp_path: Path) -> None:
    weights = families.random(families.CONFIGS["maple"], 1)
    model = tt.load(families.write_gguf(tmp_path / "m.gguf", weights), kv="f32").to("cuda")
    alone = model.session()
    one = [alone.extend(0, IDS[:20])] + [alone.extend(0, [i]) for i in IDS[20:26]]
    session = model.session(slots=3)
    session.extend(1, IDS[5:15])
    together = [session.extend(0, IDS[:20])] + [session.extend(0, [i]) for i in IDS[20:26]]
    np.testing.assert_array_equal(np.stack(together), np.stack(one))
