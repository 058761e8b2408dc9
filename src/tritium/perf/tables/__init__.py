"""Results as tables and text: comparison, crossovers, selection guide.

Knows nothing of measuring.
"""
