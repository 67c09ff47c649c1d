"""Reads of SGLang's attributes in the server's rooms, each with the class that has the attribute.

The name of an object in our code tells its class: ``req`` is a ``Req``, and so are ``.req`` and
``reqs[...]``. ``OWNERS`` maps names to classes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import NamedTuple

import sglang_lp
from sglang_lp.server.startup.attribute_table import ATTRIBUTES
from sglang_lp.server.startup.attributes import has_attribute

__all__ = ["OWNERS", "Read", "complaints", "reads"]

PACKAGE = Path(sglang_lp.__file__).parent
ROOMS = ("front", "gate", "scheduler", "startup")

#: Classes of the table by their own names.
_CLASSES = {uses.owner.rpartition(".")[2]: uses.owner for uses in ATTRIBUTES}

#: Name of an object in our code, in a module or in all of them: the classes that it may have.
OWNERS: dict[str, tuple[str, ...]] = {
    "FunctionCallParser": ("FunctionCallParser",),
    "ReasoningParser": ("ReasoningParser",),
    "_group": ("BeamGroup",),
    "algorithm": ("SpeculativeAlgorithm",),
    "batch": ("ScheduleBatch",),
    "beam_tail": ("BeamTail",),
    "block": ("DraftBlockResult",),
    "commit": ("CommittedTokens",),
    "coordinator": ("BeamCoordinator",),
    "decode_req": ("DecodeRequest",),
    "detector": ("BaseReasoningFormatDetector",),
    "disagg_kv_sender": ("CommonKVSender",),
    "envs": ("Envs",),
    "forward_batch": ("ForwardBatch",),
    "forward_mode": ("ForwardMode",),
    "group": ("BeamGroup",),
    "kv": ("ReqKvInfo",),
    "kv_mgr": ("CommonKVManager",),
    "layout": ("RaggedVerifyLayout",),
    "leader": ("Req",),
    "logits_output": ("LogitsProcessorOutput",),
    "manager": ("TokenizerManager",),
    "metrics_reporter": ("SchedulerMetricsReporter",),
    "mm_receiver": ("MMReceiverBase",),
    "model_config": ("ModelConfig",),
    "obj": ("GenerateReqInput",),
    "placeholder": ("GenerateReqInput",),
    "pp_group": ("GroupCoordinator",),
    "pp_outputs": ("PPProxyTensors",),
    "process": ("TokenizerManager", "Scheduler"),
    "proposal": ("DraftProposal",),
    "receiver": ("CommonKVReceiver",),
    "recv_obj": ("BatchStrOutput",),
    "req": ("Req",),
    "reqs": ("Req",),
    "running_batch": ("ScheduleBatch",),
    "sampling": ("SamplingParams",),
    "sampling_info": ("SamplingBatchInfo",),
    "sampling_params": ("SamplingParams",),
    "scheduler": ("Scheduler",),
    "sel": ("SelectResult",),
    "sequence": ("BeamSearchSequence",),
    "server_args": ("ServerArgs",),
    "serving": ("OpenAIServingBase", "OpenAIServingChat"),
    "session_controller": ("SessionController",),
    "settings": ("ServerArgs",),
    "spec_algorithm": ("SpeculativeAlgorithm",),
    "subject": ("ScheduleBatch", "ForwardBatch"),
    "tokenized": ("TokenizedGenerateReqInput",),
    "tokenizer_manager": ("TokenizerManager",),
    "tp_worker": ("TpModelWorker",),
    "aborts.one": ("Req", "WaitingMMRequestBase"),
    "aborts.recv_req": ("AbortReq",),
    "any_worker.recv_req": ("AbortReq",),
    "chains.verify_input": ("DFlashVerifyInput",),
    "chains.worker": ("DFlashWorkerV2",),
    "scoring.copied": ("GenerateReqInput",),
    "scoring.prompt": ("TokenizedGenerateReqInput",),
    "scoring.state": ("ReqState",),
    "closing.backend": ("ReasonerGrammarBackend",),
    "closing.grammar": ("ReasonerGrammarObject", "XGrammarGrammar"),
    "closing.inner": ("XGrammarGrammar",),
    "closing.known": ("XGrammarGrammar",),
    "closing.made": ("ReasonerGrammarObject",),
    "closing.thinking": ("ReasonerGrammarObject",),
    "closing.xgrammar": ("XGrammarGrammarBackend",),
    "decoded_apart.recv_obj": ("BatchTokenIDOutput",),
    "disaggregated.manager": ("CommonKVManager",),
    "disaggregated.reason": ("FINISH_ABORT",),
    "disaggregated.server": ("CommonKVBootstrapServer",),
    "endings.reason": ("FINISH_ABORT",),
    "field_checks.logprob": ("ReqLogprob",),
    "fields.request": ("ChatCompletionRequest", "ResponsesRequest"),
    "foreign.arguments": ("ServerArgs",),
    "foreign.model": ("ModelConfig",),
    "gate.logprob": ("ReqLogprob",),
    "gate.node": ("SessionReqNode",),
    "gate.params": ("SessionParams",),
    "gate.recv_req": ("TokenizedGenerateReqInput",),
    "gate.session": ("Session",),
    "intake.request": ("TokenizedGenerateReqInput", "Req"),
    "known_drafts.info": ("SamplingBatchInfo",),
    "launch.decided": ("ServerArgs",),
    "meta_info.state": ("ReqState",),
    "pending.other": ("Req",),
    "pending.result": ("GenerationBatchResult",),
    "placeholders.one": ("GenerateReqInput",),
    "reasoning_parser.part": ("StreamingParseResult",),
    "results.one": ("BeamResult",),
    "results.output": ("BeamSearchOutput",),
    "sampling.info": ("SamplingBatchInfo",),
    "server.options": ("ServerArgs",),
    "sglang_host.request": ("Req",),
    "speculation.info": ("SamplingBatchInfo",),
    "speculation.verify_input": ("EagleVerifyInput", "NgramVerifyInput"),
    "steps.entry": ("BeamTailEntry",),
    "whole_requests.options": ("ServerArgs",),
}

#: Attributes that no class says: SGLang or a subclass sets them on an object, or ``sampling`` is
#: the object of a request's JSON.
_OF_OBJECTS = {
    "BaseReasoningFormatDetector.request_selectable_think_end_tokens",
    "BeamGroup.final_results",
    "ChatCompletionRequest.options",  # Ollama's request
    "ChatCompletionRequest.think",
    "SamplingParams.get",
    "SamplingParams.pop",
}


class Read(NamedTuple):
    """A read of an attribute.

    Attributes:
        module: Name of our module.
        owners: The classes that the object may have.
        name: Name of the attribute.
    """

    module: str
    owners: tuple[str, ...]
    name: str


#: Reads by a name that is data: the paths of fields in ``front/fields.py``.
_BY_PATH = {Read("fields", ("ResponsesRequest",), "reasoning")}


def reads() -> set[Read]:
    """Return every read of an object that ``OWNERS`` knows, also with a default or a test."""
    found = set(_BY_PATH)
    for room in ROOMS:
        for module in sorted((PACKAGE / "server" / room).rglob("*.py")):
            if module.stem == "hook_table":
                continue  # it names modules of ours
            for base, name in _attributes(ast.parse(module.read_text())):
                owners = OWNERS.get(f"{module.stem}.{base}") or OWNERS.get(base)
                if owners is not None:
                    found.add(Read(module.stem, owners, name))
    return found


def _attributes(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the name of the object and of the attribute of each read."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=base, attr=name):
                yield _name_of(base), name
            case ast.Call(
                func=ast.Name(id="getattr" | "hasattr"),
                args=[base, ast.Constant(value=str(name)), *_],
            ):
                yield _name_of(base), name


def _name_of(base: ast.expr) -> str:
    match base:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=inner) | ast.Call(func=inner):
            return _name_of(inner)
    return ""


def complaints(rows: Iterable[tuple[str, str]], found: Iterable[Read]) -> set[str]:
    """Return the gaps of a table: attributes that are read of classes of the installed SGLang.

    Args:
        rows: Class and name of each attribute of the table.
        found: The reads.
    """
    known, lacking = {*rows}, set()
    for module, owners, name in found:
        having = [owner for owner in owners if _has(owner, name)]
        in_no_class = not having and not any((owner, name) in known for owner in owners)
        lacking |= {f"{owner}.{name} ({module})" for owner in having if (owner, name) not in known}
        if in_no_class and not {f"{owner}.{name}" for owner in owners} & _OF_OBJECTS:
            lacking.add(f"{'/'.join(owners)}.{name} ({module}): SGLang has no such attribute")
    return lacking


@cache
def _has(owner: str, name: str) -> bool:
    try:
        return has_attribute(resolve_name(_CLASSES[owner]), name)
    except (AttributeError, ImportError):  # another SGLang's, or needs a GPU
        return False
