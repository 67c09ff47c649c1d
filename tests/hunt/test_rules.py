"""Each rule of the hunt catches a made-up violation, and nothing where there is none."""

from __future__ import annotations

import pytest

from hunt import rules
from hunt.answers import Reply
from hunt.asking import Asked
from hunt.cutting import shrink
from hunt.dropping import PROCESSOR
from hunt.formats import TOOL
from hunt.sent import CHAT, COMPLETIONS, GENERATE, MESSAGES, RESPONSES, Sent
from hunt.servers import KINDS
from hunt.tokens import encode
from hunt.values import END, EOS
from support.catalogues import served_items

PLAIN, FORCED, REASONING = (KINDS[name] for name in ("plain", "forced", "reasoning"))
ALONE = Reply(200, events=[{"text": "a", "output_ids": [64], "meta_info": {}}])
STOP = {"type": "stop", "matched": 1152}


def generated(text="a", ids=(64,), finish=STOP, **meta):
    meta = {"finish_reason": finish, "completion_tokens": len(ids), **meta}
    return {"text": text, "output_ids": [*ids], "meta_info": meta}


def searched(*beams):
    """Return the answers of a beam search, best first."""
    found = [generated(text=str(ids), ids=ids) for ids in beams]
    best = found[0]
    return {**best, "meta_info": {**best["meta_info"], "beam_results": found}}


def case(body, *events, path=GENERATE, status=200, headers=None, **facts):
    """Return a case of one request with these events."""
    sent = Sent(path, body)
    reply = Reply(status, headers or {}, events)
    return Asked([sent], [reply], facts.pop("canary", (0, ALONE)), ALONE, **facts)


def found(rule, asked, kind=PLAIN):
    return [sort for sort, _ in rules.INVARIANTS[rule](asked, kind)]


def asks(name=None, params=None, **sampling):
    body = {"text": "#", "sampling_params": {"temperature": 0, "custom_params": params, **sampling}}
    return body | ({"custom_logit_processor": name} if name else {})


def thinks(most, **budget):
    """Return a request in an open block with a budget."""
    name = "ThinkingBudgetLogitProcessor"
    return {**asks(name, budget, max_new_tokens=most), "text": "#<think>"}


def named_in_chat(budget):
    name = "ThinkingBudgetLogitProcessor"
    return {"custom_logit_processor": name, "custom_params": budget}


def refused(status, message, odd):
    """Return a case whose request has an extreme field and was refused by the toolkit."""
    sent = Sent(GENERATE, dict.fromkeys(odd, 5), odd=frozenset(odd))
    error = {"error": {"message": message, "sglang_lp_code": "invalid_field"}}
    return Asked([sent], [Reply(status, events=[error])], (0, ALONE), ALONE)


def dropped(body, odd):
    """Return a case whose request has fields of the wrong type, and an answer."""
    sent = Sent("/api/chat", body, odd=frozenset(odd))
    return Asked([sent], [Reply(200, events=[{"message": {}}])], (0, ALONE), ALONE)


BANNED = PLAIN.banned[0]
CUT = {"type": "length", "length": 6}
WHOLE = {"whole_answer": True}
NO_PARALLEL = {"tools": [TOOL], "parallel_tool_calls": False}
REPORT = {
    "processors": ["DRYLogitProcessor"],
    "forced": 1,
    "forced_at": [[0, 1]],
    "edited": [],
    "truncated": None,
}


def reported(ids=(64, 65), **changes):
    return generated(ids=ids, sglang_lp={**REPORT, **changes})


PICKED = {"choices": ["ab", "cd"], "pick": "likeliest"}


def scored(text, shares, picked):
    texts = [
        {"text": one, "probability": share}
        for one, share in zip(PICKED["choices"], shares, strict=True)
    ]
    choices = {"pick": "likeliest", "texts": texts, "temperature": 0, "picked": picked}
    return generated(text, sglang_lp={**REPORT, "choices": choices})


def chat(**message):
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def messaged(*kinds):
    return {"content": [{"type": kind, kind: "A"} for kind in kinds], "stop_reason": "end_turn"}


