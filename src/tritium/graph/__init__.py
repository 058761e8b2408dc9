"""Graphs of ops: Graph and Trace, their text, their picture, and one graph for many samples."""
