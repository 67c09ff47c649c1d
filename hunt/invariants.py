"""Rules that hold for every case, one function for each.

A rule takes a case as it went and the kind of its server, and yields what contradicts it: a word
that tells this fault from others, and a sentence. None uses the product's own finders.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hunt import thinking
from hunt.answers import Answer, Reply, answers_of
from hunt.requests import GENERATE, Sent
from hunt.wishes import Wish, names_of, wish_of
from support.catalogues import served_items

if TYPE_CHECKING:
    from hunt.asking import Asked
    from hunt.servers import Kind

__all__ = ["INVARIANTS", "TIMES", "Violation", "prepare", "violations"]

Found = Iterator[tuple[str, str]]
#: Seconds that the event loop may stand, and a step may take, beyond a case without processors.
MOST_GAP, MOST_STEP = 1.0, 0.1
#: SGLang's own error where ``min_new_tokens`` or ``ignore_eos`` outlast a grammar.
_OF_GRAMMAR = "Grammar accept_token failed"
#: The operator's own rules contradict each other, for which the operator is paged: a forced
#: beginning, for example, and a default budget that the thoughts of the prompt have spent.
_OF_POLICY = "no token is left by the processors of this server's operator"


class Violation(NamedTuple):
    """A rule that did not hold.

    Attributes:
        invariant: Name of the rule.
        sort: Tells faults of one rule apart.
        text: What was seen.
    """

    invariant: str
    sort: str
    text: str

    @property
    def signature(self) -> tuple[str, str]:
        """The key of a fault: rule and sort."""
        return self.invariant, self.sort


class Told(NamedTuple):
    """An answer with its request."""

    sent: Sent
    reply: Reply
    answer: Answer
    wish: Wish

    @property
    def is_whole(self) -> bool:
        """Whether the client waited for the end, and the answer did not end with an error."""
        return not self.reply.is_cut and not [*self.reply.errors()]

    @property
    def sort(self) -> str:
        """The endpoint, and whether the answer is whole."""
        return self.sent.path + ("" if self.is_whole else ", not whole")


def _told(asked: Asked) -> Iterator[Told]:
    for sent, reply in zip(asked.sent, asked.replies, strict=True):
        for place, answer in enumerate(answers_of(sent.path, reply)):
            wish = wish_of(sent, place)
            if wish.searches_beams and answer.finish == "abort":
                continue  # a beam search that failed has SGLang's placeholders for tokens
            yield Told(sent, reply, answer, wish)


# The operator's word


def never_banned_text(asked: Asked, kind: Kind) -> Found:
    """No client gets a text that an always-rule bans, in any field of any event."""
    for told in _told(asked):
        for word in kind.banned:
            for text in told.answer.everything:
                if word in text:
                    yield told.sort, f"banned {word!r} in {text!r}"


def always_beginning(asked: Asked, kind: Kind) -> Found:
    """Every answer begins with the text that an always-rule forces, or is cut within it."""
    begins = kind.beginning
    for told in _told(asked) if begins else ():
        text = told.answer.texts.get("text")
        if text is None or told.wish.may_stop:
            continue
        if not (text.startswith(begins) or begins.startswith(text)):
            yield told.sort, f"{text!r} does not begin with {begins!r}"


def least_length(asked: Asked, kind: Kind) -> Found:
    """No answer ends by itself before the tokens that an always-rule demands."""
    for told in _told(asked) if kind.least else ():
        answer = told.answer
        ids = answer.token_ids
        if ids is None or answer.finish != "stop" or told.wish.may_stop or not told.is_whole:
            continue
        if len(ids) <= kind.least and not isinstance(answer.matched, str):
            yield told.sent.path, f"ended after {len(ids)} tokens, expected more than {kind.least}"


def ceilings_on_thinking(asked: Asked, kind: Kind) -> Found:
    """No block has more reasoning, by SGLang's parser, than the ceiling; nor all blocks together.

    A tool start that had begun may be finished.
    """
    most, total = kind.ceiling("thinking_budget"), kind.ceiling("total_thinking_tokens")
    if most is None:
        return
    for told in _told(asked):
        answer, begun = told.answer, told.wish.begun
        counts = []
        for name in ("text", "content"):
            if name in answer.texts and not (kind.parser and name == "content"):
                found = thinking.blocks(begun, answer.texts[name])
                counts += [(thinking.tokens_of(thought), 1, thought) for thought in found]
        if total is not None and sum(count for count, _, _ in counts) > total:
            yield "total", f"{counts} exceed the ceiling of {total} on all blocks"
        if kind.parser:
            counts += [
                (thinking.tokens_of(thought), count, thought)
                for thought, count in thinking.returned(answer, told.sent.body)
            ]
        for count, many, thought in counts:
            if count > most * many:
                yield told.sent.path, f"{count} tokens of reasoning, ceiling {most}: {thought!r}"


# The request's own word


def own_bans(asked: Asked, _kind: Kind) -> Found:
    """A text that a request bans is in none of its answer's texts."""
    for told in _told(asked):
        # A piece of a log probability is no text of an answer.
        texts = told.answer.texts.values()
        for name, params in told.wish.everywhere:
            if params.get("whole_words") or params.get("resumed_tokens"):
                continue
            given = {"BadWordsLogitProcessor": "words", "DisallowedTokensLogitsProcessor": "texts"}
            for word in params.get(given.get(name, ""), None) or ():
                if any(word in text for text in texts) and (
                    name == "BadWordsLogitProcessor" or len(word) == 1
                ):
                    yield name, f"{word!r} is in {[*texts]}"