def completed(*ids):
    return {"choices": [{"index": 0, "text": "a", "token_ids": [*ids], "finish_reason": "stop"}]}


GUARANTEED = {"max_tokens": 9, **named_in_chat({"min_answer_tokens": 1})}
HEADER = {"x-sglang-lp": "DRYLogitProcessor"}
#: Rule -> cases that contradict it, with the kind of server.
WRONG = {
    "never_banned_text": [
        (case(asks(), generated(f"in {BANNED}.")), PLAIN),
        # In an event that a later event replaces.
        (case(asks(stream=True), generated(BANNED), generated("a")), PLAIN),
        (case({}, chat(content="", reasoning_content=BANNED), path=CHAT), PLAIN),
        (
            case(
                {"stream": True},
                *(
                    {"choices": [{"index": 0, "delta": {"content": half}}]}
                    for half in (BANNED[:2], BANNED[2:])
                ),
                path=CHAT,
            ),
            PLAIN,
        ),
        (
            case(
                {},
                chat(tool_calls=[{"index": 0, "function": {"arguments": BANNED}}]),
                path=CHAT,
            ),
            PLAIN,
        ),
        (case({}, {"content": [{"type": "text", "text": BANNED}]}, path=MESSAGES), PLAIN),
        (case({}, {"message": {"content": "!"}}, path="/api/chat"), PLAIN),
        (case({}, {"predictions": [generated(ids=[0])]}, path="/vertex_generate"), PLAIN),
        (
            case(
                {},
                {"output": [{"type": "message", "id": "1", "content": [{"text": BANNED}]}]},
                path=RESPONSES,
            ),
            PLAIN,
        ),
        (
            case(
                {"stream": True},
                {"type": "response.output_text.delta", "delta": BANNED},
                path=RESPONSES,
            ),
            PLAIN,
        ),
    ],
    "profiles_hold": [(case(asks("three"), generated(ids=[300, 5])), PLAIN)],
    "always_beginning": [(case(asks(), generated("Two")), FORCED)],
    "least_length": [(case(asks(), generated(ids=range(4))), FORCED)],
    "ceilings_on_thinking": [
        (case(asks(), generated("<think>" + " sheep" * 9)), PLAIN),
        (case(asks(), generated("<think>a</think>" * 2 + "<think>" + " sheep" * 9)), PLAIN),
        (case(asks(), generated(f"<think>{' sheep' * 7}</think>" * 3)), PLAIN),
        (case({}, chat(content="a", reasoning_content=" sheep" * 9), path=CHAT), REASONING),
    ],
    "own_bans": [
        (case(asks("BadWordsLogitProcessor", {"words": ["wo n"]}), generated("Two n")), PLAIN),
        (
            case(
                asks(
                    "ChainLogitProcessor", {"chain": ["BadWordsLogitProcessor"], "0.words": ["T"]}
                ),
                generated("Two"),
            ),
            PLAIN,
        ),
    ],
    "own_tokens": [
        (
            case(
                asks("DisallowedTokensLogitsProcessor", {"token_ids": [65]}, beam_width=3),
                searched([64], [65]),
            ),
            PLAIN,
        ),
        (case(asks("AllowedTokensLogitProcessor", {"token_ids": [65]}), generated()), PLAIN),
    ],
    "own_fields": [
        (case({"allowed_token_ids": [64]}, completed(64, 65), path=COMPLETIONS), PLAIN),
        (case({"no_repeat_ngram_size": 2}, completed(7, 8, 9, 7, 8), path=COMPLETIONS), PLAIN),
        (
            case(
                {"repetition_detection": {"max_pattern_size": 2, "min_count": 2}},
                completed(7, 8, 7, 8, 9, 10),
                path=COMPLETIONS,
            ),
            PLAIN,
        ),
    ],
    "own_choice": [
        (case(asks("ChoiceLogitProcessor", {"choices": ["a", "ab"]}), generated("abc")), PLAIN),
        (case(asks("ChoiceLogitProcessor", {"choices": ["ab"]}), generated("a")), PLAIN),
    ],
    "own_pick": [
        (case(asks("ChoiceLogitProcessor", PICKED), scored("ab", [0.5, 0.4], 0)), PLAIN),
        (case(asks("ChoiceLogitProcessor", PICKED), scored("cd", [0.75, 0.25], 0)), PLAIN),
    ],
    "own_items": [
        (
            case(
                asks("CatalogueLogitProcessor", {"catalogue": "items"}, beam_width=3),
                searched(served_items()[9][1], [5]),
            ),
            PLAIN,
        ),
        (case(asks("CatalogueLogitProcessor", {"catalogue": "items"}), generated("a", [5])), PLAIN),
        (
            case(
                asks("CatalogueLogitProcessor", {"catalogue": "items", "exclude": ["item 9"]}),
                generated("a", [*served_items()[9][1]]),
            ),
            PLAIN,
        ),
        (
            case(
                asks(
                    "CatalogueLogitProcessor",
                    {"catalogue": "items", "trigger_token_ids": [7], "subset": ["few"]},
                ),
                generated("a", [5, 7, *served_items()[9][1], 6]),
            ),
            PLAIN,
        ),
    ],
    "own_beginning": [
        (case(asks("ForcedSequenceLogitProcessor", {"text": "ab"}), generated("ba")), PLAIN)
    ],
    "own_scripts": [
        (
            case(
                asks("ScriptLogitProcessor", {"scripts": ["Latin"], "mode": "ban"}),
                generated("5a"),
            ),
            PLAIN,
        )
    ],
    "same_alone": [
        (case(asks(), generated(), canary=(0, Reply(200, events=[generated(ids=[65])]))), PLAIN),
        (case(asks(), generated(), canary=(0, Reply(500))), PLAIN),
    ],
    "copies_are_equal": [(case(asks(n=2), [generated("a"), generated("b")]), PLAIN)],
    "nobody_ends_another": [
        (case({"rid": "ab"}, generated(finish={"type": "abort", "message": "gone"})), PLAIN)
    ],
    "nothing_is_dropped": [
        (case({"logits_processors": "X"}, generated(), path="/vertex_generate"), PLAIN),
        (case({"custom_logit_processor": PROCESSOR}, {"message": {}}, path="/api/chat"), PLAIN),
        (
            dropped({"thinking_budget": "many", "messages": []}, odd={"thinking_budget"}),
            PLAIN,
        ),
    ],
    "answer_is_guaranteed": [
        (case(thinks(20, min_answer_tokens=1), generated("A", [32, EOS])), PLAIN),
        (case(thinks(20, min_answer_tokens=1), generated("A</think></think>", [32])), PLAIN),
        (case(GUARANTEED, messaged("thinking"), path=MESSAGES), REASONING),
        (
            case(
                GUARANTEED,
                chat(reasoning_content="A", content="</think>"),
                path=CHAT,
            ),
            REASONING,
        ),
    ],
    "room_is_left": [
        (case(thinks(6, answer_room=3), generated("", [32, 32, 32, END, 32, 32], CUT)), PLAIN),
        (case(thinks(6, min_answer_tokens=1), generated("", [32, 32, 32, 32, 32, 27], CUT)), PLAIN),
    ],
    "calls_are_limited": [
        (case(NO_PARALLEL, chat(tool_calls=[{}, {}]), path=CHAT), REASONING),
        (case({**NO_PARALLEL, "tool_choice": "none"}, chat(tool_calls=[{}]), path=CHAT), REASONING),
    ],
    "whole_answers_are_complete": [
        (case(asks(None, WHOLE, regex="a+"), generated("aab")), PLAIN),
        (case(asks(None, WHOLE, json_schema="{}"), generated('{"a": ')), PLAIN),
        (case(asks(None, WHOLE, regex="a+"), generated("a", finish=CUT)), PLAIN),
    ],
    "no_server_error": [
        (case(asks(), {"error": {"message": "no"}}, status=500), PLAIN),
        (case(asks(), status=0), PLAIN),
        (
            case(
                asks(),
                generated(finish={"type": "abort", "err_type": "E", "status_code": 500}),
            ),
            PLAIN,
        ),
        (case({}, {"error": {"code": 500, "message": "no"}}, path=CHAT), PLAIN),
        (case({}, {"error": {"message": "no", "sglang_lp_code": "not_run"}}, path=MESSAGES), PLAIN),
    ],
    "refusals_name_their_field": [
        (refused(400, "top_k: expected an integer", odd={"top_p"}), PLAIN),
        (refused(422, "top_p: expected a number", odd={"top_p"}), PLAIN),
    ],
    "grammars_need_no_length": [
        (case(asks(regex="a", min_new_tokens=2), generated()), PLAIN),
        (case({"response_format": {}, "min_tokens": 1}, chat(content="a"), path=CHAT), PLAIN),
    ],
    "no_fault_counted": [(case(asks(), generated(), faults=1.0), PLAIN)],
    "server_lives": [(case(asks(), generated(), is_alive=False), PLAIN)],
    "report_agrees": [
        (case(asks(), reported(forced=2), headers=HEADER), PLAIN),
        (case(asks(), reported(forced_at=[[2, 3]]), headers=HEADER), PLAIN),
        (case(asks(), reported(edited=[[0, 2]]), headers=HEADER), PLAIN),
        (case(asks(), reported(), headers={"x-sglang-lp": "none"}), PLAIN),
    ],
    "report_is_there": [
        (case(asks("DRYLogitProcessor"), generated()), PLAIN),
        (case(asks("MinLengthLogitProcessor"), reported()), PLAIN),
    ],
    "replay_agrees": [
        (
            case(asks("ForcedSequenceLogitProcessor", {"token_ids": [300, 301]}), generated()),
            PLAIN,
        )
    ],
    "loop_answers": [(case(asks(), generated(), gap=2.0), PLAIN)],
    "steps_are_short": [(case(asks(), generated(), step=0.2), PLAIN)],
}


