"""A model file as one model: entries by name, whatever container they come from.

Knows nothing of tensors or devices.
"""
