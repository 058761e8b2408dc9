"""Ranks that are processes, connected by torch.distributed: the tokens of one process, and an error in seconds when one is killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

import tritium as tt
from tritium.models.load import shipped

pytest.importorskip("torch.distributed", reason="PyTorch is not installed")
LIMIT_S = 120  # for processes to start on a busy machine
SOON_S = 10  # after a rank is killed
LONG = os.environ.get("TRITIUM_LONG") == "1"
Ranks = list[subprocess.Popen[str]]


@contextmanager
def started(count: int, *command: str) -> Iterator[Ranks]:
    """Start the command once for each rank, as torchrun does; none of them outlives the test."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    known = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tritium", *command], env=os.environ | known | {"RANK": str(r)}, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for r in range(count)
    ]  # fmt: skip
    try:
        yield ranks
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("count", [2, *([3, 4] if LONG else [])])
def test_processes_generate_the_tokens_of_one(count: int) -> None:
    options = ("generate", str(shipped()), "-p", "In the", "-n", "24", "-t", "0.8", "--seed", "3", "--json")
    wanted = tt.load().generate("In the", max_tokens=24, temperature=0.8, seed=3)
    with started(count, *options) as ranks:
        out, err = ranks[0].communicate(timeout=LIMIT_S)
        assert ranks[0].returncode == 0, err
        assert json.loads(out)["tokens"] == list(wanted.tokens)
        assert [r.wait(LIMIT_S) for r in ranks[1:]] == [0] * (count - 1)


@pytest.mark.parametrize("victim", [1, *([0] if LONG else [])])
def test_a_killed_rank_is_named_in_seconds_and_leaves_no_orphan(victim: int) -> None:
    with started(2, "generate", str(shipped()), "-p", "In the", "-t", "1", "-n", "500") as ranks:
        assert ranks[0].stdout is not None
        assert len(ranks[0].stdout.read(20)) == 20  # it decodes
        begun = time.monotonic()
        ranks[victim].send_signal(signal.SIGKILL)
        survivor = ranks[1 - victim]
        survivor.wait(SOON_S)
        assert survivor.returncode == 2
        assert time.monotonic() - begun < SOON_S
        assert survivor.stderr is not None
        assert f"Rank {1 - victim}: rank {victim} of 2 is gone or stopped" in survivor.stderr.read()


@pytest.mark.skipif(not LONG, reason="TRITIUM_LONG=1 runs it")
def test_a_server_answers_as_one_process_does_and_ends_when_a_rank_is_gone() -> None:
    with started(2, "serve", str(shipped()), "--port", "0") as ranks:
        assert ranks[0].stderr is not None
        line = ranks[0].stderr.readline()
        assert "at http://127.0.0.1" in line
        url = line.split(" at ")[1].split("/v1")[0]
        body = {"prompt": "In the", "max_tokens": 16, "temperature": 0.7, "seed": 5}
        with urlopen(Request(f"{url}/v1/completions", json.dumps(body).encode())) as response:
            answer = json.load(response)["choices"][0]["text"]
        assert answer == tt.load().generate("In the", max_tokens=16, temperature=0.7, seed=5).text
        ranks[1].send_signal(signal.SIGKILL)
        assert ranks[0].wait(SOON_S) == 2
        assert "rank 1 of 2 is gone or stopped" in ranks[0].stderr.read()


@pytest.mark.skipif(not LONG, reason="TRITIUM_LONG=1 runs it")
def test_a_row_of_a_mesh_is_a_group_of_its_own(tmp_path: Path) -> None:
    """Two replicas of two ranks, each with a prompt of its own."""
    script = tmp_path / "mesh.py"
    script.write_text("""
import torch.distributed as dist, tritium as tt
dist.init_process_group("gloo")
mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "rank"))
prompt = ("In the", "And God")[dist.get_rank() // 2]
model = tt.load(parallel=mesh["rank"])
assert model.generate(prompt, max_tokens=12).tokens == tt.load().generate(prompt, max_tokens=12).tokens
""")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", str(script)]
    subprocess.run(command, check=True, timeout=LIMIT_S)


def test_a_mesh_of_one_process_is_a_group_and_other_things_are_not(tmp_path: Path) -> None:
    code = """
import torch.distributed as dist, tritium as tt
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = dist.init_device_mesh("cpu", (1,))
a = tt.load(parallel=mesh).generate("In", max_tokens=4).tokens
assert a == tt.load(parallel=True).generate("In", max_tokens=4).tokens == tt.load().generate("In", max_tokens=4).tokens
for wrong, words in ((3, "a Group, a DeviceMesh or a process group is needed"), (dist.init_device_mesh("cpu", (1, 1)), "one axis")):
    try:
        tt.load(parallel=wrong)
    except tt.errors.ArgumentError as error:
        assert words in str(error), error
    else:
        raise AssertionError(wrong)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=LIMIT_S, cwd=tmp_path)
