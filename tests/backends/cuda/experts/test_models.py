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

BOUND = 5e-2  # of the largest logit: where an activation fell to another of the 127 steps, since scores of experts are floats
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
            np.testing.assert_allclose(here, there, atol=BOUND * np.abs(there).max())
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


@pytest.mark.parametrize(("group", "activations"), [(0, "token"), (128, "token"), (128, "group"), (48, "group")])
def test_experts_have_the_bits_of_the_cpu_eager_and_compiled(group: int, activations: str) -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((20, 64, 256)).astype(np.float32)
    here = tt.nn.Experts.from_float(weights, axis=None if group else 0, group=group, activations=activations)
    there = here.to("cuda")
    program = tt.compile(lambda x, e: there(x, e))
    for tokens in (1, 3, 90):
        x = tt.tensor(rng.standard_normal((tokens, 256)).astype(np.float32))
        experts = tt.tensor(rng.integers(0, 20, (tokens, 4)).astype(np.int32))
        for call in (there, program, program):
            assert (call(x.to("cuda"), experts.to("cuda")).to("cpu") == here(x, experts)).all()


@pytest.mark.parametrize("tokens", [1, 200])
def test_an_expert_that_does_not_exist_is_an_error(tokens: int) -> None:
    made = tt.nn.Experts.from_float(np.ones((3, 8, 128), np.float32)).to("cuda")
    x, wrong = tt.ones((tokens, 128), device="cuda"), tt.full((tokens, 2), 3, dtype="i32", device="cuda")
    program = tt.compile(lambda x, e: made(x, e))
    for call in (made, program):
        with pytest.raises(tt.errors.BoundsError, match="expert_matmul: an index is outside an axis of size 3"):
            call(x, wrong).numpy()
