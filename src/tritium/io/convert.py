"""Convert a model from one format to another: survey it, write a temporary file, read that back, and only then rename it.

The source is never written to.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritium.arguments import checked
from tritium.errors import FormatError, nearest
from tritium.escape import visible
from tritium.families import BY_ARCH, BY_TYPE
from tritium.families.family import Family
from tritium.io import codecs, ggml, gguf, safetensors
from tritium.io.formats import (
    FORMATS,
    Format,
    Survey,
    config_for,
    gguf_pieces,
    one_dtype,
    rounded,
    safetensors_pieces,
    survey,
    unknown,
)
from tritium.io.model import experts, names, pooling, recommended, tokenizer
from tritium.io.model.entry import Entry, ModelFile
from tritium.io.model.opening import open as open_model
from tritium.io.model.supported import hadamard_fields
from tritium.io.reader import contained, fault, map_file, read_json
from tritium.io.stream import Piece, Progress, Wrote, appearing, check_free
from tritium.io.verify import compare_ternary

SIDE_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
    "tokenizer.model", "generation_config.json", "chat_template.jinja", "LICENSE", pooling.MODULES, pooling.PROMPTS,
    f"{pooling.FOLDER}/config.json",
)  # fmt: skip


@dataclass(frozen=True)
class Converted:
    """The result of a conversion. `scale_error` is the largest relative change of a scale; 0 means nothing was lost."""

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
    """Progress over the three passes: survey, write, read back."""

    total: int
    progress: Progress | None
    done: int = 0
    warnings: list[str] = field(default_factory=list)

    def step(self, n: int, what: str) -> None:
        self.done += n
        if self.progress:
            self.progress(self.done, self.total, what)


@checked
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
    """Write the model at `source` as `target` in a format of FORMATS. `target` only appears once it was
    read back and compared equal.

    GGUF formats write a file. The others write a directory with config.json and tokenizer, or one file where `target` ends in
    .safetensors. `variant` and `ternarise` are those of open().
    """
    if to not in FORMATS:
        raise FormatError(f"{unknown(to)}{nearest(to, FORMATS)}")
    form, path = FORMATS[to], Path(target)
    _check_target(Path(source), path, form, overwrite)
    model = open_model(source, variant=variant, ternarise=ternarise)
    model.check()
    _check_worlds(model, form)
    work = _Work(3 * model.nbytes, progress)
    surveys: list[Survey] = []
    for e in _select(model, form, work):
        surveys.append(survey(e, form))
        work.step(e.nbytes, f"reading {e.name}")
    _warn(surveys, form, work)
    _warn_of_engines(model, surveys, form, work)
    folder = form.container == "safetensors" and path.suffix != ".safetensors"
    with appearing(path, folder=folder, overwrite=overwrite) as temporary:
        if form.container == "gguf":
            pieces, wrote = _write_gguf(temporary, model, surveys, form, work)
        else:
            pieces, wrote = _write_safetensors(temporary, model, surveys, form, work, folder)
        _read_back(temporary, surveys, wrote, form, work)
    return Converted(
        path, to, len(surveys), sum(f.ternary for f in surveys), model.nbytes, sum(p.nbytes for p in pieces),
        max((f.error for f in surveys), default=0.0), tuple(work.warnings),
    )  # fmt: skip


def _check_worlds(model: ModelFile, form: Format) -> None:
    """Raise where the weights of a model cannot be carried from GGUF to Hugging Face or back."""
    if model.arch is None or (model.container == "gguf") == (form.container == "gguf"):
        return
    if model.gguf is not None and hadamard_fields(model.metadata, model.arch.gguf):
        raise FormatError(
            f"convert: {visible(model.path.name)} is a {model.arch.model_type} model and cannot become safetensors: its weights are "
            "rotated, which Hugging Face's layout cannot say. Choose a format of the same container."
        )


def _check_target(source: Path, target: Path, form: Format, overwrite: bool) -> None:
    """Raise for everything that can be rejected before the long work begins."""
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
        strange = [
            p.name
            for p in target.iterdir()
            if (p.is_dir() and p.name != pooling.FOLDER) or not (target / "config.json").is_file()
        ]
        if strange:
            raise FormatError(
                f"convert: {visible(str(target))} is a folder with other files ({visible(strange[0])}); it is not replaced."
            )


def _select(model: ModelFile, form: Format, work: _Work) -> list[Entry]:
    entries = list(model.named.values())
    if form.container == "gguf" and model.gguf is None and model.config.get("tie_word_embeddings"):
        tied = [e for e in entries if e.common == "lm_head.weight"]
        if tied:
            work.warnings.append("the head is tied to the embeddings and is stored once")
            work.total -= 3 * tied[0].nbytes
        entries = [e for e in entries if e not in tied]
    if form.container == "gguf" and model.gguf is None and model.arch is not None:
        return experts.stack(_without_others(entries, BY_ARCH[model.arch.gguf], work))
    return experts.split(entries) if form.container == "safetensors" and form.codec is not codecs.mlx else entries


def _without_others(entries: list[Entry], family: Family, work: _Work) -> list[Entry]:
    """Return the entries of the decoder alone: GGUF has vision parts and heads for speculation in files or layers of their own."""
    others = [e for e in entries if e.name.startswith(family.skips)] if family.skips else []
    if others:
        work.warnings.append(
            f"{len(others)} tensors that are no part of the decoder were left out: {visible(others[0].name)} …"
        )
        work.total -= 3 * sum(e.nbytes for e in others)
    return [e for e in entries if e not in others]


def _warn(surveys: list[Survey], form: Format, work: _Work) -> None:
    """Add the warnings: facts the user should know that are no errors."""
    if not any(f.ternary for f in surveys):
        work.warnings.append("no tensor of this model is ternary: numbers were copied as they are")
    worst = max((f.error for f in surveys), default=0.0)
    if worst:
        work.warnings.append(f"scales were rounded to {form.rounds}: the largest changed by {worst:.2g} of itself")
    if form.codec is None and any(f.entry.role == "master" and f.ternary for f in surveys):
        work.warnings.append("masters were replaced by their ternary values; keep the source for training")
    if form.codec is None and form.rounds is not None:
        narrow = {f.entry.stored for f in surveys if not f.ternary and f.entry.stored in ("F32", "F16", "BF16", "F64")}
        if narrow - {safetensors.NAMES[form.rounds]} and form.rounds.itemsize == 2:
            work.warnings.append(f"embeddings and norms were rounded from {', '.join(sorted(narrow))} to {form.name}")


def _warn_of_engines(model: ModelFile, surveys: list[Survey], form: Format, work: _Work) -> None:
    """Add a warning where the engine that a format is for does not know the type or the model's architecture."""
    if not any(f.ternary for f in surveys):
        return
    kind = ggml.BY_NAME.get(form.name.upper())
    if kind is not None and kind.fork == "Prism":
        work.warnings.append(
            f"{kind.name} (type {kind.id}) is known to Prism's fork of llama.cpp and to Tritium; llama.cpp itself refuses the file. "
            "For llama.cpp write q2_0"
        )
    if "llama.cpp" in form.doc and model.arch is not None and model.arch.activation == "relu2":
        work.warnings.append(
            f"llama.cpp does not know the architecture {model.arch.gguf!r} (relu²) and will not load this file; Tritium does. "
            "For bitnet.cpp write i2_s"
        )
    tables = [f.entry.name for f in surveys if f.scale is not None and not f.ternary]
    if tables:
        work.warnings.append(
            f"{form.name} has no ternary tables: {', '.join(map(visible, tables))} became floats, and the file larger"
        )


