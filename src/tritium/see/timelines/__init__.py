"""Timelines as a page: rows of threads, processes and devices, with their gaps explained.

Drawn by the browser on a canvas from columns inside the page; nothing is loaded.
"""
