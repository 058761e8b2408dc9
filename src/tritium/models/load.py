"""Language models with ternary weights: loaded from the files of others or our own, ready to run.

Only a model given by name uses the network, in `hub`.

    model = tt.load("ggml-model-i2_s.gguf")        # GGUF, safetensors, a directory of Hugging Face, or a name: owner/repo
    print(model.generate("The", max_tokens=20).text)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload
from weakref import WeakKeyDictionary

import numpy as np

from tritium import backends, io, memory
from tritium.arguments import checked, checked_except
from tritium.errors import (
    ArgumentError,
    DeviceError,
    FormatError,
    MissingFileError,
    TritiumError,
    absent,
    require,
)
from tritium.escape import visible
from tritium.families import BY_TYPE
from tritium.families.config import Config
from tritium.io import Entry, ModelFile, gguf
from tritium.io.model import recommended
from tritium.io.model.names import config_from_gguf
from tritium.io.reader import fault, forget, read_start
from tritium.io.stream import Progress
from tritium.machine.facts import bytes_text
from tritium.models import embeddings, generation, hub, prepacked
from tritium.models.generation import Generation, Piece, Prompt, TextOptions
from tritium.models.prepacked import Prepacked
from tritium.models.sampling import Sampler, SamplingOptions
from tritium.models.session import KV, TOGETHER, Programs, Session, programs
from tritium.models.speculation.speculator import check_draft
from tritium.models.text import chat, vocabulary as text
from tritium.models.text.constraints import KINDS, Format, FormatOptions, constrain
from tritium.models.text.tokenizer import Tokenizer
from tritium.models.weights import STORAGES, Divided, Network, assemble, from_entries, read_adapters, with_copy
from tritium.nn.certified import HeadStatistics
from tritium.nn.linear import ACTIVATIONS as WORDS, QuantLinear
from tritium.nn.mixers import Experts
from tritium.parallel.group import as_group
from tritium.tensor import Tensor

if TYPE_CHECKING:
    from tritium.io.model.opening import Variant
    from tritium.models.session import KVDType
    from tritium.models.weights import HeadDType, Storage
    from tritium.ops import Activations
else:  # any string at run time: the code that looks one up refuses an unknown one, and names those there are
    HeadDType = KVDType = Storage = Variant = Activations = str

T = TypeVar("T")
# The models in the package; the first is what is loaded without a name.
SHIPPED = ("kjv", "kjv-g128", "kjv-draft")
FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
TOKENIZER = "tokenizer.gguf"  # the keys of a vocabulary, in a file of our own


class GenerationOptions(TextOptions, SamplingOptions, FormatOptions, total=False):
    """Options of a text that a model writes."""

    min_tokens: int | None  # before one that ends it
    stop_token_ids: int | Iterable[int] | None  # further tokens that end it
    session: Session | None  # one of your own
    draft: Model | None  # a smaller one of the same vocabulary, that guesses


class Model:
    """A decoder and its text: `session()` runs it, `generate()` and `stream()` make text with it."""

    def __init__(
        self, config: Config, network: Network, *, name: str, source: ModelFile | Prepacked, kv: KVDType = "f16",
        context: int | None = None,
    ) -> None:  # fmt: skip
        if kv not in KV:
            raise ArgumentError(f"load: kv {kv!r} is unknown; keys and values are kept as {', '.join(KV)}.")
        self.config, self.network, self.name, self.kv = config, network, name, kv
        self._source, self._busy = source, Lock()
        self._drafts: WeakKeyDictionary[Session, tuple[Model, Session]] = WeakKeyDictionary()
        self.context = config.context if context is None else Session.check_context(config, context)

    def __repr__(self) -> str:
        c, how = self.config, self.activations
        sizes = f"{c.layers} layers of {c.hidden_size}, {c.vocab_size} words, context {c.context}"
        return f"<model {self.name}: {c.family}, {sizes}, activations {WORDS[how]}: {self._why(how)}>"

    @property
    def activations(self) -> str:
        """Return how the inputs of most products are quantised: 'token', 'group' or 'float'."""
        counts = Counter(product.activations for product in self._products())
        return counts.most_common(1)[0][0] if counts else "token"

    def _products(self) -> list[QuantLinear | Experts]:
        """Return all products with quantised weights, those of experts too."""
        return [*prepacked.linears(self.network).values(), *prepacked.experts(self.network).values()]

    def _why(self, how: str) -> str:
        """Return the reason for a kind of activations."""
        groups = {p.group if isinstance(p, Experts) else p.weight.group for p in self._products()} - {0}
        if how == "float":
            return "chosen"
        usual, why = self.config.description.activations(max(groups, default=0))
        if how == "group" and len(groups) > 1:
            return f"a scale for each {' or '.join(map(str, sorted(groups)))} columns, not trained with int8 tokens"
        return why if how == usual else "chosen"

    @property
    def nbytes(self) -> int:
        """Return the bytes of all weights."""
        adapters = self.network.adapters
        return prepacked.nbytes(self.network) + (0 if adapters is None else adapters.nbytes)

    @property
    def head_statistics(self) -> HeadStatistics | None:
        """Return how often bounds decided a token, where the head is read through an int8 copy; else None."""
        return None if self.network.certified is None else self.network.certified.statistics

    def explain(self) -> str:
        """Say how the model computes: its activations, and how its output head is read, with how often bounds decided so far."""
        head = self.network.head.weight
        kind = head.dtype.name if isinstance(head, Tensor) else head.weight.scheme
        rows = f"{self.config.vocab_size} x {self.config.hidden_size}"
        lines = [repr(self)[1:-1], f"head: {kind} [{rows}], {bytes_text(head.nbytes)}"]
        return "\n".join([*lines, f"  {self.head_use}"])

    @property
    def head_use(self) -> str:
        """Say how the output head is read for a token: as a whole and why, or through an int8 copy and how often that was enough."""
        certified = self.network.certified
        if certified is None:
            return f"read as a whole for every token: {self.network.uncertified}"
        copy = bytes_text(certified.nbytes)
        return f"certified, read through an int8 copy of {copy} with bounds: {certified.statistics}"

    @property
    def device(self) -> backends.Device:
        return self.network.device

    def to(self, device: Any) -> Model:
        """Return the same model on another device, its weights made ready there."""
        if backends.device(device) is self.device:
            return self
        network = self.network.to(device)
        return Model(self.config, network, name=self.name, source=self._source, kv=self.kv, context=self.context)

    @checked
    def with_adapters(self, folders: Mapping[str, Any]) -> Model:
        """Return the same model with adapters of PEFT's folders by name, in the place of any it had; its weights are the same memory.

        A request chooses one by name (`generate(…, adapter="name")`) or none, each text in a batch its own."""
        network = self.network._replace(adapters=read_adapters(self.network, folders))
        return Model(self.config, network, name=self.name, source=self._source, kv=self.kv, context=self.context)

    @property
    def adapters(self) -> tuple[str, ...]:
        """Return the names of its adapters."""
        return () if self.network.adapters is None else self.network.adapters.names

    def check_adapter(self, adapter: Any) -> None:
        """Raise unless an adapter, or each of several, is None or the name of one of the model's."""
        for name in [adapter] if isinstance(adapter, str | None) or not isinstance(adapter, Sequence) else adapter:
            if name is not None and name not in self.adapters:
                known = ", ".join(self.adapters) or "none: model.with_adapters adds some"
                raise ArgumentError(f"generate: adapter {name!r:.80} does not exist; this model has {known}.")

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer; it is read when first asked for."""
        path = visible(self._source.path.name)
        try:
            tokenizer: Tokenizer = _read_text(self._source, text.from_gguf, text.from_folder)
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from None
        if isinstance(tokenizer, text.PackageTokenizer):
            tokenizer.source = f"{path}: {tokenizer.source}"
        return tokenizer

    @cached_property
    def _programs(self) -> Programs:
        return programs(self.network)

    def session(self, slots: int = 1, context: int | None = None, pool: int | None = None) -> Session:
        """Return a session with a cache for so many sequences at once, of `context` tokens each (default: as the model was loaded).

        pool: tokens of all of them together, on CUDA; see `Session`."""
        kv, context = KV[self.kv], self.context if context is None else context
        return Session(
            self.network, self.config, slots=slots, context=context, kv=kv, pool=pool, shared_programs=self._programs
        )

    def follow(self) -> bool:
        """Make the calls of rank 0, which leads, until it ends: for the other ranks of a model that `load(parallel=…)` loaded.
        Return True if rank 0 then loads a model again, as it says by `lead_again()`."""
        divided = self._divided("follow")

        def make(slots: int, context: int, kv: int) -> Session:
            return Session(
                self.network,
                self.config,
                slots=slots,
                context=context,
                kv=list(KV.values())[kv],
                shared_programs=self._programs,
            )

        return divided.calls.follow(make, [program for program in self._programs if program is not None])

    def lead(self) -> None:
        """Have rank 0 call alone, and the others `follow()` it; they are told when it ends."""
        self._divided("lead").calls.lead()

    def lead_again(self) -> None:
        """Have the others load a model again instead of waiting for calls of this one."""
        self._divided("lead").calls.end(again=True)

    def _divided(self, what: str) -> Divided:
        divided = self.network.divided
        if divided is None:
            raise ArgumentError(f"{what}: this model is in one process; load it with parallel=….")
        if (divided.calls.group.rank == 0) != (what == "lead"):
            raise ArgumentError(
                f"{what}: rank 0 leads and all others follow, and this is rank {divided.calls.group.rank}."
            )
        return divided

    @cached_property
    def _own(self) -> Session:
        """Return the session of `generate` and `stream`: what it holds of an earlier prompt is not read again."""
        return self.session()

    @contextmanager
    def _lent(self, session: Session | None) -> Iterator[Session]:
        """Yield the session given, else the model's own, or a new one while another stream or thread has that."""
        if session is not None:
            yield session
            return
        if not self._busy.acquire(blocking=False):
            yield self.session()
            return
        try:
            yield self._own
        finally:
            self._busy.release()

    @overload
    def generate(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> Generation: ...  # type: ignore[overload-overlap]  # a text is also several
    @overload
    def generate(self, prompt: Sequence[Prompt], **options: Unpack[GenerationOptions]) -> list[Generation]: ...
    def generate(self, prompt: Any, **options: Unpack[GenerationOptions]) -> Any:
        """Return the continuation of a prompt (text or tokens); of a list of prompts, a list of them, decoded together.

        Options: those of `GenerationOptions` and what it inherits; `Sampler` says how tokens are picked.
        """
        sampler, session, rest = split_options(options, self)
        draft = rest.pop("draft", None)
        if (
            isinstance(prompt, Sequence)
            and prompt
            and all(isinstance(p, (str, list, tuple)) for p in prompt)
            and not isinstance(prompt, str)
        ):
            ids = [self._ids(p) for p in prompt]
            together = session or self.session(slots=min(len(ids), TOGETHER[-1]))
            rest["draft"] = self.draft_session(together, draft)
            return generation.generate_batch(together, self.tokenizer, ids, sampler=sampler, **rest)
        with self._lent(session) as lent:
            rest["draft"] = self.draft_session(lent, draft)
            return generation.generate(lent, self.tokenizer, self._ids(prompt), sampler=sampler, **rest)

    def stream(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> Iterator[Piece]:
        """Yield what `generate` returns, piece by piece; the last piece has the whole `generation`."""
        sampler, session, rest = split_options(options, self)
        draft = rest.pop("draft", None)
        ids = self._ids(prompt)

        def pieces() -> Iterator[Piece]:
            with self._lent(session) as lent:
                rest["draft"] = self.draft_session(lent, draft)
                yield from generation.stream(lent, self.tokenizer, ids, sampler=sampler, **rest)

        return pieces()

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        template: str | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Generation:
        """Return the answer to messages, each `{"role": "user", "content": "…"}`, by the model's chat template or another."""
        return self.generate(chat.encode(self.tokenizer, messages, template=template), **options)

    def draft_session(self, session: Session, draft: Model | None) -> Session | None:
        """Return the session in which a draft model guesses for a session of this model: it has as many slots, and is kept beside it."""
        if draft is None:
            return None
        known = self._drafts.get(session)
        if known is None or known[0] is not draft:
            guesses = draft.session(slots=session.slots, context=min(draft.context, session.capacity))
            check_draft((self.config.vocab_size, draft.config.vocab_size), guesses.recurrent, draft.name)
            known = self._drafts[session] = draft, guesses
        return known[1]

    def _ids(self, prompt: Any) -> list[int]:
        """Return a prompt as tokens; an empty text begins with the token that texts begin with."""
        if isinstance(prompt, str):
            tokenizer = self.tokenizer
            return tokenizer.encode(prompt) or ([] if tokenizer.bos is None else [tokenizer.bos])
        if isinstance(prompt, (bytes, bytearray)) or not isinstance(prompt, Iterable):
            raise ArgumentError(f"A prompt is a text or a list of token numbers, given {prompt!r:.80}.")
        return list(prompt)

    def perplexity(self, words: str, **options: Any) -> generation.Perplexity:
        """Return the perplexity of a text; options as of `generation.perplexity`."""
        tokenizer = self.tokenizer
        ids = tokenizer.encode(words, bos=False)
        return generation.perplexity(self.session(), ids, bos=tokenizer.bos, tokenizer=tokenizer, **options)

    @cached_property
    def recipe(self) -> embeddings.Recipe:
        """Return how texts are embedded by the model's files: pooling and prompts; read when first asked for."""
        if isinstance(self._source, ModelFile):
            return embeddings.read_recipe(self._source)
        stored = self._source.files.get(embeddings.RECIPE)
        return embeddings.Recipe() if stored is None else embeddings.from_json(stored)

    @checked
    def embed(
        self, texts: str | Sequence[str], *, pooling: str | None = None, normalize: bool = True, batch: int = 16,
        prompt: str | None = None, prompt_name: str | None = None, truncate: bool = False,
    ) -> np.ndarray[Any, np.dtype[np.float32]]:  # fmt: skip
        """Return the vectors of texts, f32 [n, hidden_size], the same alone and in a batch; of one text, [hidden_size].

        pooling: "last", "mean" or "cls" of the hidden states after the final norm (default: as the model's files say, see `recipe`).
        normalize: to length 1. batch: most texts in one program. prompt: a text before each of them, or prompt_name: one of the
        model's own. truncate: cut texts that the context cannot hold, instead of raising.
        """
        return embeddings.embed(
            self.session, self.tokenizer, texts, self.recipe, pooling=pooling, normalize=normalize, batch=batch, prompt=prompt,
            prompt_name=prompt_name, truncate=truncate, context=self.context, hidden_size=self.config.hidden_size,
        )  # fmt: skip

    def save(self, path: str | Path, *, overwrite: bool = False, progress: Progress | None = None) -> Path:
        """Write a prepacked file: weights as this machine's kernels read them, mapped at once the next time."""
        if self.network.divided is not None:
            raise ArgumentError("save: each process has a part of this model; load it without parallel= to save it.")
        if self.adapters:
            raise ArgumentError("save: a prepacked file has no place for adapters; save the model that has none.")
        if self.device.type != "cpu":
            raise DeviceError(
                f"save: the model is on {self.device}; bring it to the CPU first: model.to('cpu').save(…)."
            )
        sides = self._source.files if isinstance(self._source, Prepacked) else text_files(self._source)
        return prepacked.save(
            self.network, self.config, sides, Path(path), name=self.name, overwrite=overwrite, progress=progress
        )


TEXT = frozenset({*KINDS, "min_tokens", "stop_token_ids"})  # what needs the vocabulary


def split_options(options: Mapping[str, Any], model: Model) -> tuple[Sampler, Session | None, dict[str, Any]]:
    """Return the sampler, the session and the other options, checked; a ready `sampler` is taken as it is."""
    generation.check_options(options, GenerationOptions.__optional_keys__)
    picked = {k: v for k, v in options.items() if k in SamplingOptions.__optional_keys__}
    rest = {k: v for k, v in options.items() if k not in picked and k not in TEXT}
    sampler = rest.pop("sampler", None)
    if sampler is not None and picked:
        raise ArgumentError(f"generate: a sampler was given, so {', '.join(picked)} must be said there.")
    session = rest.pop("session", None)
    if not isinstance(session, Session | None):
        raise ArgumentError(f"generate: session must be one that model.session() made, given {session!r:.80}.")
    if not isinstance(rest.get("draft"), Model | None):
        raise ArgumentError(f"generate: draft must be a model that tritium.load gave, given {rest['draft']!r:.80}.")
    if not isinstance(rest.get("speculate"), bool | None):
        raise ArgumentError(f"generate: speculate must be True, False or None, given {rest['speculate']!r:.80}.")
    model.check_adapter(rest.get("adapter"))
    rest |= _text_options({k: v for k, v in options.items() if k in TEXT and v is not None}, model, rest)
    return sampler or Sampler(**picked), session, rest


def _text_options(options: dict[str, Any], model: Model, rest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokens that end a text and what constrains it, for `generation.stream`."""
    if not options:
        return {}
    tokenizer, least = model.tokenizer, options.get("min_tokens", 0)
    if isinstance(least, bool) or not isinstance(least, int) or least < 0:
        raise ArgumentError(f"generate: min_tokens must be 0 or more, given {least!r}.")
    ends = options.get("stop_token_ids", ())
    ids = list(ends) if isinstance(ends, Iterable) and not isinstance(ends, (str, bytes)) else [ends]
    if wrong := [t for t in ids if isinstance(t, bool) or not isinstance(t, int) or not 0 <= t < tokenizer.vocab_size]:
        raise ArgumentError(
            f"generate: stop_token_ids must be ids from 0 to {tokenizer.vocab_size - 1}, given {wrong[0]!r}."
        )
    form = Format.of(**{kind: options.get(kind) for kind in KINDS})
    every = frozenset(ids) | (frozenset() if rest.get("ignore_eos") else tokenizer.eos)
    return {"stop_tokens": ids, "constrain": constrain(tokenizer, form, least=least, ends=every)}


def without_weights(model_file: ModelFile) -> ModelFile:
    """Return an opened model with its texts alone, copied: the tokenizer is made later, when the file may have changed."""
    if model_file.gguf is None:
        return replace(model_file, entries={})  # its tokenizer is in files of its own
    values = {k: replace(v, raw=memoryview(bytes(v.raw))) for k, v in model_file.gguf.metadata.values_by_key.items()}
    metadata = gguf.Metadata(values)
    texts = replace(model_file.gguf, view=memoryview(b""), metadata=metadata, tensors={})
    return replace(model_file, entries={}, metadata=metadata, gguf=texts)


def text_files(model_file: ModelFile) -> dict[str, bytes]:
    """Return the files of the tokenizer and the recipe of embeddings, to be kept beside the weights."""
    recipe = embeddings.read_recipe(model_file)
    sides = {} if recipe == embeddings.Recipe() else {embeddings.RECIPE: recipe.as_json()}
    return sides | _tokenizer_files(model_file)


def _tokenizer_files(model_file: ModelFile) -> dict[str, bytes]:
    if model_file.gguf is not None:
        prefixes = "tokenizer.", recommended.PREFIX
        values = {k: v.raw for k, v in model_file.gguf.metadata.values_by_key.items() if k.startswith(prefixes)}
        file = BytesIO()
        gguf.write(file, values, [])
        return {TOKENIZER: file.getvalue()}
    return {n: (model_file.folder / n).read_bytes() for n in FILES if (model_file.folder / n).is_file()}


def _read_text(
    file: ModelFile | Prepacked, of_gguf: Callable[[Mapping[str, Any]], T], of_folder: Callable[[Path, Mapping[str, Any]], T]
) -> T:  # fmt: skip
    """Return what one of two functions reads of a model's vocabulary: in the keys of GGUF, or in the files of a folder."""
    if isinstance(file, ModelFile):
        return of_gguf(file.metadata) if file.gguf else of_folder(file.folder, file.config)
    sides = file.files
    if TOKENIZER in sides:
        return of_gguf(gguf.parse(sides[TOKENIZER]).metadata)
    with TemporaryDirectory() as folder:
        for name in set(sides) & set(FILES):
            (Path(folder) / name).write_bytes(sides[name])
        return of_folder(Path(folder), {"bos_token_id": file.config.bos, "eos_token_id": list(file.config.eos)})


# ---- the packages that a model needs

Use = Literal["fetching", "running", "chatting with", "serving"]
_PACKAGES: dict[Use, tuple[str, ...]] = {
    "fetching": (),
    "running": ("tokenizers",),
    "chatting with": ("tokenizers", "jinja2"),
    "serving": ("h11", "tokenizers", "jinja2"),
}


def packages_of(model: str | Path | None, use: Use = "running") -> list[str]:
    """Return the packages that a use of a model needs: of one given by name, whose files are not here yet, those of most models;
    of a file those of its vocabulary and its chat template."""
    packages = _PACKAGES[use]
    if hub.is_name(model):
        return [hub.PACKAGE, *packages]
    needed = ["h11"]  # of the server, whatever the model
    if model is not None and absent(packages):  # else there is nothing to find out by opening it
        path = Path(model)
        with suppress(TritiumError, OSError):  # loading it says what is wrong with it
            file = Prepacked(path) if _is_prepacked(path) else io.open(path)
            needed += _read_text(file, text.packages_of_gguf, text.packages_of_folder)
    return [package for package in packages if package in needed]


def require_packages(model: str | Path | None, use: Use = "running", *more: str) -> None:
    """Raise one PackageError that names every package missing for a use of a model, and of `more`, before anything of the model is
    fetched or loaded."""
    packages = [*packages_of(model, use), *more]
    require(hub.use_of(use, model), *packages)
    if hub.is_name(model) and "jinja2" in packages:
        chat.package()  # refuses one that is too old


def _is_prepacked(path: Path) -> bool:
    return path.is_file() and prepacked.is_prepacked(read_start(path, 64))


@checked
def shipped(name: str = SHIPPED[0]) -> Path:
    """Return the file of a small model in the package: "kjv", "kjv-g128" with a scale for each 128 columns, or "kjv-draft", a
    seventh of its size."""
    if name not in SHIPPED:
        raise MissingFileError(f"shipped: no model {name!r} is in the package; there are {', '.join(SHIPPED)}.")
    return Path(str(files("tritium") / "data" / f"{name}.gguf"))


@checked_except("device")
def load(
    path: str | Path | None = None, *, head: HeadDType | None = None, kv: KVDType = "f16", storage: Storage | None = None,
    context: int | None = None, variant: Variant | None = None, ternarise: bool = False, device: str | backends.Device | None = None,
    mmap: bool = True, activations: Activations | None = None, certified: bool | None = None, parallel: Any = None,
    revision: str | None = None, file: str | None = None, offline: bool | None = None,
) -> Model:  # fmt: skip
    """Load a model from a GGUF file, a safetensors file, a directory of Hugging Face, a prepacked file, or by its name owner/repo on
    the Hugging Face hub; without a path, the small one in the package.

    head: how the product with the vocabulary is kept: "f32", "f16", "bf16" or "int8" (a scale for each word); None: as in the
    file. kv: how keys and values are kept. context: tokens of a session, where fewer than the model was made for will do.
    storage: "tern2" (2 bits a weight, the default) or "tern5" (1.6 bits on x86: fewer bytes, more work; elsewhere weights wait in
    tiles of 2 bits). variant and ternarise: see `tritium.io.open`. device: where it runs; its weights are made ready there.
    activations: how the input of a product is quantised: "token" (int8, a scale for each token), "group" (int8, a scale for each group
    of columns that the weights have) or "float"; None: by token where models of its family are trained so or its weights have no groups, else
    by group; weights that `ternarise` rounded have groups.
    mmap: False reads the file into memory instead of mapping it, so that it may be changed or cut short while the model is in use.
    certified: read a float head through an int8 copy with bounds, which picks the same tokens; None: where it pays.
    parallel: the processes that share the model, each with a part of its weights: a `tritium.parallel.Group`, a DeviceMesh of one axis
    or a process group of torch.distributed, or True for all that torchrun started. Every rank makes the same calls.
    revision, file, offline: of a model by name, see `tritium.fetch`.
    """
    there = backends.device(device)
    if activations not in (None, *WORDS):
        raise ArgumentError(
            f"load: activations {activations!r} are unknown; use {', '.join(WORDS)}, or None for what suits."
        )
    if not isinstance(path, str | Path | None):
        raise ArgumentError(f"load: a path is needed, given {path!r:.80}.")
    path = shipped() if path is None else path
    require_packages(path, "running" if hub.is_name(path) else "fetching")  # of a file the text may never be read
    path, name = hub.locate(path, revision=revision, file=file, offline=offline, check=Config.from_hf)
    if storage not in (None, *STORAGES):
        raise ArgumentError(f"load: storage {storage!r} is unknown; use {' or '.join(STORAGES)}.")
    group = None if parallel is None or parallel is False else as_group(parallel)
    if _is_prepacked(path):
        chosen = {
            "parallel": group,
            "head": head,
            "storage": storage,
            "variant": variant,
            "ternarise": ternarise or None,
            "activations": activations,
            "certified": certified,
        }
        return _prepacked(path, {k: v for k, v in chosen.items() if v is not None}, kv, context, mmap).to(there)
    model_file = io.open(path, variant=variant, ternarise=ternarise, mmap=mmap)
    config = read_config(model_file)
    source = from_entries(
        model_file.named, config, head=head, storage=STORAGES[storage or "tern2"], copied=not mmap, activations=activations,
        rounded=ternarise, group=group,
    )  # fmt: skip
    network = assemble(config, source, context, group)
    network = with_copy((with_copy(network, False) if certified is False else network).to(there), certified)
    memory.trim()  # what repacking took is not needed again, nor are the bytes it read; the rest is mapped when it is used
    for entry in model_file.entries.values():
        forget(entry.raw())
    if group is not None:
        group.wait_for_all()
    return Model(config, network, name=name, source=without_weights(model_file), kv=kv, context=context)


def _prepacked(path: Path, chosen: dict[str, Any], kv: KVDType, context: int | None, mapped: bool) -> Model:
    file = Prepacked(path, mapped)
    for name, value in chosen.items():
        raise ArgumentError(
            f"load: {visible(path.name)} is prepacked: {name}={value!r} is chosen when it is written, not when it is loaded."
        )
    _ = file.files  # copied now: the tokenizer is made later, when the file may have changed
    return Model(
        file.config,
        file.with_copy(assemble(file.config, file.source(), context)),
        name=file.name,
        source=file,
        kv=kv,
        context=context,
    )


def read_config(model_file: ModelFile) -> Config:
    """Return the configuration of an opened model: of safetensors or of GGUF."""
    model_file.check()
    if model_file.container == "safetensors":
        if not model_file.config:
            raise fault(visible(model_file.path.name), "no config.json beside it", "the model's own", "Put it there.")
        return Config.from_hf(_with_norms(model_file.config, model_file.named))
    if model_file.arch is None:
        raise FormatError(f"{visible(model_file.path.name)}: {model_file.beliefs[0]}. Such a model cannot be run here.")
    entries = model_file.named
    config = config_from_gguf(model_file.metadata, model_file.arch, tied="lm_head.weight" not in entries)
    table = entries.get("model.embed_tokens.weight")
    if table is not None and len(table.shape) == 2:
        config.setdefault("vocab_size", table.shape[0])
    if "rope_freqs" in entries:  # what scaled RoPE divides each frequency by
        config["rope_scaling"] = {"rope_type": "factors", "factors": entries["rope_freqs"].float32().tolist()}
    for kind in ("long", "short"):  # what LongRoPE divides by in long and in short contexts
        if f"rope_factors_{kind}" in entries and isinstance(config.get("rope_scaling"), dict):
            config["rope_scaling"][f"{kind}_factor"] = entries[f"rope_factors_{kind}"].float32().tolist()
    return Config.from_hf(_with_norms(config, entries))


def _with_norms(config: dict[str, Any], entries: Mapping[str, Entry]) -> dict[str, Any]:
    """Return a configuration that says whether projections have norms: no field of others does, only the weights."""
    family = BY_TYPE.get(str(config.get("model_type", "")).lower())
    normed = "model.layers.0.self_attn.q_proj.norm.weight" in entries
    if not normed or family is None or "projection_norms" not in family.reads:
        return config
    return config | {"projection_norms": True}
