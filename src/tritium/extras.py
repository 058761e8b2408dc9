"""The packages that only some uses need, and the command that installs them.

Knows nothing else of the package. Tritium is on no package index: `pip install` finds its extras only in a checkout, so every
error and page names the packages themselves.
"""

from __future__ import annotations

import re
import shlex
import sys

EXTRAS = {  # as in pyproject.toml; a test compares them
    "model": ("tokenizers>=0.21", "jinja2>=3.1.6"),
    "serve": ("h11>=0.16", "tokenizers>=0.21", "jinja2>=3.1.6"),
    "torch": ("torch>=2.5",),
    "cuda": ("torch>=2.9", "triton>=3.5; sys_platform == 'linux'"),
    "mlx": ("mlx>=0.32; sys_platform == 'darwin'", "mlx[cpu]>=0.32; sys_platform == 'linux'"),
    "png": ("resvg_py>=0.5",),
}

_NAME = re.compile(r"[\w.-]+(?:\[[\w,-]+\])?")


def install_command(extra: str, platform: str = sys.platform) -> str:
    """Return the pip command that installs the packages of an extra on a platform; all of them where none is made for it."""
    split = [requirement.partition(";") for requirement in EXTRAS[extra]]
    usable = [r for r, _, marker in split if not marker or f"'{platform}'" in marker]
    names = [match[0] for r in usable or [r for r, _, _ in split] if (match := _NAME.match(r))]
    return f"pip install {' '.join(map(shlex.quote, names))}"
