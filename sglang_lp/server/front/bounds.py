"""Limits on the ``custom_params`` and the copies of one HTTP request, for all processors."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

from sglang_lp.caches import packed
from sglang_lp.errors import RequestError, shown
from sglang_lp.server.gate.request_fields import GRAMMARS

#: Most entries of list parameters, and characters of texts in them, in one HTTP request over all
#: of its texts and copies: four lists of the greatest length. Every text and copy has its own
#: list, and each list is checked.
MAX_ENTRIES = 262_144

#: Most links of chains in one HTTP request, over all of its texts and copies: 48 chains of the
#: greatest length. Each link of each row runs at each step (``make bench PART=bounds``).
MAX_LINKS = 384

#: Most entries and characters of the parameters that differ between the texts of one HTTP
#: request: one list of the greatest length. Equal parameters are prepared once.
MAX_DIFFERENT = 65_536

#: Most different choices of catalogue items in one HTTP request. The items of each are looked up
#: before the request begins.
MAX_CHOICES = 32

#: Most tokens of the prompts of all copies (``n``) of one text: 128 copies of the longest prompt.
#: The scheduler gets every copy, and compares them to find that they are equal.
MAX_COPIED = 16_777_216

#: Most characters in the parameters of one HTTP request, over all of its texts and copies. The
#: scheduler gets the parameters of every copy.
MAX_CHARACTERS = 16_777_216

#: Most copies (``n``) of one text in one HTTP request.
MAX_COPIES = 512

#: Most requests that SGLang makes of one HTTP request: texts times copies (``n``).
MAX_REQUESTS = 2_048

#: Most characters of a text for each token of the served model's context. Tokenizers need less
#: than a quarter of it for English, and SGLang tokenizes in its event loop.
MAX_CHARACTERS_OF_TOKEN = 16

#: Most seconds that the constructors of adapted classes may take for one HTTP request, over all
#: of its texts and copies: the scheduler makes an object for each.
MAX_MAKING = 2.0


#: Most texts of one streamed HTTP request whose processors or parameters differ. They are checked
#: in one go, before SGLang sends the status of the answer; other lists are checked in slices.
MAX_STREAMED = 1_024


#: Most texts of one HTTP request whose choices are scored: each choice is a prompt of its own.
MAX_SCORED = 16


#: Most lists and objects in the parameters of one HTTP request, at any depth: each is looked at.
MAX_INNER = 32_768


#: Most work of SGLang's own fields in one HTTP request, over all of its texts and copies, each of
#: which SGLang reads anew: entries; characters that are tokenized, with some for each string; steps
#: of the matcher at one token, with those of reading the patterns; logprobs that each step returns.
MAX_SAMPLED = {
    **dict.fromkeys(("logit_bias", "stop_token_ids", "token_ids_logprob"), (262_144, "entries")),
    "stop": (1_048_576, "characters (and 32 for each)"),
    "stop_regex": (2_097_152, "steps at each token"),
    **dict.fromkeys(GRAMMARS, (16_777_216, "characters")),
    "top_logprobs_num": (65_536, "logprobs (with token_ids_logprob) at each step"),
}

#: Most logprobs of the prompts of one HTTP request, over all of its texts and copies: SGLang's HTTP
#: process takes some 0.3 us for one and its scheduler 0.5 us, in one go, and several times as long
#: for one that is returned as a text as well.
MAX_PROMPT_LOGPROBS = 2_097_152


_CONTAINERS = (list, dict)
#: Types of entries without characters.
_NUMBERS = frozenset((int, float, bool, type(None)))


def entries(custom_params: object) -> int:
    """Return the entries of one request's lists plus the characters of the texts in them."""
    if not isinstance(custom_params, dict):
        return 0
    lists = [value for value in custom_params.values() if isinstance(value, list | dict)]
    return sum(map(len, lists)) + sum(map(_characters, lists))


