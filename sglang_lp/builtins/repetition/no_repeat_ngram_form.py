"""The form of the rule against repeated n-grams.

See :class:`~sglang_lp.builtins.repetition.no_repeat_ngram.DeepseekOCRNoRepeatNGramLogitProcessor`.

Two hash tables with linear probing, of contexts (n - 1 tokens) and of n-grams, find the latest
follower of a context and the latest place of an n-gram. Followers of a context are a list, newest
first, in which each token is once. A follower that leaves the window leaves tables and list.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import numpy as np

from sglang_lp.builtins.repetition.no_repeat_ngram import counted
from sglang_lp.forms.bits import bits_of, has_bit
from sglang_lp.forms.compiled import compiled
from sglang_lp.forms.form import DEPTH, ROW, TOKEN, EditKind, Form
from sglang_lp.forms.out import ASKS, BAN, EDITED, LACKS

if TYPE_CHECKING:
    from sglang_lp.forms.arena import ArenaBlock
    from sglang_lp.forms.form import Group, Visits
    from sglang_lp.forms.out import Out
    from sglang_lp.request import Request

#: Numbers of a block: number of tokens, index of the first that counts, tokens of a context and of
#: the window, capacity less one of the rings and of the tables, offset of the whitelist and size.
#: Then the ring of the tokens, the ring of the followers, the tables of contexts and of n-grams.
#: A place in a ring or a table is the index of a token modulo its capacity.
_END, _START, _BEFORE, _WINDOW, _RING, _TABLE, _WHITE, _MANY = range(8)
_HEAD = 8
#: A follower: the next older and newer one of its context, hashes of context and n-gram, the token.
_OLDER, _NEWER, _CONTEXT, _GRAM, _TOKEN = range(5)
_FIELDS = 5

#: Hashes are polynomials modulo this prime, at a number that no client knows, so that no client
#: can make hashes collide.
_PRIME = (1 << 31) - 1


@compiled()
def _mix(known: Any, token_id: Any, at: Any) -> Any:
    """Return the hash of some tokens and one more."""
    product = known * at + token_id
    product = (product & _PRIME) + (product >> 31)
    return product - _PRIME if product >= _PRIME else product


@compiled()
def _slot_of(
    numbers: Any, nodes: Any, field: Any, table: Any, mask: Any, ring: Any, place: Any
) -> Any:
    """Return the slot of a follower in a table, -1 for none."""
    at = np.int64(numbers[nodes + _FIELDS * (place & ring) + field]) & mask
    while numbers[table + at] != place:
        if numbers[table + at] < 0:
            return np.int64(-1)
        at = (at + 1) & mask
    return at


@compiled()
def _erase(
    numbers: Any, nodes: Any, field: Any, table: Any, mask: Any, ring: Any, slot: Any
) -> None:
    """Delete an entry of a table, and move back entries that it kept from their place."""
    hole = at = slot
    while True:
        at = (at + 1) & mask
        place = np.int64(numbers[table + at])
        if place < 0:
            break
        home = np.int64(numbers[nodes + _FIELDS * (place & ring) + field]) & mask
        if ((at - home) & mask) >= ((at - hole) & mask):
            numbers[table + hole] = place
            hole = at
    numbers[table + hole] = -1


@compiled()
def _token_at(numbers: Any, block: Any, drafted: Any, place: Any) -> Any:
    """Return the token at a place, which may be drafted."""
    end = np.int64(numbers[block + _END])
    if place >= end:
        return np.int64(drafted[place - end])
    return np.int64(numbers[block + _HEAD + (place & np.int64(numbers[block + _RING]))])


@compiled()
def _same(numbers: Any, block: Any, drafted: Any, place: Any, context: Any) -> bool:
    """Tell whether a follower has a context."""
    for back in range(1, np.int64(numbers[block + _BEFORE]) + 1):
        if _token_at(numbers, block, drafted, place - back) != context[back - 1]:
            return False
    return True


@compiled()
def _forget(numbers: Any, block: Any, place: Any) -> None:
    """Forget a follower that leaves the window, unless its n-gram has come again."""
    ring, mask = np.int64(numbers[block + _RING]), np.int64(numbers[block + _TABLE])
    nodes = block + _HEAD + ring + 1
    contexts = nodes + _FIELDS * (ring + 1)
    grams = contexts + mask + 1
    node = nodes + _FIELDS * (place & ring)
    if numbers[node + _GRAM] < 0:
        return
    slot = _slot_of(numbers, nodes, _GRAM, grams, mask, ring, place)
    if slot < 0:
        return
    _erase(numbers, nodes, _GRAM, grams, mask, ring, slot)
    newer = np.int64(numbers[node + _NEWER])
    if newer >= 0:
        numbers[nodes + _FIELDS * (newer & ring) + _OLDER] = -1
    else:
        slot = _slot_of(numbers, nodes, _CONTEXT, contexts, mask, ring, place)
        _erase(numbers, nodes, _CONTEXT, contexts, mask, ring, slot)


@compiled()
def _replace(numbers: Any, block: Any, drafted: Any, place: Any, gram: Any, context: Any) -> Any:
    """Enter the n-gram of a follower; return the follower whose place it takes, -1 for none."""
    ring = np.int64(numbers[block + _RING])
    mask = np.int64(numbers[block + _TABLE])
    tokens = block + _HEAD
    nodes = tokens + ring + 1
    grams = nodes + _FIELDS * (ring + 1) + mask + 1
    token_id = numbers[tokens + (place & ring)]
    at = gram & mask
    while True:
        known = np.int64(numbers[grams + at])
        if known < 0:
            numbers[grams + at] = place
            return known
        node = nodes + _FIELDS * (known & ring)
        if (
            numbers[node + _GRAM] == gram
            and numbers[node + _TOKEN] == token_id
            and _same(numbers, block, drafted, known, context)
        ):
            break
        at = (at + 1) & mask
    numbers[grams + at] = place
    older, newer = np.int64(numbers[node + _OLDER]), np.int64(numbers[node + _NEWER])
    if older >= 0:
        numbers[nodes + _FIELDS * (older & ring) + _NEWER] = newer
    if newer >= 0:
        numbers[nodes + _FIELDS * (newer & ring) + _OLDER] = older
    return known


@compiled()
def _slot_for(numbers: Any, block: Any, drafted: Any, known: Any, context: Any) -> Any:
    """Return the slot of a context, used or free, in the table of contexts."""
    ring, mask = np.int64(numbers[block + _RING]), np.int64(numbers[block + _TABLE])
    nodes = block + _HEAD + ring + 1
    contexts = nodes + _FIELDS * (ring + 1)
    at = known & mask
    while True:
        latest = np.int64(numbers[contexts + at])
        if latest < 0 or (
            numbers[nodes + _FIELDS * (latest & ring) + _CONTEXT] == known
            and _same(numbers, block, drafted, latest, context)
        ):
            return contexts + at
        at = (at + 1) & mask


@compiled()
def _read_context(
    numbers: Any, block: Any, drafted: Any, place: Any, base: Any, context: Any
) -> Any:
    """Write the n - 1 tokens before a place, newest first, and return their hash."""
    before = np.int64(numbers[block + _BEFORE])
    known = np.int64(before)
    for back in range(before, 0, -1):
        token_id = _token_at(numbers, block, drafted, place - back)
        context[back - 1] = token_id
        known = _mix(known, token_id, base)
    return known


@compiled()
def _push(numbers: Any, block: Any, drafted: Any, token_id: Any, base: Any, context: Any) -> None:
    """Append a token to a row."""
    place, start = np.int64(numbers[block + _END]), np.int64(numbers[block + _START])
    before, ring = np.int64(numbers[block + _BEFORE]), np.int64(numbers[block + _RING])
    numbers[block + _END] = place + 1
    left = place - np.int64(numbers[block + _WINDOW]) + before
    if left >= start + before:
        _forget(numbers, block, left)
    numbers[block + _HEAD + (place & ring)] = token_id
    nodes = block + _HEAD + ring + 1
    node = nodes + _FIELDS * (place & ring)
    numbers[node + _GRAM] = -1
    white, many = numbers[block + _WHITE], numbers[block + _MANY]
    if place - start < before or has_bit(numbers, white, many, token_id):
        return
    hashed = _read_context(numbers, block, drafted, place, base, context)
    gram = _mix(hashed, token_id, base)
    numbers[node + _CONTEXT], numbers[node + _GRAM] = hashed, gram
    numbers[node + _TOKEN] = token_id
    known = _replace(numbers, block, drafted, place, gram, context)
    slot = _slot_for(numbers, block, drafted, hashed, context)
    head = np.int64(numbers[slot])
    numbers[slot] = place
    if head == known and known >= 0:  # the latest follower was this token
        head = np.int64(numbers[nodes + _FIELDS * (known & ring) + _OLDER])
    numbers[node + _OLDER], numbers[node + _NEWER] = head, -1
    if head >= 0:
        numbers[nodes + _FIELDS * (head & ring) + _NEWER] = place


@compiled()
def _ban(
    numbers: Any,
    block: Any,
    drafted: Any,
    depth: Any,
    base: Any,
    context: Any,
    first: Any,
    vocab_size: Any,
    ban: Any,
    end: Any,
) -> Any:
    """Append the bans of a row after drafted tokens; return the number of all bans."""
    known, start = np.int64(numbers[block + _END]), np.int64(numbers[block + _START])
    now = known + depth
    before, ring = np.int64(numbers[block + _BEFORE]), np.int64(numbers[block + _RING])
    if now - start < before:
        return end
    nodes = block + _HEAD + ring + 1
    oldest = max(now - np.int64(numbers[block + _WINDOW]), start) + before
    hashed = _read_context(numbers, block, drafted, now, base, context)
    place = np.int64(numbers[_slot_for(numbers, block, drafted, hashed, context)])
    while place >= oldest:
        node = nodes + _FIELDS * (place & ring)
        token_id = np.int64(numbers[node + _TOKEN])
        if token_id < vocab_size:
            ban[end] = first + token_id
            end += 1
        place = np.int64(numbers[node + _OLDER])
    white, many = numbers[block + _WHITE], numbers[block + _MANY]
    for later in range(max(known, oldest), now):  # drafted tokens that follow the same context
        token_id = np.int64(drafted[later - known])
        if (
            token_id < vocab_size
            and not has_bit(numbers, white, many, token_id)
            and _same(numbers, block, drafted, later, context)
        ):
            ban[end] = first + token_id
            end += 1
    return end


@compiled("void(int32[::1], int64, int64[::1], int64)")
def _read(numbers: Any, block: Any, token_ids: Any, base: Any) -> None:
    """Append tokens to a row."""
    context = np.empty(np.int64(numbers[block + _BEFORE]), np.int64)
    drafted = np.empty(0, np.int64)
    for token_id in token_ids:
        _push(numbers, block, drafted, token_id, base, context)


@compiled(
    "void(int32[::1], int64, int64[::1], int64[::1], int64[::1], int64[:,::1], int64, int64, int64,"
    " int64[::1], int64[::1], uint8[::1])"
)
def _step(
    numbers: Any,
    base: Any,
    blocks: Any,
    at: Any,
    first: Any,
    visits: Any,
    deepest: Any,
    stride: Any,
    vocab_size: Any,
    ban: Any,
    counts: Any,
    edited: Any,
) -> None:
    """Feed and edit all rows; a row that outgrows its block is asked.

    Drafted tokens are not entered: what they add is compared one by one.
    """
    end, longest = counts[BAN], np.int64(0)
    for block in blocks:
        longest = max(longest, np.int64(numbers[block + _BEFORE]))
    context, drafted = np.empty(longest, np.int64), np.empty(deepest, np.int64)
    for row in range(len(blocks)):
        block, place = blocks[row], at[row]
        for visit in range(first[place], first[place + 1]):
            depth, token_id = visits[visit, DEPTH], visits[visit, TOKEN]
            if end + numbers[block + _RING] + depth > len(ban):
                counts[LACKS] = 1
                break
            if depth:
                drafted[depth - 1] = token_id
            else:
                held = numbers[block + _END] + 1 - numbers[block + _START]
                if min(held, numbers[block + _WINDOW]) > numbers[block + _RING]:
                    edited[visit] |= ASKS  # more tokens than its limit
                    break
                _push(numbers, block, drafted, token_id, base, context)
            if visits[visit, ROW] < 0:
                continue
            before, base_row = end, visits[visit, ROW] * stride
            end = _ban(
                numbers,
                block,
                drafted,
                depth,
                base,
                context,
                base_row,
                vocab_size,
                ban,
                end,
            )
            if end > before:
                edited[visit] |= EDITED
    counts[BAN] = end


class NoRepeatNGramForm(Form):
    """Rows of the rule against repeated n-grams."""

    edits = EditKind.BANS

    def __init__(self) -> None:
        super().__init__()
        self._base = 2 + secrets.randbelow(_PRIME - 2)

    def most(self, params: Any) -> int:
        return _ring_of(params.window_size, params.ngram_size)

    def fits(self, params: Any, vocab_size: int) -> bool:
        return self.most(params) < vocab_size

    def block(self, request: Request, limit: int) -> ArenaBlock | None:
        params: Any = request.params
        size, window = params.ngram_size, params.window_size
        history = counted(request)
        prompt, output = history.prompt_ids, history.output_ids
        length = len(prompt) + len(output)
        start = max(0, length - window)
        text = np.array([*prompt[start:], *output[max(0, start - len(prompt)) :]], dtype=np.int64)
        if len(text) and text.max() > _PRIME:
            return None
        white = params.whitelist_token_ids or frozenset()
        known = self.arena.share(white, lambda: bits_of(white))
        ring = _ring_of(min(window, max(len(text), limit - start)), size)
        table = 2 * ring
        block = self.arena.take(_HEAD + (1 + _FIELDS) * ring + 2 * table, (known,))
        numbers = self.arena.of(block)
        numbers[:_HEAD] = (
            *(start, start, size - 1, window),
            *(ring - 1, table - 1, known.at, known.size),
        )
        numbers[_HEAD + (1 + _FIELDS) * ring :] = -1
        _read(self.arena.numbers, block.at, text, self._base)
        return block

    def step(self, group: Group, visits: Visits, out: Out) -> None:
        _step(
            self.arena.numbers,
            self._base,
            group.blocks,
            group.at,
            *visits,
            out.ban,
            out.counts,
            out.edited,
        )


def _ring_of(window: int, size: int) -> int:
    """Return the capacity of the rings: a power of 2 with room for a window and a context."""
    return 1 << max(4, (window + size).bit_length())
