"""Judges a model: the share of questions.py's questions that it answers, and its answers to twenty ordinary ones.

    python examples/chat/judge.py chat/model.gguf questions.json                     # a ternary file, by tritium and its lm-eval adapter
    python examples/chat/judge.py SmolLM2-135M-Instruct.Q4_1.gguf questions.json     # the teacher, by PyTorch, with the cut vocabulary

A model's choice is the word with the largest log-probability after the question. Answers are greedy, with the teacher's system prompt.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from conversations import ASSISTANT, SYSTEM, USER

import tritium as tt
from tritium.models.evaluation import Evaluator

ORDINARY = (
    "What is the capital of France?", "Who wrote Romeo and Juliet?", "How many days are in a week?", "What is 2 + 3?", "Why is the sky blue?",
    "What do bees make?", "How do I make a cup of tea?", "Give me three tips for sleeping better.", "What is the largest ocean on Earth?",
    "Explain what a volcano is.", "Write a short poem about the sea.", "Write a sentence with the word apple.", "What is the opposite of hot?",
    "Tell me a fact about elephants.", "How can I learn a new language?", "What should I cook for dinner tonight?", "What is a computer?",
    "Why should people exercise?", "Can you help me write an email to my teacher?", "Hello! How are you?",
)  # fmt: skip
Pairs = Sequence[tuple[str, str]]
VOCAB = 10_240


def prompt(question: str) -> str:
    return f"{SYSTEM}{USER}{question}<|im_end|>\n{ASSISTANT}"


def share(questions: list[dict[str, Any]], scores: Callable[[Pairs], list[float]]) -> dict[str, float]:
    """Return the share of questions answered, and its standard error; `scores` are log-probabilities of words after texts."""
    each = scores([(q["question"], f" {word}") for q in questions for word in q["choices"]])
    rows = [each[i : i + 4] for i in range(0, len(each), 4)]
    right = sum(row.index(max(row)) == q["answer"] for row, q in zip(rows, questions, strict=True)) / len(questions)
    return {"right": round(right, 4), "error": round(math.sqrt(right * (1 - right) / len(questions)), 4)}


class Ternary:
    """A file that tritium runs."""

    def __init__(self, path: Path) -> None:
        self.model = tt.load(path)

    def scores(self, pairs: Pairs) -> list[float]:
        evaluator = Evaluator(self.model, context=256)
        return [p for p, _ in evaluator.loglikelihoods([evaluator.pair(a, b) for a, b in pairs])]

    def answers(self, prompts: list[str], tokens: int) -> list[str]:
        return [str(self.model.generate(p, max_tokens=tokens, temperature=0).text) for p in prompts]


class Teacher:
    """SmolLM2 in PyTorch, with the cut vocabulary."""

    def __init__(self, path: Path) -> None:
        import torch
        from network import network_of
        from vocabulary import cut, files, tokenizer_of

        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "stories"))
        from weights import read_weights

        self.torch, self.device = torch, "cuda" if torch.cuda.is_available() else "cpu"
        weights, tokens, merges = read_weights(path, self.device)
        rows = cut(tokens, merges, VOCAB)
        self.tokenizer = tokenizer_of(files(tokens, merges, rows, ""))
        layers = range(sum(name.endswith(".input_layernorm.weight") for name in weights))
        self.network = network_of(weights, rows, layers).eval().requires_grad_(False)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def scores(self, pairs: Pairs, batch: int = 256) -> list[float]:
        out: list[float] = []
        rows = [(self.encode(a), self.encode(b)) for a, b in pairs]
        for i in range(0, len(rows), batch):
            part = rows[i : i + batch]
            ids = self.torch.zeros(len(part), max(len(a) + len(b) for a, b in part), dtype=self.torch.long)
            for row, (a, b) in zip(ids, part, strict=True):
                row[: len(a) + len(b)] = self.torch.tensor(a + b)
            logs = self.network(ids.to(self.device)).float().log_softmax(-1).cpu()
            for j, (a, b) in enumerate(part):
                out.append(sum(float(logs[j, len(a) + k - 1, token]) for k, token in enumerate(b)))
        return out

    def answers(self, prompts: list[str], tokens: int) -> list[str]:
        rows = [self.encode(p) for p in prompts]
        firsts = [len(row) for row in rows]
        for _ in range(tokens):
            ids = self.torch.zeros(len(rows), max(map(len, rows)), dtype=self.torch.long)
            for line, row in zip(ids, rows, strict=True):
                line[: len(row)] = self.torch.tensor(row)
            states = self.network.states(ids.to(self.device))[0]
            last = states[range(len(rows)), [len(row) - 1 for row in rows]]
            picked = (last @ self.network.model["embed_tokens"].weight.T).argmax(-1).tolist()
            for row, token in zip(rows, picked, strict=True):
                row.append(2 if row[-1] == 2 else token)
        return [str(self.tokenizer.decode(row[first:])) for first, row in zip(firsts, rows, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--tokens", type=int, default=120, help="of an answer at most")
    parser.add_argument("--most", type=int, default=0, help="questions of four choices at most; 0 for all")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    stored = {entry.stored for entry in tt.io.open(args.model).entries.values()}
    model = Ternary(args.model) if "Q2_0" in stored else Teacher(args.model)
    questions, start = json.loads(args.questions.read_text(encoding="utf-8")), time.perf_counter()
    questions = questions[: args.most or len(questions)]
    result: dict[str, Any] = {"questions": len(questions)} | share(questions, model.scores)
    result["seconds"] = round(time.perf_counter() - start, 1)
    print(json.dumps(result), flush=True)
    answers = model.answers([prompt(q) for q in ORDINARY], args.tokens)
    result["answers"] = [{"question": q, "answer": a} for q, a in zip(ORDINARY, answers, strict=True)]
    for entry in result["answers"]:
        print(f"\n> {entry['question']}\n{entry['answer']}")
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
