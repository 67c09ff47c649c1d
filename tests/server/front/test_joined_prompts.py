"""Routes that join a query with many items bound the prompts before SGLang makes them."""

from __future__ import annotations

import pytest

from sglang_lp.errors import RequestError
from sglang_lp.server.front.routes import ROUTES

check_score, check_rerank, check_decisions = (
    next(route.check for route in ROUTES if route.path == path)
    for path in ("/v1/score", "/v1/rerank", "/v1/decisions")
)
LABELS = {"label_token_ids": [1]}


# The first took SGLang's event loop 20 s; the prompts of the second and the third have 5 and 4 GB.
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"query": "a", "items": ["b"] * 10_000, "label_token_ids": [*range(10_000)]}, "label_"),
        ({"query": "a" * 500_000, "items": ["b"] * 10_000, **LABELS}, "items"),
        ({"query": [1] * 50_000, "items": [[2]] * 10_000, **LABELS}, "items"),
        ({"query": "a", "items": ["b"], "label_token_ids": [[1]] * 300_000}, "label_"),
        (
            {"query": "a" * 50_000, "items": ["b"] * 50, "score_extraction_token": "c", **LABELS},
            "items",
        ),
    ],
    ids=["labels", "texts", "tokens", "lists of labels", "tokenized in one go"],
)
def test_a_small_body_makes_no_large_prompts(body, field):
    with pytest.raises(RequestError, match=f"^{field}"):
        check_score(body)


@pytest.mark.parametrize(
    ("query", "documents"),
    [("a" * 100_000, ["b"] * 1_000), ("a", ["b"] * 3_000)],
    ids=["characters", "documents"],
)
def test_a_small_reranking_makes_no_large_prompts(query, documents):
    with pytest.raises(RequestError, match=r"^documents"):
        check_rerank({"query": query, "documents": documents})
    parts = [{"type": "text", "text": query}]
    with pytest.raises(RequestError, match=r"^documents"):
        check_rerank({"query": parts, "documents": documents})


@pytest.mark.parametrize("name", ["input", "state"])
@pytest.mark.parametrize("shape", [list, dict.fromkeys])
def test_a_few_small_questions_make_no_large_prompts(name, shape):
    for given, count in (("a" * 100_000, 1_000), (["a" * 100_000], 1_000), ("a", 3_000)):
        with pytest.raises(RequestError, match=r"^questions: expected at most 2048"):
            check_decisions({name: given, "questions": shape(range(count))})
    check_decisions({name: "a" * 8_000, "questions": shape(range(2_000))})


def test_ordinary_bodies_pass_and_wrong_types_are_left_to_sglang():
    check_score({"query": "a" * 8_000, "items": ["b" * 2_000] * 1_000, "label_token_ids": [1, 2]})
    check_score({"query": "a", "items": ["b"] * 50, "score_extraction_token": "c", **LABELS})
    check_rerank({"query": "a" * 500, "documents": ["b" * 2_000] * 2_048, "instruct": "c"})
    for wrong in (None, [], "a", {}, {"query": 5, "items": 5, "label_token_ids": 5}):
        check_score(wrong)
        check_decisions(wrong)
        check_rerank(wrong)
