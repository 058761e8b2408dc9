"""BitNet b1.58: norms before the output projections of attention and MLP, relu² (Microsoft's 2B-4T) or SiLU (1bitLLM's)."""

from __future__ import annotations

from tritium.families.description import Attention, Dense, Description, Layer, Rope
from tritium.families.family import Arch, Family, Parameters


def describe(p: Parameters) -> Description:
    """Return a Llama with sub-norms."""
    rope = Rope(p.rope_theta, p.head_dim, p.scaling)
    attention = Attention(p.heads, p.kv_heads, p.head_dim, rope, sub_norm=True)
    layer = Layer(attention, Dense(p.intermediate_size, p.activation, sub_norm=True))
    return Description((layer,) * p.layers)


BITNET = Family(
    name="bitnet",
    model_types=("bitnet",),
    archs=(
        Arch("bitnet-b1.58", "bitnet", "BitNetForCausalLM", "relu2"),
        Arch("bitnet-25", "bitnet", "BitNetForCausalLM", "relu2"),
        Arch("bitnet", "bitnet", "BitnetForCausalLM", "silu"),
    ),
    describe=describe,
    absent={"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "relu2"},
    tensors={"self_attn.attn_sub_norm": "attn_sub_norm", "mlp.ffn_sub_norm": "ffn_sub_norm"},
    former={"self_attn.inner_attn_ln": "attn_sub_norm", "mlp.ffn_layernorm": "ffn_sub_norm"},  # used by 1bitLLM
)
