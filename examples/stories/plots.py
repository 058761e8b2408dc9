"""Plots for short stories: the sentences that carry one, with gaps in which a teacher writes. A function of an index and a seed.

plots.txt has lists of words, then the plots: a line that sums one up, and a line for each of its sentences: "/" separates phrasings,
"¶" begins a paragraph. {A} is who the story is about, {B} is whom A meets, {he} and {b_he} and so on are their pronouns.
"""

from __future__ import annotations

import random
from pathlib import Path

PARAGRAPH = "\n\n"


def _read(path: Path) -> tuple[dict[str, list[str]], list[tuple[str, list[list[str]]]]]:
    """Return the lists of words by name, and the plots: a summary, and for each sentence its phrasings."""
    lists, *blocks = path.read_text(encoding="utf-8").strip().split("\n\n")
    words = {name: entries.split("|") for name, _, entries in (line.partition(": ") for line in lists.splitlines())}
    plots = []
    for block in blocks:
        first, *lines = block.splitlines()
        plots.append((first.removeprefix("# "), [[phrase.strip() for phrase in line.split(" / ")] for line in lines]))
    return words, plots


LISTS, PARSED = _read(Path(__file__).with_name("plots.txt"))


def _hero(draw: random.Random, taken: str = "") -> tuple[str, str, dict[str, str]]:
    """Return a description ("a little fox"), a name and the pronouns."""
    girl = draw.random() < 0.5
    name = draw.choice([n for n in (LISTS["girls"] if girl else LISTS["boys"]) if n != taken])
    kind = draw.random()
    if kind < 0.4:
        description = draw.choice(LISTS["child_f"] if girl else LISTS["child_m"])
    elif kind < 0.6:
        description = draw.choice(LISTS["adults"])
    else:
        trait = draw.choice(LISTS["traits"])
        description = (
            f"{'an' if trait[0] in 'aeiou' or trait == 'honest' else 'a'} {trait} {draw.choice(LISTS['animals'])}"
        )
    he = (
        {"he": "she", "his": "her", "him": "her", "himself": "herself"}
        if girl
        else {"he": "he", "his": "his", "him": "him", "himself": "himself"}
    )
    return description, name, he


def _words(draw: random.Random) -> dict[str, str]:
    a, name, he = _hero(draw)
    b, friend, b_he = _hero(draw, name)
    if draw.random() < 0.25:
        b = f"{draw.choice(['an old', 'a kind old', 'a wise old'])} {'woman' if b_he['he'] == 'she' else 'man'}"
    fear, harmless = draw.choice(LISTS["fears"]).split(":")
    spots = draw.sample(LISTS["spots"], 3)
    time = draw.choice(LISTS["times"])
    babies = ["duckling", "chick", "swan", "turtle", "owl", "little dragon", "gosling"]

    def pick(name: str) -> str:
        return draw.choice(LISTS[name])

    words = {
        "A": name, "a": a, "B": friend, "b": b, "home": pick("homes"), "walk": pick("walks"), "spot": spots[0], "spot2": spots[1],
        "spot3": spots[2], "thing": pick("things"), "food": pick("foods"), "fear": fear, "harmless": harmless,
        "Time": time, "time": time[0].lower() + time[1:], "Weather": pick("weather"), "skill": pick("skills"), "seed": pick("seeds"),
        "light": pick("lights"), "wonder": pick("wonders"), "animal": draw.choice([x for x in LISTS["animals"] if x not in a + b]),
        "big": pick("big"), "tiny": "", "baby": draw.choice(babies),
    }  # fmt: skip
    words |= he | {key.capitalize(): value.capitalize() for key, value in he.items()}
    return (
        words
        | {f"b_{key}": value for key, value in b_he.items()}
        | {"b_His": b_he["his"].capitalize(), "b_He": b_he["he"].capitalize()}
    )


def plot(index: int, seed: int = 0) -> tuple[str, list[str]]:
    """Return what the teacher is asked, and the script of its answer; an empty text is a gap, where it writes a sentence."""
    draw = random.Random(seed << 32 | index)
    summary, lines = draw.choice(PARSED)
    words = _words(draw)
    if "{big}" in summary:  # the hero is a tiny animal
        words["tiny"] = draw.choice(LISTS["tiny"])
        words["a"] = f"a tiny {words['tiny']}"
    script: list[str] = [draw.choice(LISTS["openings"]).format(**words)]
    for i, phrases in enumerate(lines):
        if draw.random() < (0.5 if i else 0.2) and not script[-1].count("?"):
            script.append("")
        phrase = upper(draw.choice(phrases).format(**words))
        script.append(PARAGRAPH + upper(phrase[1:]) if phrase.startswith("¶") else " " + phrase)
    coda = draw.choice(LISTS["codas"]).format(**words)
    script += [""] * (draw.random() < 0.3) + [" " + coda] * bool(coda)
    question = f"Write a simple story for young children. {summary.format(**words)}"
    return question, script


def cast(index: int, seed: int = 0) -> tuple[set[str], set[str]]:
    """Return the names of a plot and the pronouns that fit them."""
    draw = random.Random(seed << 32 | index)
    draw.choice(PARSED)
    words = _words(draw)
    return {words["A"], words["B"]}, {words["he"], words["b_he"]}


def upper(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]
