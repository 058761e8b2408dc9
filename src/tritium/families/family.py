"""A family of decoders: its names in Hugging Face and in GGUF, the fields and keys it reads, and how it is described.

A family is one value of `Family` in a file of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tritium.families.description import Description

Value = Callable[
    [str], Any
]  # of a GGUF key after the architecture: a number, a string, a short list, None where it is absent
Config = Mapping[str, Any]


@dataclass(frozen=True)
class Parameters:
    """Parameters that every decoder has, read from a configuration and checked; `own` are further fields that its family reads."""

    family: str
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
    own: tuple[tuple[str, Any], ...] = ()  # lists as tuples


@dataclass(frozen=True)
class Arch:
    """An architecture by its names in GGUF and in Hugging Face."""

    gguf: str
    model_type: str
    model_class: str
    activation: str
    interleaved: bool = False  # Q and K rows are stored in pairs, for interleaved RoPE


def unchanged(config: Config) -> dict[str, Any]:
    """Return a configuration whose fields are where all families have them."""
    return dict(config)


def no_keys(value: Value, config: Config) -> dict[str, Any]:
    """Return no fields: those of the table are all."""
    return {}


def no_values(config: Config) -> dict[str, tuple[str, Any]]:
    """Return no keys: those of the table are all."""
    return {}


@dataclass(frozen=True)
class Tiling:
    """A side of a tensor whose heads GGUF stores in another order: those of one group are neighbours in Hugging Face, and a number
    of groups apart in GGUF."""

    axis: int  # 0: its rows, 1: its columns
    groups: int
    heads: int  # of all groups
    size: int  # of a head
    first: int = 0  # what is before the heads and stays


def no_tiling(name: str, config: Config) -> Tiling | None:
    """Return no order: both worlds have the same."""
    return None


@dataclass(frozen=True, kw_only=True)
class Family:
    """Everything that distinguishes a family from the others. What all have in common is in `families.common`."""

    name: str
    model_types: tuple[str, ...]
    archs: tuple[Arch, ...]  # where several: the first with the activation of a configuration is written
    describe: Callable[[Parameters], Description]

    absent: Config = field(
        default_factory=dict
    )  # values of the fields that config.json leaves out, as transformers has them
    reads: frozenset[str] = frozenset()  # fields of config.json that `describe` reads beside the common ones
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # fields, with the only values that are computed
    ignores: frozenset[str] = frozenset()  # fields on which no logit of text depends
    normalise: Callable[[Config], dict[str, Any]] = unchanged  # to the names and the flat form that are read

    tensors: Mapping[str, str] = field(
        default_factory=dict
    )  # names in a layer, Hugging Face to GGUF, beside the common ones
    former: Mapping[str, str] = field(default_factory=dict)  # names that Hugging Face's files had once
    linears: frozenset[str] = frozenset()  # tensors of a layer that are projections, beside the common ones
    skips: tuple[str, ...] = ()  # what names of tensors begin with that are no part of the decoder
    norm_offset: float = 0.0  # GGUF's weight of a norm less Hugging Face's
    plain_norms: frozenset[str] = frozenset()  # norms without the offset
    exponents: frozenset[str] = frozenset()  # vectors x of which GGUF stores -exp(x)
    tiling: Callable[[str, Config], Tiling | None] = no_tiling  # of a tensor of a layer, by its name there
    squeezed: frozenset[str] = frozenset()  # tensors of a layer whose sides of 1 GGUF leaves out
    wide: frozenset[str] = frozenset()  # matrices of a layer that GGUF's engines need as F32
    stacked: frozenset[str] = frozenset()  # matrices of experts that GGUF stores as one tensor of a layer

    keys: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # config.json's field: GGUF's key and its type
    read_keys: Callable[[Value, Config], dict[str, Any]] = no_keys  # further fields from keys
    write_keys: Callable[[Config], dict[str, tuple[str, Any]]] = no_values  # key: (type, value)
    ignores_keys: frozenset[str] = frozenset()  # keys on which no logit of text depends, or that `read_keys` reads
    fixed_keys: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def arch(self, activation: Any) -> Arch:
        """Return the architecture of a model with this activation."""
        return next((a for a in self.archs if a.activation == activation), self.archs[-1])
