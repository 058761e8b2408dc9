"""Triton's cache keys of kernels, the same in every process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def fix_cache_keys(names: Mapping[str, Any]) -> None:
    """Compute the keys of the kernels of a module in the order of their definitions, once those of what it imports are known.

    A key that Triton (3.6) computes depends on which keys of the functions that a kernel calls are known by then. A process that
    launches kernels in another order would not find them in the cache and would compile them again.
    """
    for value in names.values():
        if isinstance(getattr(type(value), "cache_key", None), property):  # a kernel that is compiled, not interpreted
            value.cache_key  # noqa: B018
