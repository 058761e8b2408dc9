"""Devices whose own library keeps the memory: ops written once over a small namespace.

Knows neither torch nor MLX.
"""
