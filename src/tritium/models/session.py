"""A model at work: the cache of keys and values, what stands in it, and the programs that read and write it.

One thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from operator import index
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from tritium import dtype as dt, ops
from tritium.arguments import checked
from tritium.compiler.compile import Compiled
from tritium.errors import ArgumentError, ContextError, DeviceError, FormatError
from tritium.escape import visible
from tritium.families import description as d
from tritium.families.config import Config
from tritium.families.description import DeltaNet
from tritium.functions import arange, asarray
from tritium.io.reader import fault
from tritium.models.bounds import Bounded
from tritium.models.caching.blocks import BLOCK, Blocks, blocks_for
from tritium.models.caching.file import REMEDY, read_slot, write_slot
from tritium.models.caching.memory import SlotMemory
from tritium.models.caching.prefixes import common
from tritium.models.certified import Certified
from tritium.models.sampling import Logprobs, largest
from tritium.models.speculation.control import Costs
from tritium.models.weights import Network
from tritium.nn.certified import CertifiedHead
from tritium.nn.mixers import DeltaState
from tritium.nn.rope import Angles
from tritium.nn.transformer import Attention, KVCache, QuantizedKVCache
from tritium.tensor import Tensor

BUCKETS = (1, 4, 16, 32, 64, 128, 256)  # tokens of one prefill program; each is compiled when first needed
TOGETHER = (1, 2, 4, 8, 16, 32, 64)  # sequences of one decode program
SCORED = (16, 64)  # tokens whose logits are all wanted: each takes a row of the vocabulary
EXACT = 1 << 24  # ids up to here are exact in f32, which every device has
ROW = 8  # tokens of one sequence in a row of a program that reads several prompts; a longer prompt takes several rows
ROWS = (2, 3, 4, 6, 8, 12, 16, 24, 32)  # rows of such a program
PROBE = 8  # tokens of a saved session that are computed again
START = 8  # what a call costs before its first token, in tokens of prefill: all weights are read once

# How keys and values are kept: floats, or integers of so many bits for keys and for values, 8 in the first layer: what 4 bits lose
# there, where a state is that of one token alone and no error is averaged, is most of what they lose in all layers.
KVDType = Literal["f32", "f16", "bf16", "int8", "int8-int4", "int4"]
KV: dict[KVDType, Any] = {
    "f32": dt.f32, "f16": dt.f16, "bf16": dt.bf16, "int8": (8, 8), "int8-int4": (8, 4), "int4": (4, 4),
}  # fmt: skip
Ids = Sequence[int]
Logits = np.ndarray[Any, np.dtype[np.float32]]
Program = Callable[..., Any]


class Programs(NamedTuple):
    """A network as compiled functions. A call with new shapes compiles a program; one run is one native call. Of a network over several
    processes they are functions whose ops are called one by one."""

    last: Program  # logits after the last token of each sequence
    every: Program  # log-probabilities after every token
    pick: Program  # after one token a sequence only the id of its largest logit and that logit, f32 [n, 2], or [n, 3] with the
    # rows that were read of a certified head; the tokens and places it was given become those of the next step
    hidden: Program  # hidden states after the final norm, of chosen rows
    # Of a certified head: what bounds the logits after the last token of each sequence; and index and value of the largest of
    # these logits, and how many rows were read for it.
    approximate: Program | None = None
    largest: Program | None = None


class Picked(NamedTuple):
    """Of each sequence the id of its largest logit, the lowest among equals, and that logit. NaN is larger than all."""

    ids: list[int]
    logits: list[float]


class _Ahead(NamedTuple):
    """A step that was begun before it was asked for: its slots, its tokens, and a function that waits for its result; and how many
    steps, itself included, there is memory for on the device."""

    slots: list[int]
    ids: list[int]
    result: Callable[[], np.ndarray[Any, Any]]
    steps: int


def _greedy(network: Network, x: Tensor) -> tuple[Tensor, ...]:
    """Return the tokens of the largest logits, these and, through a copy of the head, how many of its rows were read, [n, 1] each."""
    if network.certified is not None:
        best, largest, rows = network.certified.largest(network.head.norm(x))
        return ops.expand_dims(best, -1), ops.expand_dims(largest, -1), ops.expand_dims(rows.astype(dt.f32), -1)
    logits = network.head(x)
    count, vocab = logits.shape
    best = ops.argmax(logits, axis=-1, keepdims=True)
    offsets = best if count == 1 else best + ops.expand_dims(arange(count, dtype=dt.i64) * vocab, -1)
    return best, ops.take(logits.reshape(-1), offsets, axis=0)


def _bounded(head: CertifiedHead, hidden: Program) -> tuple[Program, Program]:
    """Return the last two functions of `Programs` for a certified head, from that of hidden states."""

    def approximate(ids: Tensor, places: Tensor, indices: Tensor, *caches: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        both, logits = head.approximate(hidden(ids, places, indices, *caches))
        return both, logits, head.lengths(both)

    def largest(ids: Tensor, places: Tensor, indices: Tensor, *caches: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return head.largest(hidden(ids, places, indices, *caches))

    return approximate, largest


def programs(network: Network) -> Programs:
    """Return the functions of a network; nothing is compiled yet."""

    def body(ids: Tensor, places: Tensor, angles: list[Angles], caches: tuple[Tensor, ...]) -> Tensor:
        x = network.embedding(ids)
        rest, blocks = iter(caches), list(network.blocks)
        if network.adapters is not None:
            blocks, places = network.adapters.bind(blocks, places[:, -1]), places[:, :-1].contiguous()
        turns = places if places.shape[1] == 3 else places[:, :3].contiguous()  # of mixers without blocks
        for block in blocks:
            first, where = next(rest), places
            if not isinstance(block.attention, Attention):
                state: Any = DeltaState(first, next(rest))
                where = turns
            else:
                state = QuantizedKVCache(first, next(rest)) if first.dtype is dt.u8 else KVCache(first)
            x = block(x, None if block.rope is None else angles[block.rope], state, where)
        return x.reshape(-1, x.shape[-1])

    def angles(ids: Tensor, places: Tensor) -> list[Angles]:
        positions = places[:, 1:2] + arange(ids.shape[1], dtype=dt.i32)
        return [rope.angles(positions) for rope in network.ropes]

    def last(ids: Tensor, places: Tensor, indices: Tensor, *caches: Tensor) -> Tensor:
        return network.head(ops.take(body(ids, places, angles(ids, places), caches), indices, axis=0))

    def every(ids: Tensor, places: Tensor, *caches: Tensor) -> Tensor:
        return ops.log_softmax(network.head(body(ids, places, angles(ids, places), caches)), axis=-1)

    def pick(ids: Tensor, places: Tensor, turns: Tensor, *caches: Tensor) -> Tensor:
        """Pick greedily with few launches around the layers: angles are looked up, tokens and places are written as a whole."""
        turned = ops.take(turns, places[:, 1:2], axis=0)
        angles = [Angles(turned[:, :, 2 * i], turned[:, :, 2 * i + 1]) for i in range(len(network.ropes))]
        best, *numbers = _greedy(network, body(ids, places, angles, caches))
        ops.copy(best, out=ids)
        starts = (arange(places.shape[1], dtype=dt.i32) == 1).astype(dt.i32)
        ops.add(places, places[:, 2:3] * starts, out=places)  # of padding, which counts nothing, they stay
        columns = ops.broadcast_to(numbers[-1], (ids.shape[0], 1 + len(numbers)))
        for i, x in enumerate([best.astype(dt.f32), *numbers[:-1]]):
            columns = ops.where(arange(1 + len(numbers)) == i, x, columns)
        return columns

    def hidden(ids: Tensor, places: Tensor, indices: Tensor, *caches: Tensor) -> Tensor:
        return network.head.norm(ops.take(body(ids, places, angles(ids, places), caches), indices, axis=0))

    if network.divided is not None:  # numbers are exchanged between layers, which no graph can do
        return Programs(last, every, pick, hidden)
    certified = None if network.device.type != "cpu" else network.certified
    return Programs(
        Compiled(last, donate="caches"),
        Compiled(every, donate="caches"),
        Compiled(pick, donate=("ids", "places", "caches")),
        Compiled(hidden, donate="caches"),
        *(Compiled(fn, donate="caches") for fn in ([] if certified is None else _bounded(certified, hidden))),
    )


@lru_cache(maxsize=4096)
def chunks(count: int, buckets: tuple[int, ...] = BUCKETS) -> tuple[int, ...]:
    """Return the sizes of the programs that take `count` tokens in least time: padding to a larger one, or several calls."""
    most = buckets[-1]
    if count > most:
        return (most, *chunks(count - most, buckets))
    above = next(b for b in buckets if b >= count)
    below = [b for b in buckets if b < count]
    if above == count or not below:
        return (above,)
    split = (below[-1], *chunks(count - below[-1], buckets))
    return split if sum(split) + START * len(split) < above + START else (above,)


@lru_cache(maxsize=4096)
def _cost(count: int) -> int:
    """Return what reading a prompt alone takes, in tokens of prefill."""
    sizes = chunks(count)
    return sum(sizes) + START * len(sizes)


def shares_rows(counts: Sequence[int]) -> bool:
    """Return True if prompts of these lengths take less in common programs than one by one."""
    whole, rest = divmod(sum(-(-count // ROW) for count in counts), ROWS[-1])
    sizes = [ROWS[-1]] * whole + ([next(b for b in ROWS if b >= rest)] if rest else [])
    return sum(size * ROW + START for size in sizes) < sum(map(_cost, counts))


@dataclass
class TokenCounts:
    """Tokens of all sessions of this process since it started: cheap sums, always on."""

    prefill: int = 0
    decode: int = 0


counters = TokenCounts()


def _piece(slot: int, start: int, part: Ids, size: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return some tokens of one sequence, padded to the size of a program, and their place."""
    padded = np.zeros((1, size), np.int32)
    padded[0, : len(part)] = part
    return padded, np.array([[slot, start, len(part)]], np.int32)


