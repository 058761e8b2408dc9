"""The description of a decoder: for each layer its mixer, its MLP and its norms, and what is around the layers.

A family makes a description from a configuration; `models.weights.assemble` makes a network from it. Names of norms are those
that Hugging Face gives to tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tritium.families.hadamard import Hadamard

ACTIVATIONS = (
    "relu2",
    "silu",
    "relu",
    "gelu",
    "gelu_pytorch_tanh",
)  # functions of an MLP, by their names in config.json


@dataclass(frozen=True)
class Rope:
    """Rotary position embeddings of the first `dims` numbers of a head."""

    theta: float
    dims: int
    scaling: tuple[tuple[str, Any], ...] = ()  # as `families.rope.read_scaling` returns it


@dataclass(frozen=True)
class Attention:
    """Causal grouped-query attention over a KV cache."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: Rope | None  # None: the layer does not know positions
    scale: float | None = None  # of the scores; None: 1 / sqrt(head_dim)
    window: int | None = None  # positions that a token sees, itself included; None: all before it
    qk_norm: bool = False  # an RMS norm of each head of Q and K, before RoPE
    gate: bool = False  # the result is multiplied by sigmoid(gate), whose rows follow those of each head of Q
    sub_norm: bool = False  # an RMS norm before the output projection


@dataclass(frozen=True)
class DeltaNet:
    """A gated delta net: linear attention with a recurrent state and a short causal convolution."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int  # tokens of the convolution


@dataclass(frozen=True)
class Dense:
    """An MLP: down(activation(gate(x)) * up(x))."""

    intermediate_size: int
    activation: str
    clamp: float | None = None  # gate is at most this, up within plus and minus this
    sub_norm: bool = False  # an RMS norm before the last projection


@dataclass(frozen=True)
class Experts:
    """A mixture of experts, each an MLP: every token uses the `active` ones of `count` that its router prefers."""

    count: int
    active: int
    intermediate_size: int
    activation: str
    clamp: float | None = None
    scoring: str = "softmax"  # of the router's logits; or "sigmoid"
    normalise: bool = True  # the scores of the active experts add to 1
    scaling: float = 1.0


@dataclass(frozen=True)
class Norms:
    """The tensors of a layer's norms: before the mixer and the MLP, and after them where a family has such."""

    mixer: str = "input_layernorm"
    mlp: str = "post_attention_layernorm"
    mixer_post: str | None = None
    mlp_post: str | None = None


@dataclass(frozen=True)
class Layer:
    """One layer: a mixer and an MLP, each with its norms and a residual connection."""

    mixer: Attention | DeltaNet
    mlp: Dense | Experts
    norms: Norms = Norms()


@dataclass(frozen=True)
class Description:
    """A decoder from tokens to logits."""

    layers: tuple[Layer, ...]
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0  # of what a layer adds
    logits_multiplier: float = 1.0
    extra_layers: int = 0  # in files after the decoder's own, for speculation; not used
    norm_offset: float = 0.0  # what Hugging Face's files leave out of the weight of a norm, and computation adds
    projection_norms: bool = False  # an RMS norm before each projection
    hadamard: Hadamard | None = None  # a rotation of the input of folded projections
    trained_int8: bool = True  # with one scale for each token: how its activations are to be quantised

    def activations(self, group: int) -> tuple[str, str]:
        """Return how the input of a product is quantised whose weights have groups of so many columns (0: none), and why: 'token' or
        'group'."""
        if self.trained_int8:
            return "token", "as its family is trained"
        if group:
            return "group", f"a scale for each {group} columns, not trained with int8 tokens"
        return "token", "its weights have no groups of columns"

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """Return the different position embeddings of the layers, in order of first use."""
        ropes = (layer.mixer.rope for layer in self.layers if isinstance(layer.mixer, Attention))
        return tuple(dict.fromkeys(rope for rope in ropes if rope is not None))
