"""Every row of every weight belongs to exactly one rank, except the keys and values that several ranks read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tritium as tt
from families import CONFIGS
from tritium.families.config import Config
from tritium.families.description import Attention
from tritium.models.parts import layer_parts, take_rows
from tritium.parallel import shares


@given(st.integers(1, 8), st.integers(1, 8), st.data())
def test_heads_are_divided_and_each_reads_its_own_kv_head(kv_heads: int, each: int, data: st.DataObject) -> None:
    heads = kv_heads * each
    ranks = data.draw(st.integers(1, heads))
    taken = []
    for rank in range(ranks):
        own, kv = shares.heads_of(heads, kv_heads, rank, ranks)
        assert min(len(own), len(kv)) >= 1
        assert len(own) % len(kv) == 0
        group = len(own) // len(kv)
        assert [kv[i // group] for i in range(len(own))] == [h // each for h in own]
        taken += own
    assert taken == list(range(heads))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CONFIGS)
def test_rows_of_all_ranks_are_all_rows(name: str, ranks: int) -> None:
    config = Config.from_hf(CONFIGS[name])
    for layer in config.description.layers:
        parts = layer_parts(layer, config.description, config.hidden_size)
        own = [shares.share_layer(layer, config.hidden_size, r, ranks) for r in range(ranks)]
        for place, products in parts.products.items():
            rows = sum(p.rows for p in products)
            every = np.concatenate([share.rows[place] for share in own])
            assert set(every.tolist()) == set(range(rows))
            repeated = isinstance(layer.mixer, Attention) and ranks > layer.mixer.kv_heads
            assert len(every) == rows or (place == "qkv" and (repeated or ranks > 2))
            for share in own:
                local = take_rows(products, share.rows[place])
                assert sum(p.rows for p in local) == len(share.rows[place])
        assert sum(own[0].gated) == layer.mlp.intermediate_size


def test_more_ranks_than_heads_are_refused() -> None:
    config = Config.from_hf(CONFIGS["llama"])
    with pytest.raises(
        tt.errors.ArgumentError, match="5 ranks were given, and the model has num_attention_heads 4; use at most 4"
    ):
        shares.check(config.description, config.hidden_size, config.vocab_size, 5)
