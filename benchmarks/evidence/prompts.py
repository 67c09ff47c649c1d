"""Prompts: filled templates, always in the same order.

The order is mixed, so that the first so many prompts are of all kinds: a run that its time cuts
short asks fewer of each.
"""

from __future__ import annotations

import random
from itertools import product

__all__ = ["PROSE", "PUZZLES", "TABLES"]

_PROSE = {
    "List {}.": (
        *(
            "the planets of the solar system",
            "twenty animals of the forest",
            "the months of a year",
        ),
        *("thirty fruits", "the countries of Europe", "the bones of the human body"),
        *("fifty first names", "the rivers of Africa", "musical instruments", "forty verbs"),
        *("things to pack for a journey", "the tools of a carpenter", "dishes with potatoes"),
        *("trees", "birds that swim", "famous painters", "twenty capitals", "sports", "metals"),
        *("colours", "languages", "flowers of spring", "the parts of a bicycle", "board games"),
    ),
    "Write a poem about {}.": (
        *("rain", "the sea", "an old house", "a cat", "the moon", "winter", "a train", "bread"),
        *("silence", "my grandmother", "a river", "the city at night", "autumn leaves", "a mirror"),
        *("the wind", "a lost key", "a garden", "time", "snow", "a lighthouse", "morning", "salt"),
        *("a bridge", "stars"),
    ),
    "Tell a short story about {}.": (
        *("a dragon who is afraid", "two brothers", "a letter that came late", "a robot in a farm"),
        *(
            "a girl and a fox",
            "the last baker",
            "a stolen violin",
            "an island",
            "a king without a crown",
        ),
        *("a sailor", "the first day of school", "a talking tree", "a thief who gives", "a clock"),
        *(
            "a dog who waits",
            "a village in the snow",
            "a painter who is blind",
            "a wish",
            "a mouse",
        ),
        *("an old soldier", "a teacher", "a mountain", "the sun and the moon", "a bad bargain"),
    ),
    "Explain {} to a child.": (
        *("why the sky is blue", "how a plane flies", "what money is", "where rain comes from"),
        *("how plants grow", "what a virus is", "why we sleep", "how a phone works", "gravity"),
        *("what electricity is", "why leaves fall", "how bees make honey", "what a country is"),
        *("how ships float", "why the sea is salty", "what a law is", "how a clock works", "fire"),
        *("what an atom is", "why we dream", "how a fridge works", "what history is", "the tides"),
        *("how bread is made",),
    ),
    "How do I {}? Give every step.": (
        *(
            "bake a cake",
            "change a tyre",
            "plant a tree",
            "paint a wall",
            "learn a song",
            "make tea",
        ),
        *("clean a window", "write a letter", "sew on a button", "wash a dog", "build a kite"),
        *(
            "cook rice",
            "repair a chair",
            "read a map",
            "light a fire",
            "pack a suitcase",
            "fix a tap",
        ),
        *("tie a knot", "grow tomatoes", "save money", "train for a race", "brew coffee", "swim"),
        *("keep a diary",),
    ),
    "Write a song with a chorus about {}.": (
        *("home", "the road", "a summer night", "an old friend", "the harbour", "dancing", "hope"),
        *("the last bus", "my bicycle", "the first snow", "work", "a red dress", "the radio"),
        *("two hearts", "the north wind", "a long winter", "fireflies", "the old town", "dust"),
        *("a ring", "coming back", "the deep blue", "Sunday", "the rain on the roof"),
    ),
    "Describe {} in detail.": (
        *("a market", "your favourite place", "a castle", "a kitchen", "the desert", "a harbour"),
        *("an airport", "a classroom", "a forest after rain", "a wedding", "a library", "a storm"),
        *(
            "a football match",
            "the inside of a watch",
            "a beach",
            "a farm",
            "a cathedral",
            "a horse",
        ),
        *("a museum", "an orchestra", "a station", "a circus", "a mine", "a sunset"),
    ),
    "Give me {} facts about {}.": tuple(
        product(
            ("ten", "thirty"),
            (
                *("whales", "volcanoes", "Rome", "the number seven", "paper", "ants", "Mars"),
                *("chess", "coffee", "glass", "wolves", "the Nile"),
            ),
        )
    ),
    "Repeat the word {} and explain what it means.": (
        *("serendipity", "home", "gravity", "echo", "again", "window", "justice", "forever"),
        *("bridge", "thunder", "courage", "nothing"),
    ),
}

_COLUMNS = ("name", "year", "city", "price", "colour", "score", "owner", "status")
_ROWS = ("20", "40", "60")


def _mixed(prompts: list[str]) -> tuple[str, ...]:
    random.Random(33).shuffle(prompts)
    return tuple(prompts)


#: Lists, poems, stories, explanations: 204 prompts.
PROSE = _mixed(
    [
        template.format(*((one,) if isinstance(one, str) else one))
        for template, subjects in _PROSE.items()
        for one in subjects
    ]
)
#: What a model that reads pages writes: 24 long tables in HTML.
TABLES = _mixed(
    [
        f"Write an HTML table with {rows} rows and the columns {first}, {second} and amount."
        for rows, (first, second) in product(
            _ROWS, zip(_COLUMNS, _COLUMNS[1:] + _COLUMNS[:1], strict=True)
        )
    ]
)
#: What asks for a thought: 60 sums.
PUZZLES = _mixed(
    [
        f"{who} has {many} {things} and {what} {few}. How many {things} does {who} have now?"
        for who, (many, few), (what, things) in product(
            ("Anna", "Ben", "Carla", "David", "Eva"),
            ((12, 5), (31, 8), (144, 20), (7, 6)),
            (("buys", "apples"), ("loses", "keys"), ("gives away", "books")),
        )
    ]
)
