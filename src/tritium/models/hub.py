"""Models by name: `owner/repo` of the Hugging Face hub, fetched by `huggingface_hub` (extra `run`) into its cache.

A path that exists is never a name, and nothing here uses the network for it. Answers of the hub are not trusted: names are
checked before they become paths, sizes before anything is fetched; pickles and programs are never fetched. Tokens are those of
`huggingface_hub`'s own settings, and appear in no message.

    path = tt.fetch("microsoft/bitnet-b1.58-2B-4T-gguf")      # what tt.load(…) and every command do with such a name
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tritium import settings
from tritium.arguments import checked
from tritium.errors import ArgumentError, FetchError, FormatError, imported, nearest
from tritium.escape import visible
from tritium.io.model.opening import INDEX
from tritium.io.reader import contained, read_json

PACKAGE = "huggingface_hub"
NAME = re.compile(r"\w(?:[\w.-]{0,94}\w)?/\w(?:[\w.-]{0,94}\w)?", re.ASCII)  # as the hub allows them
REVISION = re.compile(r"\w(?:[\w./-]{0,254}\w)?", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}")
FILE_ENDS = (".gguf", ".safetensors", ".tritium", ".json", ".bin", ".pt", ".pth", ".txt")  # of paths, not of names
MAX_FILES, MAX_NAME = 100_000, 1024  # files of a repository, and characters of a name
MAX_SIDE = 64 << 20  # bytes of a file beside the weights
SPARE = 64 << 20  # bytes left free on the disk
LISTED = 12  # files named in a message

CONFIG, WEIGHTS = "config.json", "model.safetensors"
SIDES = (
    CONFIG, "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "modules.json",
    "1_Pooling/config.json", "config_sentence_transformers.json",
)  # fmt: skip
# Types in the names of GGUF files, in the order in which they are chosen: 2 bits a weight before the denser ones.
TERNARY = ("I2_S", "TQ2_0", "PQ2_0", "Q2_0", "Q2_0_g128", "Q2_0_g64", "TQ1_0", "PTQ1_0")
FLOAT = ("BF16", "F16", "F32")
TYPE = re.compile(
    r"(?<![A-Za-z0-9])(I2_S|P?TQ[12]_0|P?Q2_0(?:_g(?:64|128))?|BF16|F16|F32)(?![A-Za-z0-9])", re.IGNORECASE
)
OTHER_PARTS = re.compile(r"mmproj|vision|imatrix|(?<![a-z])(?:draft|mtp|lora|adapter)(?![a-z])", re.IGNORECASE)
SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)

Hear = Callable[[str], None]
Check = Callable[[Mapping[str, Any]], Any]  # of config.json, before weights are fetched: raises what the loader would


class Located(NamedTuple):
    """A model on this machine, and a name for it."""

    path: Path
    name: str


class Choice(NamedTuple):
    """The file of a repository that is loaded, or the index of several, and why this one."""

    file: str
    why: str

    @property
    def folder(self) -> str:
        """Return the folder of the file within the repository: "" or one that ends in a slash."""
        return self.file[: len(self.file) - len(PurePosixPath(self.file).name)]

    @property
    def is_gguf(self) -> bool:
        return self.file.lower().endswith(".gguf")


# ---- names


def is_name(model: Any) -> bool:
    """Return True if a model is given by name: a text of the form owner/repo, where no such path exists."""
    if not isinstance(model, str) or not NAME.fullmatch(model) or model.lower().endswith((*FILE_ENDS, ".git")):
        return False
    return "--" not in model and ".." not in model and not os.path.lexists(model)


def use_of(use: str, model: str | Path | None) -> str:
    """Return the beginning of a sentence on a use of a model ("fetching"): a name may have been meant as a path."""
    if is_name(model):
        return f"{model} is no file or folder here, and {use} a model of this name from the Hugging Face hub"
    return f"{use.capitalize()} {'the model in the package' if model is None else visible(str(Path(model)))}"


@checked
def fetch(
    model: str, *, revision: str | None = None, file: str | None = None, offline: bool | None = None
) -> Path:  # fmt: skip
    """Return the path of a model of the Hugging Face hub in its cache; what is missing there is downloaded.

    model: owner/repo. revision: a branch, a tag or a commit (default: main). file: which file of the repository, its path or a part
    of its name that no other has; by default the first by type: ternary GGUF types, safetensors, others. offline: use the cache
    alone, as HF_HUB_OFFLINE=1 does for every call.
    """
    if not is_name(model):
        raise ArgumentError(f"fetch: a name owner/repo that is no path here is needed, given {visible(model)!r}.")
    return locate(model, revision=revision, file=file, offline=offline).path


def locate(
    model: str | Path, *, revision: str | None = None, file: str | None = None, offline: bool | None = None,
    hear: Hear | None = None, check: Check | None = None,
) -> Located:  # fmt: skip
    """Return where a model is, given by path or by name. `hear` is told which file was chosen; `check` sees config.json."""
    if not is_name(model):
        for option, value in (("revision", revision), ("file", file)):
            if value is not None:
                raise ArgumentError(
                    f"{option} {visible(value)!r} was given with {visible(str(model))!r}, which is a path; it belongs to a name owner/repo."
                )
        return Located(Path(model), Path(model).stem)
    if revision is not None and (not REVISION.fullmatch(revision) or ".." in revision or "//" in revision):
        raise ArgumentError(f"revision {visible(revision)!r} is not the name of a branch, a tag or a commit.")
    request = _Request(str(model), revision or "main", file, hear or settings.log.info, check)
    return request.locate(bool(offline))


# ---- which file


def choose(sizes: Mapping[str, int | None], file: str | None = None) -> Choice:
    """Return the file to load of those in a repository; raise where none is usable or several are equally good."""
    ranked = _candidates(sizes)
    if file is not None:
        return _named(file, ranked, sizes)
    if not ranked:
        raise FetchError(f"it has no model file that is read here. {_contents(sizes)}")
    if len(ranked) == 1:
        return Choice(next(iter(ranked)), "its only model file")
    best = min(rank for rank, _ in ranked.values())
    chosen = [name for name, (rank, _) in ranked.items() if rank == best]
    if len(chosen) > 1 or best > len(TERNARY):
        reason = "several are equally good" if best <= len(TERNARY) else "none has a ternary type in its name"
        raise FetchError(f"which file is meant cannot be decided: {reason}. {_pick_one(chosen, sizes)}")
    why = ranked[chosen[0]][1]
    return Choice(chosen[0], f"{why}, chosen of {len(ranked)} model files")


def _candidates(sizes: Mapping[str, int | None]) -> dict[str, tuple[int, str]]:
    """Return the files that can be loaded, each with its rank (the lowest is chosen) and the reason."""
    ranked: dict[str, tuple[int, str]] = {}
    for name in sorted(sizes):
        path = PurePosixPath(name)
        split = SPLIT.search(name)
        if path.suffix.lower() != ".gguf" or OTHER_PARTS.search(path.name) or (split and int(split[2]) > 1):
            continue
        types = {_spelled(spelling) for spelling in TYPE.findall(path.stem)}
        if ternary := [i for i, kind in enumerate(TERNARY) if kind in types]:
            ranked[name] = ternary[0], f"{TERNARY[ternary[0]]} is a ternary type"
        else:
            ranked[name] = len(TERNARY) + 1, f"{', '.join(sorted(types)) or 'another type'}"
    for folder in sorted({str(PurePosixPath(name).parent) for name in sizes}):
        if main_file := _tensors_in("" if folder == "." else f"{folder}/", sizes):
            ranked[main_file] = (len(TERNARY) if folder == "." else len(TERNARY) + 1), "safetensors with config.json"
    return ranked


def _spelled(kind: str) -> str:
    return next(known for known in (*TERNARY, *FLOAT) if known.lower() == kind.lower())


def _tensors_in(folder: str, sizes: Mapping[str, int | None]) -> str | None:
    """Return the file that a folder with safetensors is opened by: its index, or the one with all weights."""
    if folder + CONFIG not in sizes:
        return None
    for name in (INDEX, WEIGHTS):
        if folder + name in sizes:
            return folder + name
    inside = [name for name in sizes if name.startswith(folder) and "/" not in name[len(folder) :]]
    tensor_files = [n for n in inside if n.endswith(".safetensors") and not OTHER_PARTS.search(n)]
    return tensor_files[0] if len(tensor_files) == 1 else None


def _named(file: str, ranked: Mapping[str, Any], sizes: Mapping[str, int | None]) -> Choice:
    """Return the file a user named: by its path, or by a part of its name that no other candidate has."""
    if file in ranked:
        return Choice(file, "the file that was named")
    matches = [name for name in ranked if file.lower() in name.lower()] if file.strip() else []
    if len(matches) == 1:
        return Choice(matches[0], f"the only file with {visible(file)!r} in its name")
    if not ranked:
        raise FetchError(f"it has no model file that is read here. {_contents(sizes)}")
    many = f"{len(matches)} files have" if matches else "no file has"
    hint = nearest(file, ranked)
    raise FetchError(f"{many} {visible(file)!r} in their name.{hint} {_pick_one(matches or list(ranked), sizes)}")


def _pick_one(names: Iterable[str], sizes: Mapping[str, int | None]) -> str:
    shown = [f"{visible(name)} ({_amount(sizes[name])})" for name in names]
    more = f" and {len(shown) - LISTED} more" if len(shown) > LISTED else ""
    return f"Name one with file= (--file): {', '.join(shown[:LISTED])}{more}."


def _contents(sizes: Mapping[str, int | None]) -> str:
    """Return what a repository has instead of a model file."""
    ends = sorted({PurePosixPath(name).suffix.lower() for name in sizes})
    pickles = (
        " Its pickles (.bin, .pt) can run any code and are never read." if {".bin", ".pt", ".pth"} & set(ends) else ""
    )
    parts = " GGUF files in several parts are not read." if any(SPLIT.search(name) for name in sizes) else ""
    contents = (
        f"{len(sizes)} files: {', '.join(visible(e or 'without an ending') for e in ends[:LISTED])}"
        if sizes
        else "no files"
    )
    return f"Needed is a .gguf file, or {WEIGHTS} (or {INDEX}) with {CONFIG}; it has {contents}.{pickles}{parts}"


def _amount(size: int | None) -> str:
    return "size unknown" if size is None else f"{size / 1e9:.2f} GB" if size >= 10**7 else f"{size / 1e6:.2f} MB"


# ---- a request


class _UnreachableError(Exception):
    """The hub gave no answer."""


@dataclass(frozen=True)
class _Request:
    """A model asked for by name."""

    repo: str
    revision: str
    file: str | None
    hear: Hear
    check: Check | None

    @cached_property
    def hub(self) -> Any:
        return imported(use_of("fetching", self.repo), PACKAGE, "constants", "errors")

    @property
    def endpoint(self) -> str:
        """Return the address of the hub without what may be secret in it."""
        parts = urlsplit(self.hub.constants.ENDPOINT)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    @cached_property
    def store(self) -> Path:
        """Return the folder of the repository in the hub's cache."""
        return Path(self.hub.constants.HF_HUB_CACHE).expanduser() / f"models--{self.repo.replace('/', '--')}"

    def tell(self, commit: str, choice: Choice, size: int | None) -> None:
        """Say which file is used, and why."""
        amount = "" if choice.file.endswith(".json") else f" ({_amount(size)})"
        self.hear(f"{self.repo}@{commit[:8]}: {visible(choice.file)}{amount}, {choice.why}")

    def failure(self, reason: str) -> FetchError:
        return FetchError(f"{self.repo}: {reason}")

    def locate(self, offline: bool) -> Located:
        """Return where the model is, after fetching what is missing."""
        if offline or self.hub.constants.HF_HUB_OFFLINE:
            return self.cached()
        if COMMIT.fullmatch(self.revision):  # what it holds never changes
            try:
                return self.cached()
            except FetchError:
                pass  # it is fetched
        try:
            commit, sizes = self.listing()
        except _UnreachableError as error:
            return self.cached_instead(str(error))
        try:
            return self.fetched(commit, sizes)
        except _UnreachableError as error:
            raise self.failure(str(error)) from None

    def cached_instead(self, reason: str) -> Located:
        """Return the model as the cache has it, where the hub gives no answer."""
        try:
            located = self.cached()
        except FetchError:
            raise self.failure(reason) from None
        self.hear(f"{self.repo}: {reason} The copy in the cache is used.")
        return located

    # ---- from the cache

    def cached(self) -> Located:
        """Return the model as it is in the cache; raise where it is not, or not whole."""
        snapshot = self.snapshot()
        if snapshot is None:
            raise self.failure(
                f"revision {visible(self.revision)} is not in the cache ({visible(str(self.store.parent))}), and the hub is not asked "
                f"(offline). Fetch it once with a network, or copy the folder {self.store.name} from a machine that has it."
            )
        sizes = {p.relative_to(snapshot).as_posix(): p.stat().st_size for p in snapshot.rglob("*") if p.is_file()}
        with self.naming():
            choice = choose(sizes, self.file)
        missing = [name for name in self.weights(choice, snapshot) if name not in sizes]
        if missing:
            raise self.failure(
                f"{visible(missing[0])} is missing in the cache ({visible(str(snapshot))}), and the hub is not asked (offline). Fetch "
                "it once with a network."
            )
        self.tell(snapshot.name, choice, sizes[choice.file])
        return self.located(snapshot, choice)

    def snapshot(self) -> Path | None:
        """Return the folder of the revision in the cache."""
        commit = self.revision if COMMIT.fullmatch(self.revision) else self.known_commit()
        folder = None if commit is None else self.store / "snapshots" / commit
        return folder if folder is not None and folder.is_dir() else None

    def known_commit(self) -> str | None:
        """Return the commit that the cache has for a branch or a tag."""
        try:
            commit = (self.store / "refs" / self.revision).read_text(encoding="utf-8")[:64].strip()
        except (OSError, UnicodeDecodeError):
            return None
        return commit if COMMIT.fullmatch(commit) else None

    def located(self, snapshot: Path, choice: Choice) -> Located:
        path = snapshot / choice.file
        if choice.is_gguf:
            return Located(path, path.stem)
        name = self.repo.partition("/")[2]
        return Located(path.parent if path.name in (INDEX, WEIGHTS) else path, name)

    # ---- from the hub

    def listing(self) -> tuple[str, dict[str, int | None]]:
        """Return the commit of the revision, and its files with their sizes."""
        with self.asking():
            api = self.hub.HfApi(library_name="tritium")
            info = api.model_info(
                self.repo, revision=self.revision, files_metadata=True, timeout=self.hub.constants.HF_HUB_ETAG_TIMEOUT
            )
        files = info.siblings or []
        if not COMMIT.fullmatch(str(info.sha)) or len(files) > MAX_FILES:
            raise self.failure(
                f"{self.endpoint} answered with no commit, or more than {MAX_FILES} files; it is no hub of models."
            )
        return info.sha, {f.rfilename: _counted(f.size) for f in files if _safe(f.rfilename)}

    def fetched(self, commit: str, sizes: Mapping[str, int | None]) -> Located:
        """Return the model after downloading what the cache lacks of it."""
        with self.naming():
            choice = choose(sizes, self.file)
        snapshot = self.store / "snapshots" / commit
        self.tell(commit, choice, sizes[choice.file])
        if choice.is_gguf:
            self.download(commit, sizes, [choice.file])
            return self.located(snapshot, choice)
        sides = [choice.folder + name for name in SIDES if choice.folder + name in sizes]
        sides += [choice.file] if choice.file.endswith(".json") else []
        for name in sides:
            if (sizes[name] or 0) > MAX_SIDE:
                raise self.failure(
                    f"{visible(name)} has {_amount(sizes[name])}; at most {_amount(MAX_SIDE)} are fetched of such a file."
                )
        self.download(commit, sizes, sides)
        if self.check is not None:
            self.check(read_json(contained(snapshot / choice.folder, CONFIG)))
        weights = self.weights(choice, snapshot)
        if missing := [name for name in weights if name not in sizes]:
            raise self.failure(
                f"{visible(choice.file)} names {visible(missing[0])}, which the repository does not have."
            )
        self.download(commit, sizes, weights)
        return self.located(snapshot, choice)

    def weights(self, choice: Choice, snapshot: Path) -> list[str]:
        """Return the files with the weights: the chosen one, or those its index names."""
        if not choice.file.endswith(".json"):
            return [choice.file]
        index = read_json(contained(snapshot / choice.folder, INDEX)).get("weight_map")
        names = sorted({str(name) for name in index.values()}) if isinstance(index, dict) else []
        if not names or not all(_safe(n) and "/" not in n and n.endswith(".safetensors") for n in names):
            raise FormatError(
                f"{self.repo}: {visible(choice.file)} names no .safetensors files beside it; it is damaged."
            )
        return [choice.folder + name for name in names]

    def download(self, commit: str, sizes: Mapping[str, int | None], names: list[str]) -> None:
        """Bring files into the cache, those apart that it has already."""
        snapshot = self.store / "snapshots" / commit
        missing = [name for name in names if not _is_whole(snapshot / name, sizes[name])]
        self.check_space(sum(sizes[name] or 0 for name in missing))
        if not missing and not COMMIT.fullmatch(self.revision) and self.known_commit() != commit:
            missing = names[:1]  # asking for one file makes the cache remember which commit the branch is at
        for name in missing:
            with self.asking(name):
                self.hub.hf_hub_download(self.repo, name, revision=self.revision, library_name="tritium")
            if not _is_whole(snapshot / name, sizes[name]):
                raise self.failure(f"revision {visible(self.revision)} changed while it was fetched. Try again.")

    def check_space(self, needed: int) -> None:
        folder = next(p for p in (self.store, *self.store.parents) if p.exists())
        free = shutil.disk_usage(folder).free
        if needed and needed + SPARE > free:
            raise self.failure(
                f"{_amount(needed)} are to be fetched, and {visible(str(folder))} has {_amount(free)} free. Free some space, or let "
                "HF_HUB_CACHE name a folder on another disk."
            )

    # ---- errors

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Add the repository to what is wrong with its files."""
        try:
            yield
        except FetchError as error:
            raise self.failure(str(error)) from None

    @contextmanager
    def asking(self, file: str = "") -> Iterator[None]:
        """Turn the errors of `huggingface_hub` into what to do about them."""
        errors = self.hub.errors
        try:
            yield
        except errors.GatedRepoError:
            raise self.failure(
                f"access is restricted by its owner. Ask for it at {self.endpoint}/{self.repo}, then log in with `hf auth login` or set "
                "HF_TOKEN."
            ) from None
        except errors.RepositoryNotFoundError:
            raise self.failure(
                f"there is no such file or folder here, and no such repository at {self.endpoint}. Check the name; for a private "
                "repository log in with `hf auth login` or set HF_TOKEN."
            ) from None
        except errors.RevisionNotFoundError:
            raise self.failure(
                f"it has no revision {visible(self.revision)!r}. Give a branch, a tag or a commit."
            ) from None
        except (OSError, errors.HTTPError) as error:
            raise self.translated(error, file) from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise self.failure(
                f"{self.endpoint} gave an answer that is not understood ({type(error).__name__}). If HF_ENDPOINT is set, check that it is "
                "a hub of models."
            ) from None

    def translated(self, error: Exception, file: str) -> Exception:
        """Return what is raised for an error of the network, the hub or the disk."""
        number = getattr(error, "errno", None)
        if number in (errno.ENOSPC, errno.EDQUOT):
            return self.failure("the disk is full. Free some space, or let HF_HUB_CACHE name a folder on another disk.")
        if number in (errno.EACCES, errno.EPERM, errno.EROFS):
            return self.failure(
                f"{visible(str(self.store.parent))} cannot be written: {os.strerror(number)}. Let HF_HUB_CACHE name another folder."
            )
        response = getattr(error, "response", None)
        if response is not None and response.status_code in (401, 403):
            return self.failure(
                f"{self.endpoint} refused access ({response.status_code}). Check HF_TOKEN, or log in with `hf auth login`."
            )
        cause = error.__cause__ or error
        broken = f"did not deliver {visible(file)}" if file else "cannot be reached"
        what = (
            f"{broken} ({type(cause).__name__})"
            if response is None
            else f"answered with an error ({response.status_code})"
        )
        command = f"hf download {self.repo}{f' {visible(file)}' if file else ''}"
        absent = "" if file else "there is no such file or folder here, and "
        return _UnreachableError(
            f"{absent}{self.endpoint} {what}. Check the network and the proxy; or run `{command}` on a machine that has one, copy the "
            "file, and give its path."
        )


def _safe(name: Any) -> bool:
    """Return True if a file of a repository may become a path: relative, printable, without steps upward."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        return False
    return not set(name) & set('\\:*?"<>|') and all(part not in ("", ".", "..") for part in name.split("/"))


def _counted(size: Any) -> int | None:
    """Return a number of bytes, or None for what is none."""
    return size if type(size) is int and size >= 0 else None


def _is_whole(path: Path, size: int | None) -> bool:
    try:
        return path.is_file() and size in (None, path.stat().st_size)
    except OSError:
        return False
