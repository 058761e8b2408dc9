"""Models from files: the answers of the published formulas, the same from every format, storage and instruction set.

The bounds are those of tests/pytorch/test_transformers.py; the other side is the decoder of tests/helpers/models.py, in f64.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import models
import tritium as tt
from isas import ISAS
from models import AUTO, DIVIDED, EVERY_FORMAT, Shape
from tritium.backends.cpu import device as cpu
from tritium.errors import ArgumentError, FormatError, MissingFileError, TritiumError
from tritium.io import convert
from tritium.models.load import SHIPPED, Model, load, shipped
from tritium.models.prepacked import linears

APART, TIGHT, LOOSE = 6e-6, 3e-6, 0.25
LLAMA = Shape(family="llama", theta=10000.0, tied=False)
CASES = {
    "bitnet": Shape(),
    "bitnet, one layer": Shape(layers=1, heads=2, kv_heads=1),
    "bitnet, silu": Shape(activation="silu"),
    "llama": LLAMA,
    "llama, tied head": replace(LLAMA, tied=True, kv_heads=4),
    "llama, deep": replace(LLAMA, layers=5, kv_heads=1, eps=1e-6),
    "bitnet, larger": EVERY_FORMAT,
}

FAMILIES = {"bitnet": EVERY_FORMAT, "llama": replace(EVERY_FORMAT, family="llama", tied=False)}


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Path]]:
    """One model of a family as every kind of file."""
    made: dict[str, dict[str, Path]] = {}

    def of(family: str) -> dict[str, Path]:
        if family not in made:
            at = tmp_path_factory.mktemp(family)
            w = models.random(FAMILIES[family], 3)
            made[family] = {"hf": models.folder(at / "hf", w, dtype=ml_dtypes.bfloat16)}
            for name in ("i2_s", "tq1_0", "tq2_0", "q2_0"):
                made[family][name] = at / f"{name}.gguf"
                assert convert(at / "hf", at / f"{name}.gguf", to=name).scale_error == 0
        return made[family]

    return of


def logits(model: Model, ids: list[int]) -> Any:
    return model.session().extend(0, ids)


# ---- the formulas


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_every_projection_is_given_what_the_formulas_say(case: str, seed: int, tmp_path: Path) -> None:
    w = models.random(CASES[case], seed)
    ours = load(models.folder(tmp_path / "m", w), kv="f32")
    ids = models.prompt(w.shape, 33, seed)
    seen = models.Inputs()
    want = models.decode(w, ids, seen)
    lead = models.Lead(list(seen.all))
    found = models.led(ours, ids, lead)
    assert not lead.inputs
    assert lead.apart <= APART
    assert lead.from_tie <= 127 * APART
    assert np.abs(found - want).max() <= TIGHT * np.abs(want).max()


@pytest.mark.parametrize("case", CASES)
def test_logits_agree_until_a_number_falls_to_another_step(case: str, tmp_path: Path) -> None:
    """Several models, so that some have no number near the middle of two steps."""
    whole = 0
    for seed in range(4):
        w = models.random(CASES[case], seed)
        ours = load(models.folder(tmp_path / str(seed), w), kv="f32")
        ids = models.prompt(w.shape, 21, seed)
        seen = models.Inputs()
        want = models.decode(w, ids, seen)
        watch = models.Lead(list(seen.all), follow=False)
        models.led(ours, ids, watch)
        session = ours.session()
        found = np.stack([session.extend(0, ids[:9]), *(session.step([0], [t])[0] for t in ids[9:])])
        tight = np.arange(8, 21) < watch.first
        apart = np.abs(found - want[8:]).max(1)
        assert (apart[tight] <= TIGHT * np.abs(want).max()).all()
        assert (apart <= LOOSE * want.std()).all()
        whole += tight.all()
    assert whole


def test_masters_are_made_ternary_as_the_paper_does(tmp_path: Path) -> None:
    for seed in range(3):
        path, w = models.masters(tmp_path / str(seed), Shape(), seed)
        ours = load(path, kv="f32")
        seen = models.Inputs()
        want = models.decode(w, models.prompt(w.shape, 25, seed), seen)
        lead = models.Lead(list(seen.all))
        found = models.led(ours, models.prompt(w.shape, 25, seed), lead)
        assert lead.apart <= APART
        assert np.abs(found - want).max() <= TIGHT * np.abs(want).max()


def test_scales_that_divide_give_what_scales_that_multiply_do(tmp_path: Path) -> None:
    """1 / (1 / s) may differ from s by an ulp: here scales are powers of two, where it does not."""
    w = models.random(LLAMA, 5)
    w = replace(w, ternary={name: (t, np.float32(0.125)) for name, (t, _) in w.ternary.items()})
    one = load(models.folder(tmp_path / "a", w, quantization=AUTO))
    two = load(models.folder(tmp_path / "b", w, quantization=DIVIDED))
    ids = models.prompt(LLAMA, 20)
    np.testing.assert_array_equal(logits(one, ids), logits(two, ids))


@pytest.mark.parametrize(("kv", "within"), [("f16", 0.15), ("bf16", 0.4)])
def test_narrow_keys_and_values_stay_close(kv: str, within: float, tmp_path: Path) -> None:
    w = models.random(Shape(), 1)
    path = models.folder(tmp_path / "m", w)
    ids = models.prompt(w.shape, 40)
    exact, narrow = logits(load(path, kv="f32"), ids), logits(load(path, kv=kv), ids)
    assert 0 < np.abs(exact - narrow).max() < within * exact.std()


# ---- one model, every file


@pytest.mark.parametrize("family", ["bitnet", "llama"])
def test_every_format_gives_the_same_bits(family: str, formats: Any) -> None:
    """Scales are numbers that fp16 holds. `llama` files keep the rows of Q and K in pairs; they are read back."""
    files = formats(family)
    want = models.greedy(load(files["hf"]), [5, 17, 80], 24)
    for name, path in files.items():
        tokens, rows = models.greedy(load(path), [5, 17, 80], 24)
        assert tokens == want[0], name
        np.testing.assert_array_equal(rows, want[1], err_msg=name)


@pytest.mark.parametrize("family", ["bitnet", "llama"])
def test_five_to_a_byte_gives_the_same_bits(family: str, formats: Any) -> None:
    path = formats(family)["i2_s"]
    two, five = load(path), load(path, storage="tern5")
    # where no kernel reads tiles of five, they are kept in tiles of two bits
    kept = next(iter(cpu.tilings(tt.tern5)))
    assert five.nbytes < two.nbytes if kept.startswith("tern5") else five.nbytes == two.nbytes
    want, found = models.greedy(two, [1, 2, 3], 20), models.greedy(five, [1, 2, 3], 20)
    assert want[0] == found[0]
    np.testing.assert_array_equal(want[1], found[1])


def test_every_format_has_the_same_configuration(formats: Any) -> None:
    for family in ("bitnet", "llama"):
        told = {name: load(path).config for name, path in formats(family).items()}
        # without a tokenizer a GGUF file does not name the tokens of begin and end
        assert {replace(c, bos=None, eos=()) for c in told.values()} == {replace(told["hf"], bos=None, eos=())}
        assert (told["hf"].bos, told["hf"].eos) == (0, (1,))


RUN = """
import json, sys, models, tritium as tt
from tritium.models.load import load
out = {}
for i, path in enumerate(sys.argv[1:]):
    storage = "tern5" if i % 2 else "tern2"
    out[path] = models.greedy(load(path, kv="f32", storage=storage), list(range(9)), 12)[0]
