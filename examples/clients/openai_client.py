"""The official OpenAI client: models, a stream, a choice of answers, embeddings.

pip install openai
tritium serve --template examples/clients/plain.jinja
python examples/clients/openai_client.py
"""

import sys

from openai import OpenAI

address = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
client = OpenAI(base_url=f"{address}/v1", api_key="none")
(model,) = client.models.list()
print(model.id)

for part in client.completions.create(
    model=model.id, prompt="In the beginning God", max_tokens=40, temperature=0, stream=True
):
    print(part.choices[0].text, end="", flush=True)
print()

chat = client.chat.completions.create(
    model=model.id,
    messages=[{"role": "user", "content": "And God saw that it was"}],
    temperature=0,
    extra_body={"guided_choice": [" good", " evil"]},
)
print(chat.choices[0].message.content)

vectors = client.embeddings.create(model=model.id, input=["light", "darkness"])
print(len(vectors.data), "vectors of", len(vectors.data[0].embedding))
