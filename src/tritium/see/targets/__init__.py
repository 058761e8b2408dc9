"""The guides' performance targets, measured here beside what this machine allows.

Knows nothing of the command line.
"""
