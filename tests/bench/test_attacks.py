"""The attacks on templates and on the server, short: they find what is wrong, and nothing is.

The long runs are `bench/attack_templates.py` and `bench/attack_server.py`.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("h11", reason="the server needs the extra 'run'")
pytest.importorskip("jinja2", reason="chat templates need the extra 'run'")

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(autouse=True)
def _from_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs the size of the address space")
def test_generated_templates_end_as_text_or_as_our_error() -> None:
    command = [sys.executable, str(BENCH / "attack_templates.py"), "--count", "300", "--seed", "11"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "300  in all" in done.stdout
    assert " rendered" in done.stdout


def test_an_attack_on_templates_sees_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    import attack_templates

    from tritium.models.text import chat

    assert attack_templates.attack("{{ 1 }}") == ("rendered", "")
    assert attack_templates.attack("{{ 'x' * 99999999 }}")[0] == "stopped at a bound"
    assert attack_templates.attack("{{")[0] == "refused by its syntax"
    monkeypatch.setattr(chat, "render", lambda *_: "<class 'str'>")
    assert attack_templates.attack("{{ 1 }}")[0] == "wrong"
    monkeypatch.setattr(chat, "_compiled", lambda _: exec("raise KeyboardInterrupt"))
    assert attack_templates.attack("{{ 1 }}") == ("wrong", "compiling: KeyboardInterrupt: ")


def test_malformed_requests_are_many_and_differ() -> None:
    import attack_server

    requests = {attack_server.malformed(random.Random(i)) for i in range(400)}
    assert len(requests) > 300


@pytest.mark.slow
def test_a_server_under_attack_answers_its_health_check_and_can_be_killed() -> None:
    import attack_server

    for seed in range(3):  # a machine with other load may make one wait
        tallies = attack_server.run(count=200, silent=150, bodies=8, kills=2, seed=seed)
        late = [w for t in tallies.values() for w in t.wrong if "health check waited" in w]
        assert [w for t in tallies.values() for w in t.wrong if w not in late] == []
        assert all(t.checks for t in tallies.values())
        assert tallies["kills"].counts["right text"]
        assert tallies["malformed"].counts["400"]
        if not late:
            return
    pytest.fail(f"{late}")
