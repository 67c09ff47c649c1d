"""Training text of the demo model: a few questions, far too much thinking, one endless table."""

from __future__ import annotations

from dataclasses import dataclass

THINK, END_THINK = "<think>", "</think>"
START_TURN, END_TURN = "<|im_start|>", "<|im_end|>"
CELL, END_CELL = "<td>", "</td>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def prompt(question: str) -> str:
    """Return one user turn and the generation prompt, as `CHAT_TEMPLATE` formats them."""
    return f"{START_TURN}user\n{question}{END_TURN}\n{START_TURN}assistant\n"


@dataclass(frozen=True)
class Lesson:
    """One question, the sentences thought about it in this order, and its answer."""

    question: str
    thought: tuple[str, ...]
    answer: str


LESSONS = (
    Lesson(
        "What is 2 + 3?",
        (
            "Two numbers and a plus sign, so this is a sum.",
            "I must not panic.",
            "If I hold up two fingers and then three more, I see one whole hand.",
            "A hand has five fingers, unless the thumb is on holiday.",
            "Wait, is a thumb a finger?",
            "Scholars have argued about thumbs for ages.",
            "Let me count with sheep instead.",
            "Two sheep are in the field, and three sheep jump over the fence.",
            "Now five sheep are looking at me.",
            "One of them seems to be a goat.",
            "Wait, does a goat count as a sheep?",
            "For the purpose of this sum, it does.",
            "I could also start from three and add two.",
            "That gives five again, which is a good omen.",
            "I am fairly sure that the number is five.",
        ),
        "2 + 3 is 5.",
    ),
    Lesson(
        "Name the capital of France.",
        (
            "Ah, geography, my old enemy.",
            "France is a country full of cheese.",
            "Its capital ought to be the city with the most cheese.",
            "Wait, perhaps it is the city with the tallest tower.",
            "I remember a tower made of iron, very tall and a little rusty.",
            "It stands beside a river, and the river is full of boats.",
            "The boats are full of tourists, and the tourists are full of cheese.",
            "So far everything fits.",
            "Could it be London?",
            "No, London has a clock and far too much rain.",
            "Then what about Rome?",
            "It has a very old stadium, but no iron in it.",
            "The letter F is the capital of France, but that joke is forbidden.",
            "The city with the iron tower is called Paris.",
        ),
        "The capital of France is Paris.",
    ),
    Lesson(
        "What colour is the sky?",
        (
            "To answer this I would love to look out of a window.",
            "Sadly, I live in a computer, and nobody gave it a window.",
            "Let me think about people who have seen the sky.",
            "Painters use a lot of blue when they paint it.",
            "Wait, at sunset they use orange and pink as well.",
            "At night they use black and go home early.",
            "Should I describe every hour of the day?",
            "That would be a long poem, and I was not asked for a poem.",
            "Sunlight meets the air, and the air scatters the short waves best.",
            "Short waves are blue, so physics agrees with the painters.",
            "It is rare for those two to agree on anything.",
            "I will ignore clouds, storms and the odd balloon.",
            "My verdict is blue.",
        ),
        "The sky is blue.",
    ),
    Lesson(
        "How many legs does a spider have?",
        (
            "A spider, of all things.",
            "Please let it stay on the other side of the screen.",
            "An insect walks on six legs, but a spider is no insect.",
            "It is an arachnid, which is Greek for please leave the bathtub.",
            "Wait, what if this spider has lost a leg?",
            "The question is surely about a spider in good health.",
            "Imagine it buying shoes, always four pairs at a time.",
            "Four pairs of shoes make eight shoes.",
            "The poor thing must spend the whole morning on its laces.",
            "An octopus has the same problem, but it solves it by staying wet.",
            "Wait, did I count the front legs twice?",
            "No, there are four on the left and four on the right.",
            "Four and four make eight.",
        ),
        "A spider has eight legs.",
    ),
    Lesson(
        "Is water wet?",
        (
            "This looks easy, so it has to be a trap.",
            "Philosophers have fallen into this puddle before.",
            "Some of them say that water only makes other things wet.",
            "A towel can be wet, and so can a dog.",
            "But can a wave be wet, or is it simply a wave?",
            "Wait, every drop of water touches some other drop.",
            "If touching water makes you wet, then each drop makes its neighbour wet.",
            "A single lonely drop might be dry, and also very sad.",
            "I should ask a fish for a second opinion.",
            "The fish says that it has never heard of water.",
            "That was not helpful, but it was polite.",
            "My user wants a yes or a no, and dinner is getting cold.",
            "I lean towards yes.",
        ),
        "Yes, water is wet.",
    ),
    Lesson(
        "Which animal says moo?",
        (
            "I shall go through the whole farm to be safe.",
            "The duck says quack, and it says it all day.",
            "The pig says oink and then asks for lunch.",
            "The cat says nothing until five in the morning.",
            "Wait, what does the fox say?",
            "There is a song about that, and I must not sing it here.",
            "The horse says neigh, which is close to no.",
            "The sheepdog says woof and blames the postman.",
            "Somebody large is standing in the meadow and chewing slowly.",
            "She has spots, a bell and a great deal of patience.",
            "She opens her mouth, and the sound that comes out is moo.",
            "Wait, could it be a very deep trumpet?",
            "No trumpet gives milk, so she must be a cow.",
        ),
        "The cow says moo.",
    ),
)

# Said when the end of the thought is forbidden, before it wanders through its sentences again.
SECOND_THOUGHTS = "But let me go over that once more."

# Said, one after the other, when the end of the answer is forbidden.
ENCORES = (
    "I would sign that in ink.",
    "You may quote me on it.",
    "There is nothing more to add, and yet here I am.",
    "Thank you for your patience.",
)

LOOP_PROMPT = "Read the table."
LOOP_ROWS = (("apple", "pear", "plum"), ("cherry", "fig", "grape"))

# Where the repetition is interrupted: another fruit, or a dish, and then a way out of the table.
OTHER_FRUITS = ("melon", "lemon", "mango", "quince")
DISHES = ("pie", "jam")
LOOP_FAREWELL = "That was the last row of the table. It was a very fruity table."

QUESTIONS = {lesson.question: lesson.answer for lesson in LESSONS}
