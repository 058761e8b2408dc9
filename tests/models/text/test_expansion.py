"""Steps of a tokenizer.json: what they can make of a text is known before they run, and bounded."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tritium.errors import FormatError
from tritium.models.text import expansion
from tritium.models.text.expansion import FREE, MAX_ADDED, MAX_FACTOR, RATIO, Expansion, check_steps
from tritium.models.text.tokenizer import ALPHABET, PackageTokenizer
from tritium.models.text.vocabulary import from_folder, from_gguf

package = pytest.importorskip("tokenizers", reason="vocabularies with steps need the extra `run`")

LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
MODEL = {"type": "BPE", "vocab": {**{c: i for i, c in enumerate(ALPHABET)}, "ab": 256}, "merges": ["a b"]}


def replace(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def write(folder: Path, normal: list[Any] = [], pre: list[Any] = [], **more: Any) -> Path:  # noqa: B006
    body = {
        "version": "1.0", "added_tokens": [], "post_processor": None, "decoder": LEVEL, "model": MODEL,
        "normalizer": {"type": "Sequence", "normalizers": normal} if normal else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*pre, LEVEL]},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(body | more))
    return folder


@pytest.mark.parametrize(
    ("normal", "message"),
    [
        ([replace("a", "a" * 20)] * 5, "steps that make up to 8000 characters of one"),
        ([replace("", "a" * 20)], "a Replace without a pattern"),
        ([replace("x?", "a" * 70, "Regex")] * 2, "up to 5041 characters of one and add"),
        ([{"type": "Prepend", "prepend": "a" * 40_000}] * 2, "add 80000"),
        ([{"type": "NFKD"}] * 3, "up to 5832 characters"),
        ([{"type": "Lowercase"}] * 65, "found 65 steps, needed at most 64"),
        ([{"type": "Sequence", "normalizers": [replace("a", "a" * 99)] * 2}], "up to 9801 characters"),
    ],
    ids=range(7),
)
def test_steps_that_multiply_a_text_are_refused_when_they_are_read(
    normal: list[Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(FormatError, match=rf"tokenizer\.json.*{message}"):
        from_folder(write(tmp_path, normal))


@pytest.mark.parametrize("name", ["ByteLevel", "Metaspace"])
def test_a_step_that_splits_and_prefixes_occurs_once(name: str, tmp_path: Path) -> None:
    step = (
        LEVEL if name == "ByteLevel" else {"type": name, "replacement": "▁", "prepend_scheme": "always", "split": True}
    )
    with pytest.raises(FormatError, match=rf"pre_tokenizer: found \d steps {name}, needed one"):
        from_folder(write(tmp_path, pre=[split("."), step, split("."), step]))


def test_a_long_text_is_measured_before_it_is_split(tmp_path: Path) -> None:
    made = from_folder(write(tmp_path, [replace("a", "b" * 40)]))
    assert len(made.encode("a" * 100)) == 4000
    assert len(made.encode("c" * FREE)) == FREE  # what is not replaced does not grow
    with pytest.raises(
        FormatError, match=r"tokenizer\.json: the normalizer makes more than \d+ characters of the first"
    ):
        made.encode("a" * FREE)


STEPS = [
    {"type": "NFC"}, {"type": "NFD"}, {"type": "NFKC"}, {"type": "NFKD"}, {"type": "Lowercase"}, {"type": "StripAccents"},
    {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Nmt"}, {"type": "ByteLevel"},
    {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": False, "lowercase": True},
    {"type": "Prepend", "prepend": "▁▁"}, replace("a", "xyz"), replace("aa", "xyz"), replace("[aé]", "--", "Regex"), replace(" ", "▁"),
]  # fmt: skip
WIDE = "aAé ﷺﷺİßΐ世ẛ̣ﬃ"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(STEPS), max_size=4),
    st.text(st.sampled_from(WIDE) | st.characters(codec="utf-8"), max_size=30),
)
def test_no_text_becomes_longer_than_its_steps_allow(normal: list[Any], text: str) -> None:
    body = {"version": "1.0", "model": MODEL, "normalizer": {"type": "Sequence", "normalizers": normal}}
    inner = package.Tokenizer.from_str(json.dumps(body))
    try:
        bound = check_steps(inner, "t")
    except FormatError:
        return
    assert bound.factor <= MAX_FACTOR
    assert bound.added <= MAX_ADDED
    if text:
        assert len(inner.normalizer.normalize_str(text)) <= bound.factor * len(text) + bound.added


def test_every_character_of_unicode_grows_by_no_more_than_its_step_allows() -> None:
    for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase"):
        step = getattr(package.normalizers, name)()
        for block in range(0, 0x30000, 0x4000):
            for c in map(chr, range(block, block + 0x4000)):
                if (
                    not c.isascii()
                    and not 0xD800 <= ord(c) < 0xE000
                    and len(step.normalize_str(c)) > expansion.FACTORS[name]
                ):
                    pytest.fail(f"{name} of {c!a}")


def test_the_table_of_sentencepiece_is_as_wide_as_its_longest_text() -> None:
    table = base64.b64encode((8).to_bytes(4, "little") + bytes(8) + b"ab\0" + "wörter".encode() + b"\0").decode()
    assert expansion._longest(table) == 6
    assert expansion._longest("!") == expansion._longest("") == 1


def test_an_unknown_step_is_refused_by_name() -> None:
    class Part:
        def __getstate__(self) -> bytes:
            return b'{"type": "Telepathy"}'

    class Inner:
        normalizer, pre_tokenizer = Part(), None

    with pytest.raises(FormatError, match="a step 'Telepathy', needed NFC"):
        check_steps(Inner(), "t")


@pytest.mark.parametrize("pattern", ["(a|aa)+$", "(a+)+$", "(\\w|a)+$"])
def test_a_panic_of_the_package_names_the_file(pattern: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = from_folder(write(tmp_path, pre=[split(pattern)]))
    with pytest.raises(FormatError, match=r"tokenizer\.json: this model's vocabulary cannot encode the text: .*limit"):
        made.encode("a" * 60 + "!")
    assert "panicked" in capfd.readouterr().err  # it has no switch for what it writes itself
    assert made.encode("xyz")  # and the vocabulary still works


def test_a_replace_that_the_package_cannot_do_is_our_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = from_folder(write(tmp_path, [replace("", "aa", "Regex")]))
    with pytest.raises(FormatError, match=r"tokenizer\.json"):
        made.encode("a" * 40)
    capfd.readouterr()


@pytest.mark.parametrize("merges", [["a b", "q z"], ["ab"], ["a b c"], [""], ["a  b"], [" "], ["a €"]], ids=str)
def test_merges_of_a_gguf_that_do_not_fit_are_one_error(merges: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    keys = {"model": "gpt2", "tokens": [*ALPHABET, "ab"], "merges": merges}
    with pytest.raises(FormatError, match=rf"tokenizer\.ggml\.merges: found '.*' as merge {len(merges) - 1}, needed"):
        from_gguf({f"tokenizer.ggml.{k}": v for k, v in keys.items()})
    assert capfd.readouterr() == ("", "")


def test_a_tokenizer_made_by_hand_is_measured_as_well() -> None:
    inner = package.Tokenizer(package.models.BPE({"a": 0, "b": 1}, []))
    inner.normalizer = package.normalizers.Replace("a", "b" * 200)
    made = PackageTokenizer(inner, "spaces", expansion=Expansion(200))
    assert len(made.encode("a")) == 200
    with pytest.raises(FormatError, match=f"at most {RATIO} for each"):
        made.encode("a" * 5000)