# ---- writing


def _write_gguf(
    path: Path, model: ModelFile, surveys: list[Survey], form: Format, work: _Work
) -> tuple[list[Piece], list[Wrote]]:
    metadata: dict[str, Any]
    if model.gguf is not None:
        arch = model.arch
        metadata = {k: v.raw for k, v in model.gguf.metadata.values_by_key.items()}
    else:
        arch, metadata = _describe(model, work)
    if any(f.ternary for f in surveys):
        metadata["general.file_type"] = gguf.number("u32", ggml.FILE_TYPE[form.name.upper()])
    pieces = gguf_pieces(surveys, model, form, arch)
    with path.open("wb") as file:
        wrote = gguf.write(file, metadata, pieces, progress=_write_progress(work), total=sum(p.nbytes for p in pieces))
    work.done += sum(f.entry.nbytes for f in surveys)
    return pieces, wrote


def _describe(model: ModelFile, work: _Work) -> tuple[names.Arch | None, dict[str, Any]]:
    """Return the architecture and the GGUF keys of a Hugging Face model."""
    arch = model.arch
    if arch is None:
        model_type = model.config.get("model_type")
        if model_type is not None:
            raise fault(
                "config.json",
                f"model_type {visible(str(model_type))!r}",
                f"one of {', '.join(BY_TYPE)}",
                "Write hf, mlx or f32, which need no architecture of GGUF.",
            )
        work.warnings.append("no config.json: the GGUF holds tensors only, and no program can run it as a model")
        return None, {"general.architecture": gguf.string("none")}
    metadata: dict[str, Any] = {
        "general.architecture": gguf.string(arch.gguf),
        "general.name": gguf.string(visible(model.folder.resolve().name)),
    }
    metadata["general.quantization_version"] = gguf.number("u32", 2)
    metadata |= names.config_to_gguf(model.config, arch)
    keys, warnings = tokenizer.to_gguf(model.folder, model.config)
    pooled, lost = pooling.to_gguf(model.folder, arch.gguf)
    has_side = (model.folder / recommended.FILE).is_file()
    sampling, odd = recommended.from_config(read_json(contained(model.folder, recommended.FILE)) if has_side else {})
    sampled, unwritten = recommended.to_gguf(sampling)
    work.warnings += warnings + lost + odd + unwritten
    return arch, metadata | keys | pooled | sampled


