"""Many items at a time: data cut into batches, and stages that work in parallel.

Knows nothing of models.
"""
