"""A hub of models on this machine: as much of the Hugging Face hub's protocol as `huggingface_hub` needs to list and fetch files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

API = re.compile(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?")
RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


def commit_of(number: int) -> str:
    return f"{number:040x}"


@dataclass
class Repo:
    """A repository: the files of each revision, and how it answers."""

    files: dict[str, bytes]
    commit: str = commit_of(0xABC)
    branches: dict[str, str] = field(default_factory=lambda: {"main": commit_of(0xABC)})
    gated: bool = False
    status: int = 0  # of every answer, instead of what it has
    listed: dict[str, int] = field(default_factory=dict)  # files in the listing alone, with their sizes
    cuts: int = 0  # downloads that stop halfway
    garbage: bytes = b""  # instead of a listing
    moves: bool = False  # the branch is at another commit when files are asked for


@dataclass
class Hub:
    """The repositories of a server, and what it was asked."""

    repos: dict[str, Repo] = field(default_factory=dict)
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    url: str = ""

    def downloads(self) -> list[str]:
        """Return the files whose bytes were sent, in order."""
        return [
            unquote(path.rpartition("/")[2])
            for method, path, _ in self.asked
            if method == "GET" and "/resolve/" in path
        ]

    def add(self, name: str, files: dict[str, bytes | Path], **more: Any) -> Repo:
        read = {k: v.read_bytes() if isinstance(v, Path) else v for k, v in files.items()}
        self.repos[name] = Repo(read, **more)
        return self.repos[name]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        path = urlsplit(self.path).path
        self.hub.asked.append((self.command, path, {k.title(): v for k, v in self.headers.items()}))
        match = API.fullmatch(path) or RESOLVE.fullmatch(path)
        repo = self.hub.repos.get(match[1]) if match else None
        if match is None or repo is None:
            return self.refuse(404, "RepoNotFound")
        if repo.status:
            return self.refuse(repo.status, "")
        if repo.gated and "Authorization" not in self.headers:
            return self.refuse(401, "GatedRepo")
        revision = unquote(match[2] or "main")
        commit = repo.branches.get(revision, revision if revision == repo.commit else None)
        if commit is None:
            return self.refuse(404, "RevisionNotFound")
        if match.re is API:
            return self.listing(match[1], repo, commit)
        return self.file(repo, unquote(match[3]), commit_of(0xDEF) if repo.moves else commit)

    def refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def listing(self, name: str, repo: Repo, commit: str) -> None:
        sizes = {k: len(v) for k, v in repo.files.items()} | repo.listed
        files = [{"rfilename": k, "size": size, "blobId": "0"} for k, size in sizes.items()]
        body = json.dumps({"id": name, "sha": commit, "siblings": files, "tags": [], "private": False}).encode()
        body = repo.garbage or body
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def file(self, repo: Repo, name: str, commit: str) -> None:
        data = repo.files.get(name)
        if data is None:
            return self.refuse(404, "EntryNotFound")
        start = int(re.findall(r"\d+", self.headers.get("Range", "bytes=0-"))[0])
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", commit)
        self.send_header("Accept-Ranges", "bytes")
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if self.command == "HEAD":
            return None
        if repo.cuts:
            repo.cuts -= 1
            self.wfile.write(data[start : start + max((len(data) - start) // 2, 1)])
            self.close_connection = True
            return None
        self.wfile.write(data[start:])
        return None


@contextmanager
def serving() -> Iterator[Hub]:
    """Run a hub on a free port of this machine."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def use(monkeypatch: pytest.MonkeyPatch, url: str, cache: Path) -> None:
    """Let `huggingface_hub` of this process ask a server, and keep files in a folder; it reads the environment when imported."""
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    close_session()  # the next one reads the setting
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "no-token"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
