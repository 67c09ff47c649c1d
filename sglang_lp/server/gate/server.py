"""The server of a process: its model, its options, and the processors that it can honour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from sglang_lp.errors import PolicyError, RequestError, Unsupported
from sglang_lp.params import RAW, RESUMED
from sglang_lp.policy.fields import ENGINE_FIELDS
from sglang_lp.served_model import ServedModel
from sglang_lp.server.gate.algorithms import Speculation
from sglang_lp.server.gate.beam_search import check_beams
from sglang_lp.server.gate.reasoning_parser import reasoning_format
from sglang_lp.server.gate.tool_call_parser import tool_call_format
from sglang_lp.text.encoding import encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sglang_lp.catalogue.opened import Catalogues
    from sglang_lp.links import Serving
    from sglang_lp.params import Beside
    from sglang_lp.served_model import ReasoningFormat, ToolCallFormat
    from sglang_lp.server.gate.intake import Intake
    from sglang_lp.watermark.marks import Scheme


class Server:
    """The server of a process, as far as the process knows it.

    A new object knows nothing and takes everything; :meth:`learn` reads SGLang's own objects.

    Args:
        catalogues: The catalogues of its policy.
        watermark: The watermark of its policy, if there is one.

    Attributes:
        catalogues: The open catalogues of items.
        grammar_backend: The name of SGLang's grammar backend, or ``None``.
        diffusion: The name of its diffusion language model algorithm, or ``None``.
        ranks: Number of processes that share one model.
        stages: Number of pipeline ranks among these (``--pp-size``).
        apart: Whether prefill and decode are on two servers.
        runs_processors: Whether SGLang calls processors (``--enable-custom-logit-processor``).
        preferred: Names in ``custom_params`` of its ``--preferred-sampling-params``.
        speculation: Its speculative decoding, or ``None``.
        longest: Number of tokens from which on a prompt is too long, or ``None``.
        tokenizer: The served model's, or ``None``.
        vocab_size: Number of logits in a row of the served model, or ``None``.
        eos_token_ids: The end tokens of the model's configuration, or ``None``.
        reasoning: Format of the served reasoning parser; ``None`` without a parser.
        tool_calls: Format of the served tool-call parser; ``None`` if it is not known.
        scores: Whether this process scores the choices of requests, which the HTTP process does.
        trusts_templates: Whether a client may send a chat template of its own.
    """

    def __init__(self, catalogues: Catalogues, watermark: Scheme | None = None) -> None:
        self.catalogues = catalogues
        self._watermark = watermark
        self.grammar_backend: str | None = None
        self.diffusion: str | None = None
        self.apart = False
        self.ranks = self.stages = 1
        self.runs_processors = True
        self.preferred: frozenset[str] = frozenset()
        self.speculation: Speculation | None = None
        self.longest: int | None = None
        self.tokenizer: Any = None
        self.vocab_size: int | None = None
        self.context: int | None = None
        self.eos_token_ids: Iterable[int] | None = None
        self.scores = False
        self.trusts_templates = False
        self.reasoning: ReasoningFormat | None = None
        self.tool_calls: ToolCallFormat | None = None
        self._known: tuple[Any, ...] = ()
        self._model = ServedModel()

    @property
    def versions(self) -> dict[str, str]:
        """The files behind the policy that every rank has to read alike: a digest of each."""
        own = {} if self._watermark is None else {"a watermark": self._watermark.digest}
        return {**self.catalogues.versions, **own}

    @property
    def model(self) -> ServedModel:
        """The served model; the same object until something else becomes known of it."""
        catalogues = self.catalogues.now
        known = self.tokenizer, self.vocab_size, self.eos_token_ids, self.scores, catalogues
        if known != self._known:
            self._known = known
            model = ServedModel.of(self.tokenizer, self.vocab_size, self.eos_token_ids)
            self._model = model._replace(
                reasoning=self.reasoning,
                catalogues=catalogues,
                tool_calls=self.tool_calls,
                watermark=self._watermark,
                scores=self.scores,
            )
        return self._model

    def model_of(self, end_token_ids: Sequence[int]) -> ServedModel:
        """Return the served model as it thinks for one request.

        Args:
            end_token_ids: The tokens that end its thoughts at its level of effort.
        """
        for one in self.model.by_effort()[1:]:
            if one.reasoning and encode(one.tokenizer, one.reasoning.end) == tuple(end_token_ids):
                return one
        return self.model

    def learn(self, process: Any) -> bool:
        """Read the server's options and its model, and return whether the tokenizer is a new one.

        Args:
            process: SGLang's ``TokenizerManager`` or ``Scheduler``.
        """
        options = process.server_args
        self.grammar_backend = getattr(options, "grammar_backend", None)
        self.diffusion = getattr(options, "dllm_algorithm", None)
        self.stages = getattr(options, "pp_size", 1)
        self.ranks = getattr(options, "tp_size", 1) * self.stages
        self.apart = getattr(options, "disaggregation_mode", "null") != "null"
        self.runs_processors = getattr(options, "enable_custom_logit_processor", True)
        self.preferred = _names_of_params(getattr(options, "preferred_sampling_params", None))
        self.speculation = Speculation.of(options)
        self.trusts_templates = getattr(options, "trust_request_chat_template", False)
        self.longest = getattr(process, "max_req_input_len", None)
        self.vocab_size = process.model_config.vocab_size
        self.context = getattr(process.model_config, "context_len", None)
        self.eos_token_ids = process.model_config.hf_eos_token_id
        tokenizer = getattr(process, "tokenizer", None)
        is_new = tokenizer is not None and tokenizer is not self.tokenizer
        if is_new:
            name = getattr(options, "reasoning_parser", None)
            strict = getattr(options, "enable_strict_thinking", False)
            self.reasoning = reasoning_format(name, tokenizer, strict=strict)
            parser = getattr(options, "tool_call_parser", None)
            honours = self.speculation is None or self.speculation.is_exact
            if honours and self.diffusion is None:  # else SGLang alone reads these fields
                self.tool_calls = tool_call_format(parser, tokenizer, self.reasoning)
        self.tokenizer = tokenizer
        return is_new

    def check_watermark(self) -> None:
        """Refuse a key that marks no answer of the served model.

        Raises:
            PolicyError: With the reason.
        """
        scheme, size = self._watermark, self.vocab_size
        if scheme is not None and size is not None and not scheme.marks(size):
            raise PolicyError(
                "watermark: expected a key whose greenlist_ratio leaves a green token or more, got "
                f"none of the {size} tokens of the served model; make a key with a larger "
                "greenlist_ratio"
            )

    def check_decisions(self, process: Any) -> None:
        """Refuse a server that would not run the operator's decisions.

        Args:
            process: As for :meth:`learn`.

        Raises:
            PolicyError: With the reason.
        """
        if not getattr(process.server_args, "enable_custom_logit_processor", True):
            raise PolicyError(
                "its decisions need --enable-custom-logit-processor, which sglang-lp serve adds"
            )
        if not getattr(process.model_config, "is_generation", True):
            raise PolicyError(
                "its decisions are for servers that generate text; this server does not"
            )
        if self.diffusion is not None:
            raise PolicyError(
                f"its decisions cannot hold: this server runs a diffusion language model "
                f"({self.diffusion}), which does not call custom logit processors"
            )

    def check_calls(self, name: str) -> None:
        """Refuse a request whose processor SGLang would not call.

        Args:
            name: Name of the processor, for the message.

        Raises:
            Unsupported: With the reason.
        """
        if self.diffusion is not None:
            raise Unsupported(
                f"custom_logit_processor: expected none, got {name}: this server runs a diffusion "
                f"language model ({self.diffusion}), which does not call it; send the request to "
                "another server"
            )

    def check_honours(
        self, name: str, servings: Sequence[Serving], intake: Intake, beside: Beside
    ) -> None:
        """Refuse a request whose processors would not do what the request asks for.

        Args:
            name: Name of the processor that it asks for, for the message.
            servings: The processors that serve the request.
            intake: The request.
            beside: The keys of its ``custom_params`` that are meant for no processor.

        Raises:
            RequestError: With the reason.
        """
        if intake.searches_beams:
            check_beams(intake.beam_width, _named(servings, intake))
        if intake.masked:
            _check_mask(_named(servings, intake))
        if beside.resumed:
            _check_resumed(servings)
            self._check_whole(intake.prompt_tokens)
        if beside.raw:
            self._check_raw(logprobs=intake.logprobs)
        if self.speculation is not None:
            for link in servings:
                self.speculation.check(name, link, sampled=intake.sampled)

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
        """Refuse raw logprobs where the logits before processors are not known.

        Raises:
            Unsupported: With the reason.
        """
        if self.apart:
            raise Unsupported(
                f"{RAW}: expected none, as prefill and decode are on two servers, and SGLang hands "
                "no logits of the first token over; score the answer as a prompt"
            )
        if self.stages > 1:
            raise Unsupported(
                f"{RAW}: expected none with --pp-size {self.stages}, as they do not reach the rank "
                "that answers; score the answer as a prompt"
            )
        if not logprobs:
            raise RequestError(f"{RAW}: expected return_logprob as well, got none; set it to true")


def _names_of_params(preferred: Any) -> frozenset[str]:
    """Return the names in ``custom_params`` of SGLang's ``--preferred-sampling-params``."""
    if isinstance(preferred, str):
        preferred = msgspec.json.decode(preferred)
    return frozenset((preferred or {}).get("custom_params") or ())


