"""Batches and pipelines: data split into batches, and stages that work in parallel."""
