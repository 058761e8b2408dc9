"""Instructor: an answer as an object of Pydantic, which the server's structured output makes certain.

pip install instructor
tritium serve --template examples/clients/plain.jinja
python examples/clients/instructor_client.py
"""

import sys
from typing import Annotated

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field

address = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"


class Man(BaseModel, extra="forbid"):
    name: Annotated[str, Field(max_length=12, pattern="^[A-Z][a-z]+$")]
    age: Annotated[int, Field(ge=0, le=969)]


client = instructor.from_openai(OpenAI(base_url=f"{address}/v1", api_key="none"), mode=instructor.Mode.JSON_SCHEMA)
man = client.chat.completions.create(
    model="kjv",
    response_model=Man,
    messages=[{"role": "user", "content": "The oldest man:"}],
    temperature=0,
    max_tokens=150,
)
print(repr(man))
