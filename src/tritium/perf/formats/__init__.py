"""The formats of others: exports, imports, GitHub Actions.

Knows nothing of measuring.
"""
