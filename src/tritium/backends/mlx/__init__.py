"""MLX as a device: Apple's GPU and CPU, and the CPU on Linux.

Nothing here imports mlx before the device is asked for.
"""
