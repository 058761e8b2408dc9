"""Verdicts and the regression gate, and the gate measured itself.

Knows nothing of the command line.
"""
