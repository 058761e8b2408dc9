"""Records of measuring: cases, runs, environment, JSON.

Knows nothing of measuring.
"""
