"""Right uses of the public names: no type checker finds a mistake in them, and they run."""

# pyright: strict

from typing import Any, assert_type

import numpy as np

import tritium as tt
from tritium.models.generation import Generation, Piece
from tritium.models.load import GenerationOptions
from tritium.models.sampling import Sampler
from tritium.models.text.chat import encode

x = tt.ones((2, 3))


@tt.compile
def double(a: tt.Tensor, k: int = 2) -> tt.Tensor:
    return a * k


@tt.compile(verify=True)
def triple(a: tt.Tensor) -> tt.Tensor:
    return a * 3


class Net:
    @tt.compile
    def run(self, a: tt.Tensor) -> tt.Tensor:
        return a


good: tt.Tensor = x.sum(0).softmax(-1).exp_().add_(1) + np.ones(3) - 1.5
both: tuple[tt.Tensor, tt.Tensor] = tt.divmod(x, 2)
tt.concat([x, x], 1).reshape(3, 4).view(tt.i32)
tt.exp(x, out=x).to("f16", "cpu")
name: str = tt.exp.name
tt.mean(x, (0, 1), keepdims=True).item()
tt.clip(x, 0, max=1).max().numpy().sum()
z: tt.Tensor = double(x, k=3) @ triple(x).T ** 2
z = Net().run(x)
z[0, 1:] = 2
z = tt.nn.BitLinear.from_float(x)(x)
z = tt.where(x > 0, x, 0).sort(0).mean()
z = tt.nonzero(x)[0] + tt.arange(6, dtype="i64") + tt.full((2, 1), 1.0, tt.f32) + tt.randn((2, 6), seed=1)
double.graph(x)
tt.save("x.safetensors", {"a": x})
modules = tt.perf, tt.io, tt.errors.DTypeError

# Models: every option by its type, one prompt or several.

model = tt.load()
small = tt.load(
    None, head="int8", kv="int8-int4", storage="tern5", context=64, variant="arm64", device="cpu", mmap=False, activations="float",
    certified=False, ternarise=False, parallel=None, revision=None, file=None, offline=True,
)  # fmt: skip
assert_type(model, tt.Model)
assert_type(tt.load(device=tt.device("cpu")).to("cpu"), tt.Model)

one = model.generate("And God said", max_tokens=4)
assert_type(one, Generation)
text: str = one.text
assert one.finish_reason == "length"
assert_type(model.generate([1, 2, 3], max_tokens=1), Generation)
assert_type(model.generate((1, 2, 3), max_tokens=1), Generation)
several = model.generate(["And God said", "The LORD"], max_tokens=4)
assert_type(several, list[Generation])
texts: list[str] = [g.text for g in several]
assert_type(model.generate(("a", "b"), max_tokens=1), list[Generation])
assert_type(model.generate([[1, 2], (3, 4), "a"], max_tokens=1, adapter=[None, None, None]), list[Generation])

model.generate("a", max_tokens=2, temperature=0.7, top_k=40, top_p=0.9, min_p=0.05, typical_p=1, seed=1)
model.generate(
    "a", max_tokens=2, repetition_penalty=1.1, repetition_window=0, frequency_penalty=0.1, presence_penalty=0
)
model.generate("a", max_tokens=2, logit_bias={1: -1.0}, processors=(lambda logits, context: logits,), seed=None)
model.generate(
    "a", max_tokens=None, stop=["\n", "e"], ignore_eos=True, logprobs=2, stop_token_ids=[10, 32], min_tokens=1
)
model.generate("a", max_tokens=2, sampler=Sampler(temperature=1), stop="x", session=model.session(), adapter=None)
model.generate("a", max_tokens=2, speculate=None, draft=small)


class Answer:
    """Like a model of Pydantic."""

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        return {"type": "boolean"}


model.generate("a", schema=Answer)
model.generate("a", schema={"type": "boolean"})
model.generate("a", grammar='root ::= "holy"')
model.generate("a", choice=["good", "evil"])
options: GenerationOptions = {"max_tokens": 2, "regex": "[0-9]{3}"}
model.generate("a", **options)

for piece in model.stream("And God said", max_tokens=4, temperature=0.5, draft=None):
    assert_type(piece, Piece)
    text += piece.text
    if piece.generation is not None:
        assert_type(piece.generation, Generation)
        assert piece.finish in ("stop", "length", "context")

messages = [{"role": "user", "content": "Who art thou?"}]
ids = encode(model.tokenizer, messages, template="{% for m in messages %}{{ m.content }}{% endfor %}")
assert_type(model.generate(ids, max_tokens=1), Generation)
answer = model.chat(messages, template="{% for m in messages %}{{ m.content }}{% endfor %}", max_tokens=3, seed=1)
assert_type(answer, Generation)
assert answer.text == model.generate("Who art thou?", max_tokens=3).text
