"""The definition of every op in NumPy, and the backend of last resort."""
