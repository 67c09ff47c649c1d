"""The table of routes: every route of SGLang's HTTP app, and how it treats processors.

A test walks the app of each supported release, and the canary that of a new one: a route that the
table lacks is an error there. In a server, such a route of SGLang's refuses processors by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from sglang_lp.server.front.joined_prompts import check_decisions, check_rerank, check_score
from sglang_lp.server.front.places import (
    check_generate,
    check_ollama,
    check_openai,
    refuse_named,
)
from sglang_lp.server.front.refused_values import (
    check_reasoning_parser,
    check_response_format,
    check_tool_parser,
)
from sglang_lp.server.front.rendered_texts import CHAT, QUESTIONS
from sglang_lp.server.front.vertex import check_vertex
from sglang_lp.server.versions import OLDEST


class RouteKind(Enum):
    """How a route treats a request that names a processor."""

    HONOURED = "runs processors"
    REFUSED = "refuses processors by name"
    ADMINISTRATORS = "an administrator's"
    WITHOUT = "has no answer that a processor could edit"


class BodyShape(NamedTuple):
    """Where the bodies of a route have a processor and its parameters.

    Attributes:
        where: The places, for the page of routes.
        check: Raises ``RequestError`` for a parsed body with a field that is misspelled or in
            another place.
    """

    where: str
    check: Callable[[Any], None]


class Route(NamedTuple):
    """A route of SGLang's HTTP app.

    Attributes:
        path: Its path, unless the operator renames it.
        endpoint: Name of SGLang's function that answers it.
        kind: How it treats processors.
        shape: Where a route that runs processors has them.
        why: Why a route refuses processors, as a relative clause.
        check: Raises ``RequestError`` for a parsed body that SGLang would answer with HTTP 500, or
            that holds up its event loop.
        rendered: Fields whose texts SGLang renders into one prompt before it makes a request.
        since: The first SGLang that has it.
        until: The last SGLang that has it; ``None``: the newest still has.
        needs: Environment variable without which SGLang has no such route.
    """

    path: str
    endpoint: str
    kind: RouteKind
    shape: BodyShape | None = None
    why: str = ""
    check: Callable[[Any], None] | None = None
    rendered: tuple[str, ...] = ()
    since: str = OLDEST
    until: str | None = None
    needs: str | None = None


_GENERATE = BodyShape(
    "`custom_logit_processor`, and `custom_params` in `sampling_params`", check_generate
)
_OPENAI = BodyShape("`custom_logit_processor` and `custom_params`", check_openai)
_VERTEX = BodyShape(
    "`custom_logit_processor` in `parameters`, and `custom_params` in their `sampling_params`",
    check_vertex,
)
#: The ``ollama`` client sends no other fields than Ollama's, and any option.
OLLAMA = BodyShape("`custom_logit_processor` and `custom_params` in `options`", check_ollama)

#: The route whose bodies are events of a WebSocket session.
REALTIME = "openai_v1_realtime_transcription"

_SCORES = "which generates no text"
_HEARS = "which SGLang gives no processor"

_Honoured = partial(Route, kind=RouteKind.HONOURED)
_Rendered = partial(_Honoured, rendered=CHAT)
_Chat = partial(_Rendered, shape=_OPENAI, check=check_response_format)
_Scoring = partial(Route, kind=RouteKind.REFUSED, why=_SCORES)
_Deciding = partial(_Scoring, check=check_decisions, rendered=QUESTIONS, since="0.5.21")
_Hearing = partial(Route, kind=RouteKind.REFUSED, why=_HEARS)
_Administrators = partial(Route, kind=RouteKind.ADMINISTRATORS)
_Without = partial(Route, kind=RouteKind.WITHOUT)

ROUTES: tuple[Route, ...] = (
    _Honoured("/generate", "generate_request", shape=_GENERATE),
    _Chat("/v1/chat/completions", "openai_v1_chat_completions"),
    _Honoured("/v1/completions", "openai_v1_completions", shape=_OPENAI),
    _Rendered("/v1/responses", "v1_responses_request", shape=_OPENAI),
    _Rendered("/v1/messages", "anthropic_v1_messages", shape=_OPENAI),
    _Chat("/invocations", "sagemaker_chat_completions"),
    _Honoured("/vertex_generate", "vertex_generate", shape=_VERTEX),
    _Rendered("/api/chat", "ollama_chat", shape=OLLAMA),
    _Honoured("/api/generate", "ollama_generate", shape=OLLAMA),
    _Scoring("/encode", "encode_request"),
    _Scoring("/classify", "classify_request"),
    _Scoring("/v1/embeddings", "openai_v1_embeddings"),
    _Scoring("/v1/classify", "openai_v1_classify"),
    _Scoring("/v1/score", "v1_score_request", check=check_score),
    _Scoring("/v1/rerank", "v1_rerank_request", check=check_rerank),
    _Deciding("/v1/decisions", "v1_decisions_request"),
    _Deciding("/v1/systemone", "systemone_decisions"),
    _Hearing("/v1/audio/transcriptions", "openai_v1_audio_transcriptions"),
    _Hearing("/v1/realtime", REALTIME),
    # Weights, memory and the schedule of the whole server.
    _Administrators("/release_memory_occupation", "release_memory_occupation"),
    _Administrators("/resume_memory_occupation", "resume_memory_occupation"),
    _Administrators("/pause_generation", "pause_generation"),
    _Administrators("/continue_generation", "continue_generation"),
    _Administrators("/abort_request", "abort_request"),
    _Administrators("/slow_down", "slow_down"),
    _Administrators("/flush_cache", "flush_cache"),
    _Administrators("/pd_role_switch", "pd_role_switch", since="0.5.21"),
    _Administrators("/scale_elastic_ep", "scale_elastic_ep"),
    _Administrators("/is_scaling_elastic_ep", "is_scaling_elastic_ep"),
    _Administrators("/update_weights_from_disk", "update_weights_from_disk"),
    _Administrators("/update_weights_from_tensor", "update_weights_from_tensor"),
    _Administrators("/update_weights_from_distributed", "update_weights_from_distributed"),
    _Administrators("/update_weights_from_ipc", "update_weights_from_ipc"),
    _Administrators("/begin_weight_update", "begin_weight_update", since="0.5.21"),
    _Administrators("/end_weight_update", "end_weight_update", since="0.5.21"),
    _Administrators("/update_weight_version", "update_weight_version"),
    _Administrators("/init_weights_update_group", "init_weights_update_group"),
    _Administrators("/destroy_weights_update_group", "destroy_weights_update_group"),
    _Administrators(
        "/init_weights_send_group_for_remote_instance",
        "init_weights_send_group_for_remote_instance",
    ),
    _Administrators("/send_weights_to_remote_instance", "send_weights_to_remote_instance"),
    _Administrators(
        "/remote_instance_transfer_engine_info", "remote_instance_transfer_engine_info"
    ),
    _Administrators(
        "/get_remote_instance_transfer_engine_info", "get_remote_instance_transfer_engine_info"
    ),
    _Administrators("/get_weights_by_name", "get_weights_by_name"),
    _Administrators("/weights_checker", "check_weights"),
    _Administrators("/load_lora_adapter", "load_lora_adapter"),
    _Administrators("/load_lora_adapter_from_tensors", "load_lora_adapter_from_tensors"),
    _Administrators("/unload_lora_adapter", "unload_lora_adapter"),
    _Administrators("/add_external_corpus", "add_external_corpus"),
    _Administrators("/remove_external_corpus", "remove_external_corpus"),
    _Administrators("/list_external_corpora", "list_external_corpora"),
    _Administrators("/hicache/storage-backend", "attach_hicache_storage_backend"),
    _Administrators("/hicache/storage-backend", "detach_hicache_storage_backend"),
    _Administrators("/hicache/storage-backend", "hicache_storage_backend_status"),
    _Administrators("/hicache/storage-backend/clear", "clear_hicache_storage_backend"),
    _Administrators(
        "/clear_hicache_storage_backend",
        "clear_hicache_storage_backend_deprecated",
        until="0.5.20",
    ),
    _Administrators("/set_internal_state", "set_internal_state"),
    _Administrators("/configure_logging", "configure_logging"),
    _Administrators("/set_trace_level", "set_trace_level"),
    _Administrators("/dumper/{method}", "_dumper_control_handler", needs="DUMPER_SERVER_PORT"),
    _Administrators("/freeze_gc", "freeze_gc_async"),
    _Administrators("/start_profile", "start_profile_async"),
    _Administrators("/stop_profile", "stop_profile_async"),
    _Administrators("/start_expert_distribution_record", "start_expert_distribution_record_async"),
    _Administrators("/stop_expert_distribution_record", "stop_expert_distribution_record_async"),
    _Administrators("/dump_expert_distribution_record", "dump_expert_distribution_record_async"),
    # Texts that are taken apart, sessions, and facts about the server.
    _Without("/tokenize", "openai_v1_tokenize", rendered=CHAT),
    _Without("/v1/tokenize", "openai_v1_tokenize", rendered=CHAT),
    _Without("/detokenize", "openai_v1_detokenize"),
    _Without("/v1/detokenize", "openai_v1_detokenize"),
    _Without("/v1/messages/count_tokens", "anthropic_v1_count_tokens", rendered=CHAT),
    _Without("/parse_function_call", "parse_function_call_request", check=check_tool_parser),
    _Without("/separate_reasoning", "separate_reasoning_request", check=check_reasoning_parser),
    _Without("/open_session", "open_session"),
    _Without("/close_session", "close_session"),
    _Without("/v1/responses/{response_id}", "v1_retrieve_responses"),
    _Without("/v1/responses/{response_id}/cancel", "v1_cancel_responses"),
    _Without("/", "sglang_root"),
    _Without("/", "ollama_root", needs="SGLANG_OLLAMA_ROOT_ROUTE"),
    _Without("/health", "health_generate"),
    _Without("/health_generate", "health_generate"),
    _Without("/ready", "ready"),
    _Without("/ping", "sagemaker_health"),
    _Without("/v1/models", "available_models"),
    _Without("/v1/models/{model:path}", "retrieve_model"),
    _Without("/model_info", "model_info"),
    _Without("/get_model_info", "get_model_info"),
    _Without("/server_info", "server_info"),
    _Without("/get_server_info", "get_server_info"),
    _Without("/v1/loads", "get_loads"),
    _Without("/get_load", "get_load", until="0.5.20"),
    _Without("/weight_version", "weight_version", until="0.5.20"),
    _Without("/get_weight_version", "weight_version", until="0.5.20"),
    _Without("/get_hicache_l3_cache_layout", "get_hicache_l3_cache_layout", since="0.5.23"),
    _Without("/api/tags", "ollama_tags"),
    _Without("/api/show", "ollama_show"),
    _Without("/openapi.json", "openapi"),
    _Without("/docs", "swagger_ui_html"),
    _Without("/docs/oauth2-redirect", "swagger_ui_redirect"),
    _Without("/redoc", "redoc_html"),
)

_BY_ENDPOINT = {route.endpoint: route for route in ROUTES}


def find(scope: Mapping[str, Any]) -> Route | None:
    """Return the row of the route that answers an HTTP request.

    A route of SGLang's that the table lacks gets a row that refuses processors.

    Args:
        scope: The ASGI scope, once the app has chosen a route.

    Returns:
        ``None`` for a route that is not SGLang's, or if none is chosen.
    """
    endpoint = scope.get("endpoint")
    if endpoint is None or not endpoint.__module__.startswith(("sglang.", "fastapi.")):
        return None
    route = _BY_ENDPOINT.get(endpoint.__name__)
    if route is not None:
        return route
    path = getattr(scope.get("route"), "path", "this endpoint")
    return Route(path, endpoint.__name__, RouteKind.REFUSED, why="which this toolkit does not know")


def check(scope: Mapping[str, Any], body: Any) -> None:
    """Check a body by the row of its route.

    Args:
        scope: As for :func:`find`.
        body: As SGLang has parsed it.

    Raises:
        RequestError: A field for a processor is misspelled, in the wrong place, or on a route that
            runs none; or as the ``check`` of the route.
    """
    route = find(scope)
    if route is not None:
        _check(route, body)


def check_event(event: Any) -> None:
    """Check an event of a WebSocket session, as :func:`check` checks a body."""
    _check(_BY_ENDPOINT[REALTIME], event)


def _check(route: Route, body: Any) -> None:
    if route.shape is not None:
        route.shape.check(body)
    elif route.kind is RouteKind.REFUSED:
        refuse_named(body, route.path, route.why)
    if route.check is not None:
        route.check(body)


def walk(app: Any) -> Iterator[tuple[str | None, Any]]:
    """Yield path and function of each route of SGLang's app, those of included routers as well."""
    from fastapi.routing import iter_route_contexts

    for route in iter_route_contexts(app.routes):
        yield route.path, route.endpoint
