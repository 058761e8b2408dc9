"""Model files with ternary weights: read, identify, convert and compare them.

Knows nothing of tensors or devices: weights are returned as NumPy arrays over the bytes of a file.
"""

from tritium.io import codecs, gguf, safetensors
from tritium.io.convert import Converted, convert
from tritium.io.formats import FORMATS
from tritium.io.inspect import Inspected, inspect
from tritium.io.model.entry import Entry, ModelFile
from tritium.io.model.opening import open  # noqa: A004
from tritium.io.ternary import Ternary
from tritium.io.verify import Verdict, verify

__all__ = [
    "FORMATS", "Converted", "Entry", "Inspected", "ModelFile", "Ternary", "Verdict",
    "codecs", "convert", "gguf", "inspect", "open", "safetensors", "verify",
]  # fmt: skip
