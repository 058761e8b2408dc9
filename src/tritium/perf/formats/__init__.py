"""Formats of other tools: exports, imports, GitHub Actions."""
