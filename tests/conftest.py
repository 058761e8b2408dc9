"""Settings of all tests: property tests repeat exactly, a slow machine is not a failure, and nothing tuned is followed.

A run of all files without TRITIUM_TESTS leaves out what is marked slow and takes a quarter of the examples of property tests.
TRITIUM_TESTS=rest runs what such a run leaves out, with a build for this CPU: slow tests, all examples, other instruction sets.
TRITIUM_TESTS=all runs everything, and every combination of the largest matrices. What was left out is counted in the summary.
"""

import gc
import os
import re
import sys
from collections import Counter
from typing import Any

import pytest
from _pytest.pathlib import import_path
from hypothesis import settings

from at import AMOUNT
from isas import NOT_NATIVE, UNBUILT

settings.register_profile("tritium", deadline=None, derandomize=True)
settings.load_profile("tritium")
SHARE = 1 if AMOUNT else 4  # of the examples of a property
TRIED_ALL = {"BUILT_BASES", "QUANTISERS"}  # lists of what a build has, over which tests loop
LEFT_OUT = pytest.StashKey[Counter[str]]()  # by why; of a worker of xdist it travels in its output
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


def lacking(item: pytest.Item, isas: list[str]) -> str:
    """Return the first of these instruction sets that a test is about, or "".

    A value may be one, hold one, or show it in its id, as the kernel of a product does.
    """
    if not hasattr(item, "callspec"):
        return ""
    values = item.callspec.params.values()
    words = {word for v in values for word in (v.values() if isinstance(v, dict) else [v]) if isinstance(word, str)}
    words |= set(re.split(r"[^a-z0-9]+", item.callspec.id))
    return next((isa for isa in isas if isa in words), "")


def why_left_out(item: pytest.Item) -> str:
    """Return why this run of all files has no use for a test, or ""."""
    slow = item.get_closest_marker("slow") is not None
    if AMOUNT == "rest":
        tries_all = TRIED_ALL.intersection(item.obj.__code__.co_names) or hasattr(item.obj, "is_hypothesis_test")
        return "" if slow or tries_all or lacking(item, NOT_NATIVE) else "plain"
    return "slow" if slow and not AMOUNT else ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    whole = config.args == config.getini("testpaths")
    reasons = [lacking(item, UNBUILT) or (why_left_out(item) if whole else "") for item in items]
    config.stash[LEFT_OUT] = Counter(filter(None, reasons))
    config.hook.pytest_deselected(items=[item for item, reason in zip(items, reasons, strict=True) if reason])
    items[:] = [item for item, reason in zip(items, reasons, strict=True) if not reason]
    if whole:
        for test in {item.obj for item in items}:
            # Where Hypothesis keeps the settings of a test; they cannot be changed once for all.
            if own := getattr(test, "_hypothesis_internal_use_settings", None):
                test._hypothesis_internal_use_settings = settings(own, max_examples=-(-own.max_examples // SHARE))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput") and LEFT_OUT in session.config.stash:
        session.config.workeroutput["left_out"] = dict(session.config.stash[LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if "left_out" in getattr(node, "workeroutput", {}):  # each worker has collected all
        node.config.stash[LEFT_OUT] = Counter(node.workeroutput["left_out"])


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    left_out = config.stash.get(LEFT_OUT, Counter())
    if built := ", ".join(f"{name} ({n:,} tests)" for name, n in left_out.items() if name not in ("slow", "plain")):
        terminalreporter.write_line(f"not built here: {built}; TRITIUM_ISAS=all builds them")
    if left_out["slow"]:
        terminalreporter.write_line(f"left out: {left_out['slow']:,} slow tests; TRITIUM_TESTS=rest runs them")
    if left_out["plain"]:
        terminalreporter.write_line(f"left out: {left_out['plain']:,} tests that run without TRITIUM_TESTS")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return one worker more than there are CPUs: tests of servers and processes wait now and then."""
    return len(os.sched_getaffinity(0)) + 1 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) + 1


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
