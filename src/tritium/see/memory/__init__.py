"""Memory: allocations, leaks, advice, pressure.

Knows nothing of reports.
"""
