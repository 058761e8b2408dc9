"""JSON schemas: whatever a model would say, a text that ends is valid; by jsonschema, with every sampler."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from markov import TOKENIZER
from noise_model import NoiseSession
from schemas import SCHEMAS
from tritium.models import generation
from tritium.models.sampling import Sampler
from tritium.models.text.constraints import Format, constrain

SEEDS = int(os.environ.get("TRITIUM_SCHEMA_SEEDS", "1"))
SAMPLERS: list[dict[str, Any]] = [
    {}, {"temperature": 1.0}, {"temperature": 1.5, "top_k": 40}, {"temperature": 1.0, "top_p": 0.95}, {"temperature": 0.7, "min_p": 0.02},
]  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_text_that_ends_is_valid(name: str) -> None:
    pytest.importorskip("llguidance", reason="needs the extra 'run'")
    jsonschema = pytest.importorskip("jsonschema", reason="the yardstick")
    schema = SCHEMAS[name]
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    start, ended = constrain(TOKENIZER, Format.of(schema=schema)), 0
    for seed in range(SEEDS):
        for options in SAMPLERS:
            sampler = Sampler(seed=seed, **options)
            text = generation.generate(
                NoiseSession(seed=seed), TOKENIZER, "x", sampler=sampler, max_tokens=400, constrain=start
            )
            if text.finish_reason == "stop":
                ended += 1
                validator.validate(json.loads(text.text))
    assert ended >= SEEDS * len(SAMPLERS) // 2
