"""This machine: its description, its measured ceilings, and what was tuned on it.

Knows nothing of tensors.
"""