def own_tokens(asked: Asked, _kind: Kind) -> Found:
    """No answer, and no beam, has a token that its request bans or does not allow."""
    for told in _told(asked):
        came = {*(told.answer.token_ids or ())}
        for name, params in told.wish.everywhere:
            listed = params.get("token_ids")
            if not isinstance(listed, list) or not all(isinstance(one, int) for one in listed):
                continue
            if name == "DisallowedTokensLogitsProcessor" and came & {*listed}:
                yield name, f"{sorted(came & {*listed})} came, of the banned {listed}"
            if name == "AllowedTokensLogitProcessor" and came - {*listed}:
                yield name, f"{sorted(came - {*listed})} came, only {listed} are allowed"


def own_fields(asked: Asked, _kind: Kind) -> Found:
    """An answer has allowed tokens only, no n-gram twice, and ends soon after a repetition."""
    for told in _told(asked):
        ids, body = told.answer.token_ids, told.sent.body
        if ids is None or told.wish.params.get("resumed_tokens"):
            continue
        allowed, size = body.get("allowed_token_ids"), body.get("no_repeat_ngram_size")
        if allowed and not {*ids} <= {*allowed}:
            yield "allowed_token_ids", f"{ids} are not all of {allowed}"
        grams = [(*ids[at : at + size],) for at in range(len(ids) - size + 1)] if size else []
        if len({*grams}) < len(grams):
            yield "no_repeat_ngram_size", f"{size} tokens come twice in {ids}"
        sizes = body.get("repetition_detection")
        # The answer ends with the token that is sampled then.
        if sizes and any(_repeats(ids[:end], sizes) for end in range(len(ids) - 1)):
            yield "repetition_detection", f"{sizes}: {ids} goes on after a repetition"


def _repeats(ids: Sequence[int], sizes: Mapping[str, int]) -> bool:
    """Tell whether tokens end with a pattern that comes several times in a row."""
    least, count = max(1, sizes.get("min_pattern_size", 0)), sizes["min_count"]
    return any(
        len(ids) >= size * count and [*ids[-size * count :]] == [*ids[-size:]] * count
        for size in range(least, sizes["max_pattern_size"] + 1)
    )


