"""Wrong uses of the public names, each with the errors that type checkers report there."""

import tritium as tt
from tritium.models.generation import Generation
from tritium.models.load import GenerationOptions
from tritium.models.text.chat import encode

x = tt.ones((2, 3))
tt.sofmax(x)  # error: mypy[attr-defined] pyright[reportAttributeAccessIssue]
x.sumn()  # error: mypy[attr-defined] pyright[reportAttributeAccessIssue]
tt.softmax(x, axes=-1)  # error: mypy[call-arg] pyright[reportCallIssue]
tt.softmax(x, "last")  # error: mypy[arg-type] pyright[reportArgumentType]
x.softmax(axs=1)  # error: mypy[call-arg] pyright[reportCallIssue]
x.exp_(3)  # error: mypy[call-arg] pyright[reportCallIssue]
_ = tt.nn.BitLiner  # error: mypy[attr-defined] pyright[reportAttributeAccessIssue]
_ = tt.nn.BitLinear.from_float(x).weigth  # error: mypy[attr-defined] pyright[reportAttributeAccessIssue]
tt.concat([x, x], dim=1)  # error: mypy[call-arg] pyright[reportCallIssue]
_ = tt.compile(lambda a: a).grph  # error: mypy[attr-defined] pyright[reportAttributeAccessIssue]


@tt.compile
def double(a: tt.Tensor, k: int = 2) -> tt.Tensor:
    return a * k


@tt.compile(verify=True)
def triple(a: tt.Tensor) -> tt.Tensor:
    return a * 3


double(x, "2")  # error: mypy[arg-type] pyright[reportArgumentType]
double(x, l=2)  # error: mypy[call-arg] pyright[reportCallIssue]
triple()  # error: mypy[call-arg] pyright[reportCallIssue]
y: str = double(x)  # error: mypy[assignment] pyright[reportAssignmentType]


class Net:
    @tt.compile
    def run(self, a: tt.Tensor) -> tt.Tensor:
        return a


Net().run(x, 3)  # error: mypy[call-arg] pyright[reportCallIssue]

# Loading

tt.load(heads="f16")  # error: mypy[call-arg] pyright[reportCallIssue]
tt.load("a.gguf", "f16")  # error: mypy[call-arg] pyright[reportCallIssue]
tt.load(["a.gguf"])  # error: mypy[arg-type] pyright[reportArgumentType]
tt.load(head="f64")  # error: mypy[arg-type] pyright[reportArgumentType]
tt.load(kv="f8")  # error: mypy[arg-type] pyright[reportArgumentType]
tt.load(storage="i8")  # error: mypy[arg-type] pyright[reportArgumentType]
tt.load(variant="arm")  # error: mypy[arg-type] pyright[reportArgumentType]
tt.load(activations="int8")  # error: mypy[arg-type] pyright[reportArgumentType]
tt.load(context="64")  # error: mypy[arg-type] pyright[reportArgumentType]
tt.load(device=0)  # error: mypy[arg-type] pyright[reportArgumentType]
tt.load(mmap="no")  # error: mypy[arg-type] pyright[reportArgumentType]
tt.load().generat("a")  # error: mypy[attr-defined] pyright[reportAttributeAccessIssue]
loaded: str = tt.load()  # error: mypy[assignment] pyright[reportAssignmentType]

# Options of a text

model = tt.load()
model.generate()  # error: mypy[call-overload] pyright[reportCallIssue]
model.generate(3)  # error: mypy[call-overload] pyright[reportCallIssue]
model.generate({"a": 1})  # error: mypy[call-overload] pyright[reportCallIssue]
model.generate("a", 3)  # error: mypy[call-overload] pyright[reportCallIssue]
model.generate("a", max_token=3)  # error: mypy[call-overload] pyright[reportCallIssue]
model.generate("a", max_tokens="3")  # error: mypy[call-overload] pyright[reportCallIssue]
model.generate(["a", "b"], max_token=3)  # error: mypy[call-overload] pyright[reportCallIssue]
model.generate(["a", "b"], max_tokens="3")  # error: mypy[call-overload] pyright[reportCallIssue]
model.generate("a", temperature="hot")  # error: mypy[call-overload] pyright[reportCallIssue]
model.generate("a", top_k=0.5)  # error: mypy[call-overload] pyright[reportCallIssue]
model.generate("a", seed="1")  # error: mypy[call-overload] pyright[reportCallIssue]
model.generate("a", logit_bias={"a": 1.0})  # error: mypy[dict-item] pyright[reportCallIssue]
model.generate("a", processors=3)  # error: mypy[call-overload] pyright[reportCallIssue]
model.generate("a", sampler={"temperature": 1.0})  # error: mypy[call-overload] pyright[reportCallIssue]
model.generate("a", stop=3)  # error: mypy[call-overload] pyright[reportCallIssue]
model.generate("a", logprobs="2")  # error: mypy[call-overload] pyright[reportCallIssue]
model.generate("a", ignore_eos="no")  # error: mypy[call-overload] pyright[reportCallIssue]
model.generate("a", stop_token_ids="x")  # error: mypy[arg-type] pyright[reportCallIssue]
model.generate("a", min_tokens="1")  # error: mypy[call-overload] pyright[reportCallIssue]
model.generate("a", schema=3)  # error: mypy[call-overload] pyright[reportCallIssue]
model.generate("a", regex=3)  # error: mypy[call-overload] pyright[reportCallIssue]
model.generate("a", grammar=["a"])  # error: mypy[call-overload] pyright[reportCallIssue]
model.generate("a", choice=3)  # error: mypy[call-overload] pyright[reportCallIssue]
model.generate("a", session=model)  # error: mypy[call-overload] pyright[reportCallIssue]
model.generate("a", draft="kjv-draft")  # error: mypy[call-overload] pyright[reportCallIssue]
model.generate("a", speculate="no")  # error: mypy[call-overload] pyright[reportCallIssue]
model.generate("a", adapter=3)  # error: mypy[call-overload] pyright[reportCallIssue]
model.generate("a", kv="f16")  # error: mypy[call-overload] pyright[reportCallIssue]
options: GenerationOptions = {"max_token": 3}  # error: mypy[typeddict-unknown-key] pyright[reportAssignmentType]
model.generat("a")  # error: mypy[attr-defined] pyright[reportAttributeAccessIssue]

