"""GPUs through CUDA: torch for memory and dense ops, Triton kernels for ours, CUDA graphs for programs.

Nothing here imports torch or triton before the device is asked for.
"""
