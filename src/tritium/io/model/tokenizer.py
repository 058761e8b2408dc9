"""Convert vocabularies between tokenizer.json and the tokenizer keys of GGUF: byte-level BPE only; others are reported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tritium.escape import visible
from tritium.io import gguf
from tritium.io.reader import contained, fault, read_json

NORMAL, CONTROL, USER, UNUSED = 1, 3, 4, 5  # token types of GGUF
MAX_TOKENS = 1 << 22
MAX_PADDING = 1 << 12  # ids without a token that a small vocabulary may have
_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
# GGUF's tokenizer.ggml.pre: its regular expression; "": that of GPT-2, which ByteLevel has.
SPLITS = {"llama-bpe": _LLAMA3, "qwen2": _QWEN2, "qwen35": _QWEN35, "gpt-2": "", "smollm": ""}
DIGITS = frozenset(("smollm",))  # rules that first make every digit a piece of its own
_ALIASES = {
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "falcon3": "llama-bpe",
    "default": "gpt-2",
    "starcoder": "smollm",
    "refact": "smollm",
    "command-r": "smollm",
    "codeshell": "smollm",
    "exaone": "smollm",
    "minerva-7b": "smollm",
}


def to_gguf(folder: Path, config: Mapping[str, Any]) -> tuple[dict[str, bytes], list[str]]:
    """Return the tokenizer keys for a model directory, as bytes, and warnings for what could not be converted."""
    if not (folder / "tokenizer.json").is_file():
        return {}, ["no tokenizer.json: the GGUF has no tokenizer, and programs that need one will not run it"]
    document = read_json(contained(folder, "tokenizer.json"), most=64 << 20, growth=4)
    model = document.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE" or model.get("byte_fallback"):
        return {}, [
            "tokenizer.json is not byte-level BPE: the GGUF has no tokenizer; take it from a GGUF of the same model"
        ]
    tokens, types = _tokens(model.get("vocab"), document.get("added_tokens") or [], config.get("vocab_size"))
    merges = model.get("merges") or []
    if not isinstance(merges, list):
        raise fault("tokenizer.json", f"merges of type {type(merges).__name__}", "a list")
    pre, warnings = _pre_of(document.get("pre_tokenizer"))
    side = read_json(contained(folder, "tokenizer_config.json")) if (folder / "tokenizer_config.json").is_file() else {}
    out = {
        "tokenizer.ggml.model": gguf.string("gpt2"),
        "tokenizer.ggml.pre": gguf.string(pre),
        "tokenizer.ggml.tokens": gguf.array("str", tokens),
        "tokenizer.ggml.token_type": gguf.array("i32", types),
        "tokenizer.ggml.merges": gguf.array("str", map(_merge, merges)),
    }
    for key in ("bos", "eos"):
        token = config.get(f"{key}_token_id")
        token = token[0] if isinstance(token, list) and token else token
        if isinstance(token, int) and 0 <= token < len(tokens):
            out[f"tokenizer.ggml.{key}_token_id"] = gguf.number("u32", token)
    if isinstance(side.get("add_bos_token"), bool):
        out["tokenizer.ggml.add_bos_token"] = gguf.number("bool", side["add_bos_token"])
    last, eos = _last(document.get("post_processor")), config.get("eos_token_id")
    ids = eos if isinstance(eos, list) else [eos]
    texts = [tokens[i] for i in ids[:1] if isinstance(i, int) and 0 <= i < len(tokens)]
    ends = side.get("add_eos_token", None if last is None else last in texts)
    if isinstance(ends, bool):
        out["tokenizer.ggml.add_eos_token"] = gguf.number("bool", ends)
    if last is not None and not ends:
        warnings = [
            *warnings,
            f"{visible(last)!r} is put after a text, which GGUF can say of the end token alone; add it yourself",
        ]
    if template := _template(folder, side):
        out["tokenizer.chat_template"] = gguf.string(template)
    return out, warnings


def _last(post: Any) -> str | None:
    """Return the token that the post-processor of tokenizer.json puts after a text; None where it puts none."""
    steps = post.get("processors", [post]) if isinstance(post, dict) else []
    for step in steps if isinstance(steps, list) else []:
        single = step.get("single") if isinstance(step, dict) and step.get("type") == "TemplateProcessing" else None
        end = single[-1] if isinstance(single, list) and single else None
        special = end.get("SpecialToken") if isinstance(end, dict) else None
        if isinstance(special, dict) and isinstance(special.get("id"), str):
            return str(special["id"])
    return None


def _tokens(vocab: Any, added: Any, size: Any) -> tuple[list[str], list[int]]:
    if not isinstance(vocab, dict) or not isinstance(added, list):
        raise fault("tokenizer.json", "vocab or added_tokens of another type", "an object of tokens and a list")
    by_id: dict[int, tuple[str, int]] = {}
    for token, number in vocab.items():
        by_id[_id(number)] = token, UNUSED if token == f"[PAD{number}]" else NORMAL
    for entry in added:
        if not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            raise fault("tokenizer.json, added_tokens", visible(repr(entry)), "objects with id and content")
        by_id[_id(entry.get("id"))] = entry["content"], CONTROL if entry.get("special") else USER
    count = max([*by_id, -1]) + 1
    most = 2 * len(by_id) + MAX_PADDING
    count = max(count, size) if isinstance(size, int) and size <= most else count
    if count > most:
        raise fault("tokenizer.json", f"numbers up to {count} for {len(by_id)} tokens", "few gaps in the vocabulary")
    entries = [by_id.get(i, (f"[PAD{i}]", UNUSED)) for i in range(count)]
    return [token for token, _ in entries], [kind for _, kind in entries]


def _id(number: Any) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < MAX_TOKENS:
        raise fault("tokenizer.json", f"the token id {visible(repr(number))}", f"a number below {MAX_TOKENS}")
    return number


def _merge(pair: Any) -> str:
    """Return two tokens as one string; newer files store a pair, whose tokens might contain a space."""
    text = " ".join(map(str, pair)) if isinstance(pair, list) else str(pair)
    if text.count(" ") != 1:
        raise fault("tokenizer.json", f"the merge {visible(text)!r}", "two tokens without spaces")
    return text


def _pre_of(pre: Any) -> tuple[str, list[str]]:
    """Return GGUF's name for the pre-tokenizer, and warnings."""
    steps = pre.get("pretokenizers", [pre]) if isinstance(pre, dict) else []
    steps = [s for s in steps if isinstance(s, dict)] if isinstance(steps, list) else []
    splits = [
        s.get("pattern", {}).get("Regex")
        for s in steps
        if s.get("type") == "Split" and isinstance(s.get("pattern"), dict)
    ]
    digits = any(s.get("type") == "Digits" and s.get("individual_digits") is True for s in steps)
    for name, regex in SPLITS.items():
        gpt2 = not regex and not splits and steps and steps[-1].get("use_regex", True)
        if (name in DIGITS) == digits and (splits == [regex] or gpt2):
            return name, []
    return "default", [
        "the text-splitting rule of tokenizer.json has no known name in GGUF; 'default' was written, and tokens may differ"
    ]


