"""Vocabularies: text comes back as it was, from folders and GGUF alike; damaged ones are refused by field."""

from __future__ import annotations

import json
import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import tiny
from tritium.errors import FormatError, PackageError
from tritium.io import gguf
from tritium.io.model import tokenizer
from tritium.models.text import vocabulary as vocabularies
from tritium.models.text.tokenizer import ALPHABET
from tritium.models.text.vocabulary import ByteTokenizer, Facts, PackageTokenizer, Stream, from_folder, from_gguf

TEXT = "In the beginning God created the heaven and the earth. Grüße, 世界! 🦜 ñandú\n\n  two  spaces\t'tis it's 12345 x=1;\n"
SPECIAL = ["<s>", "</s>", "<|eot_id|>"]
LETTERS = st.text(st.characters(codec="utf-8"), max_size=40)


def added(rows: dict[int, str], plain: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [{"id": i, "content": t, "special": t not in plain} | flags for i, t in rows.items()]


def write(folder: Path, **files: Any) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def byte_json() -> dict[str, Any]:
    """256 bytes after three special tokens."""
    vocab = {c: i + 3 for i, c in enumerate(ALPHABET)}
    return {
        "added_tokens": added(dict(enumerate(SPECIAL))),
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }


def byte_keys(**more: Any) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": [*SPECIAL, *ALPHABET, "[PAD259]"],
        "tokenizer.ggml.token_type": [3, 3, 3, *[1] * 256, 5], "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.add_bos_token": True,
    } | {f"tokenizer.ggml.{k}": v for k, v in more.items()}  # fmt: skip


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    """tokenizer.json of a BPE trained on the text above, as Llama 3's are made."""
    package = pytest.importorskip("tokenizers", reason="BPE needs the extra `run`")
    made = package.Tokenizer(package.models.BPE())
    split = package.pre_tokenizers.Split(package.Regex(tokenizer.SPLITS["llama-bpe"]), "isolated")
    made.pre_tokenizer = package.pre_tokenizers.Sequence(
        [split, package.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.decoder = package.decoders.ByteLevel()
    alphabet = package.pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [TEXT] * 3,
        package.trainers.BpeTrainer(
            vocab_size=400, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
        ),
    )
    made.post_processor = package.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return json.loads(made.to_str())


@pytest.fixture(scope="module")
def folder(trained: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(
        tmp_path_factory.mktemp("bpe"), tokenizer=trained, config={"bos_token_id": 0, "eos_token_id": [1, 2]},
        tokenizer_config={"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>"}, "chat_template": "{{ messages }}"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def bpe(folder: Path) -> PackageTokenizer:
    found = from_folder(folder)
    assert isinstance(found, PackageTokenizer)
    return found


@pytest.fixture(scope="module")
def carried(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> PackageTokenizer:
    """The same through a GGUF file."""
    path = tmp_path_factory.mktemp("gguf") / "keys.gguf"
    found, _ = tokenizer.to_gguf(folder, {"vocab_size": 410, "bos_token_id": 0, "eos_token_id": 1})
    with path.open("wb") as file:
        gguf.write(file, {"general.architecture": gguf.string("bitnet")} | found, [])
    made = from_gguf(gguf.parse(path.read_bytes()).metadata)
    assert isinstance(made, PackageTokenizer)
    return made


def spaces_keys(**more: Any) -> dict[str, Any]:
    """A little SentencePiece vocabulary: unknown, two special tokens, bytes, pieces with one score each."""
    pieces = [
        *"▁abcdeghnorstw",
        "th",
        "the",
        "▁the",
        "he",
        "▁a",
        "an",
        "and",
        "▁and",
        "er",
        "ea",
        "rt",
        "art",
        "eart",
        "▁w",
    ]
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{b:02X}>" for b in range(256)], *pieces]
    scores = [0.0] * 259 + [-100.0 - i for i in range(15)] + [-float((7 * i) % 13) for i in range(len(pieces) - 15)]
    return {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(pieces)],
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
    } | {f"tokenizer.ggml.{k}": v for k, v in more.items()}  # fmt: skip


def joined(text: str, keys: dict[str, Any]) -> list[int]:
    """SentencePiece's BPE as it is told: join the two neighbours whose union scores best, the leftmost first."""
    tokens, scores = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.scores"]
    ids = {t: i for i, t in enumerate(tokens)}
    parts = list(("▁" + text).replace(" ", "▁")) if text else []
    while True:
        found = [(-scores[ids[a + b]], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in ids]
        if not found:
            break
        _, i = min(found)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return [n for p in parts for n in ([ids[p]] if p in ids else [3 + b for b in p.encode()])]


# ---- bytes


@given(st.lists(st.sampled_from([*SPECIAL, "<", "s", ">", "é", " "]), max_size=12))
def test_special_tokens_in_a_text_are_one_token_each(parts: list[str]) -> None:
    made = from_gguf(byte_keys())
    text = "".join(parts)
    ids = made.encode(text, bos=False)
    assert made.encode(text, bos=False, special=False) == [3 + b for b in text.encode()]
    if set(parts) <= {*SPECIAL, "é", " "}:
        assert sum(i < 3 for i in ids) == sum(p in SPECIAL for p in parts)
        assert made.decode(ids) == "".join(p for p in parts if p not in SPECIAL)


def test_a_byte_vocabulary_needs_no_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    sides = {"add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>"}
    one = from_folder(write(tmp_path / "m", tokenizer=byte_json(), tokenizer_config=sides))
    two = from_gguf(byte_keys())
    for made in (one, two):
        assert isinstance(made, ByteTokenizer)
        assert (made.bos, made.facts.bos_token, made.facts.eos_token) == (0, "<s>", "</s>")
        assert made.encode("hé") == [0, *(3 + b for b in "hé".encode())]
        assert made.encode("hé", bos=False) == [3 + b for b in "hé".encode()]
    assert (one.eos, two.eos) == ({1}, {1, 2})
    assert (one.vocab_size, two.vocab_size) == (259, 260)
    assert two.special == {"<s>": 0, "</s>": 1, "<|eot_id|>": 2}


def test_unused_numbers_are_neither_written_nor_read() -> None:
    made = from_gguf(byte_keys())
    assert len(made.encode("[PAD259]", bos=False)) == 8
    assert [made.bytes_of(i) for i in (259, 260, 10**9, -1)] == [b""] * 4


# ---- the first token


def test_a_text_that_begins_with_the_first_token_gets_no_second(bpe: PackageTokenizer) -> None:
    for made in (from_gguf(byte_keys()), bpe):
        assert made.encode("<s>a") == made.encode("a")
        assert made.encode("a")[0] == made.bos


@pytest.mark.parametrize(("said", "adds"), [(True, True), (False, False), (None, False)])
def test_gguf_says_whether_texts_begin_with_the_first_token(said: bool | None, adds: bool) -> None:
    keys = byte_keys(add_bos_token=said)
    if said is None:
        del keys["tokenizer.ggml.add_bos_token"]
    assert (from_gguf(keys).encode("a")[0] == 0) is adds


def test_the_splitting_rule_of_llama_3_implies_a_first_token() -> None:
    keys = byte_keys(pre="llama-bpe")
    del keys["tokenizer.ggml.add_bos_token"]
    assert from_gguf(keys).encode("a")[0] == 0


def test_tokenizer_config_overrules_the_post_processor(trained: dict[str, Any], tmp_path: Path) -> None:
    sides = {"bos_token": "<s>"}
    assert from_folder(write(tmp_path / "a", tokenizer=trained, tokenizer_config=sides)).encode("a")[0] == 0
    sides |= {"add_bos_token": False}
    assert from_folder(write(tmp_path / "b", tokenizer=trained, tokenizer_config=sides)).encode("a")[0] != 0


def test_the_tokens_that_end_an_embedded_text_are_those_of_the_files(trained: dict[str, Any], tmp_path: Path) -> None:
    def suffix(name: str, body: dict[str, Any], **sides: Any) -> tuple[int, ...]:
        return from_folder(write(tmp_path / name, tokenizer=body, tokenizer_config=sides)).suffix

    def template(*pieces: str) -> dict[str, Any]:
        parts = [
            {"Sequence": {"id": "A", "type_id": 0}} if p == "A" else {"SpecialToken": {"id": p, "type_id": 0}}
            for p in pieces
        ]
        tokens = {p: {"id": p, "ids": [SPECIAL.index(p)], "tokens": [p]} for p in pieces if p != "A"}
        return trained | {
            "post_processor": {"type": "TemplateProcessing", "single": parts, "pair": parts, "special_tokens": tokens}
        }

    assert suffix("a", trained) == ()
    assert suffix("b", template("<s>", "A", "</s>")) == (1,)
    assert suffix("c", template("A", "</s>", "<|eot_id|>")) == (1, 2)
    assert suffix("d", template("A", "</s>"), add_eos_token=False, eos_token="</s>") == ()
    assert suffix("e", trained, add_eos_token=True, eos_token="</s>") == (1,)
    assert suffix("f", byte_json(), add_eos_token=True, eos_token="</s>") == (1,)
    assert from_gguf(byte_keys(add_eos_token=True)).suffix == (1,)
    assert from_gguf(byte_keys()).suffix == ()


# ---- byte-level BPE


@given(LETTERS)
def test_texts_come_back_from_bpe(bpe: PackageTokenizer, text: str) -> None:
    ids = bpe.encode(text, special=False)
    assert bpe.decode(ids) == text
    stream = Stream(bpe)
    assert "".join(map(stream.push, ids)) + stream.flush() == text


@given(LETTERS)
def test_gguf_gives_the_tokens_of_the_folder(bpe: PackageTokenizer, carried: PackageTokenizer, text: str) -> None:
    assert carried.encode(text) == bpe.encode(text)


def test_bpe_joins_what_it_learned(bpe: PackageTokenizer) -> None:
    ids = bpe.encode(TEXT)
    assert len(ids) < len(TEXT.encode()) / 2
    assert bpe.decode(ids) == TEXT


def test_the_facts_of_a_folder(bpe: PackageTokenizer) -> None:
    assert bpe.facts == Facts(0, frozenset({1, 2}), True, "<s>", "</s>", "{{ messages }}")
    assert bpe.special == {"<s>": 0, "</s>": 1, "<|eot_id|>": 2}
    assert bpe.vocab_size == max(bpe.inner.get_vocab().values()) + 1


def test_the_facts_of_a_gguf(carried: PackageTokenizer) -> None:
    assert carried.facts == Facts(0, frozenset({1, 2}), True, "<s>", "</s>", "{{ messages }}")
    assert carried.vocab_size == 410
    assert carried.bytes_of(409) == b""


def test_control_tokens_have_no_text_and_others_have(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="BPE needs the extra `run`")
    made = from_folder(write(tmp_path / "m", tokenizer=tiny.tokenizer()))
    assert made.decode(made.encode("<s>ab<user>")) == "ab<user>"
    assert [made.bytes_of(i) for i in (0, 58, 57, 10**6, -1)] == [b"", b"<user>", b"", b"", b""]


def test_an_unknown_splitting_rule_is_told(carried: PackageTokenizer) -> None:
    keys = byte_keys(
        pre="martian", merges=["a b"], tokens=[*SPECIAL, *ALPHABET, "ab"], token_type=[3, 3, 3, *[1] * 257]
    )
    found = from_gguf(keys)
    assert "'martian' is unknown" in found.facts.warnings[0]
    assert carried.facts.warnings == ()


@given(LETTERS)
def test_transformers_gives_the_same_tokens(folder: Path, bpe: PackageTokenizer, text: str) -> None:
    pytest.importorskip("transformers", reason="its tokenizer is the yardstick")
    from transformers import PreTrainedTokenizerFast

    global YARDSTICK
    YARDSTICK = YARDSTICK or PreTrainedTokenizerFast.from_pretrained(folder)
    assert bpe.encode(text) == YARDSTICK(text)["input_ids"]


YARDSTICK: Any = None


# ---- SentencePiece


@given(st.text(st.sampled_from("abcdeghnorstw é世🦜"), max_size=25))
def test_pieces_are_joined_by_their_scores(text: str) -> None:
    pytest.importorskip("tokenizers", reason="SentencePiece's BPE needs the extra `run`")
    keys = spaces_keys()
    made = _spaces()
    ids = made.encode(text)
    assert ids == [1, *joined(text, keys)]
    assert made.decode(ids) == text


def _spaces(cache: list[Any] = []) -> Any:  # noqa: B006
    cache[:] = cache or [from_gguf(spaces_keys())]
    return cache[0]


def test_a_stream_keeps_the_space_between_words() -> None:
    pytest.importorskip("tokenizers", reason="SentencePiece's BPE needs the extra `run`")
    made = _spaces()
    stream = Stream(made)
    assert "".join(map(stream.push, made.encode("and the"))) == " and the"


def test_sentence_pieces_need_a_score_each_and_every_byte() -> None:
    pytest.importorskip("tokenizers", reason="SentencePiece's BPE needs the extra `run`")
    with pytest.raises(FormatError, match=r"tokenizer.ggml.scores: found 1 scores"):
        from_gguf(spaces_keys(scores=[1.0]))
    keys = spaces_keys()
    keys["tokenizer.ggml.tokens"][5] = "zz"
    with pytest.raises(FormatError, match=r"without <0x02>"):
        from_gguf(keys)


# ---- templates and last tokens


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ("one", "one"), ([{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}], "d"),
        ([{"name": "tool", "template": "t"}], "t"), (None, None), ([], None),
    ],
)  # fmt: skip
def test_templates_are_one_text_or_the_default_of_several(given_: Any, expected: str | None, tmp_path: Path) -> None:
    made = from_folder(write(tmp_path / "m", tokenizer=byte_json(), tokenizer_config={"chat_template": given_}))
    assert made.chat_template == expected


def test_a_template_file_goes_first(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", tokenizer=byte_json(), tokenizer_config={"chat_template": "no"})
    (folder / "chat_template.jinja").write_text("yes")
    assert from_folder(folder).chat_template == "yes"


def test_last_tokens_are_gathered_from_all_files(tmp_path: Path) -> None:
    sides = {
        "config": {"eos_token_id": 7},
        "generation_config": {"eos_token_id": [8, 9]},
        "tokenizer_config": {"eos_token": "</s>"},
    }
    assert from_folder(write(tmp_path / "m", tokenizer=byte_json(), **sides)).eos == {1, 7, 8, 9}


def test_gguf_files_end_turns_with_tokens_they_do_not_name() -> None:
    assert from_gguf(byte_keys(eot_token_id=5)).eos == {1, 2, 5}


# ---- refusals


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("config", {"eos_token_id": "x"}, "config.json, eos_token_id: found 'x'"),
        ("config", {"bos_token_id": -1}, "config.json, bos_token_id: found -1"),
        ("generation_config", {"eos_token_id": [1, True]}, "generation_config.json, eos_token_id"),
        ("tokenizer_config", {"bos_token": 3}, "tokenizer_config.json, bos_token: found a int"),
        ("tokenizer_config", {"chat_template": 3}, "tokenizer_config.json, chat_template: found a int"),
        ("tokenizer_config", {"chat_template": "x" * (1 << 20) + "y"}, "chat_template: found a longer text"),
        (
            "tokenizer",
            byte_json() | {"added_tokens": added({0: "<s>", 700: "</s>"})},
            "tokenizer.json, model.vocab: found ids",
        ),
    ],
)
def test_a_wrong_field_of_a_folder_is_named(name: str, value: Any, message: str, tmp_path: Path) -> None:
    files = {"tokenizer": byte_json()} | {name: value}
    with pytest.raises(FormatError, match=message):
        from_folder(write(tmp_path / "m", **files))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "bert"}, "tokenizer.ggml.model: found 'bert', needed 'gpt2' or 'llama'"),
        ({"model": None}, "tokenizer.ggml.model: found none"),
        ({"tokens": []}, "tokenizer.ggml.tokens: found 0 tokens"),
        ({"tokens": [1, 2]}, "tokenizer.ggml.tokens: found a list, needed a list of str"),
        ({"tokens": "abc"}, "tokenizer.ggml.tokens: found a str"),
        ({"token_type": [1]}, "260 tokens and 1 types"),
        ({"bos_token_id": 999}, "tokenizer.ggml.bos_token_id: found 999, needed a token id below 260"),
        ({"eos_token_id": -1}, "tokenizer.ggml.eos_token_id"),
        ({"eot_token_id": "x"}, "tokenizer.ggml.eot_token_id"),
        ({"tokens": ["a", "b"], "token_type": [1, 1]}, "merges: found the tokenizer has no tokens or no merges"),
        ({"merges": ["a zz"]}, "tokenizer.ggml.merges: found .*zz.*needed a vocabulary"),
        ({"merges": ["a"]}, "tokenizer.ggml.merges"),
        ({"merges": [1, 2]}, "tokenizer.ggml.merges"),
    ],
)
def test_a_wrong_key_of_a_gguf_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        from_gguf(byte_keys(**change))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 10**5,
        '{"model": 3}',
        '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["x y"]}}',
    ],
    ids=range(7),
)
def test_a_damaged_tokenizer_json_is_told(content: str, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="it judges the rest")
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(FormatError, match=r"tokenizer\.json"):
        from_folder(tmp_path)


