"""Measurements on an H200: the fastest tile configs of the kernels of few tokens for some shapes, and the times of
tiles.

Configs are as `cuda.linear.choice.choice` takes them; times are the constants of `cuda.linear.model`, printed
by `bench/cuda_fit.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Cuts = dict[tuple[int, int], dict[int, tuple[Any, ...]]]

PRODUCTS: Cuts = {
    (2560, 2560): {
        1: ("gemv", 32, 8, 1, 4),
        2: ("fragments", 1, 1, 4, 1, 20),
        4: ("fragments", 1, 1, 4, 1, 20),
        8: ("fragments", 2, 2, 1, 1, 10),
        16: ("fragments", 1, 1, 4, 1, 20),
    },
    (13824, 2560): {
        1: ("gemv", 32, 8, 1, 4),
        2: ("gemv", 16, 8, 1, 2),
        4: ("fragments", 1, 1, 4, 1, 20),
        8: ("fragments", 2, 1, 4, 1, 18),
        16: ("fragments", 1, 1, 4, 2, 20),
    },
    (2560, 6912): {
        1: ("gemv", 8, 32, 1, 4),
        2: ("gemv", 8, 16, 2, 4),
        4: ("fragments", 2, 4, 1, 1, 14),
        8: ("fragments", 2, 4, 1, 1, 14),
        16: ("fragments", 1, 2, 1, 1, 24),
    },
    (4096, 4096): {
        1: ("gemv", 16, 16, 1, 4),
        2: ("gemv", 16, 32, 1, 4),
        4: ("fragments", 2, 2, 2, 1, 16),
        8: ("fragments", 2, 2, 2, 1, 16),
        16: ("fragments", 2, 2, 2, 1, 16),
    },
    (14336, 4096): {
        1: ("gemv", 32, 8, 1, 4),
        2: ("fragments", 2, 2, 2, 1, 16),
        4: ("fragments", 2, 2, 2, 1, 16),
        8: ("fragments", 2, 2, 2, 1, 16),
        16: ("fragments", 1, 2, 2, 2, 8),
    },
    (8192, 8192): {
        1: ("gemv", 8, 32, 1, 4),
        2: ("fragments", 1, 4, 1, 1, 16),
        4: ("fragments", 2, 2, 2, 1, 18),
        8: ("fragments", 2, 2, 2, 1, 18),
        16: ("fragments", 2, 2, 1, 2, 14),
    },
    (28672, 8192): {
        1: ("gemv", 8, 32, 1, 4),
        2: ("fragments", 1, 1, 4, 1, 24),
        4: ("fragments", 2, 1, 4, 1, 18),
        8: ("fragments", 4, 2, 2, 1, 7),
        16: ("fragments", 2, 1, 4, 2, 14),
    },
    (3840, 2560): {
        1: ("gemv", 32, 8, 1, 2),
        2: ("fragments", 1, 1, 4, 1, 20),
        4: ("fragments", 1, 1, 4, 1, 20),
        8: ("fragments", 1, 1, 4, 1, 20),
    },
}

# One token that the kernel norms and quantises, raced in whole layers.
OF_FLOATS: Cuts = {
    (3840, 2560): {1: ("gemv", 64, 8, 1, 4)},
    (2560, 2560): {1: ("gemv", 32, 16, 1, 8)},
    (13824, 2560): {1: ("gemv", 64, 8, 1, 8)},
    (2560, 6912): {1: ("gemv", 32, 16, 1, 8)},
}


# ---- times in µs


class TileTime(NamedTuple):
    """The start of a program; a step of a tile, alone on a multiprocessor and with another program beside it."""

    start: float
    step: float
    doubled: float


class FewTokens(NamedTuple):
    """9 to 16 tokens by `fragments`: a start, and what a MB of weights and 1,000 columns take."""

    start: float
    weight: float
    columns: float


FEW_TOKENS = FewTokens(1.61, 0.321, 0.289)

# Of tiles (rows, tokens, bytes of a step, turns): fitted to 5,724 times of 240 cases of 60 random shapes, 9 to 8,192 tokens.
# On shapes left out of the fit the choice takes 1.03 times the fastest candidate on average, 1.09 at the 90th percentile.
TILE_TIMES: dict[tuple[int, int, int, int], TileTime] = {
    (64, 16, 64, 1): TileTime(1.864, 0.2335, 0.3146),
    (64, 16, 128, 1): TileTime(1.932, 0.3394, 0.6787),
    (64, 32, 64, 1): TileTime(1.979, 0.2479, 0.3465),
    (64, 32, 128, 1): TileTime(2.152, 0.3696, 0.7392),
    (64, 64, 64, 1): TileTime(2.379, 0.2865, 0.6841),
    (64, 64, 128, 1): TileTime(2.533, 0.4763, 0.9527),
    (128, 16, 64, 0): TileTime(1.728, 0.3735, 0.5423),
    (128, 16, 128, 0): TileTime(1.821, 0.5911, 1.182),
    (128, 32, 64, 0): TileTime(1.913, 0.4169, 0.6112),
    (128, 32, 128, 0): TileTime(2.258, 0.5953, 1.191),
    (128, 48, 64, 0): TileTime(3.049, 0.5221, 0.7662),
    (128, 48, 128, 0): TileTime(2.68, 0.8072, 1.614),
    (128, 64, 64, 0): TileTime(3.068, 0.4155, 0.6666),
    (128, 64, 128, 0): TileTime(2.883, 0.7358, 1.472),
    (128, 80, 64, 0): TileTime(2.97, 0.4841, 0.9683),
    (128, 80, 128, 0): TileTime(3.306, 0.9626, 1.925),
    (128, 96, 64, 0): TileTime(3.163, 0.529, 1.058),
    (128, 96, 128, 0): TileTime(3.253, 1.063, 2.127),
    (128, 128, 64, 0): TileTime(2.891, 0.602, 1.204),
    (128, 144, 64, 0): TileTime(3.444, 0.711, 1.422),
    (128, 160, 64, 0): TileTime(3.378, 0.7671, 1.534),
    (128, 192, 64, 0): TileTime(3.234, 0.9127, 1.825),
    (256, 16, 64, 0): TileTime(2.123, 0.5466, 1.093),
    (256, 16, 128, 0): TileTime(3.534, 0.9221, 1.844),
    (256, 32, 64, 0): TileTime(2.832, 0.5405, 1.081),
    (256, 48, 64, 0): TileTime(3.982, 0.7034, 1.407),
    (256, 48, 128, 0): TileTime(4.285, 1.265, 2.529),
    (256, 64, 64, 0): TileTime(3.111, 0.7232, 1.446),
    (256, 64, 128, 0): TileTime(3.478, 1.431, 2.863),
    (256, 80, 64, 0): TileTime(4.051, 0.9201, 1.84),
    (256, 96, 64, 0): TileTime(3.532, 1.014, 2.028),
    (256, 128, 32, 0): TileTime(3.021, 0.6131, 1.226),
    (256, 128, 64, 0): TileTime(2.902, 1.199, 2.399),
    (256, 144, 32, 0): TileTime(3.472, 0.7187, 1.437),
    (256, 144, 64, 0): TileTime(5.062, 1.523, 3.046),
    (256, 160, 32, 0): TileTime(3.207, 0.7585, 1.517),
    (256, 160, 64, 0): TileTime(4.141, 1.609, 3.218),
}

COSTS = {
    "weight": 0.03126,  # a MB of weights
    "result": 0.1427,  # a MB of results
    "round": 2.417,  # every round of CTAs but the first
    "round_results": 0.03065,  # 1,024 results of it
    "doubled": 0.1598,  # two CTAs on a multiprocessor
    "part": 1.272,  # tiles whose columns are shared
    "part_results": 0.04422,  # 1,024 results of them
    "parts": 0.05053,  # those of every part but the first
    "stay": 0.1452,  # every tile of a CTA but the first
    "stay_results": 0.02432,  # 1,024 results of it
    "piece": 0.8601,  # a last round in pieces
    "late": 1.699,  # a last round that shares columns
    "late_results": 0.06439,  # 1,024 results of it
    "late_parts": 0.0325,  # those of every part but the first
}
