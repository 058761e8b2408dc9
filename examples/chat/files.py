"""Writes a student as one GGUF file: ternary weights in Q2_0, the embedding in Q4_0.

python examples/chat/files.py chat/half.pt --out half      # the weights that distil.py keeps at half of its steps
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from network import Llama, Sizes

from tritium.io import gguf
from tritium.io.model import recommended
from tritium.io.stream import Piece
from tritium.torch import Recipe, export, prepare

GROUP = 64  # columns that share a scale: Q2_0's blocks
FORM: dict[str, Any] = {"group": GROUP, "scales": "learned", "activations": "float"}  # of the ternary layers
NAME = "SmolLM2-135M-Instruct, ternary"
SAMPLING = {"temperature": 0.5, "min_p": 0.05, "repetition_penalty": 1.1}
Array = np.ndarray[Any, Any]


def as_q4_0(table: Array) -> Array:
    """Return rows of numbers in blocks of 32: an f16 scale d and nibbles q, d (q - 8); of some scales that with the least squared error."""
    blocks = table.reshape(-1, 32).astype(np.float32)
    far = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1)
    best, least = np.zeros((len(blocks), 18), np.uint8), np.full(len(blocks), np.inf)
    for steps in np.linspace(-8.5, -6.0, 11):  # the farthest number is near the negative end, which has one step more
        d = (far / np.float32(steps)).astype(np.float16)
        inverse = np.divide(1, d, where=d != 0, out=np.zeros_like(d, np.float32), dtype=np.float32)
        q = np.clip(np.rint(blocks * inverse) + 8, 0, 15).astype(np.uint8)
        error = np.square(d.astype(np.float32) * (q.astype(np.float32) - 8) - blocks).sum(1)
        packed = np.concatenate([d.view(np.uint8).reshape(-1, 2), q[:, :16] | q[:, 16:] << 4], 1)
        best, least = np.where((error < least)[:, None], packed, best), np.minimum(error, least)
    return best


def shrink_embedding(source: Path, target: Path) -> None:
    """Copy a GGUF file with its embedding in Q4_0, its name, its licence and the sampling that its answers are best with."""
    file, pieces = gguf.parse(source.read_bytes()), []
    for name, tensor in file.tensors.items():
        data = np.frombuffer(file.data(name), np.uint8)
        kind = tensor.type.name
        if name == "token_embd.weight":
            data, kind = (
                as_q4_0(data.view({"F32": "<f4", "F16": "<f2"}[kind]).reshape(tensor.shape)).reshape(-1),
                "Q4_0",
            )
        pieces.append(Piece(name, tensor.shape, kind, data.nbytes, lambda data=data: [data]))
    metadata = {key: value.raw for key, value in file.metadata.values_by_key.items()}
    metadata |= {"general.name": gguf.string(NAME), "general.license": gguf.string("apache-2.0")}
    metadata |= recommended.to_gguf(SAMPLING)[0]
    with target.open("wb") as out:
        gguf.write(out, metadata, pieces)


def keep(path: Path, student: Llama, side: dict[str, Any], log: dict[str, Any]) -> None:
    """Write all that a model file is made of, quickly."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = {"sizes": json.dumps(asdict(student.sizes)), "side": json.dumps(side), "log": json.dumps(log)}
    torch.save({"model": student.state_dict()} | texts, path)


def write_model(
    out: Path, sizes: Sizes, weights: dict[str, torch.Tensor], side: dict[str, Any], log: dict[str, Any]
) -> None:
    """Write model.gguf and log.json of a student's weights."""
    out.mkdir(parents=True, exist_ok=True)
    student = prepare(Llama(sizes), Recipe(1, learning_rate=1.0, **FORM))  # the form alone counts here
    student.load_state_dict({name: value.cpu() for name, value in weights.items()})
    large = out / "large.gguf"
    export(student, large, format="q2_0", tokenizer=side, overwrite=True)
    shrink_embedding(large, out / "model.gguf")
    large.unlink()
    log = log | {"bytes": (out / "model.gguf").stat().st_size}
    (out / "log.json").write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({"written": log["bytes"]}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("weights", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    kept = torch.load(args.weights, map_location="cpu", weights_only=True)
    sizes, side, log = (json.loads(kept[key]) for key in ("sizes", "side", "log"))
    write_model(args.out, Sizes(**sizes), kept["model"], side, log)


if __name__ == "__main__":
    main()