def _check_resumed(servings: Sequence[Serving]) -> None:
    """Refuse to resume an answer with a class that reads SGLang's request itself.

    Raises:
        Unsupported: It is such a class.
    """
    for link in servings:
        if link.flags.reads_request:
            raise Unsupported(
                f"{RESUMED}: expected none with {link.name}, which reads SGLang's request "
                "itself; use a processor that overrides edit()"
            )


def _named(servings: Sequence[Serving], intake: Intake) -> list[tuple[str, Serving]]:
    """Return the processors of a request, each with the name by which the client asked for it.

    Of the processors that the client knows, those of other engines' fields come last.
    """
    asked = {ENGINE_FIELDS[field].processor.__name__: field for field, _ in intake.fields}
    return [(asked.pop(one.name, one.name), one) for one in reversed(servings)][::-1]


def _check_mask(servings: Sequence[tuple[str, Serving]]) -> None:
    """Refuse to show a sampling mask of logits that change in another way than by exclusion.

    Raises:
        Unsupported: A processor does more.
    """
    for name, link in servings:
        if link.flags.dense or not link.flags.exclusion_only:
            raise Unsupported(
                "return_sampling_mask: expected processors that only ban, allow and force tokens, "
                f"got {name}, which also changes the relative probabilities of other tokens; "
                "leave out one of them"
            )
