"""Histories as pages: a site of all cases over time, and badges."""
