"""Thinking tokens, with SGLang's reasoning parser as the oracle."""

import re
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import tokenizers

pytest.importorskip("sglang.srt")

from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.parser.reasoning_parser import ReasoningParser

from sglang_lp._engine.history.host import Host
from sglang_lp._engine.history.row import Row
from sglang_lp.builtins import ScriptLogitProcessor
from sglang_lp.builtins.thinking.blocks import find_blocks
from sglang_lp.builtins.thinking.finder import BlockTokens, finder_for
from sglang_lp.builtins.thinking.progress import Progress
from sglang_lp.errors import InvalidParameter
from sglang_lp.links import prepare
from sglang_lp.policy.sections import Ceiling
from sglang_lp.served_model import ServedModel
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.gate.intake import Intake
from sglang_lp.server.gate.reasoning_parser import reasoning_format
from sglang_lp.server.gate.reserved_keys import END_TOKEN_IDS
from sglang_lp.testing import FakeRequest
from sglang_lp.text.vocabulary import Vocabulary, vocabulary_of
from sglang_lp.trust import Policy
from support.models.vocabularies import one_token_a_byte

#: Each letter stands once in a text, so that every token of reasoning is known by its own.
LETTERS = [chr(0x4E00 + i) for i in range(400)]

#: What a model writes between a block and its answer.
HEADERS = {
    "beam": ["<|channel|>final<|message|>"],
    "cohere_command4": ["<|START_TEXT|>"],
    "gpt-oss": ["<|start|>", "assistant", "<|channel|>", "final", "<|message|>"],
    "inkling": ["<|message_model|>", "<|content_text|>"],
    "kimi_k3": ["<|open|>", "response", "<|sep|>"],
    "muse": ["<|start|>", "assistant", " to=user", "<|message|>"],
}

#: Parsers whose delimiters come from a template of the served tokenizer.
TEMPLATES = {"response_template"}
PARSERS = sorted({*ReasoningParser.DetectorMap} - TEMPLATES)
#: One parser takes other delimiters from a request with another level of effort.
EFFORTS = {"k2_horizon, medium": "medium", "k2_horizon, low": "low"}


def parser_of(name, *, forced):
    request = SimpleNamespace(chat_template_kwargs={"reasoning_effort": EFFORTS.get(name)})
    return ReasoningParser(name.partition(",")[0], force_reasoning=forced, request=request)


def format_of(name):
    form = reasoning_format(name.partition(",")[0], None)
    return form.others[[*EFFORTS].index(name)] if name in EFFORTS else form


class Pieces:
    """A vocabulary made up of the pieces that a text was cut into."""

    def __init__(self, texts):
        self.of = [*dict.fromkeys(texts)]
        self.vocabulary = Vocabulary([piece.encode() for piece in self.of])

    def ids(self, texts):
        return [self.of.index(text) for text in texts]


def cut(draw, text):
    """Cut a text anywhere."""
    count = draw(st.integers(0, min(len(text) - 1, 30))) if text else 0
    places = sorted(draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=count)))
    parts = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    return [part for part in parts if part]


@st.composite
def answers(draw, form, forced):
    """Draw an answer as models write it: thoughts, an end or a tool call, words; cut anywhere."""
    letters = iter(LETTERS)

    def words():
        return "".join(islice(letters, draw(st.integers(0, 4))))

    inside = form.can_begin_inside and forced
    text = draw(st.sampled_from(["", form.start])) if inside else form.start
    ends = [form.end, *form.other_ends, *form.tool_starts, ""]
    return cut(draw, text + words() + draw(st.sampled_from(ends)) + words())


def parsed(name, pieces, forced, *, streamed):
    """Return the reasoning and the content of an answer."""
    parser = parser_of(name, forced=forced)
    detector = parser.detector
    if name == "ling3":  # which gives reasoning out as the answer if there is no other
        detector._force_nonempty_content = False
    if name == "gpt-oss":  # whose loop takes control tokens as they come: whole
        pieces = re.split(r"(<\|.*?\|>)", "".join(pieces))
    if not streamed:
        thought, said = parser.parse_non_stream("".join(pieces))
    else:
        parts = [*map(parser.parse_stream_chunk, pieces), parser.parse_stream_end()]
        thought, said = ("".join(part or "" for part in side) for side in zip(*parts, strict=True))
    if name == "minimax-append-think":  # which leaves it to the client to part the two
        thought, _, said = said.partition(detector.think_end_token)
    return thought or "", said or ""


