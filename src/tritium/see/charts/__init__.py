"""Charts as SVG, described once and drawn for a page, a file or a picture.

Knows nothing of reports.
"""
