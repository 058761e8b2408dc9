"""Scaled RoPE in a configuration: which kinds there are, and the fields of each, checked and completed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tritium.families.fields import read_flag, read_real, read_reals, refused

SCALINGS: dict[str, tuple[str, ...]] = {  # kinds of RoPE scaling, and the fields each needs
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "factors": ("factors",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
}
FIELDS = frozenset((  # of every kind, and those that only name the kind
    "rope_type", "type", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "factors",
    "original_max_position_embeddings", "partial_rotary_factor", "short_factor", "long_factor", "attention_factor",
    "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate",
))  # fmt: skip
LISTS = {"factors", "short_factor", "long_factor"}

Scaling = tuple[tuple[str, Any], ...]


def kind_of(scaling: Any) -> Any:
    """Return the kind that a block of fields names; None for what is no block."""
    return scaling.get("rope_type", scaling.get("type", "default")) if isinstance(scaling, Mapping) else None


def read_scaling(scaling: Any, context: int, pairs: int) -> Scaling:
    """Return the fields of scaled RoPE, complete; () for plain RoPE. `pairs` are those of a head."""
    kind = kind_of(scaling)
    if kind == "default":
        return ()
    if not isinstance(kind, str) or kind not in SCALINGS:
        raise refused("rope_scaling.rope_type", kind or scaling, f"default or one of {', '.join(SCALINGS)}")
    block = {f"rope_scaling.{key}": value for key, value in scaling.items()}
    if kind in ("yarn", "longrope") and block.get("rope_scaling.original_max_position_embeddings") is None:
        block["rope_scaling.original_max_position_embeddings"] = context  # as transformers completes it
    values: dict[str, Any] = {"rope_type": kind}
    for key in SCALINGS[kind]:
        name = f"rope_scaling.{key}"
        values[key] = read_reals(block, name, pairs) if key in LISTS else read_real(block, name, 0.0)
    if kind == "llama3" and not values["low_freq_factor"] < values["high_freq_factor"]:
        raise refused("rope_scaling.low_freq_factor", values["low_freq_factor"], f"below {values['high_freq_factor']}")
    if kind == "yarn":
        values |= _yarn(block, values["factor"])
    if kind == "longrope":
        values["attention_factor"] = _longrope_factor(block, context, values["original_max_position_embeddings"])
    if kind == "factors" and block.get("rope_scaling.attention_factor") is not None:
        values["attention_factor"] = read_real(block, "rope_scaling.attention_factor", 1.0)
    return tuple(values.items())


def _yarn(block: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """Return the fields of YaRN that a configuration may leave out."""

    def magnitude(times: float) -> float:
        return 0.1 * times * math.log(factor) + 1 if factor > 1 else 1.0

    one, two = block.get("rope_scaling.mscale"), block.get("rope_scaling.mscale_all_dim")
    inferred = magnitude(1.0)
    if one and two:
        inferred = magnitude(read_real(block, "rope_scaling.mscale", 1.0)) / magnitude(
            read_real(block, "rope_scaling.mscale_all_dim", 1.0)
        )
    fast = read_real(block, "rope_scaling.beta_fast", 32.0)
    slow = read_real(block, "rope_scaling.beta_slow", 1.0)
    if not slow < fast:
        raise refused("rope_scaling.beta_slow", slow, f"below beta_fast, {fast}")
    return {
        "beta_fast": fast, "beta_slow": slow, "truncate": read_flag(block, "rope_scaling.truncate", True),
        "attention_factor": read_real(block, "rope_scaling.attention_factor", inferred),
    }  # fmt: skip


def _longrope_factor(block: Mapping[str, Any], context: int, original: float) -> float:
    """Return the factor of cosine and sine: that of the configuration, or the paper's for the longer context."""
    longer = context / original
    inferred = math.sqrt(1 + math.log(longer) / math.log(original)) if longer > 1 and original > 1 else 1.0
    return read_real(block, "rope_scaling.attention_factor", inferred)


def for_context(scaling: Scaling, context: int) -> dict[str, Any]:
    """Return the scaling for sequences of up to `context` tokens: LongRoPE has one list of factors for short ones, one for long."""
    values = dict(scaling)
    if values.get("rope_type") != "longrope":
        return values
    which = "long_factor" if context > values["original_max_position_embeddings"] else "short_factor"
    return {"rope_type": "factors", "factors": values[which], "attention_factor": values["attention_factor"]}
