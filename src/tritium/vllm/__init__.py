"""A plugin of vLLM: ternary weights on Tritium's kernels, with the tokens of one process for every number of ranks.

vLLM calls `register` in each of its processes, through the entry point `vllm.general_plugins`. It then knows the quantisation `bitnet`
(weights as Hugging Face packs them), the quantisation and load format `tritium` (any file that `tritium.io` reads, with scales for
groups of columns and ternary tables), and the network of BitNet b1.58.

    LLM("folder of Hugging Face's packed weights")
    LLM("folder with config.json and a GGUF file", quantization="tritium", load_format="tritium")
"""

from __future__ import annotations

from tritium.settings import log

TRIED = "0.32"  # the version of vLLM that the plugin was tried with
NETWORK = "tritium.vllm.bitnet:BitNetForCausalLM"


def register() -> None:
    """Register quantisations, the load format and the network; a second time changes nothing."""
    from vllm import ModelRegistry, __version__
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS, register_quantization_config
    from vllm.model_executor.model_loader import register_model_loader

    from tritium.vllm.loader import FileLoader
    from tritium.vllm.method import PackedConfig, TernaryConfig

    if "tritium" in QUANTIZATION_METHODS:
        return
    if not __version__.startswith(f"{TRIED}."):
        log.warning("the plugin was tried with vLLM %s and meets %s", TRIED, __version__)
    register_quantization_config("bitnet")(PackedConfig)
    register_quantization_config("tritium")(TernaryConfig)
    register_model_loader("tritium")(FileLoader)
    if "BitNetForCausalLM" not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model("BitNetForCausalLM", NETWORK)
