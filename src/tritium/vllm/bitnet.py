"""The network of BitNet b1.58 for vLLM: that of Llama, with squared ReLU, and norms before the last projections of attention and MLP."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from vllm.model_executor.models.llama import LlamaAttention, LlamaDecoderLayer, LlamaForCausalLM

from tritium.errors import FormatError
from tritium.vllm import products

NAMES = {".attn_sub_norm.": ".o_proj.sub_norm.", ".ffn_sub_norm.": ".down_proj.sub_norm."}


class SubNorm(nn.Module):
    """The RMS norm before a projection, of all its columns."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x normalised."""
        return products.rms_norm(x, self.weight, self.eps)


class BitNetMLP(nn.Module):
    """down(norm(relu(gate(x))² * up(x)))."""

    def __init__(self, config: Any, quant_config: Any, prefix: str) -> None:
        super().__init__()
        sizes = [config.intermediate_size] * 2
        options = {"bias": False, "quant_config": quant_config}
        self.gate_up_proj = MergedColumnParallelLinear(
            config.hidden_size, sizes, prefix=f"{prefix}.gate_up_proj", **options
        )
        self.down_proj = RowParallelLinear(
            config.intermediate_size, config.hidden_size, prefix=f"{prefix}.down_proj", **options
        )
        self.down_proj.sub_norm = SubNorm(config.intermediate_size, config.rms_norm_eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output for hidden states x."""
        both, _ = self.gate_up_proj(x)
        gate, up = both.chunk(2, dim=-1)
        y, _ = self.down_proj(torch.relu(gate).square() * up)
        return y


class BitNetDecoderLayer(LlamaDecoderLayer):
    """One layer of BitNet b1.58."""

    def __init__(self, vllm_config: Any, prefix: str = "", config: Any = None) -> None:
        nn.Module.__init__(self)
        config = config or vllm_config.model_config.hf_config
        if config.hidden_act != "relu2":
            raise FormatError(f"hidden_act: found {config.hidden_act!r}, needed 'relu2' for BitNetForCausalLM.")
        quant_config, self.hidden_size = vllm_config.quant_config, config.hidden_size
        self.self_attn = LlamaAttention(
            config=config, hidden_size=config.hidden_size, num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads, max_position_embeddings=config.max_position_embeddings,
            quant_config=quant_config, cache_config=vllm_config.cache_config, prefix=f"{prefix}.self_attn",
        )  # fmt: skip
        self.self_attn.o_proj.sub_norm = SubNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = BitNetMLP(config, quant_config, f"{prefix}.mlp")
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class BitNetForCausalLM(LlamaForCausalLM):
    """BitNet b1.58, as Hugging Face and GGUF files have it."""

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix, layer_type=BitNetDecoderLayer)

    def load_weights(self, weights: Any) -> set[str]:
        """Load weights by Hugging Face's names."""

        def renamed() -> Any:
            for name, tensor in weights:
                for old, new in NAMES.items():
                    name = name.replace(old, new)
                yield name, tensor

        loaded: set[str] = super().load_weights(renamed())
        return loaded
