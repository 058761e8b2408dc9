"""Fused element-wise bodies on a GPU as one generated Triton kernel each."""
