"""The bytes of each token of real tokenizers, each made by its own library."""

import random
from itertools import product

import pytest
import sentencepiece
import tiktoken
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tiktoken._educational import bpe_train
from transformers import LlamaTokenizer, PreTrainedTokenizer, PreTrainedTokenizerFast
from xgrammar import TokenizerInfo

from sglang_lp.errors import RequestError
from sglang_lp.text.utf8 import folded, lacking, unfinished
from sglang_lp.text.vocabulary import Pieces, Vocabulary, vocabulary_of
from support.models.vocabularies import END, byte_level

CORPUS = [
    "the cat sat on the mat, and the dog on the log",
    "der Bär aß süße Äpfel in der Straße",
    "привет, мир, как дела",
    "print('hello world')\n\treturn x <= 0x41",
    "日本語の文章と、絵文字😀😀🎉",
] * 20


def of_byte_level():
    made = byte_level(CORPUS, 500)
    made.add_tokens(["<think>", "à la carte"])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END)


def of_sentencepiece(directory):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_prefix=str(directory / "tokenizer"),
        model_type="bpe",
        vocab_size=420,
        byte_fallback=True,
        character_coverage=0.98,
        minloglevel=2,
    )
    return LlamaTokenizer.from_pretrained(directory)


class OfTiktoken(PreTrainedTokenizer):
    """As models that come with a tiktoken file have it, Qwen's first for one."""

    def __init__(self):
        ranks = bpe_train("\n".join(CORPUS), 400, r"\s?\S+|\s+")
        self.tokenizer = tiktoken.Encoding(
            "trained",
            pat_str=r"\s?\S+|\s+",
            mergeable_ranks=ranks,
            special_tokens={END: len(ranks)},
        )
        super().__init__(eos_token=END)

    vocab_size = property(lambda self: self.tokenizer.n_vocab)

    def get_vocab(self):
        return {self._convert_id_to_token(i): i for i in range(self.vocab_size)}

    def _convert_token_to_id(self, token):
        return self.tokenizer.encode_single_token(token)

    def _convert_id_to_token(self, token_id):
        token = self.tokenizer.decode_single_token_bytes(token_id)
        return token.decode() if token == b"<|end|>" else token

    def encode(self, text, **_):
        return self.tokenizer.encode(text)

    def decode(self, ids, **_):
        return self.tokenizer.decode(ids)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return {
        "byte level": of_byte_level(),
        "SentencePiece": of_sentencepiece(tmp_path_factory.mktemp("sentencepiece")),
        "tiktoken": OfTiktoken(),
    }


