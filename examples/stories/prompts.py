"""Prompts for short stories: a function of an index, put together from lists of words; more than 10¹³ different ones."""

from __future__ import annotations

import random

SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n<|im_start|>user\n"
NAMES = (
    "Lily Tom Mia Ben Anna Max Sara Leo Zoe Sam Ella Jack Ruby Finn Nora Oscar Ivy Theo Rosa Hugo Maya Eli Clara Owen Tess Milo June "
    "Felix Ada Noah Alice Peter Emma Henry Grace Arthur Lucy Simon Martha Daniel Julia Walter Helen George Mary Robert Kate Paul"
).split()
WHO = (
    "a girl|a boy|a young fisherman|a baker|an old woman|a farmer|a shepherd|a gardener|a sailor|a miller|a clockmaker|a little prince|"
    "a princess|a postman|a carpenter|a teacher|a painter|a tailor|a lighthouse keeper|a doctor|a grandmother|a grandfather|a musician|"
    "a blacksmith|a traveler|a beekeeper|a toy maker|a cook|a knight|a young inventor"
).split("|")
ANIMALS = (
    "cat dog duck frog mouse rabbit bear fox owl hen goat pony bee snail turtle fish sparrow puppy kitten lamb wolf crow deer hedgehog "
    "squirrel horse donkey swan whale seal raven badger lion elephant monkey parrot butterfly spider goose beaver"
).split()
THINGS = (
    "boat|train|kite|drum|hat|lamp|key|box|book|clock|bell|bridge|tree|flower|garden|river|hill|cloud|moon|star|storm|snowman|lantern|"
    "window|door|blanket|cup|apple|cake|loaf of bread|pot of soup|pumpkin|nest|egg|stone|shell|feather|rope|ladder|wagon|bicycle|doll|"
    "letter|map|flag|coin|ring|basket|umbrella|mirror|button|scarf|mitten|pillow|candle|violin|painting|well|mill|seed|coat|song|flute"
).split("|")
PLACES = (
    "in a small village|by the sea|in the forest|on a farm|in the mountains|in an old house|by a river|at school|on an island|in a castle|"
    "at the market|in the snow|on a rainy day|at night|on a train|in the garden|by the pond|in a big city|in a library|at the harbor"
).split("|")
TURNS = (
    "something gets lost and is found again|someone makes a new friend|someone is afraid and then is brave|someone tells the truth|"
    "two friends quarrel and make up|someone learns to share|there is a happy surprise|someone helps a stranger|something breaks and is "
    "mended|someone learns to wait|an animal needs help|a plan goes wrong but ends well|someone says sorry|someone keeps a promise|everyone "
    "works together|a secret is discovered|someone comes home again|a wish comes true|someone learns to listen|a small one saves a big one"
).split("|")
TRAITS = "brave shy kind sleepy hungry clever lost old proud lonely curious gentle tiny grumpy honest lazy patient careless".split()
FORMS = (
    "Write a very short story about {who} named {name} and a {trait} {animal} {place}.",
    "Write a short story of one or two paragraphs about {name}, {who}, who finds a {thing} {place}.",
    "Tell me a short bedtime story about a {trait} {animal} and a {thing}, {place}.",
    "Write a short fairy tale with a happy ending about {who}, a {trait} {animal} and a {thing}.",
    "Write a very short story about {name} and a {thing} {place}. In the story, {turn}.",
    "Tell a short fable about a {trait} {animal} and a {animal2} in which {turn}.",
    "Write a brief story about {who} named {name}, {place}, in which {turn}.",
    "Write a short story about a {trait} {animal} named {name}. In the end, {turn}.",
)
OPENINGS = (
    "Once upon a time,", "One day,", "One morning,", "There was once", "Long ago,", "{name}", "{name} had", "It was", "In the", "One night,",
    "Every morning,", "Early one morning,", "The {animal}", "A {trait} {animal}", "On a cold", "When", "Once there was", "The old",
    "Last", "The",
)  # fmt: skip


def prompt(index: int, seed: int = 0) -> tuple[str, str]:
    """Return what the teacher is asked, and how its answer has to begin."""
    draw = random.Random(seed << 32 | index)
    words = {
        "who": draw.choice(WHO), "name": draw.choice(NAMES), "trait": draw.choice(TRAITS), "animal": draw.choice(ANIMALS),
        "animal2": draw.choice(ANIMALS), "thing": draw.choice(THINGS), "place": draw.choice(PLACES), "turn": draw.choice(TURNS),
    }  # fmt: skip
    form = draw.choice(FORMS)
    opening = draw.choice(OPENINGS)
    while "{" in opening and not all(f"{{{key}}}" in form for key in words if f"{{{key}}}" in opening):
        opening = draw.choice(OPENINGS)
    return form.format(**words), opening.format(**words)


def whole(question: str, opening: str) -> str:
    """Return the text that the teacher reads."""
    return f"{SYSTEM}{question}<|im_end|>\n<|im_start|>assistant\n{opening}"