def reasoning(name, pieces, forced, *, streamed):
    return parsed(name, pieces, forced, streamed=streamed)[0]


def counted(form, pieces, forced):
    """Return the letters in the tokens that the finder counts."""
    vocabulary = Pieces([*pieces, form.start, form.end])
    closing = BlockTokens((*vocabulary.ids([form.start]),), (*vocabulary.ids([form.end]),))
    finder = finder_for(closing, form, vocabulary.vocabulary)
    output = vocabulary.ids(pieces)
    blocks = find_blocks(finder, [], output, inside=form.can_begin_inside and forced)
    return {
        letter
        for block in blocks
        for piece in pieces[block.start : block.start + block.tokens]
        for letter in piece
    }


@pytest.mark.parametrize(
    ("name", "forced"),
    # K2 Horizon's parser takes no answer that begins outside.
    [
        (name, forced)
        for name in [*PARSERS, *EFFORTS]
        for forced in (False, True)
        if forced or "k2_horizon" not in name
    ],
)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_is_counted_is_what_the_parser_returns_as_reasoning(name, forced, data):
    form = format_of(name)
    pieces = data.draw(answers(form, forced))
    found = counted(form, pieces, forced)
    for streamed in (False, True):
        returned = {*reasoning(name, pieces, forced, streamed=streamed)} & {*LETTERS}
        # A token with both the end of the thoughts and text after it counts as thought.
        whole = {letter for piece in pieces if returned & {*piece} for letter in piece}
        assert found & {*LETTERS} == whole & {*LETTERS}, f"streamed: {streamed}"


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("where", ["answer", "thinking"])
@settings(max_examples=20, deadline=None)
@given(data=st.data(), forced=st.booleans())
def test_scripts_are_banned_where_the_parser_says(name, where, data, forced):
    form = format_of(name)
    forced = forced or "k2_horizon" in name
    tokenizer = one_token_a_byte(form.start, form.end)
    served = ServedModel(tokenizer, 300, reasoning=form)
    given = {"scripts": ["Han"], "mode": "ban", "where": where}
    (serving,) = prepare(ScriptLogitProcessor(), given, served)
    if form.can_begin_inside and forced:
        serving = serving._replace(phase=serving.phase.begin_inside())
    byte_ids = {one: place for place, one in enumerate(vocabulary_of(tokenizer).tokens[:256])}
    pieces = data.draw(answers(form, forced))
    request = FakeRequest([], tokenizer=tokenizer)
    row = Row([serving], Host(request))
    banned = set()
    for piece in pieces:
        added = tokenizer.token_to_id(piece) if data.draw(st.booleans()) else None
        for char in piece:
            row.accept_tokens()
            edits = row.ask(300, 0)
            is_edited = row.persistent is not None or not edits.is_empty
            banned.update([char] if len(piece) == 1 and is_edited else [])
            if added is None:
                for byte in char.encode():
                    request.append(byte_ids[bytes([byte])])
        if added is not None:
            request.append(added)
    letters = {piece for piece in pieces if piece in LETTERS}
    returned = {*reasoning(name, pieces, forced, streamed=False)} & letters
    assert banned & letters == (returned if where == "thinking" else letters - returned)


def test_parsers_that_drop_an_answer_without_a_header_are_known():
    for name in PARSERS:
        form = format_of(name)
        thoughts = ["ab", form.end] if form.can_begin_inside else []
        said = parsed(name, [*thoughts, "no"], True, streamed=False)[1]
        assert form.headed == (said != "no"), name


