"""A ternary model behind Ray Serve: replicas with a model each, behind one address.

    pip install "ray[serve]"
    python examples/ray_serve.py                  # the small model in the package, one request, and the end
    serve run examples.ray_serve:app              # until Ctrl-C

Each replica decodes requests one after another, with the same tokens as `tt.load(…).generate(…)`.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any
from urllib.request import Request, urlopen

from ray import serve

import tritium as tt


@serve.deployment(num_replicas=int(os.environ.get("REPLICAS", "1")), ray_actor_options={"num_cpus": 1})
class Ternary:
    """A model, loaded once for each replica."""

    def __init__(self, path: str | None = None) -> None:
        self.model = tt.load(path)

    async def __call__(self, request: Any) -> dict[str, Any]:
        body = await request.json()
        options = {name: body[name] for name in ("max_tokens", "temperature", "seed") if name in body}
        written = await asyncio.to_thread(self.model.generate, str(body["prompt"]), **options)
        return {"text": written.text, "tokens": list(written.tokens), "finish_reason": written.finish_reason}


app = Ternary.bind(os.environ.get("MODEL"))


def main() -> None:
    serve.run(app)
    body = {"prompt": "In the beginning", "max_tokens": 16, "temperature": 0}
    with urlopen(Request("http://127.0.0.1:8000/", json.dumps(body).encode())) as response:
        answer = json.load(response)
    print(answer["text"])
    assert answer["tokens"] == list(tt.load(os.environ.get("MODEL")).generate(body["prompt"], max_tokens=16).tokens)
    serve.shutdown()


if __name__ == "__main__":
    main()
