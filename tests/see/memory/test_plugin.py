"""The fixture `no_leaks`: fails a leaking test and names op, line and size; leaves other suites alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tritium.see.memory.plugin as plugin

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[3]
assert plugin  # a session inside this process must not be the first to import it

TESTS = """
import pytest
import tritium as tt

KEPT = []

@pytest.fixture
def made(no_leaks):
    return tt.ones(10)

def test_clean(no_leaks):
    x = tt.ones(1000)
    assert (x + x).sum() == 2000

def test_leaks(no_leaks):
    KEPT.append(tt.ones(1234) + 1)

def test_keeps(no_leaks):
    KEPT.append(no_leaks.keep(tt.ones(50)))

def test_fixture_holds(no_leaks, made, request):
    assert made.sum() == 10

def test_raises(no_leaks):
    with pytest.raises(ValueError) as caught:
        x = tt.ones(10)
        raise ValueError(x)

def test_without():
    KEPT.append(tt.ones(7))
"""


def session(pytester: pytest.Pytester, *args: Any, tests: str = TESTS) -> pytest.RunResult:
    pytester.makepyfile(test_it=tests)
    pytester._monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester._monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    return pytester.runpytest_inprocess("-p", "tritium_pytest", "-p", "no:cacheprovider", *args)


def test_a_leaking_test_fails_and_the_leak_is_named(pytester: pytest.Pytester) -> None:
    found = session(pytester)
    found.assert_outcomes(passed=5, failed=1)
    found.stdout.fnmatch_lines(
        [
            "*test_it.py::test_leaks: 1 allocation (4.82 KiB) is still alive:*",
            "*(4936 bytes) by add at test_it.py:15, alive for*",
        ]
    )


def test_a_test_that_fails_by_itself_is_told_of_once(pytester: pytest.Pytester) -> None:
    code = (
        "import tritium as tt\nKEPT = []\ndef test_it(no_leaks):\n    KEPT.append(tt.ones(9))\n    assert 0, 'mine'\n"
    )
    found = session(pytester, tests=code)
    found.assert_outcomes(failed=1)
    assert "still alive" not in found.stdout.str()


def test_the_fixture_is_listed_with_what_it_does(pytester: pytest.Pytester) -> None:
    found = session(pytester, "--fixtures")
    found.stdout.fnmatch_lines(["no_leaks*", "*Fails a test that leaves tensors alive*"])