def _ranked(rows: Logits, tokens: list[int], top: int) -> list[Logprobs]:
    """Return the log-probability of a token in each row, and the likeliest of the row."""
    return [
        Logprobs(
            t, float(row[t]), tuple((int(i), float(row[i])) for i in largest(row, min(top, row.size))) if top else ()
        )
        for t, row in zip(tokens, rows[: len(tokens)], strict=True)
    ]


class Session:
    """Sequences of one model in the slots of a cache.

    `extend` appends tokens to a slot and gives the logits after the last one; `step` appends one token to each of several
    slots in one program, and `pick` too, where only the largest logits are wanted; `truncate` forgets the end of a slot, so
    that another continuation of the same beginning is cheap.

    pool: tokens of all slots together, where the device has paged caches; by default as many as all slots may hold, or those that
    three quarters of its free memory hold. A slot takes memory as it grows; where there is none left, `spare` slots are emptied first.
    """

    def __init__(
        self, network: Network, config: Config, *, slots: int = 1, context: int | None = None, kv: Any = dt.f16,
        pool: int | None = None, shared_programs: Programs | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(slots, int) or not 1 <= slots <= TOGETHER[-1]:
            raise ArgumentError(f"Session: slots must be 1 to {TOGETHER[-1]}, given {slots!r}.")
        capacity = config.context if context is None else self.check_context(config, context)
        self.config, self.slots, self.capacity = config, slots, capacity
        self._programs = shared_programs or programs(network)
        self._ropes = network.ropes
        self.device = network.device
        # The CPU has its logits at hand. Measured at 128,256 of them, a program that also finds the largest and where it stands
        # takes as long for one sequence as NumPy's argmax behind it, and 1.8 % longer for eight: it reads them twice.
        self._picks_there = self.device.type != "cpu" and config.vocab_size <= EXACT
        divided = network.divided
        self._divided = divided is not None
        mixers = [layer.mixer for layer in (config.description if divided is None else divided).layers]
        first = next((i for i, mixer in enumerate(mixers) if not isinstance(mixer, DeltaNet)), None)
        whole_bytes = (8, 8) if isinstance(kv, tuple) else kv
        self._blocks = self._make_blocks(mixers, kv, pool)
        self._spare: dict[int, None] = {}  # slots that may be emptied, the longest unused first
        states = [self._state(mixer, whole_bytes if i == first else kv) for i, mixer in enumerate(mixers)]
        self.caches: tuple[Tensor, ...] = tuple(t for state in states for t in state)
        whole = [isinstance(mixer, DeltaNet) for mixer in mixers]
        self.memory = SlotMemory(
            [t for state, is_whole in zip(states, whole, strict=True) if not is_whole for t in state],
            [t for state, is_whole in zip(states, whole, strict=True) if is_whole for t in state],
            self._blocks, self._hold,
        )  # fmt: skip
        # A recurrent state holds all tokens so far as one: it cannot be cut to the first of them.
        self.recurrent = any(isinstance(mixer, DeltaNet) for mixer in mixers)
        self.costs = Costs(TOGETHER)  # of decode steps, by whoever times them
        self._last: dict[
            int, Logits
        ] = {}  # of recurrent models: the logits after the last token of a slot, where known
        self._tokens: list[list[int]] = [[] for _ in range(slots)]
        self.adapters = () if network.adapters is None else network.adapters.names
        self._chosen = np.zeros(slots, np.int32)  # the number of each slot's adapter, 0 for none
        self._inputs: dict[tuple[str, tuple[int, ...]], tuple[Tensor, np.ndarray[Any, Any] | None]] = {}  # and as sent
        self._ahead: _Ahead | None = None
        if divided is not None:
            kind = list(KV.values()).index(kv if isinstance(kv, tuple) else dt.dtype(kv))
            number = divided.calls.open(self, slots, capacity, kind)
            shared = [
                partial(divided.calls.run, number, i, fn) for i, fn in enumerate(self._programs) if fn is not None
            ]
            self._programs = Programs(*shared)
        self._head = network.certified
        self._certified = None if self._programs.approximate is None else Certified(network.certified)  # type: ignore[arg-type]

    def _make_blocks(self, mixers: Sequence[d.Attention | DeltaNet], kv: Any, pool: int | None) -> Blocks | None:
        """Return the blocks of a paged cache for so many tokens of all slots; None where caches have a slot for each sequence."""
        attention = [m for m in mixers if not isinstance(m, DeltaNet)]
        if pool is not None and (isinstance(pool, bool) or not isinstance(pool, int) or pool < 1):
            raise ArgumentError(f"Session: pool must be a whole number of tokens, at least 1, given {pool!r}.")
        reasons = {
            f"{self.device} has none": not self.device.backend.pages_caches, "the model is divided over processes": self._divided,
            "the model has no attention": not attention, "keys and values are integers": isinstance(kv, tuple),
        }  # fmt: skip
        if any(reasons.values()):
            if pool is not None:
                reason = next(text for text, holds in reasons.items() if holds)
                raise ArgumentError(
                    f"Session: pool={pool} is for caches in blocks, and {reason}: each slot takes memory as it is written. Leave it out."
                )
            return None
        limit = blocks_for(self.capacity)
        most = self.slots * limit
        if pool is None:
            bytes_of_block = BLOCK * sum(2 * m.kv_heads * m.head_dim for m in attention) * dt.dtype(kv).nbytes
            used, there = self.device.backend.memory() or (0, 2 * most * bytes_of_block)
            return Blocks(self.slots, self.capacity, max(min(most, (there - used) * 3 // 4 // bytes_of_block), limit))
        count = min(blocks_for(pool), most)
        self.capacity = min(self.capacity, count * BLOCK)  # a sequence has no more room than all have
        return Blocks(self.slots, self.capacity, count)

    @property
    def pool(self) -> int:
        """Return how many tokens all slots together have room for; a slot takes a multiple of `grain` of them."""
        return self.slots * self.capacity if self._blocks is None else self._blocks.count * BLOCK

    @property
    def grain(self) -> int:
        """Return by how many tokens the memory of a slot grows."""
        return 1 if self._blocks is None else BLOCK

    def spare(self, slot: int) -> None:
        """Declare that a slot may be emptied where others need its memory; when tokens are appended to it, it no longer may."""
        self._spare.pop(self._slot(slot), None)
        if self._tokens[slot]:
            self._spare[slot] = None

    def _hold(self, ends: Mapping[int, int]) -> None:
        """Give slots the memory for so many tokens each; empty spare slots where there is too little, and raise where that is not enough."""
        if self._blocks is None:
            return
        for slot in ends:
            self._spare.pop(slot, None)
        while self._spare and self._blocks.missing(ends) > self._blocks.free:
            self.truncate(next(iter(self._spare)), 0)
        self._blocks.hold(ends)

    def _state(self, mixer: d.Attention | DeltaNet, kv: Any) -> tuple[Tensor, ...]:
        """Return the memory of a layer for all slots: the KV cache, or the state of a delta net."""
        if isinstance(mixer, DeltaNet):
            channels = 2 * mixer.key_heads * mixer.key_dim + mixer.value_heads * mixer.value_dim
            shapes = (mixer.kernel - 1, channels), (mixer.value_heads, mixer.key_dim, mixer.value_dim)
            return tuple(ops.full((self.slots, *shape), 0.0, device=self.device) for shape in shapes)
        shape = {"slots": self.slots, "heads": mixer.kv_heads, "capacity": self.capacity, "size": mixer.head_dim}
        if isinstance(kv, tuple):
            return self._integer_state(mixer, kv, shape)
        if self._blocks is not None:
            shape |= {"slots": self._blocks.count, "capacity": BLOCK}
        return (KVCache.empty(**shape, dtype=kv, device=self.device).kv,)

    def _integer_state(self, mixer: d.Attention, bits: tuple[int, int], shape: dict[str, int]) -> tuple[Tensor, ...]:
        """Return the KV cache of a layer in integers; raise where heads or device have none."""
        if self.device.type != "cpu":
            raise DeviceError(
                f"Session: KV caches of integers are kept on the CPU alone; this model is on {self.device}: load it with kv='f16'."
            )
        if mixer.head_dim % ops.KV_BLOCK:
            raise ArgumentError(
                f"Session: a KV cache of integers needs a head_dim that is a multiple of {ops.KV_BLOCK}; this model has "
                f"{mixer.head_dim}: load it with kv='f16'."
            )
        return tuple(QuantizedKVCache.empty(**shape, bits=bits, device=self.device))

    @staticmethod
    def check_context(config: Config, context: Any) -> int:
        """Return a context; raise unless it is a number of tokens that the model was made for."""
        if isinstance(context, bool) or not isinstance(context, int) or context < 1:
            raise ArgumentError(f"context must be a number of tokens, given {context!r}.")
        if context > config.context:
            raise ContextError(
                f"A context of {context} tokens was asked; this model was made for {config.context}. Ask for at most that."
            )
        return context

    @property
    def nbytes(self) -> int:
        """Return the bytes of the cache when it is full; memory that was never written is not taken."""
        return sum(t.nbytes for t in self.caches)

    def tokens(self, slot: int) -> list[int]:
        """Return the tokens that a slot holds."""
        return list(self._tokens[self._slot(slot)])

    def adapter(self, slot: int) -> str | None:
        """Return the adapter that a slot is computed with; None: the model as it is."""
        number = int(self._chosen[self._slot(slot)])
        return self.adapters[number - 1] if number else None

    def use(self, slot: int, adapter: str | None) -> None:
        """Have a slot computed with an adapter, or with none; where that is another one, what the slot holds is forgotten."""
        if adapter is not None and adapter not in self.adapters:
            known = ", ".join(self.adapters) or "none: model.with_adapters adds some"
            raise ArgumentError(f"adapter {adapter!r:.80} does not exist; this model has {known}.")
        if adapter != self.adapter(slot):
            self.truncate(slot, 0)
            self._chosen[slot] = 0 if adapter is None else self.adapters.index(adapter) + 1

    def reusable(self, slot: int, count: int) -> int:
        """Return how many of the first `count` tokens of a slot `truncate` can keep: all of them, but of a recurrent model none
        unless they are all that the slot holds."""
        return count if not self.recurrent or count == len(self._tokens[self._slot(slot)]) else 0

    def truncate(self, slot: int, count: int) -> None:
        """Forget all but the first `count` tokens of a slot."""
        held = self._tokens[self._slot(slot)]
        if not isinstance(count, int) or not 0 <= count <= len(held):
            raise ArgumentError(f"truncate: slot {slot} holds {len(held)} tokens, {count} were to be kept.")
        if self.recurrent and count not in (0, len(held)):
            raise ArgumentError(
                f"truncate: the state of a {self.config.family} model holds {len(held)} tokens as one and cannot be cut to {count} of "
                f"them; truncate slot {slot} to 0 and extend it by the {count} again."
            )
        self._ahead = None
        if count < len(held):
            self._last.pop(slot, None)
        del held[count:]
        if not count:
            self._spare.pop(slot, None)
        if self._blocks is not None:
            self._blocks.release(slot, count)

    def adopt(self, slot: int, tokens: Ids) -> None:
        """Declare that a slot holds these tokens, whose memory was written by a `PrefixCache` or from a file."""
        slot = self._slot(slot)
        held = self._tokens[slot]
        self._ahead = None
        self._last.pop(slot, None)
        held.clear()
        if tokens:
            held += self._checked(slot, tokens)
        self._hold({slot: len(held)})

    def share(self, source: int, slot: int, count: int) -> None:
        """Make a slot hold the first `count` tokens of another one, by a copy (divided over processes: by computing them again); of a
        recurrent model those of the whole slot."""
        held, own = self._tokens[self._slot(source)], self._tokens[self._slot(slot)]
        if self._chosen[source] != self._chosen[slot]:
            raise ArgumentError(
                f"share: slot {source} is computed with adapter {self.adapter(source)} and slot {slot} with {self.adapter(slot)}."
            )
        if not 0 <= count <= len(held) or self.reusable(source, count) != count:
            raise ArgumentError(
                f"share: slot {source} holds {len(held)} tokens, of which {self.reusable(source, min(count, len(held)))} can be "
                f"shared; {count} were asked for."
            )
        start, shared = 0 if self.recurrent else common(held[:count], own), held[:count]
        if self.unshareable:
            self.truncate(slot, start)
            if shared[start:]:
                self.extend(slot, shared[start:])
            return
        was_spare = source in self._spare
        self._spare.pop(source, None)  # it is in use
        self.memory.copy(source, slot, start, count)
        if self.recurrent and count:
            self.memory.write_state(slot, self.memory.read_state(source))
        self.adopt(slot, shared)
        if was_spare:
            self.spare(source)

    @checked
    def save(self, path: str | Path, slot: int = 0, *, overwrite: bool = False) -> Path:
        """Write what a slot holds to a file: its tokens with their keys and values, and the states of a recurrent model."""
        held = self._tokens[self._slot(slot)]
        if self.unshareable:
            raise ArgumentError(f"save: {self.unshareable}; save a session of the model in one process.")
        write_slot(Path(path), self.memory, slot, held, overwrite=overwrite)
        return Path(path)

    @checked
    def restore(self, path: str | Path, slot: int = 0) -> list[int]:
        """Read a file of `save` into a slot; return its tokens. It must be of the same model: the first tokens are computed again
        and compared with the file bit for bit. If that fails, the slot is empty."""
        if self.unshareable:
            raise ArgumentError(
                f"restore: {self.unshareable}; restore it to the model in one process, or read its text again."
            )
        saved = read_slot(Path(path), self.memory, self.capacity)
        self.truncate(self._slot(slot), 0)
        if not saved.tokens:
            return []
        if wrong := [t for t in saved.tokens if not 0 <= t < self.config.vocab_size]:
            where = visible(Path(path).name)
            raise fault(where, f"the token {wrong[0]}", f"tokens from 0 to {self.config.vocab_size - 1}", REMEDY)
        first = saved.tokens[:PROBE]
        self.extend(slot, first)
        computed = self.memory.read(slot, 0, len(first))
        same = all(np.array_equal(a, b[:, : len(first)]) for a, b in zip(computed, saved.parts, strict=True))
        self.truncate(slot, 0)
        if not same:
            raise FormatError(
                f"{visible(Path(path).name)}: the session was saved by another model, or on a device that computes other bits; "
                f"restore it with the model it was saved by."
            )
        self.memory.write(slot, 0, saved.parts)
        self.memory.write_state(slot, saved.states)
        self.adopt(slot, saved.tokens)
        return saved.tokens

    def extend_all(self, slots: Sequence[int], ids: Sequence[Ids]) -> list[Logits]:
        """Append tokens to each of several slots; the logits [vocab] after the last of each. Prompts that are cheaper to read
        together than one by one share the programs: one product over the tokens of all. If it fails, all slots are as before."""
        if len(slots) == 1 == len(ids):
            return [self.extend(slots[0], ids[0])]
        slots = [self._slot(slot) for slot in slots]
        if len(slots) != len(ids) or not slots or len(set(slots)) != len(slots):
            raise ArgumentError(
                f"extend_all: different slots and tokens for each are needed, given {slots} and {len(ids)}."
            )
        new = [self._checked(slot, part) for slot, part in zip(slots, ids, strict=True)]
        if all(len(part) == 1 for part in new):
            return list(self.step(slots, [part[0] for part in new]))
        before = [len(self._tokens[slot]) for slot in slots]
        try:
            if self.recurrent or not shares_rows([len(part) for part in new]):
                return [self.extend(slot, part) for slot, part in zip(slots, new, strict=True)]
            return self._extend_rows(slots, new)
        except BaseException:
            for slot, count in zip(slots, before, strict=True):
                self.truncate(slot, self.reusable(slot, min(count, len(self._tokens[slot]))))
            raise

    def _extend_rows(self, slots: list[int], new: list[list[int]]) -> list[Logits]:
        """Append tokens in rows of ROW: all keys and values of a program are written before any is read, so rows of one sequence
        may stand in the same program."""
        self._ahead = None
        self._hold({slot: len(self._tokens[slot]) + len(part) for slot, part in zip(slots, new, strict=True)})
        rows: list[tuple[int, int, list[int]]] = []  # number of the sequence, position, tokens
        for i, (slot, part) in enumerate(zip(slots, new, strict=True)):
            held = len(self._tokens[slot])
            rows += [(i, held + offset, part[offset : offset + ROW]) for offset in range(0, len(part), ROW)]
        logits: dict[int, Logits] = {}
        while rows:
            size = next((b for b in ROWS if b >= len(rows)), ROWS[-1])
            now, rows = rows[:size], rows[size:]
            padded, places = np.zeros((size, ROW), np.int32), np.zeros((size, 3), np.int32)
            for r, (i, start, part) in enumerate(now):
                padded[r, : len(part)] = part
                places[r] = slots[i], start, len(part)
            indices = np.arange(size, dtype=np.int32) * ROW + np.maximum(places[:, 2] - 1, 0)
            last = self._run(self._programs.last, padded, places, indices)
            logits |= {i: last[r] for r, (i, _, _) in enumerate(now)}
        for slot, part in zip(slots, new, strict=True):
            self._tokens[slot] += part
            counters.prefill += len(part)
        return [logits[i] for i in range(len(slots))]

    def extend(self, slot: int, ids: Ids) -> Logits:
        """Append tokens to a slot; the logits [vocab] after the last of them. If it fails, the slot is as before."""
        (logits,) = self._extended(slot, ids, self._programs.last)
        return self._ended([slot], logits[:1])[0]

    def append(self, slot: int, ids: Ids) -> None:
        """Append tokens to a slot without the logits after them. If it fails, the slot is as before."""
        self._extended(slot, ids, self._programs.hidden if self.device.type == "cpu" else self._programs.last)

    def extend_bounded(self, slot: int, ids: Ids) -> Logits | Bounded:
        """Append tokens to a slot; the logits after the last of them, within bounds where a certified head tells more by them
        than it reads, else as `extend` does. They are to be used before the next call."""
        program = self._programs.approximate
        if program is None or self._certified is None or self.recurrent or self._certified.rests(1):
            return self.extend(slot, ids)
        both, logits, lengths = self._extended(slot, ids, program)
        return self._certified.bounded(both, logits, lengths, 1)[0]

    def _extended(self, slot: int, ids: Ids, program: Program) -> tuple[Logits, ...]:
        """Append tokens to a slot; return the results of a program for the last of them."""
        new = self._checked(slot, ids)
        self._ahead = None
        held = self._tokens[slot]
        self._hold({slot: len(held) + len(new)})  # all or none of it
        done, results = 0, tuple[Logits, ...]()
        with self._changing([slot]):
            for size in chunks(len(new)):
                count = min(size, len(new) - done)
                piece, places = _piece(slot, len(held) + done, new[done : done + count], size)
                # Of the pieces before the last no logits are wanted; a device that captures programs keeps one for all.
                between = done + count < len(new) and self.device.type == "cpu"
                run = self._programs.hidden if between else program
                results = self._results(run, piece, places, np.array([count - 1], np.int32))
                done += count
        held += new
        counters.prefill += len(new)
        return results

    @contextmanager
    def _changing(self, slots: Sequence[int]) -> Iterator[None]:
        """Empty the slots of a recurrent model whose states a failed program may have changed; those of others are as before."""
        for slot in slots:
            self._last.pop(slot, None)
        try:
            yield
        except BaseException:
            if self.recurrent:
                for slot in slots:
                    self._tokens[slot].clear()
            raise

    def _ended(self, slots: Sequence[int], logits: Logits) -> Logits:
        """Keep the logits after the last tokens of a recurrent model, which `score` cannot compute again; return them."""
        if self.recurrent:
            self._last.update(zip(slots, logits, strict=True))
        return logits

    def step(self, slots: Sequence[int], ids: Ids) -> Logits:
        """Append one token to each of several slots, in one program; the logits [n, vocab] after them."""
        slots, ids = self._one_each("step", slots, ids)
        return self._ended(slots, self._together(self._programs.last, slots, ids)[0])

    def bounded(self, slots: Sequence[int], ids: Ids) -> Sequence[Logits | Bounded]:
        """Append one token to each of several slots, in one program; the logits after them, within bounds where a certified head
        tells more by them than it reads, else as `step` does."""
        return self._row_bounds(*self._one_each("step", slots, ids))

    @property
    def unshareable(self) -> str:
        """Return why what a slot holds cannot be read and written as bytes; "" where it can."""
        return "keys and values are divided over the processes of this model" if self._divided else ""

    @property
    def unspeculative(self) -> str:
        """Return why guessed tokens cannot be verified here; "" where they can."""
        if self.recurrent:
            return f"the state of a {self.config.family} model holds all tokens as one, so guesses cannot be taken back"
        if self._divided:
            return (
                "how many tokens are guessed follows from times, which differ between the processes of a divided model"
            )
        if self.device.type != "cpu":
            return f"guesses are verified on the CPU only, where a row has the same bits in any batch; this model is on {self.device}"
        return ""

    def verify(self, slots: Sequence[int], ids: Sequence[Ids], *, whole: bool = False) -> list[list[Logits | Bounded]]:
        """Append several tokens to each of several slots, at most TOGETHER[-1] in all, in one decode program; what `bounded` gives
        after each of them, or with `whole` what `step` gives. Tokens that turn out wrong are forgotten by `truncate`."""
        if self.unspeculative:
            raise ArgumentError(f"verify: {self.unspeculative}.")
        if len(slots) != len(ids) or len(set(slots)) != len(slots) or not all(ids):
            raise ArgumentError(
                f"verify: different slots and tokens for each are needed, given {slots} and {len(ids)}."
            )
        rows = [(slot, token) for slot, part in zip(slots, ids, strict=True) for token in part]
        if len(rows) > TOGETHER[-1]:
            raise ArgumentError(f"verify: at most {TOGETHER[-1]} tokens are appended in one call, given {len(rows)}.")
        for slot, part in zip(slots, ids, strict=True):
            self._checked(slot, part)
        flat = [slot for slot, _ in rows], [token for _, token in rows]
        # All keys and values of a program are written before any is read: rows of one sequence may stand in the same one.
        results = iter(self._row_bounds(*flat) if not whole else list(self._together(self._programs.last, *flat)[0]))
        counters.decode += len(slots) - len(rows)  # whoever accepts guesses counts them
        return [[next(results) for _ in part] for part in ids]

    def _row_bounds(self, slots: Sequence[int], ids: Ids) -> list[Logits | Bounded]:
        """Append tokens; return the logits after each, within bounds where a certified head has them."""
        program = self._programs.approximate
        if program is None or self._certified is None or self._certified.rests(len(slots)):
            return list(self._ended(slots, self._together(self._programs.last, slots, ids)[0]))
        both, logits, lengths = self._together(program, slots, ids, cut=False)
        return self._certified.bounded(both, logits, lengths, len(slots))

    def pick(self, slots: Sequence[int], ids: Ids, *, ahead: bool = False) -> Picked:
        """Append one token to each of several slots, in one program; the tokens that greedy decoding takes after them.

        ahead: the caller means to go on with what is picked. A device that works by itself then begins the next step while this
        one is looked at, and the next call finds it under way; if it never comes, or brings other tokens, that step was in vain.
        """
        slots, ids = self._one_each("pick", slots, ids)
        if not self._picks_there:
            return self._largest(slots, ids)
        coming, self._ahead, steps = self._ahead, None, 0
        if coming is not None and (coming.slots, coming.ids) == (slots, ids):
            result, steps = coming.result, coming.steps
        else:
            with self._changing(slots):
                result = self._begin(*self._padded(slots, ids, "picked", np.int64))
        further = None
        if ahead and self.device.backend.runs_ahead and (steps := self._reserved(slots, steps - 1)):
            further = self._begin(*self._next(len(slots)))
        values = result()[: len(slots)]
        self._append(slots, ids)
        picked = Picked(values[:, 0].astype(np.int64).tolist(), values[:, 1].tolist())
        if self._head is not None:
            self._head.count_read(values[:, 2].astype(np.int64).tolist())
        if further is not None:
            self._ahead = _Ahead(slots, picked.ids, further, steps)
        return picked

    def _largest(self, slots: Sequence[int], ids: Ids) -> Picked:
        """Append tokens; pick the largest logit after each on the CPU: by a certified head, or from all of them."""
        program = self._programs.largest
        if program is None or self._certified is None or self._certified.rests(len(slots)):
            rows = self._ended(slots, self._together(self._programs.last, slots, ids)[0])
            best = rows.argmax(axis=-1)
            return Picked(best.tolist(), rows[np.arange(len(best)), best].tolist())
        index, value, read = self._together(program, slots, ids)
        self._certified.decided(read)
        return Picked(index.tolist(), value.tolist())

    def _begin(self, ids: Tensor, places: Tensor) -> Callable[[], np.ndarray[Any, Any]]:
        """Have the next tokens picked; what is given waits for them. Tokens and places are those of the next step then."""
        picked = self._programs.pick(ids, places, self.turns, *self.caches)
        for what, x in (("picked", ids), ("places", places)):
            self._inputs[what, x.shape] = x, None  # it is no longer what was sent
        return self.device.backend.bring(picked)

    @cached_property
    def turns(self) -> Tensor:
        """Return cosine and sine of every position there is room for, f32 [capacity, 2 for each position embedding, D / 2]: compiled,
        so that they have the bits that other programs compute."""
        program = Compiled(lambda positions: ops.stack(*(a for r in self._ropes for a in r.angles(positions)), axis=1))
        angles: Tensor = program(arange(self.capacity, dtype=dt.i32, device=self.device))
        return angles

    def _together(self, program: Program, slots: Sequence[int], ids: Ids, cut: bool = True) -> tuple[Logits, ...]:
        """Append tokens to slots, those of one in order; return the results of a program, cut to a row for each token."""
        self._ahead = None
        padded, places = self._padded(slots, ids, "ids", np.int32)
        indices = self._sent(np.arange(padded.shape[0], dtype=np.int32), "at")
        with self._changing(slots):
            results = program(padded, places, indices, *self.caches)
            rows = tuple(np.asarray(t.numpy()) for t in (results if isinstance(results, tuple) else (results,)))
        self._append(slots, ids)
        return tuple(r[: len(slots)] for r in rows) if cut else rows

    def _one_each(self, what: str, slots: Sequence[int], ids: Ids) -> tuple[list[int], list[int]]:
        """Return slots and a token for each; raise unless slots differ and tokens exist and have room."""
        slots = [self._slot(slot) for slot in slots]
        if len(slots) != len(ids) or not slots or len(set(slots)) != len(slots):
            raise ArgumentError(f"{what}: different slots and one token for each are needed, given {slots} and {ids}.")
        return slots, [self._checked(slot, [token])[0] for slot, token in zip(slots, ids, strict=True)]

    def _append(self, slots: Sequence[int], ids: Ids) -> None:
        counters.decode += len(slots)
        for slot, token in zip(slots, ids, strict=True):
            self._tokens[slot].append(token)

    def _padded(self, slots: Sequence[int], ids: Ids, what: str, kind: type[np.integer[Any]]) -> tuple[Tensor, Tensor]:
        """Return tokens and places for a program of as many sequences or more, on the device."""
        size = next(b for b in TOGETHER if b >= len(slots))
        padded, places = np.zeros((size, 1), kind), np.zeros((size, 3), np.int32)
        padded[: len(slots), 0] = ids
        ends = {slot: len(self._tokens[slot]) for slot in slots}
        for i, slot in enumerate(slots):
            places[i] = slot, ends[slot], 1
            ends[slot] += 1
        return self._sent(padded, what), self._sent(places, "places")

    def _reserved(self, slots: Sequence[int], known: int) -> int:
        """Return for how many steps behind the one under way there is memory; so many are `known`. Where a sequence grows into a new
        block, all get blocks for some more steps, as far as there are any: places are then sent once for all of them."""
        if known > 0 or self.recurrent:  # whose state would have advanced
            return 0 if self.recurrent else known
        held = {s: len(self._tokens[s]) + 1 for s in slots}  # with the token of the step under way
        limit = self.capacity - max(held.values())
        if limit < 1 or self._blocks is None:
            return max(limit, 0)
        for more in (0, 1 + BLOCK // 2, 1):
            ends = {s: min(n + more, self.capacity) for s, n in held.items()}
            if self._blocks.missing(ends) <= self._blocks.free:
                self._blocks.hold(ends)
            if steps := min(limit, *(self._blocks.room(s) - n for s, n in held.items())):
                break
        if steps and more:
            places = np.zeros((next(b for b in TOGETHER if b >= len(slots)), 3), np.int32)
            places[: len(slots)] = [(s, n, 1) for s, n in held.items()]
            self._sent(places, "places")
        return steps

    def _next(self, count: int) -> tuple[Tensor, Tensor]:
        """Return tokens and places as the step before has left them on the device."""
        size = next(b for b in TOGETHER if b >= count)
        columns = 3 + (0 if self._blocks is None else self._blocks.columns) + bool(self.adapters)
        return self._inputs["picked", (size, 1)][0], self._inputs["places", (size, columns)][0]

    def score(self, slot: int, ids: Ids) -> Logits:
        """Append tokens to a slot; the log-probability of each, given all before it. The slot must hold a token already."""
        return np.concatenate(self._scores(slot, ids, lambda rows, after: rows[np.arange(len(after)), after]))

    def scored(self, slot: int, ids: Ids, top: int = 0) -> list[Logprobs]:
        """Append tokens to a slot as `score` does; the log-probability of each, and the `top` likeliest tokens in its place."""
        return [p for part in self._scores(slot, ids, partial(_ranked, top=top)) for p in part]

    def _scores(self, slot: int, ids: Ids, read: Callable[[Logits, list[int]], Any]) -> list[Any]:
        """Append tokens to a slot; what `read` takes of the rows of log-probabilities [n, vocab] that tell them, piece by piece."""
        new = self._checked(slot, ids)
        held = self._tokens[slot]
        if not held:
            raise ArgumentError(
                "score: the slot is empty, and a first token has no probability; extend it by one first."
            )
        self._ahead = None
        if self.recurrent:
            return self._scores_recurrent(slot, new, read)
        self._hold({slot: len(held) + len(new)})
        # Token i is told by the row of the token before it, so the last one held is run once more in front of the new ones.
        parts = self._scored(slot, len(held) - 1, [held[-1], *new], new, read)
        held += new
        return parts

    def _scores_recurrent(self, slot: int, new: list[int], read: Callable[[Logits, list[int]], Any]) -> list[Any]:
        """Return the same where no token can be run again: the first is told by the logits that were kept, or computed anew."""
        held = self._tokens[slot]
        if slot not in self._last:
            tokens = list(held)
            self.truncate(slot, 0)
            self.extend(slot, tokens)
        parts = [read(ops.log_softmax(asarray(self._last[slot]), axis=-1).numpy()[None], new[:1])]
        if len(new) > 1:
            with self._changing([slot]):
                parts += self._scored(slot, len(held), new[:-1], new[1:], read)
            held += new[:-1]
        self.extend(slot, new[-1:])
        return parts

    def _scored(
        self, slot: int, start: int, tokens: list[int], targets: list[int], read: Callable[[Logits, list[int]], Any]
    ) -> list[Any]:
        """Run tokens of a slot from a position on; return what is read of the rows that tell the wanted one after each."""
        parts, done = [], 0
        for size in chunks(len(tokens), SCORED):
            part, after = tokens[done : done + size], targets[done : done + size]
            piece, places = _piece(slot, start + done, part, size)
            every = self._programs.every(self._sent(piece, "ids"), self._sent(places, "places"), *self.caches).numpy()
            parts.append(read(every, after))
            done += len(part)
        return parts

    def hidden(self, slots: Sequence[int], ids: Sequence[Ids], *, last: bool = False) -> list[Logits]:
        """Append tokens to each of several slots, in one program; the hidden states after the final norm, [tokens, hidden_size]
        of each slot, or [1, hidden_size] of its last token alone. At most BUCKETS[-1] tokens a slot."""
        slots = [self._slot(slot) for slot in slots]
        if len(slots) != len(ids) or not slots or len(set(slots)) != len(slots):
            raise ArgumentError(
                f"hidden: different slots and tokens for each are needed, given {slots} and {len(ids)}."
            )
        new = [self._checked(slot, part) for slot, part in zip(slots, ids, strict=True)]
        longest = max(map(len, new))
        if longest > BUCKETS[-1]:
            raise ArgumentError(
                f"hidden: at most {BUCKETS[-1]} tokens a slot are appended in one call, given {longest}."
            )
        self._ahead = None
        size = next(b for b in BUCKETS if b >= longest)
        rows = next(b for b in TOGETHER if b >= len(slots))
        padded, places = np.zeros((rows, size), np.int32), np.zeros((rows, 3), np.int32)
        for i, (slot, part) in enumerate(zip(slots, new, strict=True)):
            padded[i, : len(part)] = part
            places[i] = slot, len(self._tokens[slot]), len(part)
        indices = np.arange(rows, dtype=np.int32) * size + np.maximum(places[:, 2] - 1, 0)
        indices = indices if last else np.arange(rows * size, dtype=np.int32)
        states = self._run(self._programs.hidden, padded, places, indices)
        for slot, part in zip(slots, new, strict=True):
            self._tokens[slot] += part
        if last:
            return [states[i : i + 1] for i in range(len(slots))]
        return [states[i * size : i * size + len(part)] for i, part in enumerate(new)]

    def _slot(self, slot: int) -> int:
        try:
            number = index(slot)
        except TypeError:
            number = -1
        if not 0 <= number < self.slots:
            raise ArgumentError(f"slot {slot!r} does not exist; this session has {self.slots}.")
        return number

    def _checked(self, slot: int, ids: Ids) -> list[int]:
        """Return new tokens for a slot; raise unless they exist and there is room for them."""
        held = self._tokens[self._slot(slot)]
        try:
            new = [index(i) for i in ids]
        except TypeError:
            raise ArgumentError(f"Tokens must be whole numbers, given {ids!r:.80}.") from None
        if not new:
            raise ArgumentError("No token was given; at least one is needed.")
        for token in new:
            if not 0 <= token < self.config.vocab_size:
                raise ArgumentError(f"Token {token} does not exist; this model has 0 to {self.config.vocab_size - 1}.")
        if len(held) + len(new) > self.capacity:
            limit = self.config.context
            remedy = (
                f"ask for a larger context (up to {limit})" if self.capacity < limit else "take a model made for more"
            )
            raise ContextError(
                f"{len(held)} tokens and {len(new)} more do not fit the context of {self.capacity}. Give a shorter text, or {remedy}."
            )
        return new

    def whole_places(self, places: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return places with the columns that programs of this session read; slots get the memory for the tokens that are written."""
        slots, parts = places[:, 0], [places]
        if self._blocks is not None:
            ends: dict[int, int] = {}
            for slot, start, count in places.tolist():
                if count:
                    ends[slot] = max(ends.get(slot, 0), start + count)
            self._hold(ends)
            parts.append(self._blocks.rows(slots))
        if self.adapters:
            parts.append(self._chosen[slots][:, None])
        return np.concatenate(parts, axis=1) if len(parts) > 1 else places

    def _run(
        self, program: Program, ids: np.ndarray[Any, Any], places: np.ndarray[Any, Any], indices: np.ndarray[Any, Any]
    ) -> Logits:
        return self._results(program, ids, places, indices)[0]

    def _results(
        self, program: Program, ids: np.ndarray[Any, Any], places: np.ndarray[Any, Any], indices: np.ndarray[Any, Any]
    ) -> tuple[Logits, ...]:
        output = program(self._sent(ids, "ids"), self._sent(places, "places"), self._sent(indices, "at"), *self.caches)
        return tuple(np.asarray(t.numpy()) for t in (output if isinstance(output, tuple) else (output,)))

    def _sent(self, data: np.ndarray[Any, Any], what: str) -> Tensor:
        """Return an input of a program on its device. Off the host it keeps its memory: what is captured for it stays true. Places
        get the blocks of each slot where caches are paged and, where there are adapters, a column with the number of each slot's."""
        if what == "places":
            data = self.whole_places(data)
        if self.device.type == "cpu":
            return asarray(data)
        key = what, data.shape
        if key not in self._inputs:
            self._inputs[key] = asarray(data, device=self.device), data
        tensor, sent = self._inputs[key]
        if sent is None or not np.array_equal(sent, data):
            self.device.backend.upload(data, tensor)
            self._inputs[key] = tensor, data
        return tensor
