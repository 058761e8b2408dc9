"""Attention and KV caches on a GPU.

Knows nothing of linear layers.
"""
