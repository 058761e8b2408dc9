"""Sums of products over named indices: einsum, its path, and how it is lowered to ops.

Knows nothing of graphs.
"""
