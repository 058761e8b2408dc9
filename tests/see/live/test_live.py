"""Figures that processes publish: written, read as those of a stranger, turned into rates, served on this machine alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

import tritium as tt
from tritium import buffer
from tritium.errors import ArgumentError, SaveError
from tritium.models import session
from tritium.perf.meters.absent import Absent
from tritium.see.live import snapshot
from tritium.see.live.dashboard import dashboard, page, policy
from tritium.see.live.publisher import publish, take
from tritium.see.live.snapshot import Snapshot, program_name, snapshots
from tritium.see.live.viewer import Viewer
from tritium.see.monitor.metrics_file import Column
from tritium.see.monitor.sources import Source


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRITIUM_RUNTIME", str(tmp_path / "run"))
    return snapshot.folder(make=True)


class Watts(Source):
    columns = (Column("power_cpu", "W"), Column("temperature", "°C"))

    def read(self) -> Any:
        return 50.0, Absent("no_device", "no sensor", "hwmon")


def made(**fields: Any) -> Snapshot:
    return replace(Snapshot(os.getpid(), "program", "1", 100.0, 200.0, 1.0, 10.0, 1 << 20, 5, 6, 7), **fields)


# ---- files


def test_what_is_written_is_read(place: Path) -> None:
    snapshot.write(made(ops={"add": 3}), place)
    assert snapshots() == ([made(ops={"add": 3})], [])


def test_files_of_dead_processes_are_removed_and_wrong_ones_reported(place: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (place / f"{dead.pid}.json").write_text("{}")
    (place / f"{os.getpid()}.json").write_text('{"pid": "x"}')
    (place / "notes.json").write_text("{}")
    published, faults = snapshots()
    assert published == []
    assert len(faults) == 1
    assert not (place / f"{dead.pid}.json").exists()


def test_a_large_file_is_not_read(place: Path) -> None:
    (place / f"{os.getpid()}.json").write_text(" " * (snapshot.MOST_BYTES + 1))
    published, faults = snapshots()
    assert (published, len(faults)) == ([], 1)


def test_a_link_in_place_of_the_file_is_not_followed_when_writing(place: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (place / f".{os.getpid()}.new").symlink_to(victim)
    with pytest.raises(OSError, match=r"."):
        snapshot.write(made(), place)
    assert victim.read_text() == "kept"


def test_a_folder_that_others_may_write_is_refused(place: Path) -> None:
    place.chmod(0o777)
    with pytest.raises(SaveError, match="TRITIUM_RUNTIME"):
        snapshots()


def test_the_folder_may_not_be_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("TRITIUM_RUNTIME", str(tmp_path / "link"))
    with pytest.raises(SaveError):
        snapshot.folder(make=True)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["/usr/bin/tritium", "serve", "model.gguf"], "tritium serve"),
        (["/x/tritium/__main__.py", "--log-level", "debug"], "tritium debug"),
        (["/home/me/train.py", "--key", "secret"], "train.py"),
        (["tritium", "generate", "my secret prompt"], "tritium generate"),
        ([""], "python"),
    ],
)
def test_a_name_holds_no_arguments(arguments: list[str], name: str) -> None:
    assert program_name(arguments) == name


# ---- publishing


def test_a_process_publishes_its_counters_until_it_stops(place: Path) -> None:
    with publish("50ms") as live:
        before = snapshots()[0][0]
        x = tt.ones((8, 8))
        for _ in range(50):
            tt.add(x, x)
        session.counters.decode += 7
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            now = snapshots()[0][0]
            if now.decode_tokens == before.decode_tokens + 7:
                break
            time.sleep(0.02)
        assert now.decode_tokens == before.decode_tokens + 7
        if buffer.native is not None:  # the pure build replays no decision
            assert now.ops.get("add", 0) >= before.ops.get("add", 0) + 49
        assert now.rss > 0
        assert 0 < live.spent_s < 10
    assert snapshots() == ([], [])
    live.stop()


def test_an_interval_must_be_bearable(place: Path) -> None:
    with pytest.raises(ArgumentError, match="at least"):
        publish("1ms")


@pytest.mark.parametrize(("asked", "there"), [("1", True), ("0", False)])
def test_the_environment_asks_for_it(place: Path, asked: str, there: bool) -> None:
    code = "import os, tritium; print(os.path.exists(os.path.join(os.environ['TRITIUM_RUNTIME'], 'live', f'{os.getpid()}.json')))"
    variables = os.environ | {"TRITIUM_LIVE": asked}
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == str(there)
    assert not list(place.iterdir())  # taken away at its end


# ---- viewing


def test_rates_are_differences_of_two_snapshots(place: Path) -> None:
    viewer = Viewer(sources=[Watts()], clock=iter([200.0, 202.0, 204.0]).__next__)
    snapshot.write(made(ops={"add": 10}, decode_tokens=100), place)
    (first,) = viewer.look().processes
    assert (first.tokens_per_s, first.ops_per_s, first.cpu_percent) == (None, None, None)
    snapshot.write(made(ops={"add": 30, "exp": 4}, decode_tokens=150, time_s=202.0, cpu_s=11.0, running=2), place)
    view = viewer.look()
    (row,) = view.processes
    assert (row.tokens_per_s, row.ops_per_s, row.cpu_percent) == (25.0, 12.0, 50.0)
    assert row.top_ops == (("add", 10.0), ("exp", 2.0))
    assert row.past is not None
    assert row.past["tokens_per_s"] == (None, 25.0)
    assert view.joules == 100.0
    assert view.tokens_per_joule == 0.5
    assert [s.reason for s in view.machine] == ["", "no sensor"]
    snapshot.remove(os.getpid(), place)
    assert viewer.look().processes == ()


def test_a_process_that_started_anew_has_no_rate_yet(place: Path) -> None:
    viewer = Viewer(sources=[Watts()], clock=iter([200.0, 202.0]).__next__)
    snapshot.write(made(decode_tokens=100), place)
    viewer.look()
    snapshot.write(made(decode_tokens=5, started_s=201.0, time_s=202.0), place)
    assert viewer.look().processes[0].tokens_per_s is None


def test_figures_of_this_process_can_be_taken() -> None:
    taken = take(time.time(), 1.0)
    assert taken.pid == os.getpid()
    assert len(taken.ops) <= 32


# ---- the page


def fetched(endpoint: Any, path: str, host: str | None = None) -> Any:
    request = urllib.request.Request(f"http://127.0.0.1:{endpoint.port}{path}")
    if host:
        request.add_header("Host", host)
    return urllib.request.urlopen(request, timeout=20)


def test_the_dashboard_serves_a_page_the_view_and_metrics(place: Path) -> None:
    snapshot.write(made(decode_tokens=3, name="<script>alert(1)</script>"), place)
    with dashboard(Viewer(sources=[Watts()])) as endpoint:
        answer = fetched(endpoint, "/")
        text = answer.read().decode()
        assert answer.headers["Content-Security-Policy"] == policy()
        assert text == page()
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
        view = json.loads(fetched(endpoint, "/view.json").read())
        assert view["processes"][0]["decode_tokens"] == 3
        metrics = fetched(endpoint, "/metrics").read().decode()
        parser = pytest.importorskip("prometheus_client.openmetrics.parser")
        assert {f.name for f in parser.text_string_to_metric_families(metrics)} >= {"tritium_machine_sensor"}


def test_the_dashboard_answers_to_names_of_this_machine_only(place: Path) -> None:
    with dashboard(Viewer(sources=[Watts()])) as endpoint:
        assert endpoint.host == "127.0.0.1"
        with pytest.raises(HTTPError) as refused:
            fetched(endpoint, "/view.json", host="evil.example")
        assert refused.value.code == 403
