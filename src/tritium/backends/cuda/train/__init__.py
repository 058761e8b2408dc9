"""The training step of a ternary layer on a GPU: `kernels` are the passes over weights, tokens and gradients, `step` runs them around the
products.
"""
