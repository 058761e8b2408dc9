"""Intervals, tests and change points over plain numbers.

Knows nothing of benchmarks.
"""
