"""Results on disk: files, baselines, history.

Knows nothing of comparing.
"""
