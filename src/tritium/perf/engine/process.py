"""A worker process seen from outside: started fresh, asked, stopped while others run, killed when it takes too long.

Whatever happens to the process becomes a `GoneError` with a status and a reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tritium.machine.facts import free_memory
from tritium.perf.records.case import THREADS, Arm
from tritium.perf.records.run import Status

WORKER = Path(__file__).with_name("worker.py")
START_S = 120.0
LOG_TAIL, MOST_LOG = 400, 1 << 20
STOPS = sys.platform == "linux"  # elsewhere a stopped orphan could not be told to die with its parent


class GoneError(Exception):
    """The worker did not answer: it took too long, crashed, or was killed for memory."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class Process:
    """One worker of one arm. `prefix` is a command that runs it, such as valgrind."""

    def __init__(
        self, arm: Arm, *, threads: int, cpus: Sequence[int], rng: random.Random, prefix: Sequence[str] = ()
    ) -> None:
        self.arm = arm
        self.ended = False
        self.log = tempfile.TemporaryFile("a+b")  # noqa: SIM115 (closed by kill)
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        # Another size of the environment and another hash seed move code and data: part of what a generation samples.
        variables = arm.variables() | {
            "PYTHONHASHSEED": str(rng.randrange(1 << 32)),
            "TRITIUM_PADDING": "x" * rng.randrange(4096),
            "TRITIUM_LIVE": "0",  # a thread that publishes would be part of what is measured
        }
        for name in THREADS:
            variables[name] = str(threads)
        try:
            self.child = subprocess.Popen(
                [*prefix, arm.python, "-P", str(WORKER), str(commands), str(answers)], env=variables, pass_fds=(commands, answers),
                stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True,
            )  # fmt: skip
        except OSError:
            os.close(self._commands)
            os.close(self._answers)
            self.log.close()
            raise
        finally:
            os.close(commands)
            os.close(answers)
        self._held = b""
        self.stopped = False
        self._send({
            "parent": os.getpid(), "cpus": list(cpus), "threads": threads, "memory": int(free_memory() * 0.9),
            "candidate": arm.candidate,
        })  # fmt: skip

    def wait_until_ready(self, start_s: float = START_S) -> None:
        """Returns when the worker has imported what it needs."""
        answer = self._receive(time.monotonic() + start_s)
        if answer["status"] != "ok":
            self.kill()
            raise GoneError("failed", f"the worker of {self.arm.name} did not start: {answer['reason']}")
        self.stop()

    def ask(self, timeout_s: float, limit_s: float, **request: Any) -> dict[str, Any]:
        """One command and its answer; other workers are stopped meanwhile. `limit_s` is what the whole case may take."""
        deadline = time.monotonic() + timeout_s
        if self.stopped:
            self.stopped = False
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGCONT)
        self._send(request)
        try:
            answer = self._receive(deadline)
        except TimeoutError:
            self.kill()
            raise GoneError("timed out", f"it took more than {limit_s:.3g} s in all") from None
        self.stop()
        if os.fstat(self.log.fileno()).st_size > MOST_LOG:  # a case that prints in every call would fill the disk
            os.ftruncate(self.log.fileno(), 0)
        return answer

    def stop(self) -> None:
        """Stopped, it cannot disturb: threads that spin for a while after their work do."""
        if STOPS:
            self.stopped = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.child.pid, signal.SIGSTOP)

    def kill(self) -> None:
        """End it, whatever it does, and all it started. A second time does nothing."""
        if self.ended:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()
        for descriptor in (self._commands, self._answers):
            os.close(descriptor)
        self.log.close()
        self.ended = True

    def _send(self, request: dict[str, Any]) -> None:
        try:
            os.write(self._commands, json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            raise self._gone() from None

    def _receive(self, deadline: float) -> dict[str, Any]:
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        while b"\n" not in self._held:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            if poll.poll(1000 * left):
                part = os.read(self._answers, 1 << 20)
                if not part:
                    raise self._gone()
                self._held += part
        line, _, self._held = self._held.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _gone(self) -> GoneError:
        """Return why the process ended by itself."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGCONT)
        try:
            code = self.child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            code = 0
        self.log.seek(max(0, self.log.seek(0, os.SEEK_END) - LOG_TAIL))
        output = self.log.read().decode("utf-8", "replace").strip()
        self.kill()
        tail = f"; it said: {output}" if output else ""
        if code == -signal.SIGKILL:
            return GoneError(
                "out of memory", f"the system killed the process (SIGKILL), as it does when memory runs out{tail}"
            )
        if code < 0:
            return GoneError("crashed", f"the process ended by {signal.Signals(-code).name}{tail}")
        if "MemoryError" in output:
            return GoneError("out of memory", f"an allocation was refused{tail}")
        return GoneError("crashed", f"the process ended with exit code {code}{tail}")
