"""Sums of products over named indices: einsum, its contraction path, and its lowering to ops."""