def own_choice(asked: Asked, _kind: Kind) -> Found:
    """An answer with choices that ends by itself is one of them, and else begins one."""
    for told in _told(asked):
        text = told.answer.texts.get("text")
        for name, params in told.wish.everywhere:
            choices = params.get("choices")
            if name != "ChoiceLogitProcessor" or text is None or not isinstance(choices, list):
                continue
            if told.wish.may_stop or "eos_token_ids" in params or _is_steered(told.wish):
                continue
            ended = told.answer.finish == "stop" and told.is_whole
            begun = text.rstrip("\ufffd")  # of a character that was cut
            if not any(text == one if ended else one.startswith(begun) for one in choices):
                yield name, f"{text!r} is none of {choices}"


def own_items(asked: Asked, _kind: Kind) -> Found:
    """Every item of an answer is in the catalogue and in the request's sets, and not left out."""
    for told in _told(asked):
        for name, params in told.wish.processors:
            if name != "CatalogueLogitProcessor" or told.wish.params.get("resumed_tokens"):
                continue
            token_ids = told.answer.token_ids
            if token_ids is None or not told.is_whole:
                continue
            may = _allowed_items(params)
            for item in _items_in(token_ids, params):
                if not any(one[: len(item)] == item for one in may):
                    yield name, f"{item} begins no item that {dict(params)} allows"


def _allowed_items(params: Mapping[str, Any]) -> set[tuple[int, ...]]:
    by_tokens: dict[tuple[int, ...], tuple[set[str], set[str]]] = {}
    for item, tokens, sets in served_items():
        ids, own = by_tokens.setdefault(tokens, (set(), set()))
        ids.add(item)
        own.update(sets)
    left_out, only = {*(params.get("exclude") or ())}, params.get("only")
    return {
        tokens
        for tokens, (ids, sets) in by_tokens.items()
        if not ids & left_out
        and (only is None or ids & {*only})
        and all(sets & {*group.split("|")} for group in params.get("subset") or ())
    }


def _items_in(token_ids: Sequence[int], params: Mapping[str, Any]) -> Iterator[tuple[int, ...]]:
    """Yield the tokens of each item, the last perhaps cut: three in a row, after each trigger."""
    trigger, at = [*(params.get("trigger_token_ids") or ())], 0
    for _ in range(params.get("max_items", 1)):
        while trigger and [*token_ids[max(0, at - len(trigger)) : at]] != trigger:
            at += 1
            if at > len(token_ids):
                return
        if at >= len(token_ids):
            return
        yield tuple(token_ids[at : at + 3])
        at += 3 + bool(trigger)


def own_beginning(asked: Asked, _kind: Kind) -> Found:
    """An answer begins with the text that its request forces, or is cut within it."""
    for told in _told(asked):
        text = told.answer.texts.get("text")
        for name, params in told.wish.everywhere:
            begins = params.get("text")
            if name != "ForcedSequenceLogitProcessor" or not isinstance(begins, str):
                continue
            if text is None or told.wish.may_stop or _is_steered(told.wish):
                continue
            begun = text.rstrip("\ufffd")  # of a character that was cut
            if not (text.startswith(begins) or begins.startswith(begun)):
                yield name, f"{text!r} does not begin with {begins!r}"


def own_scripts(asked: Asked, _kind: Kind) -> Found:
    """No letter of a script that a request bans everywhere comes out."""
    for told in _told(asked):
        for name, params in told.wish.everywhere:
            scripts = params.get("scripts")
            if (
                name != "ScriptLogitProcessor"
                or params.get("mode") != "ban"
                or not isinstance(scripts, list)
            ):
                continue
            # Markup that was added to the vocabulary is free.
            text = re.sub("<[^>]*>", "", told.answer.texts.get("text", ""))
            for letter in text:
                script = unicodedata.name(letter, "").partition(" ")[0].capitalize()
                if script in scripts and letter.isalpha():
                    yield name, f"{letter!r} of {script} is in {text!r}"


def _is_steered(wish: Wish) -> bool:
    """Tell whether a text that is forced need not begin the answer."""
    return bool(wish.params.get("resumed_tokens")) or wish.sampling.get("ignore_eos") is True


