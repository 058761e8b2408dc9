"""Qwen3: an RMS norm of each head of Q and K. Ternary-Bonsai 1.7B to 8B, and BitNet-embedding 0.6B, which has a norm before each
projection as well."""

from __future__ import annotations

from tritium.families.common import PROJECTION_NORMS, QK_NORMS
from tritium.families.description import Attention, Dense, Description, Layer, Rope
from tritium.families.family import Arch, Family, Parameters
from tritium.families.fields import read_flag, read_layer_types
from tritium.families.hadamard import FIELDS as HADAMARD, read_hadamard


def describe(p: Parameters) -> Description:
    """Return a Llama with norms of Q and K."""
    own = dict(p.own)
    full = ("full_attention",)
    read_layer_types(own, p.layers, full, full * p.layers)
    rope = Rope(p.rope_theta, p.head_dim, p.scaling)
    attention = Attention(p.heads, p.kv_heads, p.head_dim, rope, qk_norm=True)
    layer = Layer(attention, Dense(p.intermediate_size, p.activation))
    norms = read_flag(own, "projection_norms")
    return Description((layer,) * p.layers, projection_norms=norms, hadamard=read_hadamard(own), trained_int8=norms)


QWEN3 = Family(
    name="qwen3",
    model_types=("qwen3",),
    archs=(Arch("qwen3", "qwen3", "Qwen3ForCausalLM", "silu"),),
    describe=describe,
    absent={"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "head_dim": 128},
    reads=HADAMARD | {"layer_types", "projection_norms"},
    fixed={"use_sliding_window": (None, False)},
    ignores=frozenset(("max_window_layers", "sliding_window")),  # of windows, which use_sliding_window turns on
    tensors=QK_NORMS | PROJECTION_NORMS,
)