def check_entries(texts: Sequence[object], copies: int = 1) -> None:
    """Check the size of the lists and chains in one HTTP request.

    Args:
        texts: ``custom_params`` of each text, ``None`` for a text without a processor.
        copies: Number of copies of each text (``n``).

    Raises:
        RequestError: The total exceeds ``MAX_ENTRIES``, ``MAX_LINKS`` or ``MAX_CHARACTERS``, or
            the parameters that differ exceed ``MAX_DIFFERENT``.
    """
    listed = [entries(params) for params in texts]
    total = copies * sum(listed)
    if total > MAX_ENTRIES:
        raise RequestError(
            f"custom_params: expected at most {MAX_ENTRIES} entries in the lists of one HTTP "
            f"request and characters of the texts in them, got {total} over all of its texts and "
            "copies (n); send several requests"
        )
    links = copies * sum(map(_links, texts))
    if links > MAX_LINKS:
        raise RequestError(
            f"custom_params: expected at most {MAX_LINKS} links of chains in one HTTP request, got "
            f"{links} over all of its texts and copies (n); send several requests"
        )
    characters = copies * _all_characters(texts)
    if characters > MAX_CHARACTERS:
        raise RequestError(
            f"custom_params: expected at most {MAX_CHARACTERS} characters in one HTTP request, got "
            f"{characters} over all of its texts and copies (n); send several requests"
        )
    # The work of preparing each text's parameters.
    weights = [own + _in_texts(params) for own, params in zip(listed, texts, strict=True)]
    if sum(weights) <= MAX_DIFFERENT:
        return
    different = {
        packed(params) or id(params): own
        for own, params in zip(weights, texts, strict=True)
        if params
    }
    total = sum(different.values())
    if len(different) > 1 and total > MAX_DIFFERENT:
        raise RequestError(
            f"custom_params: expected at most {MAX_DIFFERENT} entries of lists and characters in "
            f"those parameters of one HTTP request that differ from text to text, got {total} in "
            f"{len(different)} of them; send several requests"
        )


def check_texts(texts: int, copies: int) -> None:
    """Check how many requests SGLang would make of one HTTP request.

    Args:
        texts: Number of its texts; 0 for one text that is no list.
        copies: Number of copies of each text (``n``).

    Raises:
        RequestError: More than ``MAX_REQUESTS``, or more than ``MAX_COPIES`` of one text.
    """
    if copies > MAX_COPIES:
        raise RequestError(
            f"n: expected at most {MAX_COPIES}, got {shown(copies)}; send several requests"
        )
    if max(texts, 1) * copies > MAX_REQUESTS:
        raise RequestError(
            f"text: expected at most {MAX_REQUESTS} texts and copies (n) in one HTTP request, got "
            f"{max(texts, 1) * copies}; send several requests"
        )


def check_characters(texts: Sequence[object], context: int) -> None:
    """Check the lengths of texts before they are tokenized.

    Args:
        texts: Texts of one HTTP request; other objects are skipped.
        context: Most tokens of a prompt and its answer.

    Raises:
        RequestError: A text is too long for the context.
    """
    most = context * MAX_CHARACTERS_OF_TOKEN
    for text in texts:
        if isinstance(text, str) and len(text) > most:
            raise RequestError(
                f"text: expected at most {most} characters, as the served model takes {context} "
                f"tokens, got {len(text)}; shorten it"
            )


def check_sampled(work: Mapping[str, int]) -> None:
    """Check the work of SGLang's own fields in one HTTP request, over all of its texts and copies.

    Args:
        work: The work of each field, by its name.

    Raises:
        RequestError: More than ``MAX_SAMPLED``.
    """
    for name, got in work.items():
        most, unit = MAX_SAMPLED[name]
        if got > most:
            raise RequestError(
                f"{name}: expected at most {most} {unit} in one HTTP request, got {got} over all "
                "of its texts and copies (n); send several requests"
            )


def check_prompt_logprobs(logprobs: int) -> None:
    """Check how many logprobs of its prompts one HTTP request asks for.

    Args:
        logprobs: Their number over all of its texts and copies so far; one with its text is four.

    Raises:
        RequestError: More than ``MAX_PROMPT_LOGPROBS``.
    """
    if logprobs > MAX_PROMPT_LOGPROBS:
        raise RequestError(
            f"logprob_start_len: expected at most {MAX_PROMPT_LOGPROBS} logprobs of the prompts of "
            f"one HTTP request (one with its text counts as four), got {logprobs} in its first "
            "texts and their copies (n); send several requests, or ask for fewer at each position"
        )


