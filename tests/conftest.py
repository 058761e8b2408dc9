"""Settings of all tests: property tests repeat exactly, and a slow machine is not a failure."""

from hypothesis import settings

settings.register_profile("tritium", deadline=None, derandomize=True)
settings.load_profile("tritium")
