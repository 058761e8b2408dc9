"""The configuration of a language model, checked: every field that would change the answer is known or refused."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from tritium.errors import FormatError
from tritium.escape import visible
from tritium.families import BY_TYPE, FAMILIES
from tritium.families.common import check_config
from tritium.families.description import ACTIVATIONS, Attention, Description
from tritium.families.family import Parameters
from tritium.families.fields import (
    MOST_LAYERS,
    WRONG,
    read_count,
    read_flag,
    read_real,
    read_tokens,
    refused,
)
from tritium.families.rope import read_scaling

STORED = {  # field: its name in prepacked files, and until 0.1 its name in Python
    "vocab_size": "vocab", "hidden_size": "width", "intermediate_size": "inner", "head_dim": "size", "rope_theta": "theta",
}  # fmt: skip
SIZES = ("vocab_size", "hidden_size", "intermediate_size", "layers", "heads", "kv_heads", "head_dim", "context")
MOST_NESTED = 8  # levels of a list or an object in a family's own field
MOST_OWN = 1 << 16  # numbers and texts in all own fields of a configuration


@dataclass(frozen=True)
class Config(Parameters):
    """The shape of a decoder: what its weights must be and how they are used."""

    @cached_property
    def description(self) -> Description:
        """Return what the family makes of the configuration."""
        return FAMILIES[self.family].describe(self)

    @property
    def cache_bytes(self) -> int:
        """Return the bytes of keys and values for one token, for each byte of a number."""
        mixers = (layer.mixer for layer in self.description.layers)
        return sum(2 * m.kv_heads * m.head_dim for m in mixers if isinstance(m, Attention))

    def as_dict(self) -> dict[str, Any]:
        """Return the configuration as prepacked files store it."""
        values = asdict(self) | {"scaling": dict(self.scaling), "eos": list(self.eos), "own": dict(self.own)}
        if not self.own:
            del values["own"]  # as files have been written before families had fields of their own
        return {STORED.get(name, name): value for name, value in values.items()}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Config:
        """Read what `as_dict` returned."""
        names = {f.name: STORED.get(f.name, f.name) for f in fields(cls)}
        if set(stored) | {"own"} != set(names.values()):
            different = sorted((set(stored) | {"own"}) ^ set(names.values()))
            listed = ", ".join(sorted(names.values()))
            raise FormatError(f"config: found {visible(str(different))}, needed all of {listed}. {WRONG}")
        family = FAMILIES.get(stored["family"]) if isinstance(stored["family"], str) else None
        if family is None:
            raise refused("family", stored["family"], f"one of {', '.join(FAMILIES)}")
        values: dict[str, Any] = {size: read_count(stored, names[size]) for size in SIZES}
        own = stored.get("own", {})
        if not isinstance(own, Mapping) or not set(own) <= family.reads:
            raise refused(
                "own", own, f"an object with none but {', '.join(sorted(family.reads)) or 'no fields'}", WRONG
            )
        pairs = _pairs(values["head_dim"], own)
        values |= {
            "scaling": read_scaling(stored["scaling"] or {}, values["context"], pairs), "activation": str(stored["activation"]),
            "tied": read_flag(stored, "tied"), "eps": read_real(stored, "eps", 0.0),
            "rope_theta": read_real(stored, names["rope_theta"], 0.0), "bos": next(iter(read_tokens(stored, "bos")), None),
            "eos": read_tokens(stored, "eos"), "own": freeze_fields(own),
        }  # fmt: skip
        return cls(family=family.name, **values)._checked()

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Config:
        """Read config.json. A field that would change the answer, or that is not understood, is refused by name."""
        model_type = str(config.get("model_type", "")).lower()
        if model_type not in BY_TYPE:
            raise refused("model_type", config.get("model_type"), f"one of {', '.join(BY_TYPE)}")
        family = BY_TYPE[model_type]
        config = family.normalise(config)
        rope = config.get("rope_parameters") or {}
        if not isinstance(rope, Mapping):
            raise refused("rope_parameters", rope, "an object")
        check_config(config, family)
        absent = dict(family.absent) | {k: v for k, v in rope.items() if k == "rope_theta"}
        config = absent | {name: value for name, value in config.items() if value is not None}
        heads, hidden_size = read_count(config, "num_attention_heads"), read_count(config, "hidden_size")
        head_dim, context = (
            read_count(config, "head_dim", hidden_size // heads),
            read_count(config, "max_position_embeddings", 2048),
        )
        scaling = config.get("rope_scaling") or {k: v for k, v in rope.items() if k != "rope_theta"}
        return cls(
            family=family.name, vocab_size=read_count(config, "vocab_size"), hidden_size=hidden_size,
            intermediate_size=read_count(config, "intermediate_size"), layers=read_count(config, "num_hidden_layers"),
            heads=heads, kv_heads=read_count(config, "num_key_value_heads", heads), head_dim=head_dim, context=context,
            eps=read_real(config, "rms_norm_eps", 1e-6), rope_theta=read_real(config, "rope_theta", 10000.0),
            activation=str(config.get("hidden_act")), tied=read_flag(config, "tie_word_embeddings"),
            scaling=read_scaling(scaling, context, _pairs(head_dim, config)), bos=next(iter(read_tokens(config, "bos_token_id")), None),
            eos=read_tokens(config, "eos_token_id"),
            own=freeze_fields({name: config[name] for name in sorted(family.reads) if name in config}),
        )._checked()  # fmt: skip

    def _checked(self) -> Config:
        if self.activation not in ACTIVATIONS:
            raise refused("hidden_act", self.activation, f"one of {', '.join(sorted(ACTIVATIONS))}")
        if self.layers > MOST_LAYERS:
            raise refused("num_hidden_layers", self.layers, f"at most {MOST_LAYERS}")
        if self.heads % self.kv_heads:
            raise refused("num_key_value_heads", self.kv_heads, f"a divisor of the {self.heads} heads")
        if self.head_dim % 2:
            raise refused("head_dim", self.head_dim, "an even number")
        _ = self.description  # raises for a field that the family does not compute
        return self


def _pairs(head_dim: int, config: Mapping[str, Any]) -> int:
    """Return how many pairs of a head are rotated."""
    return int(head_dim * read_real(config, "partial_rotary_factor", 1.0)) // 2


def freeze_fields(values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Return fields as a value that cannot be changed: lists become tuples; raise for what is too deep or too long."""
    count = 0

    def freeze(field: str, value: Any, depth: int) -> Any:
        nonlocal count
        count += 1
        if depth > MOST_NESTED or count > MOST_OWN:
            raise refused(field, type(value).__name__, f"at most {MOST_NESTED} levels and {MOST_OWN} values", WRONG)
        if isinstance(value, list | tuple):
            return tuple(freeze(field, item, depth + 1) for item in value)
        if isinstance(value, Mapping):
            raise refused(field, value, "numbers, texts or lists of them", WRONG)
        return value

    return tuple((name, freeze(name, value, 0)) for name, value in values.items())


def _alias(old: str, new: str) -> property:
    """Return a property that reads a field under the name it had before."""

    def read(config: Config) -> Any:
        warnings.warn(f"Config.{old} is now Config.{new}.", DeprecationWarning, stacklevel=2)
        return getattr(config, new)

    return property(read, doc=f"Deprecated name of `{new}`.")


for _new, _old in STORED.items():
    setattr(Config, _old, _alias(_old, _new))
