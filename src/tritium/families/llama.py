"""Llama: Falcon-E, Falcon3-1.58bit, Llama3-8B-1.58, TriLM."""

from __future__ import annotations

from tritium.families.description import Attention, Dense, Description, Layer, Rope
from tritium.families.family import Arch, Family, Parameters


def describe(p: Parameters) -> Description:
    """Return a decoder of equal layers: attention with RoPE, and a gated MLP."""
    rope = Rope(p.rope_theta, p.head_dim, p.scaling)
    layer = Layer(Attention(p.heads, p.kv_heads, p.head_dim, rope), Dense(p.intermediate_size, p.activation))
    return Description((layer,) * p.layers, trained_int8=False)


LLAMA = Family(
    name="llama",
    model_types=("llama",),
    archs=(Arch("llama", "llama", "LlamaForCausalLM", "silu", interleaved=True),),
    describe=describe,
    absent={"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu"},
)
