"""What a language model's configuration says, checked: every field that would change the answer is known or refused.

Knows nothing of weights or files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from tritium.errors import FormatError
from tritium.escape import visible
from tritium.io.model.supported import REMEDY, check_config
from tritium.io.reader import fault
from tritium.nn.transformer import ACTIVATIONS, SCALINGS

FAMILIES = ("bitnet", "llama")
WRONG = "Take the configuration that came with the model."
MOST = 1 << 24  # of any size: beyond this a file is damaged
MOST_LAYERS = 1 << 12
SIZES = ("vocab", "width", "inner", "layers", "heads", "kv_heads", "size", "context")
ABSENT: dict[str, dict[str, Any]] = {  # what a field means that config.json leaves out, as transformers has it
    "bitnet": {"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "relu2"},
    "llama": {"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu"},
}


@dataclass(frozen=True)
class Config:
    """The shape of a decoder: what its weights must be and how they are used."""

    family: str  # bitnet (norms within the layer) or llama
    vocab: int
    width: int
    inner: int  # of the MLP
    layers: int
    heads: int
    kv_heads: int
    size: int  # of a head
    context: int
    eps: float = 1e-5
    theta: float = 10000.0
    activation: str = "silu"
    tied: bool = True
    scaling: tuple[tuple[str, Any], ...] = ()  # of RoPE
    bos: int | None = None
    eos: tuple[int, ...] = ()

    @property
    def sub_norms(self) -> bool:
        return self.family == "bitnet"

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values for one token, for each byte of a number."""
        return 2 * self.layers * self.kv_heads * self.size

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"scaling": dict(self.scaling), "eos": list(self.eos)}

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> Config:
        """The way back from `as_dict`."""
        known = {f.name for f in fields(cls)}
        if set(said) != known:
            raise fault("config", visible(str(sorted(set(said) ^ known))), f"all of {', '.join(sorted(known))}")
        if said["family"] not in FAMILIES:
            raise _refused("family", said["family"], f"one of {', '.join(FAMILIES)}")
        tokens = {"bos_token_id": said["bos"], "eos_token_id": said["eos"]}
        made: dict[str, Any] = {size: _count(said, size) for size in SIZES}
        made |= {
            "scaling": _scaling(said["scaling"] or {}), "activation": str(said["activation"]), "tied": _flag(said, "tied"),
            "eps": _real(said, "eps", 0.0), "theta": _real(said, "theta", 0.0), "bos": _tokens(tokens, "bos")[0],
            "eos": tuple(t for t in _tokens(tokens, "eos") if t is not None),
        }  # fmt: skip
        return cls(family=said["family"], **made)._checked()

    @classmethod
    def from_hf(cls, said: Mapping[str, Any]) -> Config:
        """From config.json. A field that would change the answer, or that is not understood, is refused by name."""
        family = str(said.get("model_type", "")).lower()
        if family not in FAMILIES:
            raise _refused("model_type", said.get("model_type"), f"one of {', '.join(FAMILIES)}")
        rope = said.get("rope_parameters") or {}
        if not isinstance(rope, Mapping):
            raise _refused("rope_parameters", rope, "an object")
        check_config(said)
        heads = _count(said, "num_attention_heads")
        width = _count(said, "hidden_size")
        absent = ABSENT[family]
        scaling = said.get("rope_scaling") or {k: v for k, v in rope.items() if k != "rope_theta"}
        return cls(
            family=family, vocab=_count(said, "vocab_size"), width=width, inner=_count(said, "intermediate_size"),
            layers=_count(said, "num_hidden_layers"), heads=heads,
            kv_heads=_count(said, "num_key_value_heads", heads), size=_count(said, "head_dim", width // heads),
            context=_count(said, "max_position_embeddings", 2048), eps=_real(said, "rms_norm_eps", absent["rms_norm_eps"]),
            theta=_real(said if "rope_theta" in said else rope, "rope_theta", absent["rope_theta"]),
            activation=str(said.get("hidden_act", absent["hidden_act"])),
            tied=_flag(said, "tie_word_embeddings"), scaling=_scaling(scaling), bos=_tokens(said, "bos")[0],
            eos=tuple(t for t in _tokens(said, "eos") if t is not None),
        )._checked()  # fmt: skip

    def _checked(self) -> Config:
        if self.activation not in ACTIVATIONS:
            raise _refused("hidden_act", self.activation, f"one of {', '.join(sorted(ACTIVATIONS))}")
        if len(dict(self.scaling).get("factors", ())) not in (0, self.size // 2):
            raise _refused("rope_scaling.factors", len(dict(self.scaling)["factors"]), f"{self.size // 2} of them")
        if self.layers > MOST_LAYERS:
            raise _refused("num_hidden_layers", self.layers, f"at most {MOST_LAYERS}")
        if self.heads % self.kv_heads:
            raise _refused("num_key_value_heads", self.kv_heads, f"a divisor of the {self.heads} heads")
        if self.size % 2:
            raise _refused("head_dim", self.size, "an even number")
        return self


def _refused(field: str, found: Any, needed: str) -> FormatError:
    return fault(f"the configuration, {field}", visible(repr(found)), needed, REMEDY)


def _count(said: Mapping[str, Any], field: str, default: int | None = None) -> int:
    found = said.get(field)
    found = default if found is None else found
    if isinstance(found, bool) or not isinstance(found, int) or not 0 < found <= MOST:
        raise fault(f"the configuration, {field}", visible(repr(found)), f"a number from 1 to {MOST}", WRONG)
    return found


def _real(said: Mapping[str, Any], field: str, default: float) -> float:
    found = said.get(field, default)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < 1e30:
        raise fault(f"the configuration, {field}", visible(repr(found)), "a positive number", WRONG)
    return float(found)


def _flag(said: Mapping[str, Any], field: str) -> bool:
    found = said.get(field, False)
    if not isinstance(found, bool):
        raise fault(f"the configuration, {field}", visible(repr(found)), "true or false", WRONG)
    return found


def _tokens(said: Mapping[str, Any], kind: str) -> list[int | None]:
    found = said.get(f"{kind}_token_id")
    listed = found if isinstance(found, list) else [found]
    if not all(t is None or (isinstance(t, int) and not isinstance(t, bool)) for t in listed):
        raise fault(
            f"the configuration, {kind}_token_id", visible(repr(found)), "a token number or a list of them", WRONG
        )
    return listed or [None]


def _scaling(said: Any) -> tuple[tuple[str, Any], ...]:
    kind = said.get("rope_type", said.get("type", "default")) if isinstance(said, Mapping) else None
    if kind == "default":
        return ()
    if not isinstance(kind, str) or kind not in SCALINGS:
        raise _refused("rope_scaling.rope_type", kind or said, f"default or one of {', '.join(SCALINGS)}")
    found = {key: _scaled(said, key) for key in SCALINGS[kind]}
    if kind == "llama3" and not found["low_freq_factor"] < found["high_freq_factor"]:
        raise _refused("rope_scaling.low_freq_factor", found["low_freq_factor"], f"below {found['high_freq_factor']}")
    return (("rope_type", kind), *found.items())


def _scaled(said: Mapping[str, Any], key: str) -> Any:
    if key != "factors":
        return _real(said, key, 0.0)
    found = said.get(key)
    if not isinstance(found, list | tuple) or not all(isinstance(f, int | float) and 0 < f < 1e30 for f in found):
        raise fault("rope_scaling.factors", visible(repr(found)), "positive numbers, one for each pair of a head")
    return tuple(float(f) for f in found)
