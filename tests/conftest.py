"""Settings of all tests: property tests repeat exactly, a slow machine is not a failure, and nothing tuned is followed."""

import gc
import os
import sys
from typing import Any

import pytest
from _pytest.pathlib import import_path
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


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Import the modules of tests, each worker of xdist from a place of its own on.

    All workers collect the same modules in the same order, so in a fresh checkout each would compile every one of them at the same
    time as the others. This way a worker compiles those that no other has reached yet.
    """
    worker: dict[str, Any] | None = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args != session.config.getini("testpaths"):
        return
    files = sorted((session.config.rootpath / "tests").rglob("test_*.py"))
    first = len(files) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for path in files[first:] + files[:first]:
        try:
            import_path(path, mode="importlib", root=session.config.rootpath, consider_namespace_packages=False)
        except (Exception, pytest.skip.Exception):  # collecting it, from the start, says why
            for name in [
                name for name, module in sys.modules.items() if getattr(module, "__file__", None) == str(path)
            ]:
                del sys.modules[name]


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
