"""This machine: its description, its measured ceilings, and its tuned choices.

Knows nothing of tensors.
"""
