"""The Dockerfile: its stages as text, and its steps run here over a pure-Python wheel; where docker is, the image itself."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
KEY = "k" * 40


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions: a word and the rest of the line, continued lines joined."""
    joined = re.sub(r"\\\n\s*", " ", TEXT)
    lines = [line.strip() for line in joined.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def values(word: str) -> list[str]:
    return [rest for name, rest in instructions() if name == word]


ENTRYPOINT: list[str] = json.loads(values("ENTRYPOINT")[0])
HEALTH: list[str] = json.loads(values("HEALTHCHECK")[0].partition("CMD ")[2])


def test_the_last_stage_has_no_compiler_and_no_rights() -> None:
    words = [word for word, _ in instructions()]
    assert words.count("FROM") == 2
    last = instructions()[len(words) - 1 - words[::-1].index("FROM") :]
    assert not [rest for word, rest in last if word == "RUN" and "apt-get" in rest]
    assert values("USER") == ["10001"]
    assert values("VOLUME") == ["/models"]
    assert [word for word, _ in last].index("USER") < [word for word, _ in last].index("ENTRYPOINT")


def test_what_the_build_copies_is_not_ignored() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    assert "*" in lines
    assert {"CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml", "csrc", "src", "tools"} == allowed
    assert [name for name in allowed if not (ROOT / name).exists()] == []


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheel installed, as the two RUN steps do; dependencies are those of this environment."""
    pytest.importorskip("scikit_build_core.build", reason="needs scikit-build-core: pip install scikit-build-core")
    pytest.importorskip("h11")
    pytest.importorskip("tokenizers")
    if subprocess.run([sys.executable, "-m", "pip", "--version"], check=False, capture_output=True).returncode:
        pytest.skip("needs pip in this environment")
    folder = tmp_path_factory.mktemp("container")
    source = folder / "source"
    source.mkdir()
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if line.startswith("!"):
            path = ROOT / line[1:]
            skip = shutil.ignore_patterns("*.so", "__pycache__")
            shutil.copytree(path, source / path.name, ignore=skip) if path.is_dir() else shutil.copy(path, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", "wheels", "./source"]
    subprocess.run(build, cwd=folder, check=True, env=os.environ | {"TRITIUM_PURE": "1"}, capture_output=True)
    wheel = next((folder / "wheels").glob("tritium-*.whl"))
    install = [*pip, "install", "--no-deps", "--no-index", "--target", "site", f"{wheel}[run]"]
    subprocess.run(install, cwd=folder, check=True, capture_output=True)
    return folder / "site"


def environment(installed: Path, tmp_path: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(installed), "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}


def tritium(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tritium", *arguments]


def test_the_entry_point_has_the_options_it_is_given(installed: Path, tmp_path: Path) -> None:
    assert ENTRYPOINT[:2] == ["tritium", "serve"]
    help_text = subprocess.run(
        tritium("serve", "--help"), check=True, capture_output=True, text=True, env=environment(installed, tmp_path)
    ).stdout
    assert [o for o in ENTRYPOINT if o.startswith("--") and o not in help_text] == []


def test_the_health_check_passes_while_the_server_runs_and_fails_after(installed: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(KEY, encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    here = {"8080": port, "0.0.0.0": "127.0.0.1", "/run/secrets/api-key": str(key)}
    options = [here.get(word, word) for word in ENTRYPOINT[1:]]
    health = [sys.executable, *(word.replace(":8080/", f":{port}/") for word in HEALTH[1:])]
    env = environment(installed, tmp_path)
    server = subprocess.Popen(tritium(*options, "--slots", "1"), env=env, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 90
        while subprocess.run(health, check=False, capture_output=True).returncode:
            assert server.poll() is None, "the server ended"
            assert time.monotonic() < deadline, "the server did not answer within 90 s"
            time.sleep(0.2)
        with pytest.raises(HTTPError, match="401"):  # without the key of the file
            urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=10)
    finally:
        server.terminate()
        server.wait(60)
    assert subprocess.run(health, check=False, capture_output=True).returncode != 0


def test_the_image_builds_and_shows_its_help() -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], check=False, capture_output=True).returncode:
        pytest.skip("needs a running docker")
    subprocess.run([docker, "build", "-q", "-t", "tritium-test", str(ROOT)], check=True)
    shown = subprocess.run(
        [docker, "run", "--rm", "--read-only", "--tmpfs", "/tmp", "tritium-test", "--help"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert "--api-key-file" in shown.stdout
