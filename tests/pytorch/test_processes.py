"""Training over two processes: the losses of one, an eighth of the bytes gathered, and checkpoints from which it goes on exactly."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tritium.errors import ArgumentError, PackageError

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
if not torch.distributed.is_available():
    pytest.skip("needs torch.distributed", allow_module_level=True)

import training_rank as rank  # noqa: E402
from tritium.torch import Training, checkpoint_blocks, fit, next_token_loss, shard  # noqa: E402

COUNT = 2
LIMIT_S = 240  # for processes on a busy machine


@pytest.fixture(scope="module")
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def results(folder: Path) -> list[dict[str, Any]]:
    """What each rank printed."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    known = {"WORLD_SIZE": str(COUNT), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(rank.__file__)), str(folder)]
    ranks = [
        subprocess.Popen(command, env=os.environ | known | {"RANK": str(r)}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for r in range(COUNT)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=LIMIT_S) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0] * COUNT, said[0][1][-3000:]
    return [json.loads(out) for out, _ in said]


@pytest.mark.parametrize("form", rank.FORMS)
def test_losses_of_two_processes_are_those_of_one(form: str, results: list[dict[str, Any]], one_thread: None) -> None:
    alone = fit(rank.prepared(form), rank.windows(), rank.recipe(form), pieces=COUNT)
    assert results[0][f"fsdp {form}"] == results[1][f"fsdp {form}"] == alone


@pytest.mark.parametrize("way", ["floats", "checkpointed", "ddp", *(["compiled"] if rank.LONG else [])])
def test_other_ways_have_the_same_losses(way: str, results: list[dict[str, Any]]) -> None:
    assert results[0][way] == results[1][way] == results[0]["fsdp tensor"]


@pytest.mark.parametrize("way", ["fsdp", "ddp"])
def test_a_student_of_two_processes_has_the_losses_of_one(
    way: str, results: list[dict[str, Any]], one_thread: None
) -> None:
    alone = rank.distilled(rank.alone)
    assert results[0][f"distilled {way}"] == results[1][f"distilled {way}"] == alone
    assert len(set(alone)) == rank.STEPS


@pytest.mark.parametrize("way", rank.WATCHED)
def test_the_records_of_two_processes_are_those_of_one(
    way: str, results: list[dict[str, Any]], folder: Path, one_thread: None
) -> None:
    make, _, changes = rank.WATCHED[way]
    alone = rank.watched(make, rank.alone, folder, way, **changes)
    assert results[0]["watched"][way] == results[1]["watched"][way]
    assert json.loads((folder / f"{way}.two.json").read_text())["training"] == results[0]["watched"][way]
    assert len(alone) == rank.STEPS
    for ours, theirs in zip(results[0]["watched"][way], alone, strict=True):
        gradients = [{n: layer.pop("gradient") for n, layer in row["layers"].items()} for row in (ours, theirs)]
        assert gradients[0] == pytest.approx(gradients[1], rel=1e-12)
        assert all(norm > 0 for norm in gradients[1].values()) or way == "lora"  # of a new adapter A has none
        assert ours == theirs
    assert ("absent" in alone[0]) == (way == "lora")


def test_pieces_change_the_rounding_of_a_gradient_alone(one_thread: None) -> None:
    whole, pieces = (fit(rank.prepared(), rank.windows(), rank.recipe(), pieces=n) for n in (1, 4))
    assert whole == pytest.approx(pieces, rel=1e-3)


def test_ternary_layers_gather_two_bits_a_weight(results: list[dict[str, Any]]) -> None:
    counted = results[0]["bytes"]
    model = rank.prepared()
    ternary = sum(p.numel() for n, p in model.named_parameters() if n.endswith(("up.weight", "down.weight")))
    gathers = 2 * rank.STEPS  # forward and backward
    saved = counted["floats"] - counted["fsdp tensor"]
    assert saved == gathers * ternary * (4 - 1 / 4) / COUNT  # f32 to two bits
    assert counted["ddp"] == 0


@pytest.mark.parametrize("way", ["fsdp", "ddp"])
def test_a_training_that_goes_on_equals_one_that_did_not_stop(way: str, results: list[dict[str, Any]]) -> None:
    for said in results:
        whole, again = said[f"resumed {way}"]
        assert again == whole
        assert len(whole) == rank.STEPS


def test_one_process_goes_on_from_a_checkpoint_of_two(
    results: list[dict[str, Any]], folder: Path, one_thread: None
) -> None:
    training = Training(rank.prepared(), rank.recipe(), pieces=COUNT)
    training.load(folder / "shared.pt")
    for step in range(1, rank.STEPS):
        training.step(rank.windows()(step))
    assert training.losses == results[0]["fsdp tensor"]


def test_what_cannot_be_gathered_as_codes_is_named(results: list[dict[str, Any]]) -> None:
    said = results[0]["failures"]
    assert "lambda 0.0 are not ternary" in said["lambda"]
    assert "31 rows, which 2 processes cannot share evenly" in said["odd"]
    assert "blocks.0.up has a learned scale" in said["learned"]
    assert "divided into 2 pieces" in said["batch"]
    assert "which FSDP2 does not divide. Copy it: DistributedDataParallel" in said["lora"]
    assert "trained by 2 processes, and the Watch was made of one on 1; make it" in said["watch"]


def test_a_model_is_divided_only_among_processes() -> None:
    with pytest.raises(ArgumentError, match=r"torch\.distributed is not initialised"):
        shard(rank.prepared())
    with pytest.raises(ArgumentError, match="pieces are a number"):
        Training(rank.prepared(), rank.recipe(), pieces=0)


def test_a_pytorch_without_fsdp2_is_told_with_the_version_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setitem(sys.modules, "torch.distributed.fsdp", ModuleType("torch.distributed.fsdp"))
    with pytest.raises(PackageError, match=r"FSDP2 needs PyTorch 2\.6 or newer, this is \d"):
        shard(rank.prepared())


def test_checkpointed_blocks_have_the_same_gradients_and_compile_whole(one_thread: None) -> None:
    batch = rank.windows()(0)
    plain, again = rank.prepared(), checkpoint_blocks(rank.prepared())
    whole = rank.prepared()
    next_token_loss(plain, batch).backward()
    next_token_loss(again, batch).backward()
    torch.compile(next_token_loss, backend="aot_eager", fullgraph=True)(whole, batch).backward()
    for model in (again, whole):
        for (name, p), q in zip(plain.named_parameters(), model.parameters(), strict=True):
            assert torch.equal(p.grad, q.grad), name
    with pytest.raises(ArgumentError, match=r"no nn\.ModuleList"):
        checkpoint_blocks(torch.nn.Sequential(torch.nn.Linear(4, 4)))
