"""Anyone's code: programs timed side by side, benchmarks found in a project, its revisions measured, a slow-down bisected."""
