"""Language models with ternary weights: configuration, weights, session, generation, text.

Knows nothing of servers or perf.
"""