# Requests and each other


def same_alone(asked: Asked, _kind: Kind) -> Found:
    """A canary, asked next to a case, gets the same tokens as without the case."""
    number, reply = asked.canary
    pairs = [answers_of(GENERATE, one) for one in (asked.alone, reply)]
    alone, beside = ([answer.token_ids for answer in answers] for answers in pairs)
    if alone != beside:
        yield str(number), f"canary {number}: {beside or [*reply.errors()]}, alone {alone}"


def copies_are_equal(asked: Asked, _kind: Kind) -> Found:
    """Greedy copies of one request get the same tokens."""
    for sent, reply in zip(asked.sent, asked.replies, strict=True):
        answers = answers_of(sent.path, reply)
        wishes = [wish_of(sent, place) for place in range(len(answers))]
        by_wish: dict[str, list[Answer]] = {}
        for wish, answer in zip(wishes, answers, strict=True):
            if wish.searches_beams:
                continue
            if wish.is_greedy and answer.finish in {"stop", "length"}:
                by_wish.setdefault(str(wish), []).append(answer)
        for same in by_wish.values():
            if any(one.texts != same[0].texts for one in same) and not reply.is_cut:
                yield ", ".join(names_of(sent)), f"copies differ: {[one.texts for one in same]}"


# Ends


def no_server_error(asked: Asked, _kind: Kind) -> Found:
    """An answer is a success or the caller's fault, unless its class is made to fail."""
    for sent, reply in zip(asked.sent, asked.replies, strict=True):
        if "Misbehaving" in str(sent.body):
            continue
        for status, text in reply.errors():
            if _OF_GRAMMAR in text or _OF_POLICY in text:
                continue
            if not 400 <= status < 500:
                # SGLang's events of responses say so of whatever it was.
                sort = sent.path if "'server_error'" in text else _sort(text)
                yield f"{status} {sort}", f"{status} on {sent.path}: {text[:600]}"


def no_fault_counted(asked: Asked, _kind: Kind) -> Found:
    """The metric of faults, on which operators are paged, stays."""
    is_meant = any("Misbehaving" in str(sent.body) for sent in asked.sent)
    # That a canary fails is another rule's to tell.
    if asked.faults > 0 and not is_meant and not [*asked.canary[1].errors()]:
        errors = [one for reply in asked.replies for one in reply.errors()]
        told = [text for status, text in errors if not 400 <= status < 500]
        if told and all(_OF_POLICY in text for text in told):
            return
        sort = "told" if told else "not told"
        yield sort, f"sglang_lp_faults_total grew by {asked.faults:.0f}: {errors}"[:600]


def server_lives(asked: Asked, _kind: Kind) -> Found:
    """No request ends the server."""
    if not asked.is_alive:
        yield "", "the server ended"


def _sort(text: str) -> str:
    """Return a message without what differs between two requests."""
    message = re.search(r"'message': ([\"'])(.*?)\1[,}]", text)
    text = message.group(2) if message else text
    text = text.rpartition(" failed at token ")[2]
    text = re.sub(r"`.*?`|\[.*?\]|\b[0-9a-f]{32}\b", "", text)
    return " ".join(re.findall("[A-Za-z_]+", text))[:90]


# The report


def report_agrees(asked: Asked, _kind: Kind) -> Found:
    """A report has spans within the answer, counts that equal them, and the header's names."""
    for told in _told(asked):
        report, answer = told.answer.report, told.answer
        if not told.is_whole or not isinstance(report, Mapping):
            continue
        length = answer.completion_tokens
        length = len(answer.token_ids) if answer.token_ids is not None else length
        forced, edited = report["forced_at"], report["edited"]
        if report["truncated"] is None and report["forced"] != sum(e - b for b, e in forced):
            yield "count", f"forced {report['forced']}, forced_at {forced}"
        taken = [at for begin, end in [*forced, *edited] for at in range(begin, end)]
        if len({*taken}) != len(taken) or any(begin >= end for begin, end in [*forced, *edited]):
            yield "overlap", f"forced_at {forced}, edited {edited}"
        if length is not None and taken and max(taken) >= length:
            yield "beyond", f"forced_at {forced}, edited {edited}: {length} tokens"
        header = told.reply.headers.get("x-sglang-lp", "")
        for name in report["processors"]:
            if name not in header:
                yield "header", f"the report names {name}, the header {header!r}"


