"""LangChain: a prompt, the model and a parser as a chain, whole and streamed.

pip install langchain-openai
tritium serve --template examples/clients/plain.jinja
python examples/clients/langchain_client.py
"""

import sys

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

address = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"
model = ChatOpenAI(model="kjv", base_url=f"{address}/v1", api_key="none", temperature=0, max_tokens=40)
chain = ChatPromptTemplate.from_messages([("user", "And {name} begat")]) | model | StrOutputParser()
print(chain.invoke({"name": "Noah"}))
print("".join(chain.stream({"name": "Jacob"})))
