"""`tritium history`: whatever names a results file holds, a terminal and a log see text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hostile import NAMES
from measured import HOSTILE, hostile
from tritium.cli.history import history
from tritium.errors import TritiumError
from tritium.perf.store import results as store


def run(*args: Any) -> str:
    """Everything it prints, of an error too."""
    found = CliRunner().invoke(history, [str(a) for a in args])
    assert found.exception is None or isinstance(found.exception, (SystemExit, TritiumError)), found.exception
    return found.output + (str(found.exception) if isinstance(found.exception, TritiumError) else "")


@pytest.mark.parametrize("name", [*HOSTILE.values(), *NAMES[::40]], ids=ascii)
def test_no_name_in_the_history_moves_a_terminal_or_commands_a_log(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITIUM_DATA", str(tmp_path / "data"))
    case = hostile(name).runs[0].case
    printed = [
        run("--add", store.save(hostile(name), tmp_path / "r.json")), run("--json"), run(f"--arm={name}", "--", case), run("--", f"{case}x"),
        run("--", f"{name[:-1]}y"), run(f"--metric={name}", "--", case), run(f"--arm={name}", "--json", "--", case),
    ]  # fmt: skip
    for text in printed:
        assert all(c.isprintable() or c == "\n" for c in text), ascii(text)
        if not text.startswith(("[", "{")):  # JSON is exact
            assert not [line for line in text.splitlines() if line.lstrip().startswith("::") or "##[" in line]
