"""Timelines, call trees, flame graphs, and the trace formats of others."""
