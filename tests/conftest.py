"""Settings of all tests: property tests repeat exactly, a slow machine is not a failure, and nothing tuned is followed."""

import gc
import os

from hypothesis import settings

settings.register_profile("tritium", deadline=None, derandomize=True)
settings.load_profile("tritium")
os.environ.setdefault("TRITIUM_TUNED", "0")  # what was tuned on this machine must not decide a test


def pytest_collection_finish() -> None:
    """Tens of thousands of collected tests need not be looked through by every `gc.collect()` of a test."""
    gc.collect()
    gc.freeze()
