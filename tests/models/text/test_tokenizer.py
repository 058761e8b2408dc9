"""Tokenizers: bytes come back as they were, characters come whole from streams."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from tritium.errors import ArgumentError, FormatError
from tritium.models.text.tokenizer import ALPHABET, ByteTokenizer, Facts, PackageTokenizer, Stream

LETTERS = st.text(st.characters(codec="utf-8"), max_size=40)


@given(LETTERS)
def test_bytes_come_back(text: str) -> None:
    made = ByteTokenizer()
    ids = made.encode(text)
    assert ids == list(text.encode())
    assert made.decode(ids) == text


def test_the_alphabet_is_that_of_gpt2() -> None:
    assert [ALPHABET[b] for b in (0, 10, 32, 65, 127, 173, 255)] == ["Ā", "Ċ", "Ġ", "A", "ġ", "Ń", "ÿ"]
    assert len(set(ALPHABET)) == 256


def test_a_byte_vocabulary_must_have_every_byte() -> None:
    with pytest.raises(ArgumentError, match="1 are missing, the first 'Ġ'"):
        ByteTokenizer([c for c in ALPHABET if c != "Ġ"])


# ---- streams


@given(st.binary(max_size=30))
def test_a_stream_gives_what_decoding_all_bytes_gives(raw: bytes) -> None:
    made = ByteTokenizer()
    stream = Stream(made)
    parts = [stream.push(b) for b in raw]
    assert "".join(parts) + stream.flush() == made.decode(raw) == raw.decode("utf-8", "replace")


@given(LETTERS)
def test_characters_come_whole_from_their_last_byte(text: str) -> None:
    stream = Stream(ByteTokenizer())
    for character in text:
        *first, last = character.encode()
        assert [stream.push(b) for b in first] == [""] * len(first)
        assert stream.push(last) == character
    assert stream.flush() == ""


def test_half_a_character_is_given_up_only_at_the_end() -> None:
    stream = Stream(ByteTokenizer())
    assert [stream.push(b) for b in "é".encode()[:1]] == [""]
    assert stream.flush() == "�"


def test_text_that_is_no_text_is_refused_and_half_a_pair_replaced() -> None:
    made = ByteTokenizer()
    with pytest.raises(ArgumentError, match="given bytes; decode bytes first"):
        made.encode(b"x")  # type: ignore[arg-type]
    assert made.decode(made.encode("a\ud83d\ude00\ud800")) == "a😀�"


def test_facts_are_known_by_name() -> None:
    made = ByteTokenizer(facts=Facts(3, frozenset({4}), True, "<s>", "</s>", "template"))
    found = (made.bos, made.eos, made.bos_token, made.eos_token, made.chat_template, made.vocab_size)
    assert found == (3, {4}, "<s>", "</s>", "template", 256)


def test_a_token_that_only_looks_like_a_byte_is_text() -> None:
    package = pytest.importorskip("tokenizers", reason="such vocabularies need the extra `run`")
    vocab = {"<0x41>": 0, "<0xZZ>": 1, "▁a": 2}
    made = PackageTokenizer(package.Tokenizer(package.models.BPE(vocab, [])), "spaces")
    assert [made.bytes_of(i) for i in range(3)] == [b"A", b"<0xZZ>", b" a"]


def test_a_vocabulary_that_cannot_encode_is_told() -> None:
    package = pytest.importorskip("tokenizers", reason="such vocabularies need the extra `run`")
    made = PackageTokenizer(package.Tokenizer(package.models.Unigram([("a", -1.0)])), "spaces")
    with pytest.raises(FormatError, match="cannot encode the text"):
        made.encode("b")
