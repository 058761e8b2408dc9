"""Attention and KV caches on a GPU."""
