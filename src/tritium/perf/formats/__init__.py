"""Formats of other tools: exports, imports, GitHub Actions.

Knows nothing of measuring.
"""