def test_every_rule_has_a_violation_that_it_catches():
    assert WRONG.keys() == rules.INVARIANTS.keys()


@pytest.mark.parametrize(
    ("rule", "place"), [(rule, place) for rule in WRONG for place in range(len(WRONG[rule]))]
)
def test_a_violation_is_caught(rule, place):
    asked, kind = WRONG[rule][place]

    assert found(rule, asked, kind)


#: The caller's fault in the middle of a stream, where SGLang writes its own code.
CAUSED = {"message": "no token is left", "sglang_lp_code": "contradiction"}
#: The answer with a report.
REPORTED = (case(asks("DRYLogitProcessor", {}), reported(), headers=HEADER), PLAIN)
RIGHT = [
    (case(thinks(6, answer_room=3), generated("", [32, END, 32, 32, END, 32], CUT)), PLAIN),
    (case(thinks(6, answer_room=9), generated("", [198, END, 32, 32, 32, 32], CUT)), PLAIN),
    (case(thinks(9, min_answer_tokens=1), generated("A</think>B", [32, END, 33])), PLAIN),
    (case(NO_PARALLEL, chat(content="", tool_calls=[{}]), path=CHAT), REASONING),
    (case(asks(regex="a", min_new_tokens=2), {"error": {"message": "no"}}, status=400), PLAIN),
    (case(asks(regex="a", min_new_tokens=0), generated()), PLAIN),
    (
        refused(
            400,
            "sampling_params: expected at most 9 levels of lists and objects, got more",
            odd={"top_p"},
        ),
        PLAIN,
    ),
    (refused(400, "routed_dp_rank: expected a number", odd={"data_parallel_rank"}), PLAIN),
    (case(asks(max_new_tokens=None, ignore_eos=True), status=0), PLAIN),
    (case(asks(max_new_tokens=None), generated(), canary=(0, Reply(0))), PLAIN),
    (case(GUARANTEED, messaged("thinking", "text"), path=MESSAGES), REASONING),
    (refused(400, "thinking_budget: expected 10", odd={"max_thinking_tokens"}), PLAIN),
    (case(asks(None, WHOLE, json_schema="{}"), generated('{"a": 1}<|im_end|>')), PLAIN),
    (case(asks(None, {}, regex="a+"), generated("b", finish=CUT)), PLAIN),
    (case(asks("three"), generated(ids=[300, 302, EOS])), PLAIN),
    (dropped({"thinking_budget": 4, "messages": []}, odd=()), PLAIN),
    (refused(400, "top_p: expected a number", odd={"top_p"}), PLAIN),
    (
        case(
            asks(
                "CatalogueLogitProcessor",
                {
                    "catalogue": "items",
                    "trigger_token_ids": [7],
                    "max_items": 9,
                    "only": ["item 9"],
                },
            ),
            generated("", [5, 7, *served_items()[9][1], 7, *served_items()[9][1][:2]]),
        ),
        PLAIN,
    ),
    (case(asks(beam_width=3), searched([64], [65])), PLAIN),
    (case(asks(), generated("Two")), PLAIN),
    (case(asks(), generated("x</think>y")), PLAIN),
    # Seven tokens of a grammar, nine of the tokenizer.
    (case(asks(), generated("<think>applefigfigpeargrapegrapeplum")), PLAIN),
    (case(asks(), generated(f"<think>{' sheep' * 8}</think>{' sheep' * 30}")), PLAIN),
    (case(asks(), generated(f"<think>{' sheep' * 8}<tool_call>{' sheep' * 30}")), PLAIN),
    (case(asks(), generated(f"{FORCED.beginning} yes, it is", range(9))), FORCED),
    (case(asks(max_new_tokens=1), generated(" A", [398], {"type": "length"})), FORCED),
    (
        case(
            asks("ChoiceLogitProcessor", {"choices": ["ab"]}), generated("ab", [*encode("ab"), EOS])
        ),
        PLAIN,
    ),
    (
        case(asks("ChoiceLogitProcessor", PICKED), scored("ab", [0.75, 0.25], 0), headers=HEADER),
        PLAIN,
    ),
    (case(asks(), {"error": {"message": "no"}}, status=400), PLAIN),
    REPORTED,
    (case(asks(n=2), [generated("a"), generated("a")]), PLAIN),
    # `prepare_for_decode` counts the newest token that the schedule has let it see.
    (case(asks(n=2, presence_penalty=-1), [generated("a"), generated("b")]), PLAIN),
    (
        case({}, {"response": {"error": {"code": "server_error", **CAUSED}}}, path=RESPONSES),
        PLAIN,
    ),
    (
        case(
            asks("support.processors.foreign:Misbehaving", {"how": "raises"}),
            status=500,
            faults=1.0,
        ),
        KINDS["free"],
    ),
    (
        case(
            asks("BadWordsLogitProcessor", {"words": ["sheep"], "where": "answer"}),
            generated("<think> sheep</think> goat"),
            headers={"x-sglang-lp": "BadWordsLogitProcessor"},
        ),
        PLAIN,
    ),
]


