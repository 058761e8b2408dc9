"""The CPU: native kernels for this machine's instruction set, then NumPy on the same memory.

Knows nothing of other backends but the reference.
"""
