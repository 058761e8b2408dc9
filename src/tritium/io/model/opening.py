"""Open GGUF files, safetensors files, and the directories of Hugging Face and MLX.

The readers check every byte before it is used.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, get_args

from tritium.arguments import checked
from tritium.errors import FormatError
from tritium.escape import visible
from tritium.io import gguf
from tritium.io.model import gguf as gguf_model, huggingface as hf_model
from tritium.io.model.entry import Entry, ModelFile
from tritium.io.reader import contained, fault, map_file, read_json
from tritium.machine.files import set_aside

Variant = Literal["arm64", "multiply", "divide"]
VARIANTS = get_args(Variant)
INDEX = "model.safetensors.index.json"

__all__ = ["Entry", "ModelFile", "open"]


@checked
def open(
    path: str | Path, *, variant: str | None = None, ternarise: bool = False, mmap: bool = True
) -> ModelFile:  # fmt: skip
    """Open a GGUF file, a safetensors file, or a Hugging Face or MLX directory.

    `variant` sets what the file does not record: "arm64" for I2_S written by ARM builds of bitnet.cpp since November 2025, "multiply" or
    "divide" for the meaning of weight_scale where no configuration defines it. `ternarise` treats the projections of a dense model as
    masters; a network that was not trained for it loses its meaning that way. `mmap=False` reads the file into memory instead of
    mapping it: it may then be changed or cut short while the model is in use.
    """
    if variant not in (None, *VARIANTS):
        raise FormatError(f"open: variant {variant!r} is unknown; it is one of {', '.join(VARIANTS)}.")
    path = Path(path)
    if path.is_dir():
        return _directory(path, variant, ternarise, mmap)
    if not path.exists():
        if (old := set_aside(path)) is not None:
            raise FormatError(
                f"{visible(str(path))} does not exist: a process was killed while it replaced it. What it held is in "
                f"{visible(str(old))}; rename that back, or write the model again."
            )
        raise FormatError(
            f"{visible(str(path))} does not exist. Give a GGUF, safetensors or prepacked file, or a model directory."
        )
    view = map_file(path, mmap)
    head = bytes(view[:4])
    if head == gguf.MAGIC:
        return gguf_model.read(path, view, variant, ternarise)
    if head[:2] == b"PK" or head[:1] == b"\x80":
        raise fault(
            visible(path.name), "a pickle (a PyTorch checkpoint)", "GGUF or safetensors",
            "Pickles can run any code when opened, so they are never read: save the model with safetensors first.",
        )  # fmt: skip
    if bytes(view[8:9]) != b"{" and int.from_bytes(view[:8], "little") > len(view):
        raise fault(
            visible(path.name), f"a file that begins with {bytes(view[:8])!r}", "GGUF or safetensors", "This is no model file.",
        )  # fmt: skip
    side = path.with_name("config.json").is_file()
    config = read_json(contained(path.parent, "config.json")) if side else {}
    return hf_model.read(path, {path.name: view}, config, None, variant, ternarise)


def _directory(path: Path, variant: str | None, ternarise: bool, mapped: bool) -> ModelFile:
    config = read_json(contained(path, "config.json")) if (path / "config.json").is_file() else {}
    if (path / INDEX).is_file():
        index = read_json(contained(path, INDEX))
        return hf_model.read(path, hf_model.shards(path, index, mapped), config, index, variant, ternarise)
    try:
        listed = sorted(os.listdir(path))
    except OSError as error:
        raise FormatError(f"directory {visible(path.name)}: cannot be read: {error.strerror}.") from None
    names = [name for name in listed if name.endswith(".safetensors")]
    if "model.safetensors" in names:
        names = ["model.safetensors"]
    ggufs = [name for name in listed if name.endswith(".gguf")]
    if len(names) == 1:
        files = {names[0]: map_file(contained(path, names[0]), mapped)}
        return hf_model.read(path, files, config, None, variant, ternarise)
    if not names and len(ggufs) == 1:
        file = contained(path, ggufs[0])
        return gguf_model.read(file, map_file(file, mapped), variant, ternarise)
    raise fault(
        f"directory {visible(path.resolve().name)}",
        ", ".join(map(visible, names + ggufs)) or "no model file",
        f"model.safetensors, {INDEX} or one .gguf file",
        "Pass one file, or the directory of the model.",
    )
