"""PyTorch as a device: `torch` is its CPU, `mps` its Apple GPU.

Nothing here imports torch before the device is asked for.
"""
