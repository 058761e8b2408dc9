"""The official Anthropic client: a stream, and how many tokens a message has.

pip install anthropic
tritium serve --template examples/clients/plain.jinja
python examples/clients/anthropic_client.py
"""

import sys

import anthropic

address = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
client = anthropic.Anthropic(base_url=address, api_key="none")
messages = [{"role": "user", "content": "And God said,"}]
print(client.messages.count_tokens(model="kjv", messages=messages).input_tokens, "tokens")

with client.messages.stream(model="kjv", messages=messages, max_tokens=40, extra_body={"temperature": 0}) as stream:
    for text in stream.text_stream:
        print(text, end="", flush=True)
print()
print(stream.get_final_message().stop_reason)