def _write_safetensors(
    path: Path, model: ModelFile, surveys: list[Survey], form: Format, work: _Work, folder: bool
) -> tuple[list[Piece], list[Wrote]]:
    dtype = one_dtype(surveys, model, form)
    if (
        dtype == "F32"
        and form.codec is not None
        and any(f.entry.stored in ("F16", "BF16") for f in surveys if not f.ternary)
    ):
        work.warnings.append("scales or norms need fp32, and libraries want one dtype: embeddings were widened to F32")
    pieces = safetensors_pieces(surveys, model, form, dtype)
    if len(pieces) > safetensors.MAX_TENSORS:
        raise FormatError(
            f"convert: {form.name} would have {len(pieces)} tensors, and a file has at most {safetensors.MAX_TENSORS}: its layout has "
            "one for each expert. Write mlx, which has one for all of a layer, or a GGUF format."
        )
    config = config_for(model, form, surveys, dtype)
    notes = {"format": "mlx" if form.codec is codecs.mlx else "pt"}
    if folder:
        _side_files(path, model, config, work)
    else:
        notes["config"] = json.dumps(config)
    with (path / "model.safetensors" if folder else path).open("wb") as file:
        wrote = safetensors.write(
            file, notes, pieces, progress=_write_progress(work), total=sum(p.nbytes for p in pieces)
        )
    work.done += sum(f.entry.nbytes for f in surveys)
    return pieces, wrote


def _side_files(path: Path, model: ModelFile, config: dict[str, Any], work: _Work) -> None:
    files: dict[str, Any] = {"config.json": config}
    if model.gguf is not None:
        tokenizer_files, warnings = tokenizer.from_gguf(model.metadata)
        work.warnings += warnings
        sampling, odd = recommended.from_gguf(model.metadata)
        sampled, unwritten = recommended.to_config(sampling)
        work.warnings += odd + unwritten
        files |= tokenizer_files | pooling.from_gguf(model.metadata, config.get("hidden_size")) | sampled
        if not model.arch:
            work.warnings.append("this architecture has no configuration here; all keys are kept in gguf_metadata.json")
        if warnings or not model.arch or not tokenizer_files:
            files["gguf_metadata.json"] = dict(model.metadata)
    else:
        for name in SIDE_FILES:
            owner = model.folder / Path(name).parent
            if (model.folder / name).is_file():
                (path / name).parent.mkdir(exist_ok=True)
                (path / name).write_bytes(contained(owner, Path(name).name).read_bytes())
    for name, content in files.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _write_progress(work: _Work) -> Progress | None:
    """Return a callback that maps bytes written to the bytes read that the progress bar counts; None without a bar."""
    if work.progress is None:
        return None
    start, third, progress = work.done, work.total // 3, work.progress

    def report(done: int, total: int, name: str) -> None:
        progress(start + third * done // max(total, 1), work.total, f"writing {name}")

    return report


# ---- reading back


def _read_back(path: Path, surveys: list[Survey], wrote: list[Wrote], form: Format, work: _Work) -> None:
    """Check that the disk holds what was meant: bytes by checksum, ternary weights by decoding them again."""
    model = open_model(path)
    data = model.gguf or safetensors.parse(map_file(path / "model.safetensors" if path.is_dir() else path))
    for w in wrote:
        if zlib.crc32(data.data(w.name)) != w.crc32:
            raise FormatError(
                f"{visible(w.name)}: the file does not hold what was written. The disk may be failing; nothing was kept."
            )
    entries = model.named
    for f in surveys:
        name = f.entry.common
        if f.ternary:
            result = compare_ternary(rounded(f.entry.ternary(), form).simplified(), entries[name].ternary())
            if result.difference:
                raise FormatError(
                    f"{f.entry.where}: read back differently{result.difference}. This is a bug of the writer; nothing was kept."
                )
        work.step(f.entry.nbytes, f"checking {f.entry.name}")
