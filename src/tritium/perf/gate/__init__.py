"""Verdicts, the regression gate, and a self-test that measures the gate."""