@pytest.mark.parametrize("name", [*HEADERS, "deepseek-r1", "kimi", "qwen3"])
def test_a_choice_that_names_no_phase_is_the_content_of_the_answer(name):
    form, eos = format_of(name), "<the end>"
    header = [one for one in re.split(r"(<\|.*?\|>)", "".join(HEADERS.get(name, []))) if one]
    tokenizer = one_token_a_byte(*dict.fromkeys([form.start, form.end, *header, eos]))
    guard, size = Guard(Policy.default()), tokenizer.get_vocab_size()
    guard.server.tokenizer, guard.server.vocab_size, guard.server.reasoning = tokenizer, size, form
    guard.server.eos_token_ids = [tokenizer.token_to_id(eos)]
    asked = Intake("ChoiceLogitProcessor", {"choices": ["yes", "no"]}, reasoning=True)
    admitted = guard.admit(asked)
    begins = [] if form.can_begin_inside else [form.start]
    script = [*begins, "a", "b", form.end, *header]

    request, pieces = FakeRequest([], tokenizer=tokenizer), []
    row = Row([*admitted.servings], Host(request))
    while eos not in pieces:
        row.accept_tokens()
        edits = row.ask(size, 0)
        allowed = [tokenizer.id_to_token(one) for ids in edits.allowed for one in ids]
        pieces.append(min(allowed) if allowed else script[len(pieces)])
        request.append(tokenizer.token_to_id(pieces[-1]))

    thinks = form.can_begin_inside or form.headed
    for streamed in (False, True):
        found = parsed(name, pieces[:-1], True, streamed=streamed)
        assert found == ("ab" if thinks else "", "no")
    assert admitted.phases == ("answer",)


@st.composite
def turns(draw, name, form):
    """Draw an answer with whatever delimiters, in any number; each letter is a token."""
    letters = iter(LETTERS)
    marks = [form.start, form.end, *form.other_ends, *form.tool_starts, form.tool_end, "\n"]
    pieces = [] if form.can_begin_inside else [form.start]
    for _ in range(draw(st.integers(1, 8))):
        mark = draw(st.sampled_from(marks))
        # Where control tokens come in parts, the parser of gpt-oss does not see them.
        pieces += [mark] if name == "gpt-oss" else cut(draw, mark)
        pieces += islice(letters, draw(st.integers(0, 5)))
    return pieces


def closed(form, pieces, budget):
    """Return an answer after a budget closed its blocks."""
    vocabulary = Pieces([*pieces, form.start, form.end])
    closing = BlockTokens((*vocabulary.ids([form.start]),), (*vocabulary.ids([form.end]),))
    finder = finder_for(closing, form, vocabulary.vocabulary)
    progress = Progress(finder, None, [], inside=form.can_begin_inside)
    output = []
    for piece in pieces:
        over = progress.inside - budget
        token_ids = vocabulary.ids([piece])
        is_over = progress.state.is_open and over >= 0
        if is_over and (over or token_ids[0] not in progress.completing_call):
            output.append(form.end)
            progress.read(vocabulary.ids([form.end]))
        output.append(piece)
        progress.read(token_ids)
    return output