def report_is_there(asked: Asked, _kind: Kind) -> Found:
    """An answer has a report where docs promise one, and it names the request's processors."""
    for told in _told(asked):
        asks = told.sent.path == GENERATE or told.sent.body.get("return_meta_info")
        name = told.sent.body.get("custom_logit_processor")
        # SGLang aborts what it refuses in the scheduler, before any processor.
        ended = told.answer.finish and told.answer.finish != "abort"
        if not (asks and told.is_whole and ended and isinstance(name, str)):
            continue
        if told.answer.report is None:
            yield told.sent.path, f"no report on {told.sent.path}"
            continue
        names = told.answer.report["processors"]
        for asked_for, _ in told.wish.processors:
            if asked_for.endswith("Processor") and asked_for not in names:
                yield "names", f"asked for {asked_for}, the report names {names}"


def replay_agrees(asked: Asked, kind: Kind) -> Found:
    """A replay of the processor over the answer finds no token that contradicts it."""
    from hunt.replaying import contradictions

    for told in _told(asked):
        if told.sent.path == GENERATE and told.is_whole and told.answer.token_ids:
            if any(":" in name or "thinking" in name for name, _ in told.wish.processors):
                continue
            for text in contradictions(told.wish, told.answer, kind):
                yield told.wish.processors[0][0], text


# Time


def loop_answers(asked: Asked, _kind: Kind) -> Found:
    """The event loop is never blocked for more than a second."""
    if asked.gap > MOST_GAP:
        yield ", ".join(sorted({*_all_names(asked)})), f"the event loop stood {asked.gap:.2f} s"


def steps_are_short(asked: Asked, _kind: Kind) -> Found:
    """No step of the scheduler works a tenth of a second longer than without processors."""
    if asked.step > MOST_STEP:
        yield ", ".join(sorted({*_all_names(asked)})), f"a step worked {asked.step * 1e3:.0f} ms"


def _all_names(asked: Asked) -> Iterator[str]:
    for sent in asked.sent:
        yield from names_of(sent)


Rule = Callable[["Asked", "Kind"], Found]
_RULES: Sequence[Rule] = (
    never_banned_text,
    always_beginning,
    least_length,
    ceilings_on_thinking,
    own_bans,
    own_tokens,
    own_fields,
    own_choice,
    own_items,
    own_beginning,
    own_scripts,
    same_alone,
    copies_are_equal,
    no_server_error,
    no_fault_counted,
    server_lives,
    report_agrees,
    report_is_there,
    replay_agrees,
    loop_answers,
    steps_are_short,
)
INVARIANTS: Mapping[str, Rule] = {rule.__name__: rule for rule in _RULES}
#: Rules about time, which counts only in comparison with the same case without processors.
TIMES = (loop_answers.__name__, steps_are_short.__name__)


def prepare() -> None:
    """Import the parser and the replay, which takes seconds."""
    from hunt.replaying import served

    thinking.blocks("", "a")
    served()


def violations(asked: Asked, kind: Kind, names: Sequence[str] = ()) -> Iterator[Violation]:
    """Yield what contradicts the rules.

    Args:
        asked: A case as it went.
        kind: Of its server.
        names: Of the rules; all of them without any.
    """
    # All other rules follow from the end of a server.
    for name in (names or INVARIANTS) if asked.is_alive else (server_lives.__name__,):
        for sort, text in INVARIANTS[name](asked, kind):
            yield Violation(name, sort, text)
