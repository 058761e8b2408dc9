"""Results as tables and text: comparison, crossovers, selection guide."""
