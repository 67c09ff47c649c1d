"""What this process allows: the one place that turns a request's text into a processor."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from sglang_lp.adapters import as_processor
from sglang_lp.builtins import ChainLogitProcessor
from sglang_lp.copies import Latest, packed
from sglang_lp.errors import PolicyError, RequestError, Unsupported, shown
from sglang_lp.faults import as_fault
from sglang_lp.params import RAW, RESUMED, Beside, take_beside
from sglang_lp.policy import Decided, Rules
from sglang_lp.policy.links import Link, parts
from sglang_lp.policy.thinking import thinks
from sglang_lp.processor import LogitProcessor, serve
from sglang_lp.served_model import ReasoningFormat, ServedModel
from sglang_lp.server.gate.algorithms import Speculation
from sglang_lp.server.gate.metrics import writing
from sglang_lp.server.gate.reasoning_parser import reasoning_format
from sglang_lp.server.gate.reserved_keys import END_TOKEN_IDS
from sglang_lp.server.versions import diffusion_algorithm
from sglang_lp.text.encoding import encode
from sglang_lp.text.vocabulary import vocabulary_of
from sglang_lp.trust import Audit, Gate, Policy, Verifier
from sglang_lp.trust.audit import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from sglang_lp.params import Parameters
    from sglang_lp.server.gate.intake import Intake

__all__ = ["DECIDED", "Admitted", "Guard"]


#: Requests of which more copies may come.
_MOST_COPIED = 8

#: Stands in SGLang's batch for what a request runs without having asked for it.
DECIDED = "decided by the operator"


class Admitted(NamedTuple):
    """A request that may run its processor.

    Attributes:
        payload: What stands for it from here on: the operator's own spelling of what was allowed.
        processor: Serves the request.
        params: Its parsed parameters.
        custom_params: What a class that reads them itself gets in place of the request's own;
            ``None`` to leave those.
        names: Of the processors that the client may know of.
        beside: What it says beside the parameters.
    """

    payload: str
    processor: LogitProcessor
    params: Parameters
    custom_params: dict[str, Any] | None
    names: tuple[str, ...]
    beside: Beside

    @property
    def thinks(self) -> bool:
        """Whether a thinking budget runs."""
        return any(thinks(link) for link in parts(Link(type(self.processor), self.params)))


class Guard:
    """Checks payload and parameters of a request.

    Attributes:
        gate: Where it stands, for the audit trail.
        audit: Counts and logs what was refused.
        rules: What the operator decided.
        fingerprint: The same in every process, of every server, that enforces the same policy.
        diffusion: The server's diffusion language model algorithm, once known.
        apart: Whether prefill and decode are on two servers, once known.
        speculation: The server's speculative decoding, once known and if there is any.
        tokenizer: The served model's, once known and if there is one.
        longest: Number of tokens from which on a prompt is too long, once known.
        vocab_size: Number of logits in a row of the served model, once known.
        eos_token_ids: The end tokens of its configuration, once known.
        reasoning: How the served reasoning parser tells reasoning, once known and if there is one.
    """

    def __init__(self, policy: Policy) -> None:
        self.verifier = Verifier(policy)
        self._limited: Callable[[type], type] = cache(
            lambda chain: chain.limited_to(lambda name: as_processor(self.verifier.resolve(name)))
        )
        self.rules = self._rules(policy)
        self._leaves_room = bool(policy.answer_room)
        self.audit = Audit(policy.limits.logged_refusals_per_minute)
        decided = msgspec.structs.replace(policy, source="")  # wherever its file lies
        self.fingerprint = hashlib.sha256(msgspec.json.encode(decided)).hexdigest()
        self.gate = Gate.ADMISSION
        self.diffusion: str | None = None
        self.apart = False
        self.longest: int | None = None
        self.speculation: Speculation | None = None
        self.tokenizer: Any = None
        self.vocab_size: int | None = None
        self.eos_token_ids: Iterable[int] | None = None
        self.reasoning: ReasoningFormat | None = None
        self._known: tuple[Any, ...] = ()
        self._model = ServedModel()
        self._copies: Latest[Decided] = Latest(_MOST_COPIED)

    def _served(self) -> ServedModel:
        known = self.tokenizer, self.vocab_size, self.eos_token_ids
        if known != self._known:
            self._known = known
            self._model = ServedModel.of(*known)._replace(reasoning=self.reasoning)
            self._copies = Latest(_MOST_COPIED)
        return self._model

    def _rules(self, policy: Policy) -> Rules:
        with policy.named():
            return Rules(policy, self._find, [one.processor for one in self.verifier.allowed])

    def _find(self, payload: Any) -> type:
        """Return the class that a request's payload stands for."""
        kind = self.verifier.lookup(payload).processor
        return self._limited(kind) if issubclass(kind, ChainLogitProcessor) else kind

    def learn(self, gate: Gate, process: Any) -> None:
        """Take over what an object of SGLang knows of the server.

        Args:
            gate: Where this process stands.
            process: SGLang's ``TokenizerManager`` or ``Scheduler``.

        Raises:
            PolicyError: What the operator decided cannot work on this server.
        """
        known = self.tokenizer, self.vocab_size
        self.gate = gate
        self.vocab_size = process.model_config.vocab_size
        self.eos_token_ids = process.model_config.hf_eos_token_id
        self.diffusion = diffusion_algorithm(process.server_args)
        self.apart = getattr(process.server_args, "disaggregation_mode", "null") != "null"
        self.longest = getattr(process, "max_req_input_len", None)
        self.speculation = Speculation.of(process.server_args)
        tokenizer = getattr(process, "tokenizer", None)
        if tokenizer is not None and tokenizer is not self.tokenizer:
            name = getattr(process.server_args, "reasoning_parser", None)
            strict = getattr(process.server_args, "enable_strict_thinking", False)
            self.reasoning = reasoning_format(name, tokenizer, strict=strict)
            with suppress(RequestError):  # which a request that wants to know is told
                vocabulary = vocabulary_of(tokenizer)
                vocabulary.prepare()
                for one in self.verifier.allowed:
                    if issubclass(one.processor, LogitProcessor):
                        one.processor.warm(vocabulary)
        self.tokenizer = tokenizer
        if not self.rules.is_empty and known != (tokenizer, self.vocab_size):
            self._check_server(process)
            self.rules.fit(self._served())

    def stands_for(self, payload: str) -> None:
        """Check a text of SGLang's batch.

        Raises:
            PayloadRefused: It stands for nothing that this process admits.
        """
        if payload != DECIDED and not self.rules.has_profile(payload):
            self.verifier.resolve(payload)

    def admit(self, intake: Intake) -> Admitted | None:
        """Check a request.

        Returns:
            What runs it, or ``None`` if no processor does.

        Raises:
            RequestError: Refused, with a message for the caller. The refusal is in the audit
                trail already.
            ProcessorFault: The allowed class failed.
        """
        payload = intake.payload
        if payload is None and (self.rules.is_empty or intake.limit == 0):
            return None
        with self.counting():
            custom_params, beside = take_beside(intake.custom_params, intake.prompt_tokens)
            stands, name = self._named(payload)
            try:
                if payload is not None:
                    self._check_way(name, intake)
                decided = self._decide(intake, custom_params, beside.resumed)
                if decided is None:
                    return None
                if payload is None:
                    self._check_way(name, intake)
                beside = beside._replace(resumed=decided.resumed)
                made, params, own = self._make(decided)
                if intake.masked:
                    _check_mask(made)
                if beside.resumed:
                    _check_resumed(made)
                    self._check_whole(intake.prompt_tokens)
                if beside.raw:
                    self._check_raw(logprobs=intake.logprobs)
                if self.speculation is not None:
                    self.speculation.check(name, made, sampled=intake.sampled)
            except BaseException as error:  # noqa: BLE001 - the allowed class's own code
                raise as_fault(name, "before its request began", error) from None
        return Admitted(stands, made, params, own, decided.names, beside)

    def _decide(self, intake: Intake, custom_params: Any, resumed: int) -> Decided | None:
        """Return what a request runs, decided on once for equal requests.

        Args:
            intake: The request.
            custom_params: Its parameters without what goes with any processor.
            resumed: Number of tokens at the end of its prompt that are the answer so far.

        Raises:
            RequestError: Refused.
        """
        served = self._served()
        if isinstance(custom_params, dict) and END_TOKEN_IDS in custom_params:
            served = _thinking_to(served, custom_params[END_TOKEN_IDS])
        own = intake.packed if custom_params is intake.custom_params else packed(custom_params)
        asked = intake.asked(custom_params, resumed)
        if not isinstance(own, bytes):
            return self.rules.decide(asked, served)
        # The rules read the limit where they leave room for the answer, and nowhere else.
        limit = intake.limit if self._leaves_room else None
        key = intake.payload, own, limit, intake.reasoning, resumed
        decided = self._copies.get(key)
        if decided is None:
            decided = self.rules.decide(asked, served)
            if decided is not None:
                self._copies.keep(key, decided)
        return decided

    def _named(self, payload: Any) -> tuple[str, str]:
        """Return what stands for a payload from here on, and its name for messages.

        Raises:
            RequestError: It is not allowed.
        """
        if payload is None:
            return DECIDED, "what the operator decided"
        if self.rules.has_profile(payload):
            return payload, payload
        allowed = self.verifier.lookup(payload)
        return allowed.payload, allowed.name

    def _make(self, decided: Decided) -> tuple[LogitProcessor, Parameters, dict[str, Any] | None]:
        """Make the processor that serves a request."""
        made = decided.processor()
        serving, params = serve(made, decided.params)
        own = None
        if decided.processor.dense and not self.rules.is_empty:
            own = made.plain(params)
        return serving, params, own

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Take down a refusal on its way to the caller in the audit trail."""
        try:
            yield
        except RequestError as error:
            self.audit.refused(self.gate, error)
            metrics = writing()
            if metrics is not None:
                metrics.refuse(self.gate.value, reason_of(error))
            raise

    def _check_server(self, process: Any) -> None:
        """Refuse a server that would not run what the operator decided.

        Raises:
            PolicyError: With the reason.
        """
        if not getattr(process.server_args, "enable_custom_logit_processor", True):
            raise PolicyError(
                "what it decides takes --enable-custom-logit-processor, which sglang-lp serve adds"
            )
        if not getattr(process.model_config, "is_generation", True):
            raise PolicyError(
                "what it decides is for servers that generate text; this one does not"
            )
        if self.diffusion is not None:
            raise PolicyError(
                f"what it decides cannot hold: this server runs a diffusion language model "
                f"({self.diffusion}), which does not call custom logit processors"
            )

    def _check_way(self, name: str, intake: Intake) -> None:
        """Refuse where SGLang would not call the processor.

        Raises:
            Unsupported: With the reason.
        """
        if self.diffusion is not None:
            raise Unsupported(
                f"custom_logit_processor: expected none, got {name}: this server runs a diffusion "
                f"language model ({self.diffusion}), which does not call it; send the request to "
                "another one"
            )
        if intake.beam_width is not None and intake.beam_width > 1:
            raise Unsupported(
                "beam_width: expected 1 with custom_logit_processor, got "
                f"{shown(intake.beam_width)}; "
                "leave out one of them"
            )

    def _check_whole(self, prompt_tokens: int | None) -> None:
        """Refuse to resume an answer that SGLang has cut or would cut from a prompt's end.

        Raises:
            RequestError: The prompt is too long, which ``--allow-auto-truncate`` allows.
        """
        if self.longest is None or prompt_tokens is None:
            return
        if prompt_tokens >= self.longest:
            raise RequestError(
                f"{RESUMED}: expected a prompt of fewer than {self.longest} tokens with the answer "
                f"so far, got {prompt_tokens} or more, which this server would cut at the end; "
                "leave out tokens at its beginning"
            )

    def _check_raw(self, *, logprobs: bool) -> None:
        """Refuse where the model's own logprobs cannot come.

        Raises:
            Unsupported: With the reason.
        """
        if self.apart:
            raise Unsupported(
                f"{RAW}: expected none, as prefill and decode are on two servers, and SGLang hands "
                "no logits of the first token over; score the answer as a prompt"
            )
        if not logprobs:
            raise Unsupported(f"{RAW}: expected return_logprob beside it, got none; set it to true")


def _thinking_to(served: ServedModel, end: Sequence[int]) -> ServedModel:
    """Return the model as it thinks at the level of effort at which thoughts end so."""
    for one in served.by_effort()[1:]:
        if one.reasoning and encode(one.tokenizer, one.reasoning.end) == tuple(end):
            return one
    return served


def _check_resumed(made: LogitProcessor) -> None:
    """Refuse to resume an answer with a class that reads SGLang's request itself.

    Raises:
        Unsupported: It is such a class.
    """
    if made.reads_request:
        raise Unsupported(
            f"{RESUMED}: expected none with {made.name}, which reads SGLang's request itself; "
            "use a processor that overrides edit()"
        )


def _check_mask(made: LogitProcessor) -> None:
    """Refuse to show a sampling mask of logits that are changed in another way than by exclusion.

    Raises:
        Unsupported: A processor does more.
    """
    links = made.links_by_name() if isinstance(made, ChainLogitProcessor) else [(made.name, made)]
    for name, link in links:
        if link.dense or not link.exclusion_only:
            raise Unsupported(
                "return_sampling_mask: expected processors that only ban, allow and force tokens, "
                f"got {name}, which also changes how likely the others are to each other; "
                "leave out one of them"
            )
