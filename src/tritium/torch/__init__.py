"""BitNet layers for PyTorch: trained with straight-through estimators, run in PyTorch through tritium's kernels.

Recipes say how a network is trained (`Recipe`, `prepare`), `fit` and `distil` train it, `load` begins at a ternary file, `add_adapters`
trains LoRA over packed weights. Imports torch, so `import tritium` never imports it.

    model = tritium.torch.replace_linears(model)    # nn.Linear -> BitLinear, embeddings and heads stay
    ... train as ever ...
    model.eval()
    with torch.no_grad():
        y = model(x)                                # packed weights, tritium's kernels

A BitLinear computes for each token x (one row of the last axis), in f32:

    x = rms_norm(x)                                             only when it has a norm
    g = max(mean|W|, 1e-5);  t = clip(rint(W * (1 / g)), -1, 1)
    amax = max(|x|, 1e-5);   q = rint(x * (127 / amax))
    y = (q @ t.T) * (amax / 127 * g) + bias

These are transformers' formulas. rint takes halves to the even number: a weight of exactly g / 2 becomes 0. The sums are
whole numbers below 2**24, exact in f32 in any order, so in f32 training, evaluation, `tt.nn.BitLinear` and an exported
file give the same bits. Backward, both roundings count as the identity: dL/dx = dL/dy @ (g t), dL/dW = dL/dy.T @ (q amax / 127).

`lambda_` mixes: W + lambda_ * (g t - W), and x likewise. 0 is a plain linear layer, 1 is BitNet.

Which path a call takes:
- gradients are asked for, or the layer is in training mode: torch's own operations, differentiable, any device; in bf16 on a GPU one
  operator, `torch.ops.tritium.train_linear` of `tritium.torch.steps`, which runs kernels, for layers without groups, learned scales and
  `scale_dtype="f16"`; in f32 on the CPU large layers of that kind run forward on kernels too (`tritium.torch.cpu_steps`), with the
  bits of torch's operations;
- eval mode, no gradients, on the CPU or a GPU, lambda_ 1, f32, f16 or bf16: weights are packed once and run on tritium's kernels. They
  are packed anew after any write torch can see (an optimiser's step, load_state_dict), after .train(), .eval() and .to().
  A write in eval mode that torch does not count (through `weight.data`, a NumPy alias) is not seen: call .eval() after it;
- autocast to bf16: whole numbers up to 127 are exact in bf16, sums are rounded to bf16 once. To f16: the product is made in
  f32, since its sums exceed f16;
- torch.compile and torch.export: training compiles whole; the packed path is one operator, `torch.ops.tritium.bit_linear`, which
  `tritium.torch.ops` defines. A layer with a learned scale or `scale_dtype="f16"` compiles to torch's operations there.
"""

from __future__ import annotations

from typing import Any

from tritium.errors import PackageError
from tritium.torch.adapters import (
    LoraLinear,
    Merged,
    PackedLinear,
    add_adapters,
    flips_of_rounding,
    lora_linears,
    merge_adapters,
    pack_linears,
    remove_adapters,
)
from tritium.torch.distillation import DistillationLoss, distil, logit_loss, relation_loss
from tritium.torch.files.peft import load_adapters, save_adapters
from tritium.torch.files.reader import load, load_ternary
from tritium.torch.files.writer import byte_tokenizer, export
from tritium.torch.formulas import pack, ternarise, unpack
from tritium.torch.layer import BitLinear, bit_linears
from tritium.torch.processes import checkpoint_blocks, shard, whole_state
from tritium.torch.recipes import Distillation, Recipe, Schedule, apply_schedules, make_optimizer, prepare
from tritium.torch.replace import replace_linears, set_lambda
from tritium.torch.training import Training, Windows, fit, head_loss, next_token_loss
from tritium.torch.watch import Watch

__all__ = [
    "BitLinear",
    "Distillation",
    "DistillationLoss",
    "LoraLinear",
    "Merged",
    "PackedLinear",
    "Recipe",
    "Schedule",
    "Training",
    "Watch",
    "Windows",
    "add_adapters",
    "apply_schedules",
    "bit_linears",
    "byte_tokenizer",
    "checkpoint_blocks",
    "distil",
    "export",
    "fit",
    "flips_of_rounding",
    "head_loss",
    "load",
    "load_adapters",
    "load_ternary",
    "logit_loss",
    "lora_linears",
    "make_optimizer",
    "merge_adapters",
    "next_token_loss",
    "pack",
    "pack_linears",
    "prepare",
    "relation_loss",
    "remove_adapters",
    "replace_linears",
    "save_adapters",
    "set_lambda",
    "shard",
    "ternarise",
    "trainer_callback",
    "unpack",
    "whole_state",
]


def trainer_callback(recipe: Recipe, *, watch: Watch | None = None) -> Any:
    """Return the callback by which transformers' Trainer follows a recipe; give it `optimizers=(make_optimizer(model, recipe), None)`."""
    try:
        from tritium.torch.callback import RecipeCallback
    except ImportError as error:
        raise PackageError(
            f"trainer_callback: needs transformers ({error}): pip install transformers accelerate."
        ) from None
    return RecipeCallback(recipe, watch)
