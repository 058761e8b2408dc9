"""LiteLLM: the server as a model of its openai provider, streamed.

pip install litellm
tritium serve --template examples/clients/plain.jinja
python examples/clients/litellm_client.py
"""

import sys

import litellm

address = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
litellm.telemetry = False
answer = litellm.completion(
    model="openai/kjv",
    api_base=f"{address}/v1",
    api_key="none",
    messages=[{"role": "user", "content": "And the LORD spake unto Moses,"}],
    max_tokens=40,
    temperature=0,
    stream=True,
)
for part in answer:
    print(part.choices[0].delta.content or "", end="", flush=True)
print()
