"""The vocabulary of a model folder or of a GGUF file as a tokenizer.

Byte vocabularies need no package; others need `tokenizers` (extra `run`). Files are not trusted: sizes are bounded,
nothing in them is run, and errors name the file and the field.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tritium.errors import imported
from tritium.escape import visible
from tritium.io import gguf
from tritium.io.model import recommended, tokenizer as keys
from tritium.io.reader import contained, fault, read_json, read_side, read_start
from tritium.models.text.expansion import check_steps, steps
from tritium.models.text.tokenizer import (
    ALPHABET,
    SPACE,
    ByteTokenizer,
    Facts,
    PackageTokenizer,
    Stream,
    Tokenizer,
    calling_package,
)

__all__ = ["ByteTokenizer", "Facts", "PackageTokenizer", "Stream", "Tokenizer", "from_folder", "from_gguf"]

MAX_VOCABULARY = 64 << 20  # bytes of a tokenizer.json
MAX_TEMPLATE = 1 << 20
SMALL = 1 << 18  # bytes of a tokenizer.json that may be a byte vocabulary
UNKNOWN = 2  # a token type of GGUF, beside those of io.tokenizer
ENDS = (
    "<|eot_id|> <|im_end|> <|end|> <end_of_turn> <|endoftext|> <|end_of_text|> <|eom_id|> <EOT> <|return|> <end_of_utterance>"
).split()  # control tokens that end a turn; GGUF files name only one of them
FIRST = {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1"}  # splitting rules that imply a first token
MAX_PIECE = 256  # characters of a token that others can make up


def _byte_level(tokens: Sequence[str], others: Iterable[str]) -> bool:
    """Return True if these are the 256 bytes once each and, besides, only the `others`."""
    return sorted(set(tokens) - set(others)) == sorted(ALPHABET)


def _package() -> Any:
    return imported("This model's vocabulary", "tokenizers")


def _reading(where: str) -> AbstractContextManager[None]:
    """Return a context that raises what the package does not accept as a fault of the file."""
    return calling_package(lambda reason: fault(where, reason, "a vocabulary that the tokenizers package reads"))


def _built(raw: bytes) -> Any:
    """Return a vocabulary of the package from the text of a tokenizer.json."""
    vocabulary = _package().Tokenizer.from_buffer(raw)
    vocabulary.no_truncation()
    vocabulary.no_padding()
    return vocabulary


def _kind_of(inner: Any, where: str) -> tuple[str, bool]:
    """Return how its tokens are written, and True if decoding drops a first space."""
    parts = [*steps(inner.decoder, "decoders"), *steps(inner.pre_tokenizer, "pretokenizers")]
    kinds = {str(s.get("type")) for s in parts}
    if "ByteLevel" in kinds:
        return "bytes", False
    if kinds & {"Metaspace", "ByteFallback"}:
        begun = inner.encode("a", add_special_tokens=False).tokens
        return "spaces", bool(begun) and begun[0].startswith(SPACE)
    raise fault(
        f"{where}, decoder", ", ".join(sorted(kinds)) or "none", "ByteLevel, Metaspace or ByteFallback",
        "Models with other vocabularies cannot be run.",
    )  # fmt: skip


# ---- a folder of Hugging Face


def packages_of_folder(folder: str | Path, config: Mapping[str, Any] | None = None) -> list[str]:
    """Return the packages that the vocabulary of a model folder and its chat template need; `config` is not read."""
    folder = Path(folder)
    data = read_side(contained(folder, "tokenizer.json"), MAX_VOCABULARY, "This is no vocabulary.")
    sides: Mapping[str, Any] = defaultdict(dict)  # they change no token
    is_bytes = len(data) <= SMALL and _bytes_of_json(read_json(folder / "tokenizer.json"), sides, None)
    return _packages(not is_bytes, _template(folder, _side(folder, "tokenizer_config.json")))


def _packages(merges: bool, template: str | None) -> list[str]:
    return ["tokenizers"] * merges + ["jinja2"] * (template is not None)


def from_folder(folder: str | Path, config: Mapping[str, Any] | None = None) -> ByteTokenizer | PackageTokenizer:
    """The vocabulary of a model folder; `config` is its config.json where that was already read."""
    folder = Path(folder)
    if not (folder / "tokenizer.json").is_file():
        other = " (tokenizer.model alone is not read)" if (folder / "tokenizer.model").is_file() else ""
        raise fault(
            f"{visible(folder.name)}", f"no tokenizer.json{other}", "one beside the weights",
            "Fetch it from where the model came from, or convert a GGUF of the model.",
        )  # fmt: skip
    path = contained(folder, "tokenizer.json")
    if config is None:
        config = _side(folder, "config.json")
    sides = {"config.json": config} | {n: _side(folder, n) for n in ("generation_config.json", "tokenizer_config.json")}
    template = _template(folder, sides["tokenizer_config.json"])
    data = read_side(path, MAX_VOCABULARY, "This is no vocabulary.")
    if len(data) <= SMALL and (tokenizer := _bytes_of_json(read_json(path), sides, template)):
        return tokenizer
    with _reading("tokenizer.json"):
        inner = _built(bytes(data))
        expansion = check_steps(inner, "tokenizer.json")
        kind, strips = _kind_of(inner, "tokenizer.json")
        facts = _facts(sides, inner.token_to_id, inner.id_to_token, template)
        setting = sides["tokenizer_config.json"].get("add_bos_token")
        adds = (
            setting if isinstance(setting, bool) else facts.bos is not None and inner.encode("").ids[:1] == [facts.bos]
        )
        facts = replace(facts, adds_bos=adds, suffix=_suffix(inner, sides["tokenizer_config.json"], facts))
        return PackageTokenizer(inner, kind, facts, strips=strips, expansion=expansion)


def _suffix(inner: Any, side: Mapping[str, Any], facts: Facts) -> tuple[int, ...]:
    """The tokens that the vocabulary puts after a text: tokenizer_config.json decides where it says so, else the post-processor."""
    adds = side.get("add_eos_token")
    if isinstance(adds, bool):
        last = inner.token_to_id(facts.eos_token) if adds and facts.eos_token else None
        return () if last is None else (last,)
    if not inner.num_special_tokens_to_add(False):
        return ()
    plain, whole = inner.encode("a", add_special_tokens=False).ids, inner.encode("a").ids
    starts = [i for i in range(len(whole) - len(plain) + 1) if whole[i : i + len(plain)] == plain]
    return tuple(whole[starts[-1] + len(plain) :]) if plain and starts else ()


def _side(folder: Path, name: str) -> dict[str, Any]:
    return read_json(contained(folder, name)) if (folder / name).is_file() else {}


def _template(folder: Path, side: Mapping[str, Any]) -> str | None:
    """The chat template: its own file, one text, or the one named "default" of several."""
    if (folder / "chat_template.jinja").is_file():
        data = read_start(contained(folder, "chat_template.jinja"), MAX_TEMPLATE + 1)
        where, text = "chat_template.jinja", str(data, "utf-8", "replace")
    else:
        where, entry = "tokenizer_config.json, chat_template", side.get("chat_template")
        if isinstance(entry, list):
            named = {
                r["name"]: r.get("template") for r in entry if isinstance(r, dict) and isinstance(r.get("name"), str)
            }
            entry = named.get("default") or next(iter(named.values()), None)
        if entry is None:
            return None
        if not isinstance(entry, str):
            raise fault(where, f"a {type(entry).__name__}", "a text, or a list of names and templates")
        text = entry
    return _bounded(text, where)


def _bounded(template: str, where: str) -> str:
    if len(template) > MAX_TEMPLATE:
        raise fault(where, "a longer text", f"at most {MAX_TEMPLATE} characters", "This is no chat template.")
    return template


def _bytes_of_json(body: dict[str, Any], sides: Mapping[str, Any], template: str | None) -> ByteTokenizer | None:
    """A byte vocabulary, if the JSON is one: 256 bytes, no merges, added tokens."""
    model, added = body.get("model"), body.get("added_tokens") or []
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(model, dict) or not isinstance(vocab, dict) or not isinstance(added, list):
        return None
    rows = [r for r in added if isinstance(r, dict) and isinstance(r.get("content"), str)]
    level = "ByteLevel" in (_kind(body.get("decoder")), _kind(body.get("pre_tokenizer")))
    if model.get("merges") or not level or not _byte_level(list(vocab), [r["content"] for r in rows]):
        return None
    pairs = [*vocab.items(), *((r["content"], r.get("id")) for r in rows)]
    by_id = {number: token for token, number in pairs if type(number) is int}
    if sorted(by_id) != list(range(len({token for token, _ in pairs}))):
        raise fault("tokenizer.json, model.vocab", "ids with gaps or twins", f"0 to {len(by_id) - 1}, each once")
    tokens = [by_id[i] for i in range(len(by_id))]
    ids = {t: i for i, t in enumerate(tokens)}
    facts = _facts(sides, ids.get, lambda i: tokens[i] if i < len(tokens) else None, template)
    adds = sides["tokenizer_config.json"].get("add_bos_token")
    control = frozenset(ids[r["content"]] for r in rows if r.get("special"))
    ends = sides["tokenizer_config.json"].get("add_eos_token") is True and facts.eos_token in ids
    suffix = (ids[facts.eos_token],) if ends else ()
    return ByteTokenizer(tokens, control, facts=replace(facts, adds_bos=adds is True, suffix=suffix))


def _kind(part: Any) -> Any:
    return part.get("type") if isinstance(part, dict) else None


def _facts(
    sides: Mapping[str, Any],
    id_of: Callable[[str], int | None],
    token_of: Callable[[int], str | None],
    template: str | None,
) -> Facts:
    """First and last tokens: by text in tokenizer_config.json, by number in the other two."""
    numbers: dict[str, list[int]] = {"bos": [], "eos": []}
    for key, ids in numbers.items():
        written = sides["tokenizer_config.json"].get(f"{key}_token")
        written = written.get("content") if isinstance(written, dict) else written
        if written is not None and not isinstance(written, str):
            raise fault(f"tokenizer_config.json, {key}_token", f"a {type(written).__name__}", "the text of a token")
        if written is not None and (number := id_of(written)) is not None:
            ids.append(number)
        for name in ("generation_config.json", "config.json"):
            ids += _numbers(sides[name].get(f"{key}_token_id"), f"{name}, {key}_token_id")
    bos, eos = numbers["bos"], numbers["eos"]
    sampling, warnings = recommended.from_config(sides["generation_config.json"])
    return Facts(
        sampling=sampling, warnings=tuple(warnings), bos=bos[0] if bos else None, eos=frozenset(eos), chat_template=template,
        bos_token=(token_of(bos[0]) or "") if bos else "", eos_token=(token_of(eos[0]) or "") if eos else "",
    )  # fmt: skip


def _numbers(value: Any, where: str) -> list[int]:
    numbers = value if isinstance(value, list) else [] if value is None else [value]
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < keys.MAX_TOKENS:
            raise fault(where, visible(repr(value)), f"token ids below {keys.MAX_TOKENS}")
    return list(numbers)


# ---- GGUF


def packages_of_gguf(metadata: Mapping[str, Any]) -> list[str]:
    """Return the packages that the vocabulary in the keys of a GGUF file and its chat template need."""
    kind, template = (gguf.scalar(metadata, f"tokenizer.{key}") for key in ("ggml.model", "chat_template"))
    return _packages(kind == "llama" or bool(metadata.get("tokenizer.ggml.merges")), template)


def from_gguf(metadata: Mapping[str, Any]) -> ByteTokenizer | PackageTokenizer:
    """The vocabulary in the keys of a GGUF file."""
    kind = gguf.scalar(metadata, "tokenizer.ggml.model")
    make = _KINDS.get(kind) if isinstance(kind, str) else None
    if make is None:
        actual = "none" if kind is None else repr(visible(str(kind)))
        raise fault(
            "tokenizer.ggml.model", actual, " or ".join(map(repr, _KINDS)),
            "Take the model's Hugging Face folder, which has a tokenizer.json.",
        )  # fmt: skip
    tokens, types = _listed(metadata, "tokens", str), _listed(metadata, "token_type", int)
    if not tokens or len(tokens) > keys.MAX_TOKENS or (types and len(types) != len(tokens)):
        raise fault(
            "tokenizer.ggml.tokens",
            f"{len(tokens)} tokens and {len(types)} types",
            f"1 to {keys.MAX_TOKENS} of both, as many",
        )
    return make(metadata, tokens, types or [keys.NORMAL] * len(tokens))


def _listed(metadata: Mapping[str, Any], key: str, element: type) -> list[Any]:
    values = metadata.get(f"tokenizer.ggml.{key}")
    if values is None:
        return []
    if not isinstance(values, list) or not all(isinstance(v, element) for v in values):
        raise fault(f"tokenizer.ggml.{key}", f"a {type(values).__name__}", f"a list of {element.__name__}")
    return values


def _gguf_facts(metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int], adds: bool) -> Facts:
    """First and last tokens; the file names one last token, the others are known by their text."""
    ids: dict[str, int] = {}
    for key in ("bos", "eos", "eot", "eom"):
        number = gguf.scalar(metadata, f"tokenizer.ggml.{key}_token_id")
        if number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(tokens):
            raise fault(f"tokenizer.ggml.{key}_token_id", visible(repr(number)), f"a token id below {len(tokens)}")
        ids[key] = number
    ends = {i for i, (t, k) in enumerate(zip(tokens, types, strict=True)) if k == keys.CONTROL and t in ENDS}
    setting = gguf.scalar(metadata, "tokenizer.ggml.add_bos_token")
    template = gguf.scalar(metadata, "tokenizer.chat_template")
    sampling, warnings = recommended.from_gguf(metadata)
    return Facts(
        sampling=sampling, warnings=tuple(warnings), bos=ids.get("bos"), eos=frozenset(ends | {n for k, n in ids.items() if k != "bos"}),
        adds_bos=setting if isinstance(setting, bool) else adds,
        suffix=(ids["eos"],) if gguf.scalar(metadata, "tokenizer.ggml.add_eos_token") is True and "eos" in ids else (),
        bos_token=tokens[ids["bos"]] if "bos" in ids else "",
        eos_token=tokens[ids["eos"]] if "eos" in ids else "",
        chat_template=_bounded(template, "tokenizer.chat_template") if isinstance(template, str) else None,
    )  # fmt: skip


def _gpt2(metadata: Mapping[str, Any], tokens: list[str], types: list[int]) -> ByteTokenizer | PackageTokenizer:
    """Byte-level BPE; a byte vocabulary where nothing merges."""
    pre = gguf.scalar(metadata, "tokenizer.ggml.pre")
    facts = _gguf_facts(metadata, tokens, types, adds=str(pre) in FIRST)
    others = [t for t, k in zip(tokens, types, strict=True) if k != keys.NORMAL]
    silent = frozenset(i for i, k in enumerate(types) if k == keys.UNUSED)
    if not metadata.get("tokenizer.ggml.merges") and _byte_level(tokens, others) and len(set(tokens)) == len(tokens):
        control = frozenset(i for i, k in enumerate(types) if k == keys.CONTROL)
        return ByteTokenizer(tokens, control, silent, facts)
    files, warnings = keys.from_gguf(metadata)
    if not files:
        raise fault("tokenizer.ggml.merges", "; ".join(warnings), "the tokens and merges of byte-level BPE")
    with _reading("tokenizer.ggml.merges"):
        inner = _assembled(files["tokenizer.json"])
    return PackageTokenizer(
        inner, "bytes", replace(facts, warnings=(*facts.warnings, *warnings)), silent, source="tokenizer.ggml"
    )


def _assembled(body: dict[str, Any]) -> Any:
    """A vocabulary of the package from such a JSON; tokens and merges go there as they are, which takes half the time."""
    package, model, added = _package(), body["model"], body["added_tokens"]
    inner = _built(json.dumps(body | {"model": model | {"vocab": {}, "merges": []}, "added_tokens": []}).encode())
    pairs = _pairs(model["merges"], model["vocab"])
    inner.model = package.models.BPE(model["vocab"], pairs, ignore_merges=model["ignore_merges"])
    inner.add_tokens([package.AddedToken(r["content"], normalized=False, special=r["special"]) for r in added])
    return inner


def _pairs(merges: Sequence[str], vocab: Mapping[str, int]) -> list[tuple[str, ...]]:
    """Merges as pairs of tokens. They are checked here, so that the error names the merge."""
    pairs = [tuple(m.split(" ")) for m in merges]
    for i, pair in enumerate(pairs):
        if len(pair) != 2 or pair[0] not in vocab or pair[1] not in vocab or pair[0] + pair[1] not in vocab:
            raise fault(
                "tokenizer.ggml.merges", f"{visible(merges[i])!r} as merge {i}",
                "a vocabulary where two tokens, with one space between them, make up a third",
            )  # fmt: skip
    return pairs


def _llama(metadata: Mapping[str, Any], tokens: list[str], types: list[int]) -> PackageTokenizer:
    """SentencePiece's BPE: of two neighbours, those whose union scores best are joined; unknown characters become bytes."""
    scores = _listed(metadata, "scores", float)
    if len(scores) != len(tokens) or len(set(tokens)) != len(tokens):
        raise fault("tokenizer.ggml.scores", f"{len(scores)} scores", f"one for each of {len(tokens)} different tokens")
    known = set(tokens)
    if missing := [b for b in range(256) if f"<0x{b:02X}>" not in known]:
        raise fault("tokenizer.ggml.tokens", f"{len(known)} tokens without <0x{missing[0]:02X}>", "one for each byte")
    prefix = gguf.scalar(metadata, "tokenizer.ggml.add_space_prefix") is not False
    with _reading("tokenizer.ggml.tokens"):
        inner = _joining(tokens, types, scores, prefix)
    facts = _gguf_facts(metadata, tokens, types, adds=True)
    silent = frozenset(i for i, k in enumerate(types) if k in (keys.UNUSED, UNKNOWN))
    return PackageTokenizer(inner, "spaces", facts, silent, strips=prefix, source="tokenizer.ggml")


