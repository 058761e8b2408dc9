"""Results on disk: files, baselines, history."""
