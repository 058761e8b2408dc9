"""A model file as one model: entries by name, from any container."""
