"""Linear layers on a GPU: products of quantised or half-float weights."""