def check_copies(tokens: int, copies: int) -> None:
    """Check the total length of a prompt's copies, which all go to the scheduler.

    Args:
        tokens: Number of tokens of the prompt.
        copies: Number of copies of the text (``n``).

    Raises:
        RequestError: The copies have more than ``MAX_COPIED`` tokens together.
    """
    if tokens * copies > MAX_COPIED:
        raise RequestError(
            f"n: expected at most {MAX_COPIED} tokens in the prompts of all copies of a text, got "
            f"{copies} copies of {tokens} tokens; send several requests"
        )


def check_making(seconds: float, objects: int) -> None:
    """Check how long the scheduler makes the objects of one HTTP request.

    Args:
        seconds: Processor time of all constructors, as measured when each was tried.
        objects: Number of texts and copies (``n``).

    Raises:
        RequestError: More than ``MAX_MAKING`` in all.
    """
    if objects > 1 and seconds > MAX_MAKING:
        raise RequestError(
            f"custom_logit_processor: expected texts and copies (n) of one HTTP request for which "
            f"the constructors of its adapted classes take at most {MAX_MAKING:g} s in all, got "
            f"{seconds:.2g} s for the first {objects}; send several requests, or ask for less"
        )


def check_choices(choices: Collection[Hashable]) -> None:
    """Check how many choices of catalogue items one HTTP request has.

    Args:
        choices: The different choices of the texts that are checked so far.

    Raises:
        RequestError: More than ``MAX_CHOICES``.
    """
    if len(choices) > MAX_CHOICES:
        raise RequestError(
            f"catalogue: expected at most {MAX_CHOICES} different choices of items (catalogue, "
            f"subset, exclude and only) in one HTTP request, got {len(choices)} in its first "
            "texts; send several requests"
        )


def check_scored(texts: int) -> None:
    """Check the number of texts of one HTTP request whose choices are scored.

    Raises:
        RequestError: There are more than ``MAX_SCORED``.
    """
    if texts > MAX_SCORED:
        raise RequestError(
            f"pick: expected at most {MAX_SCORED} texts with it in one HTTP request, got {texts}; "
            "send several requests"
        )


def check_streamed(different: int) -> None:
    """Check how many requests one streamed HTTP request has that are not equal.

    Args:
        different: Number of texts whose processors or parameters differ.

    Raises:
        RequestError: More than ``MAX_STREAMED``.
    """
    if different > MAX_STREAMED:
        raise RequestError(
            f"stream: expected at most {MAX_STREAMED} texts in one HTTP request whose processors "
            f"or parameters differ, got {different}; set stream to false or send several requests"
        )


def _links(custom_params: object) -> int:
    """Return the number of links of one request's chain."""
    chain = custom_params.get("chain") if isinstance(custom_params, dict) else None
    return len(chain) if isinstance(chain, list) else 0


def _in_texts(custom_params: object) -> int:
    """Return the number of characters in one request's texts outside of lists."""
    if not isinstance(custom_params, dict):
        return 0
    return sum(len(value) for value in custom_params.values() if isinstance(value, str))


def _all_characters(texts: Sequence[object]) -> int:
    """Return the number of characters of texts and keys, however deep they are.

    Args:
        texts: ``custom_params`` of each text of one HTTP request.

    Raises:
        RequestError: It has more than ``MAX_INNER`` lists and objects; no more are looked at.
    """
    total, inner, left = 0, 0, [*texts]
    while left:
        value = left.pop()
        if isinstance(value, str):
            total += len(value)
            continue
        if isinstance(value, dict):
            parts = [*value, *value.values()]
        elif isinstance(value, list) and not _NUMBERS.issuperset(map(type, value)):
            parts = value
        else:
            continue
        inner += sum(isinstance(part, _CONTAINERS) for part in parts)
        if inner > MAX_INNER:
            raise RequestError(
                f"custom_params: expected at most {MAX_INNER} lists and objects in one HTTP "
                "request, however deep, got more; send several requests"
            )
        left += parts
    return total


def _characters(value: object) -> int:
    if isinstance(value, list) and value and isinstance(value[0], str):
        return sum(len(text) for text in value if isinstance(text, str))
    return 0
