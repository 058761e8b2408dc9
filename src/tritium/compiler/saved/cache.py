"""A folder of optimised programs: those that one process has compiled, another one loads.

Knows nothing of how a function is traced. A program is found by a key of its graph as written, the layouts of its tensors, the
version of the package, the instruction set and the device. Captured tensors are not stored: the traced function has them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tritium import settings
from tritium.backends import Backend
from tritium.compiler.patterns import patterns
from tritium.compiler.program import Program
from tritium.compiler.saved import file
from tritium.errors import ArgumentError, DeviceError, FormatError, MissingFileError, SaveError
from tritium.escape import visible
from tritium.graph.graph import Graph
from tritium.layout import Layout
from tritium.machine import files

SUFFIX = ".program.safetensors"
MAX_BYTES = 256 << 20  # of all programs in a folder; the least recently used ones go
MAX_FILES = 4096


class ProgramCache:
    """A folder of optimised programs. Several processes may use it at once."""

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> None:
        self.folder = Path(folder)
        self.max_bytes, self.max_files = max_bytes, max_files
        self.loaded = self.written = 0

    def program(
        self, graph: Graph, backend: Backend, layouts: tuple[Layout, ...], name: str, disabled: Sequence[str]
    ) -> Program:
        """Return the program of a graph: loaded if the folder has it, else compiled, and written to the folder."""
        if patterns():  # functions, which no file holds
            return Program(graph, backend, layouts, name=name, disable=disabled)
        try:
            path = self._path(graph, backend, layouts, disabled)
        except ArgumentError:  # an attribute of an op that no text holds
            return Program(graph, backend, layouts, name=name, disable=disabled)
        program = self._load(path, graph, backend)
        if program is None:
            program = Program(graph, backend, layouts, name=name, disable=disabled)
            self._store(path, program, layouts)
        return program

    def _path(self, graph: Graph, backend: Backend, layouts: Sequence[Layout], disabled: Sequence[str]) -> Path:
        device = backend.device
        captured = [x.layout for x in graph.captured.values()]
        lay = [(a.strides, a.offset if i < len(layouts) else 0) for i, a in enumerate((*layouts, *captured))]
        facts = (
            *file.origin_of(device),
            sorted(disabled),
            lay,
            graph.returned,
            graph.single,
            file.graph_text(graph, device),
        )
        key = hashlib.sha256("\n".join(map(str, facts)).encode()).hexdigest()
        return self.folder / f"{key[:40]}{SUFFIX}"

    def _load(self, path: Path, graph: Graph, backend: Backend) -> Program | None:
        """Return a program of the folder; None if it is not there, or a warning was logged that it cannot be used."""
        try:
            saved = file.read(path, backend.device, False, file.in_order(graph))
            if saved.text() != file.graph_text(graph, backend.device):
                raise FormatError("it is the program of another graph")
            if saved.optimised is None:
                raise FormatError(saved.why_not)
        except MissingFileError:
            return None
        except (FormatError, DeviceError, OSError, KeyError, TypeError) as error:
            settings.log.warning("compile: %s cannot be used, and is written again: %s", visible(str(path)), error)
            return None
        program = Program.restore(saved)
        program.be_traced_from(graph)
        self.loaded += 1
        with suppress(OSError):
            os.utime(path)  # used now
        return program

    def _store(self, path: Path, program: Program, layouts: Sequence[Layout]) -> None:
        device = program.backend.device
        graphs = (program.source, program.graph)
        given = file.in_order(program.source)
        try:
            files.make_folder(self.folder)
            file.write(path, graphs, layouts, device, program.name, tuple(program.disabled), None, True, given)
            self._trim()
        except (ArgumentError, FormatError, SaveError, OSError) as error:
            settings.log.warning("compile: the program was not written to %s: %s", visible(str(self.folder)), error)
            return
        self.written += 1

    def _trim(self) -> None:
        """Remove the least recently used programs of a folder that holds too many."""
        known = []
        for path in self.folder.glob(f"*{SUFFIX}"):
            with suppress(OSError):
                status = path.stat()
                known.append((status.st_mtime_ns, status.st_size, path))
        known.sort(reverse=True)
        total = 0
        for i, (_, nbytes, path) in enumerate(known):
            total += nbytes
            if i >= self.max_files or (total > self.max_bytes and i):
                files.remove(path)
