"""Targets of `tritium profile` and `tritium memory`: a script or module run inside this process, or a workload.

A script runs as `python SCRIPT ARGS` would run it, and its exit code is handed back.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from tritium.cli.text import INTERRUPTED, shown
from tritium.errors import ArgumentError, nearest

if TYPE_CHECKING:
    from tritium.perf.records.case import Case

OURS = (__file__, "<frozen runpy>", "<frozen importlib._bootstrap>", runpy.__file__)
MAINS = ("__main__.py", "__main__.pyc")  # what makes a folder run


def check_outputs(paths: Sequence[str], script: str | None = None, inputs: Iterable[str] = ()) -> None:
    """Refuse to write over what is read, over a program, or twice into one file."""
    read = [Path(path) for path in inputs]
    real = [Path(os.path.realpath(path)) for path in paths]
    for i, path in enumerate(real):
        name = shown(paths[i])
        if script is not None and _same(path, Path(script)):
            raise click.UsageError(f"{name} would be written over: that is the script; name another file.")
        if path.suffix.lower() in (".py", ".pyw") or any(_same(path, other) for other in read):
            raise click.UsageError(f"{name} would be written over; name another file.")
        if any(_same(path, other) for other in real[:i]):
            raise click.UsageError(f"{name} is named twice; each output needs a file of its own.")


def check_folders(paths: Iterable[str]) -> None:
    """Every file has a folder to stand in."""
    for path in paths:
        if not Path(path).absolute().parent.is_dir():
            raise click.UsageError(f"{shown(path)}: there is no such folder; make it, or name another file.")


def _same(a: Path, b: Path) -> bool:
    return a == Path(os.path.realpath(b)) or (a.exists() and b.exists() and a.samefile(b))


def check_target(script: str | None, module: str | None, workload: str | None = None) -> None:
    """Exactly one thing to run, and it is there; ArgumentError otherwise."""
    names = [what for what, on in (("SCRIPT", script), ("-m MODULE", module), ("--workload NAME", workload)) if on]
    if len(names) != 1:
        text = f"given {' and '.join(names)}" if names else "none was given"
        raise ArgumentError(f"one of SCRIPT, -m MODULE and --workload NAME is needed; {text}.")
    if script is not None and not os.path.exists(script):
        raise ArgumentError(f"there is no script {shown(script)}.")
    if script is not None and os.path.isdir(script) and not any(os.path.exists(os.path.join(script, m)) for m in MAINS):
        raise ArgumentError(f"{shown(script)}: a folder without __main__.py cannot be run; name a file in it.")
    if module is not None:
        _check_module(module)
    if workload is not None:
        workload_case(workload)


def _check_module(module: str) -> None:
    with _place("", [module]):
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise ArgumentError(f"-m {shown(module)}: {shown(str(error))}.") from None
    if spec is None:
        raise ArgumentError(f"-m {shown(module)}: there is no such module.")


def run_target(script: str | None, module: str | None, args: Sequence[str] = ()) -> int:
    """Run a script (a file, a folder or a zip file with __main__.py) or a module as __main__; its exit code.

    What it raises is shown as Python shows it, without our own frames, and is exit code 1.
    """
    check_target(script, module)
    folder = os.path.dirname(os.path.realpath(script)) if script is not None else os.getcwd()
    with _place(folder, [script or module or "", *args]):
        try:
            if script is not None:
                runpy.run_path(script, run_name="__main__")
            else:
                runpy.run_module(module or "", run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as asked:
            code = _exit_code(asked.code)
        except KeyboardInterrupt as error:
            code = INTERRUPTED
            _show(error)
        except BaseException as error:
            code = 1
            _show(error)
        _wait_for_threads()
    return code


@contextmanager
def _place(folder: str, argv: list[str]) -> Iterator[None]:
    """sys.argv and sys.path as the target expects them; as they were afterwards."""
    argv_before, path_before = sys.argv, list(sys.path)
    sys.argv = argv
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv_before, path_before


def _exit_code(code: Any) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    sys.stderr.write(f"{code}\n")  # as Python does with sys.exit("text")
    return 1


def _show(error: BaseException) -> None:
    """Print an exception as Python would, or with the target's own sys.excepthook."""
    error.__traceback__ = _theirs(error.__traceback__)
    sys.excepthook(type(error), error, error.__traceback__)


def _theirs(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins in the target."""
    frame = trace
    while frame is not None and frame.tb_frame.f_code.co_filename in OURS:
        frame = frame.tb_next
    return frame


def _wait_for_threads() -> None:
    """Python waits for threads that are no daemons before it ends; so do we before we tell what happened."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


# ---- workloads


def workload_case(spec: str) -> Case:
    """The case of a workload's name, with or without a shape: decode, or decode 8x256x1024."""
    from tritium.perf.work import workloads
    from tritium.perf.work.operations import WORKLOADS

    name, _, size = spec.strip().partition(" ")
    if name not in WORKLOADS:
        raise ArgumentError(
            f"--workload: {name!r} is none; there are {', '.join(WORKLOADS)}.{nearest(name, WORKLOADS)}"
        )
    if not size:
        usual = [c for c in workloads.workloads() if c.context.operation == name]
        return usual[0] if usual else workloads.cases(name, [(1, 64, 1024)])[0]
    parts = size.strip().replace("×", "x").split("x")
    if not all(p.isdigit() for p in parts):
        raise ArgumentError(f"--workload {name}: {size!r} is not a shape; write it as 8x256x1024.")
    shape = tuple(map(int, parts))
    cases = workloads.cases(name, [shape])
    if not cases:
        raise ArgumentError(f"--workload: {workloads.refusal(name, shape, 'f32')}")
    return cases[0]


def make_workload(spec: str, candidate: str = "tritium") -> tuple[str, Callable[[], Any]]:
    """A workload, made and ready: its whole name, and a function that does it once and waits until it is done."""
    from tritium.perf.engine import worker
    from tritium.perf.records.case import UnsupportedError

    case = workload_case(spec)
    try:
        workload = worker.resolve(case.recipe.target)(candidate, **case.recipe.arguments)
    except UnsupportedError as error:
        raise ArgumentError(f"--workload {case.name}: {error}") from None
    wait = workload.wait or (lambda result: result)
    return case.name, lambda: wait(workload.call())
