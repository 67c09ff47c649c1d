"""The bytes of the served model's tokens, read from its tokenizer.

A token is a piece of bytes, not of characters: a character may be split among several tokens, and
most texts can be spelled in many ways. Rules on a text, whichever tokens spell it, start here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from sglang_lp.errors import RequestError, shown
from sglang_lp.text.byte_runs import NO_RUNS, ByteRuns
from sglang_lp.text.pieces import Pieces
from sglang_lp.text.utf8 import folded, unfinished

if TYPE_CHECKING:
    import numpy as np

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Vocabulary:
    """The bytes of the tokens of one tokenizer.

    Attributes:
        tokens: The bytes of each id that the tokenizer has. Special tokens have none: they are in
            the text of a client only with ``skip_special_tokens`` off, see :attr:`named`. A row may
            have more logits, or fewer.
        names: The bytes of each special token in that text.
        byte_runs: The byte tokens, if the tokenizer has byte fallback.
    """

    def __init__(
        self,
        tokens: Sequence[bytes],
        byte_ids: Iterable[int] = (),
        names: Mapping[int, bytes] | None = None,
    ) -> None:
        self.tokens = tokens
        self.names = names or {}
        self.byte_runs = ByteRuns(tokens, frozenset(byte_ids))

    def prepare(self) -> None:
        """Build the tables of all searches, so that no request waits for them."""
        self.exact.prepare()
        self.exact.prepare_to_spell()
        self.folded.prepare()
        for name in ("blank", "characters", "tails"):
            getattr(self, name)  # is kept from then on
        if self.names:
            self.named.exact.prepare()
            self.named.folded.prepare()

    @cached_property
    def named(self) -> Vocabulary:
        """The vocabulary with the names of special tokens as their bytes."""
        names = self.names
        tokens = [names.get(token_id, token) for token_id, token in enumerate(self.tokens)]
        return Vocabulary(tokens, self.byte_runs.ids)

    def meets_names(self, texts: Iterable[bytes], *, ignore_case: bool = False) -> bool:
        """Tell whether the name of a special token may contain a text, or a part of it.

        A text lies in a name, or holds its first or its last byte.
        """
        names = [*self.names.values()]
        if ignore_case:
            names, texts = [*map(folded, names)], map(folded, texts)
        joined, edges = b"\n".join(names), {byte for name in names for byte in (name[0], name[-1])}
        return any(text in joined or not edges.isdisjoint(text) for text in texts)

    def name_in(self, text: str) -> str | None:
        """Return the name of a special token that a text contains, or ``None``."""
        held = (name.decode(errors="replace") for name in self.names.values())
        return next((name for name in held if name in text), None)

    @cached_property
    def exact(self) -> Pieces:
        """The tokens as they are."""
        return Pieces(self.tokens)

    @cached_property
    def folded(self) -> Pieces:
        """The tokens without the difference of upper and lower case."""
        return Pieces([folded(token) for token in self.tokens])

    @cached_property
    def characters(self) -> tuple[np.ndarray, np.ndarray]:
        """The code points of the characters in all tokens, and the token that contains each.

        A byte that belongs to no whole character of its token counts as U+DC00 and its value.
        """
        import numpy as np

        texts = [token.decode("utf-8", "surrogateescape") for token in self.tokens]
        numbers = np.frombuffer(
            "".join(texts).encode("utf-32-le", "surrogatepass"), dtype=np.uint32
        )
        holders = np.repeat(np.arange(len(texts), dtype=np.int32), [*map(len, texts)])
        return numbers, holders

    @cached_property
    def blank(self) -> frozenset[int]:
        """The tokens that spell white space or nothing."""
        return frozenset(i for i, token in enumerate(self.tokens) if not token.strip())

    @cached_property
    def tails(self) -> dict[bytes, list[int]]:
        """The tokens that end inside a character: from its first bytes to the ids of the tokens."""
        found: dict[bytes, list[int]] = {}
        for token_id in self.exact.ending_with_a_lead().tolist():
            token = self.tokens[token_id]
            if length := unfinished(token):
                found.setdefault(token[-length:], []).append(token_id)
        return found

    def spell(self, text: bytes) -> list[int]:
        """Return tokens that spell a text, the longest possible at each place; empty if none do."""
        exact, ids = self.exact, list[int]()
        # Where every byte is a token, no way ends in the middle.
        sure = exact.single_bytes.issuperset(text)
        ways = () if sure else exact.usable_lengths(text)
        place = 0
        while place < len(text):
            length = exact.longest_at(text, place) if sure else ways[place]
            if not length:
                return []
            ids.append(exact.first_of(text[place : place + length]))
            place += length
        return ids

    def text(self, token_ids: Iterable[int]) -> bytes:
        """Return the bytes of tokens; an id outside of the vocabulary has none.

        Args:
            token_ids: Oldest first. Pad values of image prompts may be among them.
        """
        tokens, size = self.tokens, len(self.tokens)
        return b"".join([tokens[token_id] for token_id in token_ids if 0 <= token_id < size])


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """Return the vocabulary of a tokenizer, made once and kept.

    Args:
        tokenizer: A tokenizer of ``transformers``, as SGLang serves it, or of ``tokenizers``.

    Raises:
        RequestError: The bytes of its tokens are unknown.
    """
    found = _vocabulary_of(tokenizer)
    if isinstance(found, str):
        raise RequestError(found)
    return found


def token_texts(tokenizer: Any) -> Sequence[str]:
    """Return the text of every token of a tokenizer, by id; made once and kept.

    A special token has an empty text. A token with a part of a character has U+FFFD there.

    Args:
        tokenizer: The served model's: ``served.tokenizer`` in ``fit_params``, ``request.tokenizer``
            elsewhere.

    Raises:
        RequestError: There is no tokenizer, or the bytes of its tokens are unknown.
    """
    if tokenizer is None:
        raise RequestError(
            "this server has no tokenizer (--skip-tokenizer-init), so it cannot tell what a token "
            "says; send token ids to a processor that takes them"
        )
    return _texts(vocabulary_of(tokenizer))


@lru_cache(maxsize=4)
def _texts(vocabulary: Vocabulary) -> Sequence[str]:
    return [token.decode(errors="replace") for token in vocabulary.tokens]


def byte_runs_of(tokenizer: Any) -> ByteRuns:
    """Return the byte runs of a tokenizer's vocabulary; empty if its tokens' bytes are unknown.

    Args:
        tokenizer: As for :func:`vocabulary_of`, or ``None``.
    """
    found = None if tokenizer is None else _vocabulary_of(tokenizer)
    return found.byte_runs if isinstance(found, Vocabulary) else NO_RUNS


@lru_cache(maxsize=4)
def _vocabulary_of(tokenizer: Any) -> Vocabulary | str:
    """Return the result of ``vocabulary_of``, or the message of its error: both are kept."""
    fast = getattr(tokenizer, "backend_tokenizer", tokenizer)
    try:
        _check_clean_up(tokenizer)
        if hasattr(fast, "get_added_tokens_decoder"):
            return _fast_vocabulary(fast)
        return _other_vocabulary(tokenizer)
    except Exception as error:  # noqa: BLE001 - the libraries raise what they like
        return (
            f"the texts of the tokenizer's tokens cannot be determined: {shown(repr(error), 200)}; "
            "give token ids"
        )


@lru_cache(maxsize=4)
def unmapped_ids(tokenizer: Any, vocab_size: int) -> tuple[int, ...]:
    """Return the ids that have a logit and are no token of the tokenizer, in order.

    Models pad their vocabulary, and such an id can be sampled: it spells nothing.

    Args:
        tokenizer: As for :func:`vocabulary_of`, which need not know what its tokens spell.
        vocab_size: Number of logits in a row of the model.
    """
    known = {*tokenizer.get_vocab().values(), *getattr(tokenizer, "added_tokens_decoder", ())}
    return tuple(token_id for token_id in range(vocab_size) if token_id not in known)


def _check_clean_up(tokenizer: Any) -> None:
    """Refuse a tokenizer whose decoder changes the text of its tokens: ``do n't .`` to ``don't.``.

    Tested by decoding, because transformers 5 ignores the flag for BPE.
    """
    if not getattr(tokenizer, "clean_up_tokenization_spaces", False):
        return
    ids = tokenizer.encode("do n't .", add_special_tokens=False)
    if tokenizer.decode(ids) != tokenizer.decode(ids, clean_up_tokenization_spaces=False):
        raise ValueError(
            "its decoder drops spaces (set clean_up_tokenization_spaces to false in the model's "
            "tokenizer_config.json)"
        )


def _fast_vocabulary(fast: Any) -> Vocabulary:
    """Return the vocabulary of a tokenizer of ``tokenizers``.

    Without xgrammar, which a client does not have.
    """
    names, decoder = fast.get_vocab(), fast.decoder
    special = {
        token_id for token_id, token in fast.get_added_tokens_decoder().items() if token.special
    }
    spell = _spelled_by_bytes if decoder and decoder.decode(["a", "Ġ"]) == "a " else _spelled
    tokens = [b""] * (max(names.values(), default=-1) + 1)
    checked, ours, byte_ids = ["a"], [b"a"], list[int]()
    for name, token_id in names.items():
        if token_id not in special:
            tokens[token_id] = token = spell(name)
            if _BYTE_TOKEN.fullmatch(name):  # of whose bytes it drops what makes no character
                byte_ids.append(token_id)
            else:
                checked.append(name)
                ours.append(token)
    # Compared with the library's own decoder.
    if decoder is None or decoder.decode(checked) != b"".join(ours).decode(errors="replace"):
        raise ValueError("its decoder does more than to join tokens")
    has_runs = decoder.decode(["<0x61>", "<0xFF>"]) == "\ufffd\ufffd"
    # After a letter, because some decoders drop a space that begins the text.
    named = {
        token_id: decoder.decode(["a", name])[1:].encode()
        for name, token_id in names.items()
        if token_id in special
    }
    return Vocabulary(tokens, byte_ids if has_runs else (), _without_empty(named))


def _other_vocabulary(tokenizer: Any) -> Vocabulary:
    """Return the vocabulary of a tokenizer of tiktoken or SentencePiece."""
    from xgrammar import TokenizerInfo

    found = TokenizerInfo.from_huggingface(tokenizer).decoded_vocab
    special = {*tokenizer.all_special_ids}
    tokens = [b"" if token_id in special else token for token_id, token in enumerate(found)]
    named = {
        token_id: tokenizer.decode([token_id], skip_special_tokens=False).encode()
        for token_id in special
    }
    return Vocabulary(tokens, names=_without_empty(named))


def _without_empty(named: Mapping[int, bytes]) -> dict[int, bytes]:
    return {token_id: name for token_id, name in named.items() if name}


def _byte_level() -> dict[int, str]:
    """Return the translation from the characters of a byte-level token to its bytes in Latin-1.

    Byte-level vocabularies write each byte as one printable character (GPT-2's
    ``bytes_to_unicode``, the alphabet of ``tokenizers.pre_tokenizers.ByteLevel``): a printable
    one as itself, the others as U+0100 and on.
    """
    odd = [byte for byte in range(256) if not chr(byte).isprintable() or chr(byte) == " "]
    # A character outside of the alphabet is no byte: its replacement is not in Latin-1.
    return {**dict.fromkeys(odd, "\uffff"), **{256 + n: chr(byte) for n, byte in enumerate(odd)}}


_BYTES = _byte_level()


def _spelled_by_bytes(name: str) -> bytes:
    try:
        return name.translate(_BYTES).encode("latin-1")
    except UnicodeEncodeError:  # an added token that is not written in the alphabet
        return name.encode()


def _spelled(name: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(name)
    return bytes([int(byte[1], 16)]) if byte else name.replace("▁", " ").encode()
