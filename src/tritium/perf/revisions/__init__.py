"""Revisions of a git repository: named, listed, checked out in a temporary folder and built."""
