"""Memory: allocations, leaks, advice, pressure."""
