"""Quantisations of vLLM whose weights are ternary: how its linear layers, embeddings and heads hold and multiply them.

Weights are divided by rows on every rank, also those that vLLM divides by columns: the input is gathered, the rows of a rank are
computed from all of it, and the result is gathered. So every sum has the bits of one process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Parameter
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_gather,
)
from vllm.model_executor.layers.linear import LinearBase, LinearMethodBase, RowParallelLinear, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.utils import set_weight_attrs

from tritium.errors import FormatError
from tritium.vllm import products

SHARDS = {"q": 0, "k": 1, "v": 2}
KNOWN = frozenset((
    "quant_method", "linear_class", "quantization_mode", "modules_to_not_convert", "rms_norm_eps", "use_rms_norm", "group_size",
    "tables", "activations", "online_quant_cfg",
))  # fmt: skip


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """Return Hugging Face's packing as -1, 0 and 1: byte [r, k] holds rows r, r + R, r + 2R, r + 3R."""
    return torch.cat([((packed >> (2 * i)) & 3).to(torch.int8) - 1 for i in range(4)])


class TernaryConfig(QuantizationConfig):
    """Ternary weights with multipliers: of a tensor, of each row, or of groups of columns.

    group: columns that share a scale; 0: a row does. tables: the embedding and the head are ternary too. divides: a stored scale divides.
    """

    def __init__(
        self, *, group: int = 0, tables: bool = False, activations: str = "token", divides: bool = False
    ) -> None:
        super().__init__()
        self.group, self.tables, self.activations, self.divides = group, tables, activations, divides
        self.plain: tuple[str, ...] = ()  # modules that are not ternary

    def get_name(self) -> Any:
        return "tritium"

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.float32, torch.bfloat16, torch.float16]

    @classmethod
    def get_min_capability(cls) -> int:
        return 80  # tensor cores that multiply int8 in Triton

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TernaryConfig:
        """Read quantization_config; an unknown field is refused by its name."""
        for name, value in config.items():
            if name not in KNOWN and value not in (None, False):
                raise FormatError(
                    f"quantization_config.{name}: found {value!r}, needed a known field; it may change the results."
                )
        if config.get("use_rms_norm"):
            raise FormatError(
                "quantization_config.use_rms_norm: found True, needed False: norms before projections are not supported."
            )
        result = cls(
            group=int(config.get("group_size") or 0), tables=bool(config.get("tables")),
            activations=config.get("activations") or "token", divides=cls.reads_divisors(config),
        )  # fmt: skip
        result.plain = tuple(config.get("modules_to_not_convert") or ())
        return result

    @classmethod
    def reads_divisors(cls, config: dict[str, Any]) -> bool:
        """Return True if a stored scale divides."""
        return False

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        skipped = any(prefix.endswith(name) or f".{name}." in prefix for name in self.plain)
        if isinstance(layer, VocabParallelEmbedding):
            return TernaryTable(self, prefix) if self.tables else None
        if isinstance(layer, LinearBase):
            return UnquantizedLinearMethod() if skipped or prefix.endswith("lm_head") else TernaryLinear(self, prefix)
        return None


class PackedConfig(TernaryConfig):
    """Weights as Hugging Face packs them: BitNet, Falcon-E."""

    def get_name(self) -> Any:
        return "bitnet"

    @classmethod
    def reads_divisors(cls, config: dict[str, Any]) -> bool:
        return config.get("linear_class", "bitlinear") == "bitlinear"


