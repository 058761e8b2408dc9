"""One model over several processes, each with a part of its weights and of its KV cache: the same tokens for every number of them.

torchrun --nproc-per-node 2 -m tritium generate model.gguf -p "In the beginning"

model = tt.load("model.gguf", parallel=tritium.parallel.join())     # in a program that torchrun starts
"""

from tritium.parallel.group import Group, join

__all__ = ["Group", "join"]