def _template(folder: Path, side: Mapping[str, Any]) -> str:
    if (folder / "chat_template.jinja").is_file():
        return contained(folder, "chat_template.jinja").read_text(encoding="utf-8", errors="replace")
    template = side.get("chat_template")
    return template if isinstance(template, str) else ""


# ---- back


def from_gguf(metadata: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return tokenizer.json and tokenizer_config.json for the keys of a GGUF file, and warnings for what could not be converted."""
    kind = gguf.scalar(metadata, "tokenizer.ggml.model")
    if "tokenizer.ggml.model" not in metadata:
        return {}, []
    if kind != "gpt2":
        return {}, [
            f"tokenizer of kind {visible(str(kind))!r} cannot become a tokenizer.json; its keys are kept in gguf_metadata.json"
        ]
    tokens, types = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    merges = metadata.get("tokenizer.ggml.merges")
    if not isinstance(tokens, list) or not isinstance(merges, list):
        return {}, ["the tokenizer has no tokens or no merges; its keys are kept in gguf_metadata.json"]
    types = types if isinstance(types, list) and len(types) == len(tokens) else [NORMAL] * len(tokens)
    pre_name = str(gguf.scalar(metadata, "tokenizer.ggml.pre") or "gpt-2")
    pre = _ALIASES.get(pre_name, pre_name)
    warnings = (
        []
        if pre in SPLITS
        else [
            f"the text-splitting rule {visible(pre_name)!r} is unknown here; GPT-2's was written, and tokens may differ"
        ]
    )
    if len(set(tokens)) != len(tokens):
        return {}, ["the tokenizer has the same token twice; its keys are kept in gguf_metadata.json"]
    # special tokens are in the vocabulary too: the tokenizers package drops an id that only added_tokens has
    special = [(i, t, k) for i, (t, k) in enumerate(zip(tokens, types, strict=True)) if k in (CONTROL, USER)]
    body = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [
            {"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": k == CONTROL}
            for i, t, k in special
        ],
        "normalizer": None,
        "pre_tokenizer": _steps(SPLITS.get(pre, ""), pre in DIGITS),
        "post_processor": _post(tokens, metadata),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": pre == "llama-bpe",
            "vocab": {t: i for i, t in enumerate(tokens)}, "merges": merges,
        },
    }  # fmt: skip
    side: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    for key in ("bos", "eos"):
        number = gguf.scalar(metadata, f"tokenizer.ggml.{key}_token_id")
        if isinstance(number, int) and 0 <= number < len(tokens):
            side[f"{key}_token"] = tokens[number]
    for key in ("add_bos_token", "add_eos_token"):
        adds = gguf.scalar(metadata, f"tokenizer.ggml.{key}")
        if isinstance(adds, bool):
            side[key] = adds
    template = gguf.scalar(metadata, "tokenizer.chat_template")
    if isinstance(template, str):
        side["chat_template"] = template
    return {"tokenizer.json": body, "tokenizer_config.json": side}, warnings


def _steps(regex: str, digits: bool) -> dict[str, Any]:
    if not regex:
        whole = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        single = {"type": "Digits", "individual_digits": True}
        return {"type": "Sequence", "pretokenizers": [single, whole]} if digits else whole
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"type": "Sequence", "pretokenizers": [split, level]}


def _post(tokens: list[str], metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the post-processor that puts the tokens of begin and end around a text where the file requires them."""

    def token(key: str) -> list[int]:
        number = gguf.scalar(metadata, f"tokenizer.ggml.{key}_token_id")
        adds = gguf.scalar(metadata, f"tokenizer.ggml.add_{key}_token") is True
        return [number] if adds and isinstance(number, int) and 0 <= number < len(tokens) else []

    bos, eos = token("bos"), token("eos")
    if not bos and not eos:
        return None
    before, after = ([{"SpecialToken": {"id": tokens[i], "type_id": 0}} for i in ids] for ids in (bos, eos))
    first, second = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}
    return {
        "type": "TemplateProcessing",
        "single": [*before, first, *after],
        "pair": [*before, first, second, *after],
        "special_tokens": {tokens[i]: {"id": tokens[i], "ids": [i], "tokens": [tokens[i]]} for i in bos + eos},
    }
