"""Profiles: recording, operation tables, hotspots, bounds, critical path and differences."""
