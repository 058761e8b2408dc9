"""Verdicts, the regression gate, and a self-test that measures the gate.

Knows nothing of the command line.
"""
