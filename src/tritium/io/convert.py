"""A model in one format made into another: looked at first, written beside its target, read back, and only then given its name.

Knows nothing of how formats lay their bytes out. The source is never written to.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritium.errors import FormatError, nearest
from tritium.escape import visible
from tritium.io import codecs, ggml, gguf, safetensors
from tritium.io.formats import (
    FORMATS,
    Format,
    Found,
    config_for,
    gguf_pieces,
    look,
    one_dtype,
    rounded,
    safetensors_pieces,
    unknown,
)
from tritium.io.model import names, tokenizer
from tritium.io.model.entry import ModelFile
from tritium.io.model.opening import open as open_model
from tritium.io.reader import contained, fault, map_file
from tritium.io.stream import Piece, Progress, Wrote, appearing, check_free
from tritium.io.verify import compare_ternary

SIDE_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "tokenizer.model", "generation_config.json", "chat_template.jinja", "LICENSE",
)  # fmt: skip


@dataclass(frozen=True)
class Converted:
    """What a conversion made. `scale_error` is the largest relative change of a scale; 0 means nothing was lost."""

    path: Path
    to: str
    tensors: int
    ternary: int
    source_bytes: int
    bytes: int
    scale_error: float
    warnings: tuple[str, ...] = ()


@dataclass
class _Work:
    """Progress over the three passes: looking, writing, reading back."""

    total: int
    progress: Progress | None
    done: int = 0
    warnings: list[str] = field(default_factory=list)

    def step(self, n: int, what: str) -> None:
        self.done += n
        if self.progress:
            self.progress(self.done, self.total, what)


def convert(
    source: str | Path,
    target: str | Path,
    *,
    to: str,
    variant: str | None = None,
    ternarise: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Converted:
    """Write the model at `source` as `target` in a format of FORMATS. Nothing appears at `target` unless it was read back equal.

    GGUF formats write a file. The others write a directory with config.json and tokenizer, or one file where `target` ends in
    .safetensors. `variant` and `ternarise` are those of open().
    """
    if to not in FORMATS:
        raise FormatError(f"{unknown(to)}{nearest(to, FORMATS)}")
    form, path = FORMATS[to], Path(target)
    _check_target(Path(source), path, form, overwrite)
    model = open_model(source, variant=variant, ternarise=ternarise)
    model.check()
    work = _Work(3 * model.nbytes, progress)
    found = []
    for e in _wanted(model, form, work):
        found.append(look(e, form))
        work.step(e.nbytes, f"reading {e.name}")
    _say(found, form, work)
    folder = form.container == "safetensors" and path.suffix != ".safetensors"
    with appearing(path, folder=folder, overwrite=overwrite) as temporary:
        if form.container == "gguf":
            pieces, wrote = _write_gguf(temporary, model, found, form, work)
        else:
            pieces, wrote = _write_safetensors(temporary, model, found, form, work, folder)
        _read_back(temporary, found, wrote, form, work)
    return Converted(
        path, to, len(found), sum(f.ternary for f in found), model.nbytes, sum(p.nbytes for p in pieces),
        max((f.error for f in found), default=0.0), tuple(work.warnings),
    )  # fmt: skip


def _check_target(source: Path, target: Path, form: Format, overwrite: bool) -> None:
    """All that can be refused before the long work begins."""
    here, there = source.resolve(), target.resolve()
    if here == there or there in here.parents or (here in there.parents and there.exists()):
        raise FormatError(
            f"convert: {visible(str(target))} is the source or a part of it; the source is never overwritten. Choose another name."
        )
    check_free(target, overwrite)
    wrong = {"gguf": ".safetensors", "safetensors": ".gguf"}[form.container]
    if target.suffix == wrong:
        raise FormatError(
            f"convert: {form.name} is written as {form.container}, and {visible(target.name)!r} ends in {wrong}. Change one of the two."
        )
    if target.is_dir() and form.container == "safetensors":
        strange = [p.name for p in target.iterdir() if p.is_dir() or not (target / "config.json").is_file()]
        if strange:
            raise FormatError(
                f"convert: {visible(str(target))} is a folder with other things ({visible(strange[0])}); it is not replaced."
            )


def _wanted(model: ModelFile, form: Format, work: _Work) -> list[Any]:
    entries = list(model.named.values())
    if form.container == "gguf" and model.gguf is None and model.config.get("tie_word_embeddings"):
        tied = [e for e in entries if e.common == "lm_head.weight"]
        if tied:
            work.warnings.append("the head is tied to the embeddings and is stored once")
            work.total -= 3 * tied[0].nbytes
        entries = [e for e in entries if e not in tied]
    return entries


def _say(found: list[Found], form: Format, work: _Work) -> None:
    """What a person should know that is no error."""
    if not any(f.ternary for f in found):
        work.warnings.append("no tensor of this model is ternary: numbers were copied as they are")
    worst = max((f.error for f in found), default=0.0)
    if worst:
        work.warnings.append(f"scales were rounded to {form.rounds}: the largest changed by {worst:.2g} of itself")
    if form.codec is None and any(f.entry.role == "master" and f.ternary for f in found):
        work.warnings.append("masters were replaced by their ternary values; keep the source for training")
    if form.codec is None and form.rounds is not None:
        narrow = {f.entry.stored for f in found if not f.ternary and f.entry.stored in ("F32", "F16", "BF16", "F64")}
        if narrow - {safetensors.NAMES[form.rounds]} and form.rounds.itemsize == 2:
            work.warnings.append(f"embeddings and norms were rounded from {', '.join(sorted(narrow))} to {form.name}")


# ---- writing


def _write_gguf(
    path: Path, model: ModelFile, found: list[Found], form: Format, work: _Work
) -> tuple[list[Piece], list[Wrote]]:
    metadata: dict[str, Any]
    if model.gguf is not None:
        arch = model.arch
        metadata = {k: v.raw for k, v in model.gguf.metadata.values_by_key.items()}
    else:
        arch, metadata = _describe(model, work)
    if any(f.ternary for f in found):
        metadata["general.file_type"] = gguf.number("u32", ggml.FILE_TYPE[form.name.upper()])
    pieces = gguf_pieces(found, model, form, arch)
    with path.open("xb") as file:
        wrote = gguf.write(file, metadata, pieces, progress=_writing(work), total=sum(p.nbytes for p in pieces))
    work.done += sum(f.entry.nbytes for f in found)
    return pieces, wrote


def _describe(model: ModelFile, work: _Work) -> tuple[names.Arch | None, dict[str, Any]]:
    """GGUF keys for a Hugging Face model."""
    arch = model.arch
    if arch is None:
        said = model.config.get("model_type")
        if said is not None:
            raise fault(
                "config.json",
                f"model_type {visible(str(said))!r}",
                "bitnet or llama",
                "Write hf, mlx or f32, which need no architecture of GGUF.",
            )
        work.warnings.append("no config.json: the GGUF holds tensors only, and no program will run it as a model")
        return None, {"general.architecture": gguf.string("none")}
    metadata: dict[str, Any] = {
        "general.architecture": gguf.string(arch.gguf),
        "general.name": gguf.string(visible(model.folder.resolve().name)),
    }
    metadata["general.quantization_version"] = gguf.number("u32", 2)
    metadata |= names.config_to_gguf(model.config, arch)
    keys, warnings = tokenizer.to_gguf(model.folder, model.config)
    work.warnings += warnings
    return arch, metadata | keys


def _write_safetensors(
    path: Path, model: ModelFile, found: list[Found], form: Format, work: _Work, folder: bool
) -> tuple[list[Piece], list[Wrote]]:
    dtype = one_dtype(found, model, form)
    if (
        dtype == "F32"
        and form.codec is not None
        and any(f.entry.stored in ("F16", "BF16") for f in found if not f.ternary)
    ):
        work.warnings.append("scales or norms need fp32, and libraries want one dtype: embeddings were widened to F32")
    pieces = safetensors_pieces(found, model, form, dtype)
    config = config_for(model, form, found, dtype)
    notes = {"format": "mlx" if form.codec is codecs.mlx else "pt"}
    if folder:
        _side_files(path, model, config, work)
    else:
        notes["config"] = json.dumps(config)
    with (path / "model.safetensors" if folder else path).open("xb") as file:
        wrote = safetensors.write(file, notes, pieces, progress=_writing(work), total=sum(p.nbytes for p in pieces))
    work.done += sum(f.entry.nbytes for f in found)
    return pieces, wrote


def _side_files(path: Path, model: ModelFile, config: dict[str, Any], work: _Work) -> None:
    files: dict[str, Any] = {"config.json": config}
    if model.gguf is not None:
        made, warnings = tokenizer.from_gguf(model.metadata)
        work.warnings += warnings
        files |= made
        if not model.arch:
            work.warnings.append("this architecture has no configuration here; all keys are kept in gguf_metadata.json")
        if warnings or not model.arch or not made:
            files["gguf_metadata.json"] = dict(model.metadata)
    else:
        for name in SIDE_FILES:
            if (model.folder / name).is_file():
                (path / name).write_bytes(contained(model.folder, name).read_bytes())
    for name, content in files.items():
        (path / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _writing(work: _Work) -> Progress | None:
    """Bytes written are not bytes read; the bar is told the share that is done."""
    if work.progress is None:
        return None
    start, third, tell = work.done, work.total // 3, work.progress

    def report(done: int, total: int, name: str) -> None:
        tell(start + third * done // max(total, 1), work.total, f"writing {name}")

    return report


# ---- reading back


def _read_back(path: Path, found: list[Found], wrote: list[Wrote], form: Format, work: _Work) -> None:
    """What is on the disk is what was meant: bytes by checksum, ternary weights by decoding them again."""
    made = open_model(path)
    data = made.gguf or safetensors.parse(map_file(path / "model.safetensors" if path.is_dir() else path))
    for w in wrote:
        if zlib.crc32(data.data(w.name)) != w.crc32:
            raise FormatError(
                f"{visible(w.name)}: the file does not hold what was written. The disk may be failing; nothing was kept."
            )
    entries = made.named
    for f in found:
        name = f.entry.common
        if f.ternary:
            result = compare_ternary(rounded(f.entry.ternary(), form).simplified(), entries[name].ternary())
            if result.difference:
                raise FormatError(
                    f"{f.entry.where}: read back differently{result.difference}. This is a bug of the writer; nothing was kept."
                )
        work.step(f.entry.nbytes, f"checking {f.entry.name}")