class TernaryMethod(LinearMethodBase):
    """The common part of linear layers and tables: parameters of integers and scales, and the layer that is made of them."""

    def __init__(self, config: TernaryConfig, prefix: str) -> None:
        self.config, self.prefix = config, prefix

    def add_parameters(
        self, layer: torch.nn.Module, rows: int, columns: int, load: Callable[..., None], scales: Callable[..., None]
    ) -> None:
        """Register integers [rows, columns] and scales [rows, groups], which are filled by these loaders."""
        weight = Parameter(torch.zeros(rows, columns, dtype=torch.int8), requires_grad=False)
        set_weight_attrs(weight, {"input_dim": 1, "output_dim": 0, "weight_loader": load})
        groups = columns // self.config.group if self.config.group else 1
        scale = Parameter(torch.zeros(rows, groups, dtype=torch.float32), requires_grad=False)
        set_weight_attrs(scale, {"output_dim": 0, "weight_loader": scales})
        layer.register_parameter("weight", weight)
        layer.register_parameter("weight_scale", scale)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Make the layer that kernels run, and free what it was made of."""
        scale = layer.weight_scale.data
        if not torch.isfinite(scale).all():
            raise FormatError(f"{self.prefix}.weight_scale: found a number that is not finite.")
        group = self.config.group
        activations = self.config.activations if group else "token"
        products.keep(self.prefix, layer.weight.data, scale if group else scale[:, 0], group, activations)
        layer.ternary_rows = layer.weight.shape[0]
        layer.weight = Parameter(layer.weight.new_empty(0), requires_grad=False)

    def multiplier(self, stored: torch.Tensor) -> torch.Tensor:
        """Return a stored scale as what weights are multiplied by."""
        return 1 / stored.float() if self.config.divides else stored.float()


class TernaryLinear(TernaryMethod):
    """Linear layers with ternary weights."""

    def create_weights(
        self, layer: torch.nn.Module, input_size_per_partition: int, output_partition_sizes: list[int], input_size: int, output_size: int,
        params_dtype: torch.dtype, **attrs: Any,
    ) -> None:  # fmt: skip
        load = attrs.pop("weight_loader")
        ranks = get_tensor_model_parallel_world_size()
        self.gathers = isinstance(layer, RowParallelLinear) and layer.tp_size > 1
        if self.gathers:
            load = self._row_loader(layer, output_size, ranks)
            output_partition_sizes = [output_size // ranks]
            input_size_per_partition = input_size
        if self.config.group and input_size_per_partition % self.config.group:
            raise FormatError(
                f"{self.prefix}: groups of {self.config.group} do not divide {input_size_per_partition} columns."
            )
        parts = list(output_partition_sizes)

        def integers(param: Parameter, loaded: torch.Tensor, *shard: Any) -> None:
            load(param, unpack(loaded) if loaded.dtype == torch.uint8 else loaded.to(torch.int8), *shard)

        def scales(param: Parameter, loaded: torch.Tensor, *shard: Any) -> None:
            values = self.multiplier(loaded)
            if values.numel() > 1:
                load(param, values if values.ndim == 2 else values.reshape(values.shape[0], -1), *shard)
                return
            index = SHARDS.get(shard[0], shard[0]) if shard and shard[0] is not None else None
            start, stop = (0, sum(parts)) if index is None else (sum(parts[:index]), sum(parts[: index + 1]))
            param.data[start:stop] = values.reshape(())

        self.add_parameters(layer, sum(parts), input_size_per_partition, integers, scales)

    def _row_loader(self, layer: RowParallelLinear, output_size: int, ranks: int) -> Callable[..., None]:
        """Return a loader of this rank's rows of a layer that vLLM divides by columns."""
        if not layer.reduce_results:
            raise FormatError(
                f"{self.prefix}: its results are added later by the network, which is not exact and not supported."
            )
        if output_size % ranks:
            raise FormatError(f"{self.prefix}: {output_size} rows cannot be divided over {ranks} ranks.")
        layer.reduce_results = False  # they are gathered here
        first = get_tensor_model_parallel_rank() * (output_size // ranks)

        def load(param: Parameter, loaded: torch.Tensor) -> None:
            param.data.copy_(loaded[first : first + output_size // ranks])

        return load

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        if self.gathers:
            x = tensor_model_parallel_all_gather(x.contiguous(), -1)
        if hasattr(layer, "sub_norm"):
            x = layer.sub_norm(x)
        y = products.bit_linear(x, self.prefix, layer.ternary_rows)
        if self.gathers:
            y = tensor_model_parallel_all_gather(y, -1)
            bias = None if layer.skip_bias_add else layer.bias
        return y if bias is None else y + bias


class TernaryTable(TernaryMethod):
    """The embedding and the output head with ternary rows."""

    def create_weights(
        self, layer: torch.nn.Module, input_size_per_partition: int, output_partition_sizes: list[int], input_size: int, output_size: int,
        params_dtype: torch.dtype, **attrs: Any,
    ) -> None:  # fmt: skip
        load = attrs.pop("weight_loader")
        self.columns, self.dtype = input_size_per_partition, params_dtype

        def scales(param: Parameter, loaded: torch.Tensor) -> None:
            values = self.multiplier(loaded)
            if values.numel() == 1:
                param.data.fill_(values.item())
            else:
                load(param, values if values.ndim == 2 else values.reshape(values.shape[0], -1))

        self.add_parameters(layer, sum(output_partition_sizes), input_size_per_partition, load, scales)
        self.like = torch.empty(0, dtype=params_dtype)

    def embedding(self, layer: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
        return products.take_rows(ids, self.prefix, self.columns, self.like)

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        y = products.bit_linear(x, self.prefix, layer.ternary_rows)
        return y if bias is None else y + bias

    def tie_weights(self, layer: torch.nn.Module, embed_tokens: torch.nn.Module) -> torch.nn.Module:
        """Have the head read the embedding's table."""
        return embed_tokens