KINDS = ["byte level", "SentencePiece", "tiktoken"]
TEXTS = [*CORPUS[:5], "the straße 😀 is ∞", "<0x41> ▁ \x00\x7f é", "🏳️‍🌈"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", TEXTS)
def test_the_tokens_of_a_text_spell_it(made, kind, text):
    vocabulary = vocabulary_of(made[kind])
    spelled = vocabulary.text(made[kind].encode(text, add_special_tokens=False))

    if kind == "SentencePiece":  # writes a space before a text, and none for U+2581
        spelled, text = spelled.removeprefix(b" "), text.replace("▁", " ")
    assert spelled == text.encode()


@pytest.mark.parametrize("kind", KINDS)
def test_what_tokens_spell_is_what_the_tokenizer_decodes(made, kind):
    vocabulary, ids = vocabulary_of(made[kind]), random.Random(1)
    with_text = [token_id for token_id, token in enumerate(vocabulary.tokens) if token]

    for _ in range(300):
        some = ids.choices(with_text, k=6)
        spelled = vocabulary.text(some)
        if unfinished(spelled) or "�" in spelled.decode(errors="replace"):
            continue  # of which each library drops as much as it likes
        if kind == "SentencePiece":
            spelled = spelled.removeprefix(b" ")
        assert made[kind].decode(some) == spelled.decode()


@pytest.mark.parametrize("kind", ["byte level", "SentencePiece"])
def test_tokenizers_and_xgrammar_agree(made, kind):
    found = TokenizerInfo.from_huggingface(made[kind]).decoded_vocab
    vocabulary = vocabulary_of(made[kind])
    special = {*made[kind].all_special_ids}

    for token_id, (ours, theirs) in enumerate(zip(vocabulary.tokens, found, strict=True)):
        assert ours == (b"" if token_id in special else theirs)


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_and_ids_that_the_tokenizer_lacks_spell_nothing(made, kind):
    vocabulary, tokenizer = vocabulary_of(made[kind]), made[kind]

    assert vocabulary.text([tokenizer.eos_token_id, 999_999, -1]) == b""


@pytest.mark.parametrize("kind", KINDS)
def test_byte_tokens_are_known_whose_decoder_takes_back_what_was_right(made, kind):
    ids = vocabulary_of(made[kind]).byte_runs.ids

    assert len(ids) == (256 if kind == "SentencePiece" else 0)
    if ids:
        right, wrong = made[kind].convert_tokens_to_ids(["<0x61>", "<0xFF>"])
        assert {right, wrong} <= ids
        assert made[kind].decode([right, wrong]) == "��"


def test_a_tokenizer_of_a_client_gives_the_same(made):
    here = vocabulary_of(made["byte level"].backend_tokenizer)

    assert here.tokens == vocabulary_of(made["byte level"]).tokens


def test_an_added_token_spells_what_it_is_called(made):
    vocabulary, tokenizer = vocabulary_of(made["byte level"]), made["byte level"]

    for text in ("<think>", "à la carte"):
        token_id = tokenizer.convert_tokens_to_ids(text)
        assert vocabulary.tokens[token_id] == text.encode() == tokenizer.decode(token_id).encode()


def test_a_tokenizer_whose_tokens_depend_on_their_neighbours_is_refused():
    pieces = tokenizers.models.WordPiece({"a": 0, "##b": 1, "c": 2}, unk_token="a")
    made = tokenizers.Tokenizer(pieces)
    made.decoder = tokenizers.decoders.WordPiece()

    with pytest.raises(RequestError, match="give token ids"):
        vocabulary_of(made)


def unigram(**settings):
    pieces = [(piece, -1.0) for piece in ["<unk>", "▁", "d", "o", "n", "'", "t", "."]]
    made = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 0))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="never")
    made.decoder = tokenizers.decoders.Metaspace(prepend_scheme="never")
    return PreTrainedTokenizerFast(tokenizer_object=made, **settings)


def test_a_tokenizer_that_drops_spaces_where_it_decodes_is_refused():
    made = unigram(clean_up_tokenization_spaces=True)
    assert made.decode(made.encode("do n't .")) == "don't."

    with pytest.raises(RequestError, match="clean_up_tokenization_spaces to false"):
        vocabulary_of(made)


@pytest.mark.parametrize("of", [unigram, of_byte_level])
def test_a_tokenizer_that_keeps_its_spaces_is_taken_whatever_its_settings_say(of):
    made = of()
    made.clean_up_tokenization_spaces = of is of_byte_level  # which transformers passes over
    ids = made.encode("do n't .")

    assert vocabulary_of(made).text(ids).decode() == made.decode(ids) == "do n't ."


def test_something_else_than_a_tokenizer_is_refused():
    with pytest.raises(RequestError, match="give token ids"):
        vocabulary_of(object())


def test_a_vocabulary_is_made_once(made):
    assert vocabulary_of(made["tiktoken"]) is vocabulary_of(made["tiktoken"])


few_bytes = st.lists(st.sampled_from(b"ab\x00\xc3\xff"), max_size=20).map(bytes)


@given(st.lists(few_bytes, max_size=40), st.lists(few_bytes.filter(len), max_size=5))
def test_the_tokens_that_contain_a_text_are_found(tokens, texts):
    found = Pieces(tokens).containing(texts)

    assert found.tolist() == [
        token_id for token_id, token in enumerate(tokens) if any(text in token for text in texts)
    ]


