"""Profiles: where the time went, what bounds it, what changed.

Knows nothing of reports.
"""
