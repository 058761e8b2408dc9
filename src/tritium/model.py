"""Language models with ternary weights: loaded from the files of others or our own, ready to run.

Knows nothing of how text is made. Never uses the network.

    model = tt.load("ggml-model-i2_s.gguf")        # GGUF, safetensors, or a directory of Hugging Face
    print(model.generate("The", max_tokens=20).text)
"""

from __future__ import annotations

from functools import cached_property
from importlib.resources import files
from pathlib import Path

from tritium import dtype as dt
from tritium import io, prepacked
from tritium.compiled import Compiled
from tritium.config import Config
from tritium.errors import ArgumentError, FormatError
from tritium.io import ModelFile
from tritium.io.names import config_from_gguf
from tritium.io.reader import fault, map_file, printable
from tritium.prepacked import Prepacked
from tritium.session import Session, programs
from tritium.weights import FLOATS, Network, assemble, from_entries

SHIPPED = "kjv.gguf"  # the small model in the package
STORAGES = {"tern2": dt.tern2, "tern5": dt.tern5}


class Model:
    """A decoder and its text: `session()` runs it, `generate()` and `stream()` make text with it."""

    def __init__(self, config: Config, network: Network, *, name: str, source: ModelFile | Prepacked, kv: str = "f16"):
        if kv not in FLOATS:
            raise ArgumentError(f"load: kv {kv!r} is unknown; keys and values are kept as {', '.join(FLOATS)}.")
        self.config, self.network, self.name, self.kv = config, network, name, kv
        self._source = source

    def __repr__(self) -> str:
        c = self.config
        return f"<model {self.name}: {c.family}, {c.layers} layers of {c.width}, {c.vocab} words, context {c.context}>"

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        return prepacked.nbytes(self.network)

    @cached_property
    def _programs(self) -> tuple[Compiled, Compiled]:
        return programs(self.network)

    def session(self, slots: int = 1, context: int | None = None) -> Session:
        """A cache for so many sequences at once, of `context` tokens each (default: all the model was made for)."""
        kv = FLOATS[self.kv]
        return Session(self.network, self.config, slots=slots, context=context, kv=kv, made=self._programs)


def shipped() -> Path:
    """The file of the small model in the package."""
    return Path(str(files("tritium") / "data" / SHIPPED))


def load(
    path: str | Path | None = None, *, head: str | None = None, kv: str = "f16", storage: str = "tern2",
    variant: str | None = None, ternarise: bool = False,
) -> Model:  # fmt: skip
    """A model from a GGUF file, a safetensors file, a directory of Hugging Face, or a prepacked file; without a path, the
    small one in the package.

    head: how the product with the vocabulary is kept: "f32", "f16", "bf16" or "int8" (a scale for each word); None: as in the
    file. kv: how keys and values are kept. storage: "tern2" (2 bits a weight) or "tern5" (1.6 bits: fewer bytes, more work).
    variant and ternarise: see `tritium.io.open`.
    """
    path = shipped() if path is None else Path(path)
    if storage not in STORAGES:
        raise ArgumentError(f"load: storage {storage!r} is unknown; use {' or '.join(STORAGES)}.")
    if path.is_file() and prepacked.is_prepacked(map_file(path)):
        return _prepacked(path, head, kv)
    found = io.open(path, variant=variant, ternarise=ternarise)
    config = read_config(found)
    source = from_entries(found.named, config, head=head, storage=STORAGES[storage])
    return Model(config, assemble(config, source), name=path.stem, source=found, kv=kv)


def _prepacked(path: Path, head: str | None, kv: str) -> Model:
    found = Prepacked(path)
    if head is not None:
        raise ArgumentError(
            f"load: {printable(path.name)} is prepacked with its head as it is; head={head!r} is chosen when it is written."
        )
    return Model(found.config, assemble(found.config, found.source()), name=found.name, source=found, kv=kv)


def read_config(found: ModelFile) -> Config:
    """The configuration of an opened model, of either world."""
    if found.container == "safetensors":
        if not found.config:
            raise fault(printable(found.path.name), "no config.json beside it", "the model's own", "Put it there.")
        return Config.from_hf(found.config)
    if found.arch is None:
        raise FormatError(f"{printable(found.path.name)}: {found.beliefs[0]}. Such a model cannot be run here.")
    entries = found.named
    said = config_from_gguf(found.metadata, found.arch, tied="lm_head.weight" not in entries)
    table = entries.get("model.embed_tokens.weight")
    if table is not None and len(table.shape) == 2:
        said.setdefault("vocab_size", table.shape[0])
    if "rope_freqs" in entries:  # what scaled RoPE divides each frequency by
        said["rope_scaling"] = {"rope_type": "factors", "factors": entries["rope_freqs"].float32().tolist()}
    return Config.from_hf(said)