@given(st.lists(few_bytes, max_size=40), few_bytes.filter(len))
def test_the_tokens_that_start_with_a_text_are_found(tokens, prefix):
    found = Pieces(tokens).starting_with(prefix)

    assert sorted(found.tolist()) == [
        token_id for token_id, token in enumerate(tokens) if token.startswith(prefix)
    ]


@given(st.text(max_size=9), st.integers(0, 3))
def test_an_unfinished_character_is_known_by_what_it_lacks(text, cut):
    encoded = text.encode()
    begun = encoded[: len(encoded) - cut] if cut else encoded
    whole = begun.decode(errors="ignore").encode()

    assert begun[: len(begun) - unfinished(begun)] == whole
    if unfinished(begun):
        assert lacking(begun) == len(text[len(whole.decode())].encode()) - unfinished(begun)
    else:
        assert lacking(begun) == 0


def test_what_can_no_longer_become_a_character_is_not_unfinished():
    for begun in (b"\xff", b"\x80", b"\xc0", b"\xed\xa0", b"\xf4\x90", b"\xe0\x80", b"a\xc3b"):
        assert unfinished(begun) == 0


@given(st.text(max_size=9), st.integers(0), st.binary(max_size=3))
def test_folding_goes_on_where_it_ended(text, cut, noise):
    encoded = text.encode() + noise
    cut %= len(encoded) + 1

    assert folded(folded(encoded[:cut]) + encoded[cut:]) == folded(encoded)


def test_every_two_bytes_are_unfinished_exactly_if_some_character_goes_on_with_them():
    starts = {
        chr(code).encode()[:2] for code in range(0x80, 0x110000) if not 0xD800 <= code < 0xE000
    }
    longer = {start for start in starts if start[0] >= 0xE0}

    for pair in product(range(0x80, 0x100), repeat=2):
        text = bytes(pair)
        assert (unfinished(text) == 2) == (text in longer)


@given(st.lists(few_bytes, max_size=40), few_bytes)
def test_the_tokens_that_are_exactly_a_text_are_found(tokens, text):
    found = Pieces(tokens).same_as(text)

    assert sorted(found) == [
        token_id for token_id, token in enumerate(tokens) if token and token == text
    ]


@given(st.lists(st.binary(max_size=5), max_size=60))
def test_the_tokens_that_end_inside_a_character_are_found_by_what_they_have_of_it(tokens):
    found = Vocabulary(tokens).tails

    assert {token_id: tail for tail, ids in found.items() for token_id in ids} == {
        token_id: token[-length:]
        for token_id, token in enumerate(tokens)
        if (length := unfinished(token))
    }


@given(
    st.lists(
        st.lists(st.sampled_from(b"\x00a\xc3"), min_size=1, max_size=4).map(bytes), max_size=6
    ),
    st.lists(st.integers(0, 5)),
    st.sampled_from([b"", b"\x00", b"aa"]),
    st.booleans(),
)
def test_a_text_is_spelled_with_the_longest_tokens_that_leave_a_way_on(
    tokens, picked, end, every_byte
):
    tokens += [b"\x00", b"a", b"\xc3"] if every_byte else []
    text = b"".join(tokens[place] for place in picked if place < len(tokens))[:12] + end
    vocabulary = Vocabulary(tokens)
    longest = {len(text): 0}
    for place in reversed(range(len(text))):
        fitting = [
            len(token)
            for token in tokens
            if text.startswith(token, place) and place + len(token) in longest
        ]
        if fitting:
            longest[place] = max(fitting)

    ways = vocabulary.exact.usable_lengths(text)
    assert ways == [longest.get(place, 0) for place in range(len(text))]

    spelled = vocabulary.spell(text)
    assert vocabulary.text(spelled) == (text if 0 in longest else b"")
    place = 0
    for token_id in spelled:
        assert len(tokens[token_id]) == ways[place]
        place += len(tokens[token_id])
