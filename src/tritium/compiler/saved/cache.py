"""A folder of optimised programs: those that one process has compiled, another one loads.

A program is found by a key of its graph as written, the layouts of its tensors, the version of the package, the instruction
set and the device. Captured tensors are not stored: the traced function has them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tritium import settings
from tritium.backends import Device
from tritium.compiler.saved import file
from tritium.compiler.saved.file import SavedProgram
from tritium.errors import ArgumentError, FormatError, TritiumError
from tritium.escape import visible
from tritium.graph.graph import Graph
from tritium.layout import Layout
from tritium.machine import files

SUFFIX = ".program.safetensors"
MAX_BYTES = 256 << 20  # of all programs in a folder; the least recently used ones go
MAX_FILES = 4096


class Place(NamedTuple):
    """The file of a program, and its graph as written."""

    path: Path
    text: str


class ProgramCache:
    """A folder of optimised programs. Several processes may use it at once."""

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> None:
        self.folder = Path(folder)
        self.max_bytes, self.max_files = max_bytes, max_files
        self.loaded = self.written = 0

    def find(self, graph: Graph, device: Device, layouts: Sequence[Layout], disabled: Iterable[str]) -> Place | None:
        """Return where the program of a graph is kept; None if an attribute of the graph is one that no text holds."""
        try:
            text = file.graph_text(graph, device)
        except ArgumentError:
            return None
        strides = [x.strides for x in (*layouts, *(x.layout for x in graph.captured.values()))]
        facts = (*file.origin_of(device), sorted(disabled), strides, graph.returned, graph.single, text)
        key = hashlib.sha256("\n".join(map(str, facts)).encode()).hexdigest()
        return Place(self.folder / f"{key[:40]}{SUFFIX}", text)

    def load(self, place: Place, graph: Graph, device: Device) -> SavedProgram | None:
        """Return the program of a file; None if it is not there, or a warning was logged that it cannot be used."""
        path = place.path
        if not path.exists():
            return None
        try:
            saved = file.read(path, device, False, file.in_order(graph))
            if saved.text() != place.text:
                raise FormatError("it is the program of another graph")
            if saved.optimised is None:
                raise FormatError(saved.why_not)
        except (TritiumError, OSError, KeyError, TypeError) as error:
            settings.log.warning("compile: %s cannot be used, and is written again: %s", visible(str(path)), error)
            return None
        self.loaded += 1
        with suppress(OSError):
            os.utime(path)  # used now
        return saved

    def store(
        self,
        place: Place,
        graphs: tuple[Graph, Graph],
        layouts: Sequence[Layout],
        device: Device,
        name: str,
        disabled: Iterable[str],
    ) -> None:
        """Write a program, its graph as written and as optimised; where that fails, log a warning."""
        try:
            files.make_folder(self.folder)
            known = file.in_order(graphs[0])
            file.write(place.path, graphs, layouts, device, name, tuple(disabled), None, True, known)
            self._trim()
        except (TritiumError, OSError) as error:
            settings.log.warning("compile: the program was not written to %s: %s", visible(str(self.folder)), error)
            return
        self.written += 1

    def _trim(self) -> None:
        """Remove the least recently used programs of a folder that holds too many."""
        programs = []
        for path in self.folder.glob(f"*{SUFFIX}"):
            with suppress(OSError):
                status = path.stat()
                programs.append((status.st_mtime_ns, status.st_size, path))
        programs.sort(reverse=True)
        total = 0
        for i, (_, nbytes, path) in enumerate(programs):
            total += nbytes
            if i >= self.max_files or (total > self.max_bytes and i):
                files.remove(path)
