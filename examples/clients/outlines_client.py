"""Outlines: a regular expression and a choice, by its client of vLLM, whose fields the server knows.

pip install outlines openai
tritium serve --template examples/clients/plain.jinja
python examples/clients/outlines_client.py
"""

import sys

import outlines
from openai import OpenAI
from outlines.types import Choice, Regex

address = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
model = outlines.from_vllm(OpenAI(base_url=f"{address}/v1", api_key="none"), "kjv")
print(model("And all the days of Adam were", Regex(r"[1-9][0-9]{2} years"), temperature=0, max_tokens=20))
print(model("And God saw that it was", Choice(["good", "evil"]), temperature=0, max_tokens=20))