@pytest.mark.parametrize("place", range(len(RIGHT)))
def test_an_answer_that_is_right_is_no_violation(place):
    asked, kind = RIGHT[place]
    # What is made up here has reports only where they matter.
    rules = [rule for rule in WRONG if rule != "report_is_there" or RIGHT[place] is REPORTED]

    assert [rule for rule in rules if found(rule, asked, kind)] == []


def test_a_case_is_cut_to_what_makes_it_fail():
    def fails(case):
        return any("DRY" in str(sent.body.get("custom_logit_processor")) for sent in case)

    many = [
        Sent(GENERATE, asks("MinLengthLogitProcessor")),
        Sent(GENERATE, {**asks("DRYLogitProcessor", {"a": [1, 2]}), "stream": True}, 3),
    ]

    assert shrink(many, fails) == [Sent(GENERATE, {"custom_logit_processor": "DRYLogitProcessor"})]


@pytest.mark.parametrize("odd", ["max_tokens", "prompt", "top_p"])
def test_an_odd_field_that_a_fault_does_not_need_goes_also_where_others_need_it(odd):
    body = {"prompt": "hi", "max_tokens": 4, odd: -1, "temperature": 1e300}
    case = [Sent(COMPLETIONS, body, odd=frozenset({odd, "temperature"}))]

    (smallest,) = shrink(case, lambda sent: any("temperature" in one.body for one in sent))

    assert smallest.oddities == {"temperature"}
