"""Prefixes of all requests: a radix tree over token ids whose edges are pages of the KV cache, within a bound of bytes.

A page holds the keys and values of up to PAGE tokens of every layer, as the bytes they have in a slot, in the memory of the host. A
node is one page, and the path to it says which tokens came before: so a page is right for every request that begins with these
tokens. A match ends at any token, also inside a page. A node is referenced by its children and by the requests that run on it; when
the bound is reached, the least recently used node without references makes way.

Of recurrent models a node also keeps snapshots: the states of all layers after a number of its tokens. A match ends at a snapshot.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count as counting
from typing import Any, NamedTuple

import numpy as np

from tritium.errors import ArgumentError
from tritium.machine.facts import bytes_text
from tritium.models.caching.memory import Bytes, SlotMemory

PAGE = 32  # tokens of a page
MOST_BYTES = 1 << 30  # of a cache for which no bound was given
SNAPSHOTS = 4  # states of a recurrent model that such a cache has room for, for each slot


@dataclass(eq=False)
class Node:
    """A page of tokens after those of its parent. `page` is its number in the pool; the root has none and no tokens."""

    tokens: tuple[int, ...]
    page: int
    parent: Node | None
    children: list[Node] = field(
        default_factory=list
    )  # ordered by their tokens, so that neighbours share the longest prefix
    references: int = 0  # of requests
    used: int = 0  # when it was last of use
    snapshots: dict[int, list[Bytes]] = field(default_factory=dict)  # by how many of its tokens they follow
    alive: bool = True

    def __lt__(self, other: Node) -> bool:
        return self.tokens < other.tokens

    @property
    def evictable(self) -> bool:
        """Return True if nothing refers to the node."""
        return self.alive and not self.children and not self.references and self.parent is not None

    def nearest(self, tokens: tuple[int, ...]) -> tuple[Node | None, int]:
        """Return the child that shares most of its first tokens with some, and how many; among neighbours in order is the best."""
        index = bisect_left(self.children, tokens, key=lambda child: child.tokens)
        best: tuple[Node | None, int] = (None, 0)
        for child in self.children[max(index - 1, 0) : index + 1]:
            shared = common(child.tokens, tokens)
            best = max(best, (child, shared), key=lambda pair: pair[1])
        return best


class Match(NamedTuple):
    """The known part of some tokens: the nodes from the root on with how many tokens of each match; `length` tokens can be loaded, of
    `known` the tree has keys and values (fewer can be loaded of a recurrent model, whose states are kept at few places)."""

    path: tuple[tuple[Node, int], ...]
    length: int
    known: int


@dataclass
class PrefixCounts:
    """Sums over the life of a cache; whoever looks prompts up counts the first two."""

    queries: int = 0  # tokens of prompts
    hits: int = 0  # of those, tokens that were not computed again
    evictions: int = 0  # pages


def default_limit(memory: SlotMemory, slots: int, capacity: int) -> int:
    """Return the bound of a session that has none: as much as its slots take when full, at most 1 GiB, but one slot at least."""
    tokens = -(-capacity // PAGE) * PAGE
    slot = tokens * (memory.token_bytes + 8) + SNAPSHOTS * memory.state_bytes
    return min(slots * slot, max(MOST_BYTES, slot))


class PrefixCache:
    """Prefixes in pages. One thread at a time, that of the session."""

    def __init__(self, memory: SlotMemory, nbytes: int) -> None:
        if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0:
            raise ArgumentError(f"prefix_cache must be a number of bytes, 0 for none, given {nbytes!r}.")
        self.memory, self.limit = memory, nbytes
        self.page_bytes = PAGE * (memory.token_bytes + 8)  # with its token ids
        self.capacity = nbytes // self.page_bytes
        if nbytes and not self.capacity:
            raise ArgumentError(
                f"prefix_cache: a page of {PAGE} tokens of this model takes {bytes_text(self.page_bytes)}, given "
                f"{bytes_text(nbytes)}; give more, or 0 for no cache."
            )
        # Memory that was never written is not taken.
        shapes = [(self.capacity, heads, PAGE, width) for heads, width in memory.token_shapes]
        self._pool = [np.empty(shape, np.uint8) for shape in shapes]
        self._free: list[int] = []  # numbers of pages that were in use and are not
        self._pages = 0  # numbers of pages that were ever in use
        self._roots: dict[
            str | None, Node
        ] = {}  # by adapter: the same tokens have other keys and values with another one
        self._clock = counting(1)
        self._queue: list[
            tuple[int, int, Node]
        ] = []  # of what may be evicted, least recently used first; some are out of date
        self._snapshot_bytes = 0
        self.counts = PrefixCounts()

    @property
    def pages(self) -> int:
        """Return the number of pages in use."""
        return self._pages - len(self._free)

    @property
    def nbytes(self) -> int:
        """Return the bytes in use: at most `limit`."""
        return self.pages * self.page_bytes + self._snapshot_bytes

    @property
    def recurrent(self) -> bool:
        """Return True if tokens can be loaded only where a snapshot was taken."""
        return self.memory.state_bytes > 0

    # ---- look up

    def _root(self, adapter: str | None) -> Node:
        return self._roots.setdefault(adapter, Node((), -1, None))

    def match(self, tokens: Sequence[int], most: int, adapter: str | None = None) -> Match:
        """Return what is known of the first `most` tokens, as computed with an adapter or with none."""
        ids, node, path = tuple(tokens[:most]), self._root(adapter), list[tuple[Node, int]]()
        known = count = 0
        while known < len(ids):
            child, shared = node.nearest(ids[known : known + PAGE])
            if child is None or not shared:
                break
            path.append((child, shared))
            count = max([count, *(known + length for length in child.snapshots if length <= shared)])
            known += shared
            if shared < PAGE:
                break
            node = child
        return Match(tuple(path), count if self.recurrent else known, known)

    def load(self, slot: int, match: Match, start: int = 0) -> None:
        """Write what was matched into a slot, whose first `start` tokens are there already."""
        position = 0
        for node, shared in match.path:
            stop = min(position + shared, match.length)
            first = max(start, position)
            if first < stop:
                parts = [pool[node.page, :, first - position : stop - position] for pool in self._pool]
                self.memory.write(slot, first, parts)
            if self.recurrent and position < match.length <= position + shared:
                self.memory.write_state(slot, node.snapshots[match.length - position])
            position += shared
        self._touch(node for node, _ in match.path)

    # ---- keep

    def store(self, slot: int, tokens: Sequence[int], adapter: str | None = None) -> Node:
        """Keep the first tokens of a slot; return the last node that has any of them. What finds no room is not kept."""
        ids, node, position = tuple(tokens), self._root(adapter), 0
        path = list[Node]()
        while position < len(ids):
            part = ids[position : position + PAGE]
            child, shared = node.nearest(part)
            if child is not None and shared == len(child.tokens) < len(part):
                self._extend(child, part, slot, position)
            elif child is None or shared < len(part):
                child = self._insert(node, part, slot, position)
                if child is None:
                    break
            position += PAGE
            node = child
            path.append(node)
        self._touch(path)
        return node

    def snapshot(self, slot: int, tokens: Sequence[int], adapter: str | None = None) -> None:
        """Keep the states of a slot after these tokens, all it holds, which `store` has kept. What finds no room is not kept."""
        match = self.match(tokens, len(tokens), adapter)
        if not self.recurrent or not match.path or match.known != len(tokens):
            return
        node, shared = match.path[-1]
        if shared in node.snapshots:
            return
        node.references += 1
        room = self._make_room(self.memory.state_bytes)
        node.references -= 1
        if room:
            node.snapshots[shared] = self.memory.read_state(slot)
            self._snapshot_bytes += self.memory.state_bytes
        self._offer(node)

    def pin(self, node: Node) -> None:
        """Keep a node and those before it while a request runs on them."""
        node.references += 1

    def release(self, node: Node) -> None:
        """Undo a `pin`."""
        node.references -= 1
        self._offer(node)

    def clear(self) -> None:
        """Forget every node that no request runs on."""
        while self._evict():
            pass

    def _insert(self, parent: Node, tokens: tuple[int, ...], slot: int, position: int) -> Node | None:
        """Return a new page after `parent` with tokens of a slot; None: there is no room."""
        parent.references += 1  # it must not make way for its child
        room = self._make_room(self.page_bytes)
        parent.references -= 1
        if not room:
            return None
        if not self._free:
            self._free.append(self._pages)
            self._pages += 1
        node = Node(tokens, self._free.pop(), parent)
        insort(parent.children, node)
        self._write(node, slot, position, 0)
        return node

    def _extend(self, node: Node, tokens: tuple[int, ...], slot: int, position: int) -> None:
        """Add to a page that is not full the tokens that follow in a slot."""
        assert node.parent is not None
        had = len(node.tokens)
        node.parent.children.remove(node)
        node.tokens = tokens
        insort(node.parent.children, node)
        self._write(node, slot, position + had, had)

    def _write(self, node: Node, slot: int, start: int, had: int) -> None:
        parts = self.memory.read(slot, start, start + len(node.tokens) - had)
        for pool, part in zip(self._pool, parts, strict=True):
            pool[node.page, :, had : len(node.tokens)] = part

    # ---- make room

    def _touch(self, nodes: Any) -> None:
        now = next(self._clock)
        for node in nodes:
            node.used = now
            self._offer(node)

    def _offer(self, node: Node) -> None:
        """Put a node in the queue of what may be evicted, if nothing refers to it."""
        if node.evictable:
            heapq.heappush(self._queue, (node.used, id(node), node))
        if len(self._queue) > 4 * self.capacity + 64:
            self._queue = [entry for entry in self._queue if entry[2].evictable and entry[0] == entry[2].used]
            heapq.heapify(self._queue)

    def _make_room(self, nbytes: int) -> bool:
        """Evict until so many bytes more are within the limit; return False if they cannot be."""
        while self.nbytes + nbytes > self.limit:
            if not self._evict():
                return False
        return True

    def _evict(self) -> bool:
        """Forget the least recently used node that nothing refers to; return False if there is none."""
        while self._queue:
            used, _, node = heapq.heappop(self._queue)
            if not node.evictable or used != node.used:
                continue
            parent = node.parent
            assert parent is not None
            parent.children.remove(node)
            node.alive = False
            self._free.append(node.page)
            self._snapshot_bytes -= len(node.snapshots) * self.memory.state_bytes
            node.snapshots.clear()
            self.counts.evictions += 1
            self._offer(parent)
            return True
        return False

    def nodes(self) -> Iterator[Node]:
        """Yield every node but the root."""
        waiting = list(self._roots.values())
        while waiting:
            node = waiting.pop()
            waiting += node.children
            if node.parent is not None:
                yield node


def common(one: Sequence[int], two: Sequence[int]) -> int:
    """Return how many tokens two sequences begin with alike."""
    count = min(len(one), len(two))
    for start in range(0, count, 64):  # whole stretches are compared at once
        a, b = list(one[start : start + 64]), list(two[start : start + 64])
        if a != b:
            return start + next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), count - start)
    return count
