"""Our answers against those of Hugging Face's own BitNet and Llama classes, in f32, on small random models.

Both sides compute the same formulas with other roundings: theirs divides a token by its scale again before the product,
ours multiplies integers; theirs takes 127 * (1 / amax), ours 127 / amax; sums run in another order. So

- the input of every projection agrees to APART of its token's largest number. Each f32 operation rounds by at most 2^-24
  of its result; a sum of K terms, rounded at random, by about sqrt(K) * 2^-24 of their size: 1.4e-6 for K = 512, and the
  ulps of norm, softmax and rotation before it (measured: 2.4e-6).
- a number may fall to the other of two int8 steps only when it lies within 127 * APART steps of their middle.
- where no number fell so, for a token and all before it, its logits agree to TIGHT of the largest (measured: 6e-7).
- a number that did fall moves the output of its projection by amax / 127 * scale, a whole step, which moves later numbers
  over their own middles. A random network spreads this: logits then agree to LOOSE of their standard deviation (measured:
  17 of 3.1 million numbers fell, in 12 of 48 models; logits moved by 0.03 in the median, 0.09 at most).
- greedy tokens are the same wherever the best logit leads by more than twice the bound (measured: 3069 of 3072 are the
  same, and all 2773 of those that lead so).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import models
from models import AUTO, DIVIDED, EVERY_FORMAT, ONLINE, Shape
from tritium.io import convert
from tritium.models.config import Config
from tritium.models.load import Model, load

torch = pytest.importorskip("torch", reason="the other side of the comparison runs on torch")
transformers = pytest.importorskip("transformers", reason="the other side of the comparison")
pytest.importorskip("accelerate", reason="transformers loads BitNet models with it")

APART, TIGHT, LOOSE = 6e-6, 3e-6, 0.25
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
SMALL, LLAMA = Shape(), Shape(family="llama", theta=10000.0, tied=False)
NAMES = ("q_proj", "o_proj", "gate_proj", "down_proj")  # one of each input
CASES = {
    "bitnet, packed": (SMALL, AUTO),
    "bitnet, packed, larger": (replace(EVERY_FORMAT, context=256), AUTO),
    "bitnet, masters": (SMALL, ONLINE),
    "bitnet, scales that divide": (SMALL, DIVIDED),
    "llama, scales that divide": (LLAMA, DIVIDED),
    "llama, larger": (replace(EVERY_FORMAT, family="llama", tied=False, context=256), DIVIDED),
    "llama, packed, tied head": (replace(LLAMA, tied=True), AUTO),
    "llama, masters": (LLAMA, ONLINE),
    "llama, one kv head": (replace(LLAMA, kv_heads=1, eps=1e-6), DIVIDED),
    "llama, as many kv heads": (replace(LLAMA, kv_heads=4, layers=3), DIVIDED),
    "llama, linear rope": (replace(LLAMA, more={"rope_scaling": {"rope_type": "linear", "factor": 4.0}}), DIVIDED),
    "llama, llama3 rope": (replace(LLAMA, more={"rope_scaling": LLAMA3}), DIVIDED),
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _as_written() -> Any:
    """Their functions as they are written, not compiled: a compiler may take other operations for the same formula."""
    before, threads = torch._dynamo.config.disable, torch.get_num_threads()
    torch._dynamo.config.disable = True
    torch.set_num_threads(1)  # the models are small
    yield
    torch._dynamo.config.disable = before
    torch.set_num_threads(threads)


def pair(path: Path, case: str, seed: int) -> tuple[Any, Model]:
    """One model on both sides. All numbers of the directory are f32, so theirs computes in f32 as well."""
    shape, quantization = CASES[case]
    if quantization is ONLINE:
        models.masters(path, shape, seed)
    else:
        models.folder(path, models.random(shape, seed), quantization=quantization)
    made = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    kind = made.model.layers[0].mlp.up_proj
    assert type(kind).__name__ == ("BitLinear" if quantization is DIVIDED else "AutoBitLinear")
    return made.eval(), load(path, kv="f32")


@contextmanager
def watched(net: Any) -> Iterator[dict[str, list[Any]]]:
    """The inputs of their projections, by name, call by call."""
    seen: dict[str, list[Any]] = {}
    hooks = [
        module.register_forward_pre_hook(
            lambda _, given, name=name: seen.setdefault(name, []).append(given[0][0].numpy().copy())
        )
        for name, module in net.named_modules()
        if name.rpartition(".")[2] in NAMES
    ]
    with torch.no_grad():
        yield seen
    for hook in hooks:
        hook.remove()


def their_logits(net: Any, ids: Sequence[int]) -> tuple[Any, list[Any]]:
    """Their logits [tokens, vocab] of all at once, and the inputs of their projections."""
    with watched(net) as seen:
        logits = net(torch.tensor([list(ids)])).logits[0].numpy()
    return logits, [np.concatenate(calls) for calls in seen.values()]


def their_steps(x: Any) -> Any:
    """Their int8 steps, by the expression of their source."""
    t = torch.tensor(x)
    scale = 127 / t.abs().max(dim=-1, keepdim=True).values.clamp_(min=1e-5)
    return (t * scale).round().clamp(-128, 127).numpy()


def their_greedy(net: Any, prompt: Sequence[int], count: int) -> tuple[list[int], Any, list[Any]]:
    """Their most probable tokens, with their cache, the logits each was taken from, and the inputs of their projections."""
    with watched(net) as seen:
        made = net.generate(
            torch.tensor([list(prompt)]), max_new_tokens=count, min_new_tokens=count, do_sample=False, eos_token_id=None,
            pad_token_id=0, output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
    inputs = [np.concatenate(calls) for calls in seen.values()]
    return made.sequences[0, len(prompt) :].tolist(), torch.cat(made.logits).numpy(), inputs


def led(net: Any, ours: Model, ids: Sequence[int]) -> tuple[models.Lead, Any, Any]:
    theirs, seen = their_logits(net, ids)
    lead = models.Lead(seen, their_steps)
    return lead, models.led(ours, ids, lead), theirs


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("case", CASES)
def test_every_projection_is_given_what_theirs_is(case: str, seed: int, tmp_path: Path) -> None:
    net, ours = pair(tmp_path / "m", case, seed)
    for count in (1, 7, 40):
        lead, logits, theirs = led(net, ours, models.prompt(CASES[case][0], count, seed))
        assert not lead.inputs
        assert lead.apart <= APART
        assert lead.from_tie <= 127 * APART
        assert lead.flips <= 3 + lead.numbers // 10000
        assert np.abs(logits - theirs).max() <= TIGHT * np.abs(theirs).max()


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("case", CASES)
def test_logits_agree_to_rounding_and_tokens_wherever_the_margin_exceeds_it(
    case: str, seed: int, tmp_path: Path
) -> None:
    """64 greedy tokens: theirs with their cache; ours after the same tokens, one by one, and all at once."""
    shape = CASES[case][0]
    net, ours = pair(tmp_path / "m", case, seed)
    prompt = models.prompt(shape, (1, 9, 21)[seed], seed)
    tokens, theirs, inputs = their_greedy(net, prompt, 64)
    ids = prompt + tokens[:-1]
    watch = models.Lead(inputs, their_steps, follow=False)
    models.led(ours, ids, watch)
    first = max(watch.first - len(prompt) + 1, 0)  # the row of logits from which on numbers fell
    session = ours.session(context=len(ids))
    rows = [session.extend(0, prompt), *(session.step([0], [t])[0] for t in tokens[:-1])]
    bound = np.where(np.arange(64) < first, TIGHT * np.abs(theirs).max(), LOOSE * theirs.std())
    apart = np.abs(np.stack(rows) - theirs).max(1)
    assert (apart <= bound).all(), (apart.max(), first)
    best = np.sort(theirs, 1)
    sure = best[:, -1] - best[:, -2] > 2 * bound
    assert (np.stack(rows).argmax(1) == tokens)[sure].all()
    assert sure[:first].mean() > 0.9 if first else sure.any()
    if first >= 64:
        assert models.greedy(ours, prompt, 64)[0] == tokens


def test_most_models_agree_without_a_single_number_fallen(tmp_path: Path) -> None:
    """So the tight bound is what most of the comparisons above are held to."""
    whole = 0
    for seed in range(12):
        net, ours = pair(tmp_path / str(seed), "bitnet, packed", seed)
        whole += led(net, ours, models.prompt(SMALL, 40, seed))[0].flips == 0
    assert whole >= 6


def test_the_files_of_llama_cpp_give_what_transformers_gives(tmp_path: Path) -> None:
    """`llama` files keep Q and K rows in pairs; what is read from them is what theirs reads from the directory."""
    shape = replace(EVERY_FORMAT, family="llama")
    models.folder(tmp_path / "m", models.random(shape, 1), quantization=AUTO, dtype=ml_dtypes.bfloat16)
    models.folder(tmp_path / "wide", models.random(shape, 1), quantization=AUTO)
    net = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "wide", dtype=torch.float32)
    convert(tmp_path / "m", tmp_path / "m.gguf", to="tq2_0")
    lead, logits, theirs = led(net.eval(), load(tmp_path / "m.gguf", kv="f32"), models.prompt(shape, 30))
    assert lead.apart <= APART
    assert np.abs(logits - theirs).max() <= TIGHT * np.abs(theirs).max()


# ---- configurations


@pytest.mark.parametrize("family", ["bitnet", "llama"])
def test_a_field_that_is_absent_means_what_it_means_to_transformers(family: str) -> None:
    sizes = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}
    theirs = {"bitnet": transformers.BitNetConfig, "llama": transformers.LlamaConfig}[family]()
    least = {key: getattr(theirs, key) for key in sizes} | {"model_type": family}
    if family == "bitnet":
        least["num_key_value_heads"] = theirs.num_key_value_heads
    ours = Config.from_hf(least)
    assert ours.eps == theirs.rms_norm_eps
    assert ours.theta == theirs.rope_parameters["rope_theta"]
    assert ours.context == theirs.max_position_embeddings
    assert ours.activation == theirs.hidden_act
    assert ours.tied == theirs.tie_word_embeddings
    assert ours.kv_heads == theirs.num_key_value_heads


@pytest.mark.parametrize("scaling", [None, {"rope_type": "linear", "factor": 3.0}, LLAMA3])
def test_rotary_frequencies_are_those_of_transformers(scaling: dict[str, Any] | None) -> None:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    from tritium.nn.transformer import RoPE

    said = replace(LLAMA, width=512).config() | ({"rope_scaling": scaling} if scaling else {})
    theirs = LlamaRotaryEmbedding(transformers.LlamaConfig.from_dict(dict(said))).inv_freq.numpy()
    config = Config.from_hf(said)
    ours = RoPE(config.head_dim, config.rope_theta, scaling=dict(config.scaling)).frequencies.numpy()
    np.testing.assert_allclose(ours, theirs, rtol=4e-7)


def test_a_configuration_that_transformers_wrote_is_read(tmp_path: Path) -> None:
    made = transformers.LlamaConfig.from_dict(LLAMA.config(rope_scaling=LLAMA3))
    made.save_pretrained(tmp_path)
    import json

    written = json.loads((tmp_path / "config.json").read_text())
    assert Config.from_hf(written) == Config.from_hf(LLAMA.config(rope_scaling=LLAMA3))
