"""Settings of all tests: property tests repeat exactly, a slow machine is not a failure, and nothing tuned is followed."""

import gc
import os
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("tritium", deadline=None, derandomize=True)
settings.load_profile("tritium")
os.environ.setdefault("TRITIUM_TUNED", "0")  # what was tuned on this machine must not decide a test


def freeze() -> None:
    """Take what is alive out of the garbage collector's sight.

    Neither the collected tests nor what earlier modules left in caches is looked through by every `gc.collect()` of a test.
    """
    gc.collect()
    gc.freeze()


def pytest_collection_finish() -> None:
    freeze()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is not None and nextitem.path != item.path:
        freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker a stretch of neighbouring tests, which share fixtures and caches; who is done takes from the others."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getvalue("dist") == "load" else None
