"""Access: keys that change while a server runs, and what each client may have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("h11", reason="needs the extra 'run'")

from calls import call
from markov import Model
from tritium.errors import ArgumentError
from tritium.serve.access import MOST_CLIENTS, Access, Keys, Quota, read_keys
from tritium.serve.protocols.common import ProtocolError
from tritium.serve.server import Server


def make(**options: object) -> Server:
    return Server(Model(), port=0, grace_s=5.0, **options)  # type: ignore[arg-type]


def write(file: Path, text: str, at: int) -> None:
    file.write_text(text)
    os.utime(file, ns=(at, at))


def test_a_key_is_never_shown() -> None:
    assert "s3cret" not in repr(Access(Keys("s3cret")))


@pytest.mark.parametrize("key", ["", " a", "a\n", "é"])
def test_a_key_no_header_can_carry_is_refused(key: str) -> None:
    with pytest.raises(ArgumentError, match="printable ASCII"):
        Keys(key)


def test_a_file_has_keys_and_names(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nk1\n\n  alice   k2  \nbob k3\n")
    assert read_keys(file) == {b"k1": "key 1", b"k2": "alice", b"k3": "bob"}
    keys = Keys(file=file)
    assert [keys.name_of(k) for k in ("k1", "k2", "k3", "", "k", "alice", "#")] == [
        "key 1",
        "alice",
        "bob",
        None,
        None,
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "holds no API key"), ("# only\n", "holds no API key"), ("a b c\n", "3 words"), ("é\n", "printable ASCII"),
     ("k\n" * 3 + "x" * (1 << 18), "longer than"), ("".join(f"k{i}\n" for i in range(1025)), "1025 API keys")],
    ids=["empty", "comment", "words", "no ASCII", "long", "many"],
)  # fmt: skip
def test_a_file_without_usable_keys_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ArgumentError, match=message):
        Keys(file=file)


def test_keys_change_while_a_server_runs(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    write(file, "old\n", 10**18)
    with make(api_key_file=file) as s:
        assert call(s, "GET", "/v1/models", authorization="Bearer old")[0] == 200
        write(file, "alice new\nold\n", 2 * 10**18)  # both, while clients change over
        assert call(s, "GET", "/v1/models", authorization="Bearer new")[0] == 200
        assert call(s, "GET", "/v1/models", authorization="Bearer old")[0] == 200
        write(file, "alice new\n", 3 * 10**18)
        assert call(s, "GET", "/v1/models", authorization="Bearer old")[0] == 401
        assert call(s, "GET", "/v1/models", x_api_key="new")[0] == 200
        write(file, "", 4 * 10**18)  # a mistake locks nobody out, and lets nobody in
        assert call(s, "GET", "/v1/models", authorization="Bearer new")[0] == 200
        file.unlink()
        assert call(s, "GET", "/v1/models", authorization="Bearer new")[0] == 200
        assert call(s, "GET", "/v1/models", authorization="Bearer other")[0] == 401
        assert call(s, "GET", "/v1/models")[0] == 401


def test_one_key_or_a_file_of_them() -> None:
    with pytest.raises(ArgumentError, match="both given"):
        make(api_key="a", api_key_file="b")


# ---- quotas


def test_a_client_sends_so_many_requests_a_minute() -> None:
    now = [0.0]
    quota = Quota(rate=3, clock=lambda: now[0])
    for _ in range(3):
        quota.admit("a")
    with pytest.raises(ProtocolError) as caught:
        quota.admit("a")
    assert (caught.value.status, caught.value.headers["retry-after"]) == (429, "20")
    quota.admit("b")  # another has its own
    now[0] = 20.0
    quota.admit("a")
    with pytest.raises(ProtocolError):
        quota.admit("a")
    now[0] = 1e6  # no more than a minute's is saved up
    for _ in range(3):
        quota.admit("a")
    with pytest.raises(ProtocolError):
        quota.admit("a")


def test_a_client_has_so_many_answers_at_once() -> None:
    quota = Quota(share=3)
    quota.take("a", 2)
    with pytest.raises(ProtocolError) as caught:
        quota.take("a", 2)
    assert caught.value.status == 429
    quota.take("b", 3)
    quota.give_back("a", 2)
    quota.take("a", 3)


def test_clients_that_hold_nothing_are_forgotten() -> None:
    now = [0.0]
    quota = Quota(rate=1, clock=lambda: now[0])
    for i in range(MOST_CLIENTS):
        quota.admit(str(i))
    now[0] = 61.0
    quota.admit("new")
    assert len(quota._clients) == 1


@pytest.mark.parametrize("options", [{"rate": 0}, {"rate": float("nan")}, {"share": 0}], ids=str)
def test_quotas_that_allow_nothing_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ArgumentError, match=r"[sS]erver?: "):
        make(**options)


def test_a_server_keeps_quotas_by_key(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("alice a\nbob b\n")
    body = {"prompt": "x", "max_tokens": 1, "n": 2}
    with make(api_key_file=file, rate=2, share=2) as s:
        for _ in range(2):
            assert call(s, "POST", "/v1/completions", body, authorization="Bearer a")[0] == 200
        status, headers, found = call(s, "POST", "/v1/completions", body, authorization="Bearer a")
        assert (status, found["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(headers["retry-after"]) >= 1
        assert call(s, "POST", "/v1/completions", body, authorization="Bearer b")[0] == 200
        status, _, found = call(s, "POST", "/v1/completions", {**body, "n": 3}, authorization="Bearer b")
        assert (status, found["error"]["type"]) == (429, "rate_limit_error")
