"""Records of measuring: cases, runs, environment, JSON."""
