"""The configuration of a language model, checked: every field that would change the answer is known or refused.

Knows nothing of weights or files.
"""

from __future__ import annotations

import warnings
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
STORED = {  # field: its name in prepacked files, and until 0.1 its name in Python
    "vocab_size": "vocab", "hidden_size": "width", "intermediate_size": "inner", "head_dim": "size", "rope_theta": "theta",
}  # fmt: skip
SIZES = ("vocab_size", "hidden_size", "intermediate_size", "layers", "heads", "kv_heads", "head_dim", "context")
ABSENT: dict[str, dict[str, Any]] = {  # what a field means that config.json leaves out, as transformers has it
    "bitnet": {"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "relu2"},
    "llama": {"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu"},
}


@dataclass(frozen=True)
class Config:
    """The shape of a decoder: what its weights must be and how they are used."""

    family: str  # bitnet (norms within the layer) or llama
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    eps: float = 1e-5
    rope_theta: float = 10000.0
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
        return 2 * self.layers * self.kv_heads * self.head_dim

    def as_dict(self) -> dict[str, Any]:
        """Return the configuration as prepacked files store it."""
        values = asdict(self) | {"scaling": dict(self.scaling), "eos": list(self.eos)}
        return {STORED.get(name, name): value for name, value in values.items()}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Config:
        """Read what `as_dict` returned."""
        names = {f.name: STORED.get(f.name, f.name) for f in fields(cls)}
        if set(stored) != set(names.values()):
            different = sorted(set(stored) ^ set(names.values()))
            raise fault("config", visible(str(different)), f"all of {', '.join(sorted(names.values()))}")
        if stored["family"] not in FAMILIES:
            raise _refused("family", stored["family"], f"one of {', '.join(FAMILIES)}")
        tokens = {"bos_token_id": stored["bos"], "eos_token_id": stored["eos"]}
        values: dict[str, Any] = {size: _count(stored, names[size]) for size in SIZES}
        values |= {
            "scaling": _scaling(stored["scaling"] or {}), "activation": str(stored["activation"]), "tied": _flag(stored, "tied"),
            "eps": _real(stored, "eps", 0.0), "rope_theta": _real(stored, names["rope_theta"], 0.0),
            "bos": _tokens(tokens, "bos")[0], "eos": tuple(t for t in _tokens(tokens, "eos") if t is not None),
        }  # fmt: skip
        return cls(family=stored["family"], **values)._checked()

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Config:
        """Read config.json. A field that would change the answer, or that is not understood, is refused by name."""
        family = str(config.get("model_type", "")).lower()
        if family not in FAMILIES:
            raise _refused("model_type", config.get("model_type"), f"one of {', '.join(FAMILIES)}")
        rope = config.get("rope_parameters") or {}
        if not isinstance(rope, Mapping):
            raise _refused("rope_parameters", rope, "an object")
        check_config(config)
        heads = _count(config, "num_attention_heads")
        hidden_size = _count(config, "hidden_size")
        absent = ABSENT[family]
        scaling = config.get("rope_scaling") or {k: v for k, v in rope.items() if k != "rope_theta"}
        return cls(
            family=family, vocab_size=_count(config, "vocab_size"), hidden_size=hidden_size,
            intermediate_size=_count(config, "intermediate_size"), layers=_count(config, "num_hidden_layers"), heads=heads,
            kv_heads=_count(config, "num_key_value_heads", heads), head_dim=_count(config, "head_dim", hidden_size // heads),
            context=_count(config, "max_position_embeddings", 2048), eps=_real(config, "rms_norm_eps", absent["rms_norm_eps"]),
            rope_theta=_real(config if "rope_theta" in config else rope, "rope_theta", absent["rope_theta"]),
            activation=str(config.get("hidden_act", absent["hidden_act"])),
            tied=_flag(config, "tie_word_embeddings"), scaling=_scaling(scaling), bos=_tokens(config, "bos")[0],
            eos=tuple(t for t in _tokens(config, "eos") if t is not None),
        )._checked()  # fmt: skip

    def _checked(self) -> Config:
        if self.activation not in ACTIVATIONS:
            raise _refused("hidden_act", self.activation, f"one of {', '.join(sorted(ACTIVATIONS))}")
        if len(dict(self.scaling).get("factors", ())) not in (0, self.head_dim // 2):
            raise _refused("rope_scaling.factors", len(dict(self.scaling)["factors"]), f"{self.head_dim // 2} of them")
        if self.layers > MOST_LAYERS:
            raise _refused("num_hidden_layers", self.layers, f"at most {MOST_LAYERS}")
        if self.heads % self.kv_heads:
            raise _refused("num_key_value_heads", self.kv_heads, f"a divisor of the {self.heads} heads")
        if self.head_dim % 2:
            raise _refused("head_dim", self.head_dim, "an even number")
        return self


def _alias(old: str, new: str) -> property:
    """Return a property that reads a field under the name it had before."""

    def read(config: Config) -> Any:
        warnings.warn(f"Config.{old} is now Config.{new}.", DeprecationWarning, stacklevel=2)
        return getattr(config, new)

    return property(read, doc=f"Deprecated name of `{new}`.")


for _new, _old in STORED.items():
    setattr(Config, _old, _alias(_old, _new))


def _refused(field: str, value: Any, needed: str) -> FormatError:
    return fault(f"the configuration, {field}", visible(repr(value)), needed, REMEDY)


def _count(config: Mapping[str, Any], field: str, default: int | None = None) -> int:
    value = config.get(field)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MOST:
        raise fault(f"the configuration, {field}", visible(repr(value)), f"a number from 1 to {MOST}", WRONG)
    return value


def _real(config: Mapping[str, Any], field: str, default: float) -> float:
    value = config.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
        raise fault(f"the configuration, {field}", visible(repr(value)), "a positive number", WRONG)
    return float(value)


def _flag(config: Mapping[str, Any], field: str) -> bool:
    value = config.get(field, False)
    if not isinstance(value, bool):
        raise fault(f"the configuration, {field}", visible(repr(value)), "true or false", WRONG)
    return value


def _tokens(config: Mapping[str, Any], kind: str) -> list[int | None]:
    value = config.get(f"{kind}_token_id")
    listed = value if isinstance(value, list) else [value]
    if not all(t is None or (isinstance(t, int) and not isinstance(t, bool)) for t in listed):
        raise fault(
            f"the configuration, {kind}_token_id", visible(repr(value)), "a token number or a list of them", WRONG
        )
    return listed or [None]


def _scaling(scaling: Any) -> tuple[tuple[str, Any], ...]:
    kind = scaling.get("rope_type", scaling.get("type", "default")) if isinstance(scaling, Mapping) else None
    if kind == "default":
        return ()
    if not isinstance(kind, str) or kind not in SCALINGS:
        raise _refused("rope_scaling.rope_type", kind or scaling, f"default or one of {', '.join(SCALINGS)}")
    values = {key: _scaled(scaling, key) for key in SCALINGS[kind]}
    if kind == "llama3" and not values["low_freq_factor"] < values["high_freq_factor"]:
        raise _refused("rope_scaling.low_freq_factor", values["low_freq_factor"], f"below {values['high_freq_factor']}")
    return (("rope_type", kind), *values.items())


def _scaled(scaling: Mapping[str, Any], key: str) -> Any:
    if key != "factors":
        return _real(scaling, key, 0.0)
    value = scaling.get(key)
    if not isinstance(value, list | tuple) or not all(isinstance(f, int | float) and 0 < f < 1e30 for f in value):
        raise fault("rope_scaling.factors", visible(repr(value)), "positive numbers, one for each pair of a head")
    return tuple(float(f) for f in value)