def test_other_kinds_of_vocabularies_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="it reads them")
    body = {"model": {"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9,
                      "vocab": {"a": 0}}, "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}  # fmt: skip
    with pytest.raises(FormatError, match=r"tokenizer\.json, decoder: found WordPiece, needed ByteLevel"):
        from_folder(write(tmp_path / "m", tokenizer=body))


def test_a_folder_without_a_vocabulary_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"found no tokenizer\.json, needed one beside the weights"):
        from_folder(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(FormatError, match=r"tokenizer\.model alone is not read"):
        from_folder(tmp_path)


def test_a_vocabulary_that_leads_out_of_its_folder_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "other", tokenizer=byte_json())
    (tmp_path / "m").mkdir()
    os.symlink(tmp_path / "other" / "tokenizer.json", tmp_path / "m" / "tokenizer.json")
    with pytest.raises(FormatError, match="a link that leads to"):
        from_folder(tmp_path / "m")


def test_an_endless_vocabulary_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabularies, "MAX_VOCABULARY", 100)
    with pytest.raises(FormatError, match=r"tokenizer\.json: found \d+ bytes, needed at most 100"):
        from_folder(write(tmp_path / "m", tokenizer=byte_json()))


def test_without_the_package_the_command_that_brings_it_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(PackageError, match=r"vocabulary needs the package 'tokenizers', .* pip install tokenizers"):
        from_folder(write(tmp_path / "m", tokenizer=tiny.tokenizer()))