# One text or several

_ = model.generate("a").texts  # error: mypy[attr-defined] pyright[reportAttributeAccessIssue]
_ = model.generate("a")[0]  # error: mypy[index] pyright[reportIndexIssue]
_ = [g.text for g in model.generate("a")]  # error: mypy[attr-defined] pyright[reportGeneralTypeIssues]
_ = model.generate(["a", "b"]).text  # error: mypy[attr-defined] pyright[reportAttributeAccessIssue]
_ = model.generate([[1], [2]]).text  # error: mypy[attr-defined] pyright[reportAttributeAccessIssue]
_ = model.generate([1, 2])[0]  # error: mypy[index] pyright[reportIndexIssue]
one: Generation = model.generate(["a", "b"])  # error: mypy[assignment] pyright[reportAssignmentType]
several: list[Generation] = model.generate("a")  # error: mypy[assignment] pyright[reportAssignmentType]
tokens: list[Generation] = model.generate([1, 2])  # error: mypy[assignment] pyright[reportAssignmentType]
_ = model.generate("a").finish_reason == "eos"  # error: mypy[comparison-overlap]

# Pieces

model.stream(["a", "b"])  # error: mypy[list-item] pyright[reportArgumentType]
model.stream("a", max_token=3)  # error: mypy[call-arg] pyright[reportCallIssue]
model.stream("a", temperature="hot")  # error: mypy[arg-type] pyright[reportArgumentType]
_ = model.stream("a").text  # error: mypy[attr-defined] pyright[reportAttributeAccessIssue]
_ = model.stream("a")[0]  # error: mypy[index] pyright[reportIndexIssue]
for piece in model.stream("a"):
    text: str = piece  # error: mypy[assignment] pyright[reportAssignmentType]
    _ = piece.tokens  # error: mypy[attr-defined] pyright[reportAttributeAccessIssue]
    _ = piece.generation.text  # error: mypy[union-attr] pyright[reportOptionalMemberAccess]
    _ = piece.token + 1  # error: mypy[operator] pyright[reportOptionalOperand]
    _ = piece.finish == "eos"  # error: mypy[comparison-overlap]

# Chats

question = {"role": "user", "content": "Who art thou?"}
encode(model.tokenizer, "Who art thou?")  # error: mypy[arg-type] pyright[reportArgumentType]
encode(model.tokenizer, question)  # error: mypy[arg-type] pyright[reportArgumentType]
encode(model.tokenizer, ["Who art thou?"])  # error: mypy[list-item] pyright[reportArgumentType]
encode(model.tokenizer, [("user", "Hello")])  # error: mypy[list-item] pyright[reportArgumentType]
encode(model.tokenizer, [question], template=3)  # error: mypy[arg-type] pyright[reportArgumentType]
encode(model, [question])  # error: mypy[arg-type] pyright[reportArgumentType]
model.chat("Who art thou?")  # error: mypy[arg-type] pyright[reportArgumentType]
model.chat([question], max_token=3)  # error: mypy[call-arg] pyright[reportCallIssue]
reply = model.chat([question]).txt  # error: mypy[attr-defined] pyright[reportAttributeAccessIssue]
prompt: str = encode(model.tokenizer, [question])  # error: mypy[assignment] pyright[reportAssignmentType]
model.generate([question])  # error: mypy[list-item] pyright[reportCallIssue]
