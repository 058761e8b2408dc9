"""Read fields of a configuration: every value is checked, and refused by the name of its field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tritium.errors import FormatError
from tritium.escape import visible

REMEDY = "This model is computed differently, so its results would be wrong here; it is not supported."
WRONG = "Take the configuration that came with the model."
MOST = 1 << 24  # of any size: beyond this a file is damaged
MOST_LAYERS = 1 << 12

Fields = Mapping[str, Any]


def refused(field: str, value: Any, needed: str, remedy: str = REMEDY) -> FormatError:
    """Return the error for a field: its name, what it is, what is needed, what to do."""
    return FormatError(f"the configuration, {visible(field)}: found {visible(repr(value))}, needed {needed}. {remedy}")


def read_count(config: Fields, field: str, default: int | None = None) -> int:
    """Return a size; raise for what is none."""
    value = config.get(field)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MOST:
        raise refused(field, value, f"a number from 1 to {MOST}", WRONG)
    return value


def read_real(config: Fields, field: str, default: float) -> float:
    """Return a positive number."""
    value = config.get(field)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
        raise refused(field, value, "a positive number", WRONG)
    return float(value)


def read_flag(config: Fields, field: str, default: bool = False) -> bool:
    """Return True or False."""
    value = config.get(field)
    value = default if value is None else value
    if not isinstance(value, bool):
        raise refused(field, value, "true or false", WRONG)
    return value


def read_tokens(config: Fields, field: str) -> tuple[int, ...]:
    """Return token numbers: one, several or none."""
    value = config.get(field)
    listed = value if isinstance(value, list | tuple) else [value]
    if not all(t is None or (isinstance(t, int) and not isinstance(t, bool)) for t in listed):
        raise refused(field, value, "a token number or a list of them", WRONG)
    return tuple(t for t in listed if t is not None)


def read_reals(config: Fields, field: str, count: int | None = None) -> tuple[float, ...]:
    """Return a list of positive numbers, of `count` where that is said."""
    value = config.get(field)
    if not isinstance(value, list | tuple) or not all(
        isinstance(f, int | float) and not isinstance(f, bool) and 0 < f < 1e30 for f in value
    ):
        raise refused(field, value, "a list of positive numbers", WRONG)
    if count is not None and len(value) != count:
        raise refused(field, len(value), f"{count} of them")
    return tuple(float(f) for f in value)


def read_layer_types(config: Fields, layers: int, known: tuple[str, ...], default: tuple[str, ...]) -> tuple[str, ...]:
    """Return the type of each layer, from `layer_types` or the family's default."""
    value = config.get("layer_types")
    if value is None:
        return default
    if not isinstance(value, list | tuple) or len(value) != layers:
        raise refused("layer_types", value, f"a list of {layers} types, one for each layer")
    for kind in value:
        if kind not in known:
            raise refused("layer_types", kind, f"only {' and '.join(known)}")
    return tuple(value)


def every(period: int, layers: int, usual: str, last: str) -> tuple[str, ...]:
    """Return types of layers in which each `period`-th is `last` and the others are `usual`."""
    return tuple(usual if (i + 1) % period else last for i in range(layers))