print(json.dumps([tt.devices()[0].facts.get("isa", ""), out]))
"""
KINDS = [{"TRITIUM_ISA": isa} for isa in ISAS] + [{"TRITIUM_PURE": "1"}]


@pytest.fixture(scope="module")
def usual(formats: Any) -> dict[str, list[int]]:
    """The tokens on the instruction set chosen for this machine."""
    bitnet, llama = formats("bitnet"), formats("llama")
    paths = map(str, (bitnet["hf"], bitnet["i2_s"], bitnet["tq2_0"], llama["hf"], llama["tq2_0"]))
    return {p: models.greedy(load(p, kv="f32"), list(range(9)), 12)[0] for p in paths}


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.get("TRITIUM_ISA", "pure"))
def test_every_instruction_set_gives_the_same_tokens(kind: dict[str, str], usual: Any) -> None:
    where = os.pathsep.join([str(Path(__file__).parents[1] / "helpers"), *sys.path])
    env = os.environ | kind | {"PYTHONPATH": where}
    done = subprocess.run([sys.executable, "-c", RUN, *usual], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    isa, found = json.loads(done.stdout)
    assert "TRITIUM_ISA" not in kind or isa.startswith(kind["TRITIUM_ISA"])
    assert found == usual
    assert all(len(set(tokens)) > 5 for tokens in usual.values())  # they say something


# ---- the head


def test_a_head_of_half_floats_is_what_the_file_has(formats: Any) -> None:
    """All numbers of the table are held by each dtype, and sums are f32: the bits are the same."""
    path, ids = formats("bitnet")["hf"], [3, 1, 4, 1, 5]
    want = logits(load(path), ids)
    for head in ("f32", "bf16", "f16"):
        np.testing.assert_allclose(logits(load(path, head=head), ids), want, rtol=1e-5, atol=1e-5)


def test_a_head_of_int8_is_close(formats: Any) -> None:
    """The distance comes from rounding both factors to 127 steps. Measured with a vocabulary of 4096: the most probable
    token is the same for 98 % of tokens, the mean divergence is 6e-5, no logit moves by more than 0.06 of their deviation."""
    path = formats("bitnet")["hf"]
    ids = models.prompt(EVERY_FORMAT, 60)
    rows = {}
    for head in (None, "int8"):
        session = load(path, head=head, kv="f32").session()
        rows[head] = np.stack([session.extend(0, ids[:1]), *(session.step([0], [t])[0] for t in ids[1:])])
    exact, found = rows[None].astype(np.float64), rows["int8"].astype(np.float64)
    log = [r - np.logaddexp.reduce(r, axis=1)[:, None] for r in (exact, found)]
    divergence = (np.exp(log[0]) * (log[0] - log[1])).sum(1)
    apart = np.abs(exact - found).max()
    assert apart < 0.1 * exact.std()
    assert 0 < divergence.mean() < 1e-3
    best = np.sort(exact, 1)
    same = exact.argmax(1) == found.argmax(1)
    assert same[best[:, -1] - best[:, -2] > 2 * apart].all()
    assert same.mean() > 0.9


# ---- arguments


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"head": "int4"}, "head 'int4' is unknown; use f32, f16, bf16, int8"),
        ({"kv": "int3"}, "kv 'int3' is unknown"),
        ({"storage": "tern9"}, "storage 'tern9' is unknown; use tern2 or tern5"),
    ],
)
def test_an_option_that_does_not_exist_is_told(options: dict[str, str], match: str, formats: Any) -> None:
    with pytest.raises(ArgumentError, match=match):
        load(formats("bitnet")["hf"], **options)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("max_token", "max_tokens"), ("temprature", "temperature"), ("stop_tokens", "stop_token_ids"), ("kv", None)],
)
def test_an_option_of_a_text_with_an_unknown_name_is_refused_at_the_call(name: str, meant: str | None) -> None:
    model, options = load(), {name: 3}
    for call in (model.generate, model.stream):
        with pytest.raises(ArgumentError) as refused:
            call("a", **options)
        hint = "" if meant is None else f" Did you mean {meant!r}?"
        assert str(refused.value) == f"generate: unknown option {name!r}.{hint}"


def test_an_option_of_load_with_an_unknown_name_is_refused() -> None:
    with pytest.raises(ArgumentError) as refused:
        load(heads="f16")  # type: ignore[call-arg]
    assert str(refused.value) == (
        "load: unknown argument 'heads'. Did you mean 'head'? Signature: load(path=None, *, head=None, kv='f16', storage=None, "
        "context=None, variant=None, ternarise=False, device=None, mmap=True, activations=None, certified=None, parallel=None, "
        "revision=None, file=None, offline=None)"
    )


def test_a_path_that_does_not_exist_is_told(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"none.gguf does not exist. Give a GGUF"):
        load(tmp_path / "none.gguf")


def test_a_safetensors_file_alone_has_no_configuration(tmp_path: Path) -> None:
    path = models.folder(tmp_path / "m", models.random(models.TINY))
    (path / "config.json").unlink()
    with pytest.raises(TritiumError, match=r"config.json"):
        load(path)


@pytest.mark.parametrize("family", ["bitnet", "llama"])
def test_a_dense_model_is_refused_with_what_to_do(family: str, tmp_path: Path) -> None:
    """A Llama of floats was not trained to be ternary; that it can be rounded all the same is said."""
    shape = replace(models.TINY, family="llama")
    w, rng = models.random(shape), np.random.default_rng(0)
    tensors = dict(w.plain) | {name: rng.normal(size=t.shape).astype(np.float32) for name, (t, _) in w.ternary.items()}
    path = models.written(tmp_path / "m", tensors, shape.config())
    with pytest.raises(
        FormatError, match=r"dense weights, needed ternary.*Train it for that first, or pass ternarise=True"
    ):
        load(path)
    assert logits(load(path, ternarise=True), [1, 2]).shape == (shape.vocab,)


def test_rounded_weights_have_groups_by_which_activations_lose_less(tmp_path: Path) -> None:
    """Nothing was trained with int8 tokens. A few large activations, as language models have them, cost others their steps."""
    shape = replace(models.EVERY_FORMAT, family="llama")
    w, rng = models.random(shape), np.random.default_rng(0)
    tensors = dict(w.plain) | {name: rng.normal(size=t.shape).astype(np.float32) for name, (t, _) in w.ternary.items()}
    for name in [n for n in tensors if n.endswith("layernorm.weight")]:
        tensors[name] = np.where(np.arange(256) == 7, 40, tensors[name]).astype(np.float32)
    path = models.written(tmp_path / "m", tensors, shape.config())
    kinds = {how: load(path, ternarise=True, kv="f32", activations=how) for how in ("float", "token", None)}
    assert "int8 per group: a scale for each 128 columns, not trained with int8 tokens" in repr(kinds[None])
    wanted, token, group = (logits(model, [1, 2, 3]) for model in kinds.values())
    assert np.square(group - wanted).mean() < 0.5 * np.square(token - wanted).mean()
    assert "int8 per token: as its family is trained" in repr(
        load(models.masters(tmp_path / "bitnet", models.TINY, 0)[0], ternarise=True)
    )


def test_a_model_of_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    path = models.folder(tmp_path / "m", models.random(models.TINY), model_type="qwen2")
    with pytest.raises(FormatError, match="model_type: found 'qwen2', needed one of bitnet, llama"):
        load(path)


def test_a_model_says_what_it_is(formats: Any) -> None:
    model = load(formats("bitnet")["i2_s"])
    assert repr(model) == (
        "<model i2_s: bitnet, 2 layers of 256, 96 words, context 128, activations int8 per token: as its family is trained>"
    )
    assert model.name == "i2_s"


# ---- GGUF


def rewritten(source: Path, target: Path, **change: bytes | None) -> Path:
    """A GGUF file with other metadata."""
    from tritium.io import gguf
    from tritium.io.stream import Piece

    file = gguf.parse(memoryview(source.read_bytes()))
    metadata = {k: v.raw for k, v in file.metadata.values_by_key.items()}
    arch = file.metadata["general.architecture"]
    for key, value in change.items():
        name = f"{arch}.{key}"
        metadata = {k: v for k, v in metadata.items() if k != name} | ({} if value is None else {name: value})
    pieces = [
        Piece(t.name, t.shape, t.type.name, t.nbytes, lambda n=t.name: [np.frombuffer(file.data(n), np.uint8)])
        for t in file.tensors.values()
    ]
    with target.open("xb") as out:
        gguf.write(out, metadata, pieces)
    return target


def said(**keys: Any) -> dict[str, bytes]:
    """GGUF values: text, whole numbers, flags and floats."""
    from tritium.io import gguf

    kinds = {bool: "bool", int: "u32", float: "f32"}
    return {k: gguf.string(v) if isinstance(v, str) else gguf.number(kinds[type(v)], v) for k, v in keys.items()}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope.scale_linear", 2.0), ("rope.scaling.type", "dynamic"), ("expert_count", 8), ("attention.sliding_window", 64),
        ("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0), ("logit_scale", 0.5), ("residual_scale", 2.0),
        ("embedding_scale", 12.0), ("attention.scale", 0.5), ("attention.key_length", 128), ("attention.value_length", 32),
        ("attention.causal", False), ("rope.scaling.attn_factor", 2.0), ("attention.clamp_kqv", 8.0),
    ],
)  # fmt: skip
def test_a_gguf_key_that_changes_the_answer_is_refused_by_name(
    key: str, value: Any, formats: Any, tmp_path: Path
) -> None:
    path = rewritten(formats("llama")["i2_s"], tmp_path / "m.gguf", **said(**{key: value}))
    named = {"attention.key_length": "the configuration, partial_rotary_factor"}.get(key, f"llama.{key}")
    with pytest.raises(FormatError, match=f"{named}: found .*it is not supported"):
        load(path)


def test_gguf_keys_that_change_nothing_are_read(formats: Any, tmp_path: Path) -> None:
    keys = {"rope.scaling.type": "none", "expert_count": 0, "logit_scale": 1.0, "attention.key_length": 64}
    path = rewritten(formats("llama")["i2_s"], tmp_path / "m.gguf", **said(**keys))
    assert load(path).config == load(formats("llama")["i2_s"]).config


def test_linear_scaling_of_a_gguf_file_is_that_of_a_configuration(formats: Any, tmp_path: Path) -> None:
    keys = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    path = rewritten(formats("llama")["i2_s"], tmp_path / "m.gguf", **said(**keys))
    w = models.random(FAMILIES["llama"], 3)
    twin = models.folder(tmp_path / "hf", w, rope_scaling={"rope_type": "linear", "factor": 4.0})
    ids = models.prompt(EVERY_FORMAT, 30)
    np.testing.assert_array_equal(logits(load(path), ids), logits(load(twin), ids))


def test_a_gguf_file_without_a_base_has_that_of_llama_cpp(formats: Any, tmp_path: Path) -> None:
    path = rewritten(formats("bitnet")["i2_s"], tmp_path / "m.gguf", **{"rope.freq_base": None})
    assert load(path).config.rope_theta == 10000.0


def test_factors_of_a_gguf_file_divide_each_frequency(tmp_path: Path) -> None:
    """As llama.cpp keeps the scaling of Llama 3: a tensor rope_freqs with a number for each pair."""
    from tritium.nn.transformer import RoPE

    factors = [1.0] * 8 + [2.0] * 16 + [8.0] * 8
    scaled = RoPE(64, 10000.0, scaling={"rope_type": "factors", "factors": factors}).frequencies.numpy()
    np.testing.assert_allclose(scaled * factors, RoPE(64, 10000.0).frequencies.numpy(), rtol=1e-6)


# ---- files that are not whole


@pytest.mark.parametrize("name", ["hf", "i2_s", "tq2_0"])
def test_a_truncated_file_is_refused(name: str, formats: Any, tmp_path: Path) -> None:
    source = formats("bitnet")[name]
    path = tmp_path / source.name
    if source.is_dir():
        path.mkdir()
        (path / "config.json").write_bytes((source / "config.json").read_bytes())
        source, path = source / "model.safetensors", path / "model.safetensors"
    raw = source.read_bytes()
    for size in (0, 3, 40, len(raw) // 3, len(raw) - 1):
        path.write_bytes(raw[:size])
        with pytest.raises(TritiumError):
            load(path if path.suffix == ".gguf" else path.parent)


def test_bytes_of_a_model_are_counted_once(formats: Any) -> None:
    """A tied head is the embedding, not a second one."""
    model = load(formats("bitnet")["hf"])
    assert model.network.head.weight is model.network.embedding.weight
    table = EVERY_FORMAT.vocab * EVERY_FORMAT.width * 2
    ternary = sum(n * k for n, k in EVERY_FORMAT.projections().values()) * EVERY_FORMAT.layers // 4
    assert table + ternary < model.nbytes < (table + ternary) * 1.2
    assert isinstance(model.network.head.weight, tt.Tensor)
    assert str(model.network.head.weight.dtype) == "bf16"


# ---- files that change while a model is in use


def in_memory(path: Path, **options: Any) -> Model:
    return load(path, mmap=False, **options)


@pytest.mark.parametrize("kind", ["hf", "i2_s", "tq2_0"])
def test_a_model_read_into_memory_has_the_same_bits(formats: Callable[[str], dict[str, Path]], kind: str) -> None:
    path, ids = formats("bitnet")[kind], models.prompt(FAMILIES["bitnet"], 8)
    one, two = (load(path, mmap=mmap).session().extend(0, ids) for mmap in (True, False))
    np.testing.assert_array_equal(one, two)


def test_nothing_of_a_model_read_into_memory_is_on_the_file(
    formats: Callable[[str], dict[str, Path]], tmp_path: Path
) -> None:
    """Weights, tokenizer and a copy that is saved: all as before when the file is cut to nothing."""
    path = tmp_path / "m.gguf"
    path.write_bytes(formats("bitnet")["i2_s"].read_bytes())
    ids = models.prompt(FAMILIES["bitnet"], 8)
    for packed in (False, True):
        model = in_memory(path)
        expected = load(path).session().extend(0, ids).copy()
        os.truncate(path, 0)
        np.testing.assert_array_equal(model.session().extend(0, ids), expected)
        if not packed:  # then the same for the file that was prepacked from memory
            path = model.save(tmp_path / "m.tritium")


CUT = """
import os, sys
import tritium as tt
path, mapped = sys.argv[1], sys.argv[2] == "mapped"
model = tt.load(path, mmap=mapped)
os.truncate(path, 4096)
print(len(model.tokenizer.encode("In the beginning")), flush=True)
print(model.generate("In the beginning", max_tokens=4).text, flush=True)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what the system does then differs")
@pytest.mark.parametrize("mode", ["mapped", "read"])
def test_a_file_that_is_cut_ends_a_process_that_mapped_it_and_no_other(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(shipped().read_bytes())
    done = subprocess.run([sys.executable, "-c", CUT, str(path), mode], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("16\n"), done.stderr  # the tokenizer was copied at load
    assert done.returncode == (-signal.SIGBUS if mode == "mapped" else 0), done.stderr


def test_embeddings_of_a_type_that_is_not_read_are_named_with_their_file(tmp_path: Path) -> None:
    from types import SimpleNamespace

    from tritium import dtype as dt
    from tritium.models.weights import _unquantised

    entry = SimpleNamespace(stored="IQ3_S", where="m.gguf, tensor 'token_embd.weight'", shape=(256, 256))
    with pytest.raises(FormatError, match=r"m\.gguf, tensor 'token_embd\.weight'.*IQ3_S.*--token-embedding-type f16"):
        _unquantised(entry, dt.f16, range(256))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SHIPPED)
def test_the_models_of_the_package_load_and_write_with_one_vocabulary(name: str) -> None:
    model = load(shipped(name))
    assert (model.config.vocab_size, model.context) == (256, 256)
    assert model.generate("And the LORD said", max_tokens=4)
    groups = {layer.weight.group for layer in linears(model.network).values()}
    assert (128 in groups) == (name == "kjv-g128")
    log = json.loads(shipped(name).with_suffix(".json").read_text())
    assert log["text"]["sha256"] == json.loads(shipped().with_suffix(".json").read_text())["text"]["sha256"]


def test_a_model_that_is_not_in_the_package_is_refused_with_those_that_are() -> None:
    with pytest.raises(MissingFileError, match=r"no model 'bible'.*kjv, kjv-g128, kjv-draft"):
        shipped("bible")