@pytest.mark.parametrize("name", [*PARSERS, *EFFORTS])
@settings(max_examples=settings().max_examples // 2, deadline=None)
@given(data=st.data(), budget=st.integers(1, 6))
def test_no_block_of_a_stream_has_more_reasoning_than_its_budget(name, data, budget):
    form = format_of(name)
    output = closed(form, data.draw(turns(name, form)), budget)
    returned = {*reasoning(name, [*"".join(output)], True, streamed=True)}
    ends = "|".join(map(re.escape, [form.end, *form.other_ends]))
    # Without an end in between it is one block, whatever a tool call interrupts.
    for block in re.split(ends, "".join(output)):
        assert len(returned & {*block} & {*LETTERS}) <= budget


@pytest.mark.parametrize("name", [*PARSERS, *EFFORTS])
@settings(max_examples=settings().max_examples // 2, deadline=None)
@given(data=st.data())
def test_a_guaranteed_answer_has_content_for_the_parser_and_a_reader(name, data):
    form = format_of(name)
    header = HEADERS.get(name, [])
    pieces = [form.start, "a", form.end, *data.draw(turns(name, form))]
    if header:
        pieces += [form.start, "a", form.end, *header, "b"]
    vocabulary = Pieces([*pieces, form.start, form.end])
    closing = BlockTokens((*vocabulary.ids([form.start]),), (*vocabulary.ids([form.end]),))
    finder = finder_for(closing, form, vocabulary.vocabulary)
    progress = Progress(finder, None, [], inside=form.can_begin_inside)
    progress.owe(1, vocabulary.vocabulary.blank)
    marks = [form.start, form.end, *form.other_ends, *form.tool_starts, form.tool_end]
    delimiter = re.compile("|".join(re.escape(mark) for mark in marks if mark))
    for count, piece in enumerate(pieces, 1):
        progress.read(vocabulary.ids([piece]))
        if progress.owed or progress.state.is_open:
            continue
        for streamed in (False, True):
            _, said = parsed(name, pieces[:count], True, streamed=streamed)
            assert delimiter.sub("", said).strip(), (pieces[:count], streamed)
    assert not (header and progress.owed)


@pytest.mark.parametrize("mark", ["</think>", "<tool_call>"])
def test_a_delimiter_that_begins_before_the_answer_of_a_chat_is_none(mark):
    form = format_of("qwen3")
    vocabulary = Pieces([form.start, form.end, mark[:-1], ">", "a"])
    closing = BlockTokens((*vocabulary.ids([form.start]),), (*vocabulary.ids([form.end]),))
    finder = finder_for(closing, form, vocabulary.vocabulary)
    prompt, answer = vocabulary.ids([form.start, "a", mark[:-1]]), vocabulary.ids([">", "a"])

    def still_open(*, chat):
        progress = Progress(finder, None, prompt, inside=chat)
        progress.read(answer)
        return progress.state.is_open

    assert still_open(chat=True)
    assert not still_open(chat=False)
    assert reasoning("qwen3", [">", "a"], True, streamed=False) == ">a"


def test_every_parser_of_sglang_is_known_but_the_one_that_asks_the_tokenizer():
    assert {*PARSERS} | TEMPLATES == {*ReasoningParser.DetectorMap}
    for name in PARSERS:
        assert reasoning_format(name, None) is not None, name


def test_a_parser_whose_delimiters_cannot_be_told_is_named_in_the_log(caplog):
    assert reasoning_format("response_template", None) is None
    assert "response_template" in caplog.text
    assert reasoning_format(None, None) is None


def test_a_request_is_closed_with_the_end_that_its_effort_has():
    form = reasoning_format("k2_horizon", None)
    assert len({one.end for one in (form, *form.others)}) == 3
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.add_special_tokens([text for one in (form, *form.others) for text in one[:2]])
    guard = Guard(Policy(ceilings={"thinking_budget": Ceiling(at_most=20)}))
    guard.server.tokenizer, guard.server.vocab_size, guard.server.reasoning = tokenizer, 6, form
    guard.rules.fit(ServedModel(tokenizer, 6, reasoning=form))

    for one in (form, *form.others):
        start, end = ((tokenizer.token_to_id(text),) for text in one[:2])
        (serving,) = guard.admit(Intake(None, {END_TOKEN_IDS: [*end]}, reasoning=True)).servings
        params = serving.params
        assert (params.start, params.end, params.thinking_budget) == (start, end, 20)
        own = {"thinking_start_token_id": start[0], "thinking_end_token_id": (end[0] + 2) % 6}
        with pytest.raises(InvalidParameter, match="the served model's thinking delimiters"):
            guard.admit(Intake("ThinkingBudgetLogitProcessor", {END_TOKEN_IDS: [*end], **own}))


def test_the_page_on_thinking_has_a_row_for_every_parser():
    page = (Path(__file__).parents[3] / "docs" / "thinking-models.md").read_text()
    page = page.partition("## The parsers")[2]
    for name in PARSERS:
        form = reasoning_format(name, None)
        rows = re.findall(rf"^\| `{re.escape(name)}` \|(.*)\|$", page, re.MULTILINE)
        delimiters, others = (row.replace("\\|", "\0").split("|") for row in rows)
        said = [
            re.findall("`(.*?)`", cell.replace("\0", "|").replace("\\n", "\n"), re.DOTALL)
            for cell in [*delimiters, others[1]]
        ]
        assert said == [[form.start], [form.end], [*form.tool_starts, *form.other_ends]], name
        assert others[2].strip() == ("yes" if form.can_begin_inside else "no"), name
