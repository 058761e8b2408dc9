"""Intervals, tests and change points over plain numbers."""
