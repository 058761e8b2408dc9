"""Timelines, call trees, flame graphs, and the trace formats of others.

Knows nothing of profiles or reports.
"""
