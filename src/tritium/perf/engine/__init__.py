"""Measuring: fresh processes, calibrated batches, interleaved rounds.

Knows nothing of verdicts.
"""