def _joining(tokens: list[str], types: list[int], scores: list[float], prefix: bool) -> Any:
    package = _package()
    unknown = next((t for t, k in zip(tokens, types, strict=True) if k == UNKNOWN), None)
    vocab, merges = {t: i for i, t in enumerate(tokens)}, _merges(tokens, types, scores)
    inner = package.Tokenizer(package.models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    steps = [package.normalizers.Replace(" ", SPACE)]
    inner.normalizer = package.normalizers.Sequence([package.normalizers.Prepend(SPACE)] * prefix + steps)
    kinds = [(t, k) for t, k in zip(tokens, types, strict=True) if k in (keys.CONTROL, keys.USER)]
    inner.add_tokens([package.AddedToken(t, normalized=False, special=k == keys.CONTROL) for t, k in kinds])
    return inner


def _merges(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Pairs of tokens in the order in which they are joined: the best score of the union first."""
    normal = {t: i for i, (t, k) in enumerate(zip(tokens, types, strict=True)) if k == keys.NORMAL}
    candidates = [
        (-scores[i], i, normal[t[:cut]], t[:cut], t[cut:])
        for t, i in normal.items()
        if len(t) <= MAX_PIECE
        for cut in range(1, len(t))
        if t[:cut] in normal and t[cut:] in normal
    ]
    return [(left, right) for *_, left, right in sorted(candidates)]


_KINDS: dict[str, Callable[[Mapping[str, Any], list[str], list[int]], ByteTokenizer | PackageTokenizer]] = {
    "gpt2": _gpt2,
    "llama": _llama,
}
