"""What this process allows: the one place that turns a request's text into a processor."""

from __future__ import annotations

import hashlib
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from sglang_lp._engine.faults import as_fault
from sglang_lp.builtins import ChainLogitProcessor
from sglang_lp.errors import RequestError, Unsupported
from sglang_lp.processor import LogitProcessor, prepare
from sglang_lp.served import ServedModel
from sglang_lp.server.algorithms import Speculation
from sglang_lp.server.bounds import check_flat
from sglang_lp.server.foreign import ForeignProcessor, same_in_builtins
from sglang_lp.server.versions import diffusion_algorithm
from sglang_lp.trust import Audit, Gate, Policy, Verifier
from sglang_lp.vocabulary import vocabulary_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sglang_lp.params import Parameters

__all__ = ["Admitted", "Guard"]


class Admitted(NamedTuple):
    """A request that may run its processor.

    Attributes:
        payload: The operator's own spelling of what was allowed.
        processor: Serves the request.
        params: Its parsed parameters, ``None`` for a foreign class, which has no schema.
    """

    payload: str
    processor: LogitProcessor
    params: Parameters | None


class Guard:
    """Checks payload and parameters of a request.

    Attributes:
        gate: Where it stands, for the audit trail.
        audit: Counts and logs what was refused.
        fingerprint: The same in every process that enforces the same policy.
        diffusion: The server's diffusion language model algorithm, once known.
        speculation: The server's speculative decoding, once known and if there is any.
        tokenizer: The served model's, once known and if there is one.
        vocab_size: Number of logits in a row of the served model, once known.
        eos_token_ids: The end tokens of its configuration, once known.
    """

    def __init__(self, policy: Policy) -> None:
        self.verifier = Verifier(policy)
        self._limited: Callable[[type], type] = cache(
            lambda chain: chain.limited_to(self.verifier.resolve)
        )
        self.audit = Audit(policy.limits.logged_refusals_per_minute)
        self.fingerprint = hashlib.sha256(msgspec.json.encode(policy)).hexdigest()
        self.gate = Gate.ADMISSION
        self.diffusion: str | None = None
        self.speculation: Speculation | None = None
        self.tokenizer: Any = None
        self.vocab_size: int | None = None
        self.eos_token_ids: Iterable[int] | None = None

    def learn(self, gate: Gate, process: Any) -> None:
        """Take over what an object of SGLang knows of the server.

        Args:
            gate: Where this process stands.
            process: SGLang's ``TokenizerManager`` or ``Scheduler``.
        """
        self.gate = gate
        self.vocab_size = process.model_config.vocab_size
        self.eos_token_ids = process.model_config.hf_eos_token_id
        self.diffusion = diffusion_algorithm(process.server_args)
        self.speculation = Speculation.of(process.server_args)
        tokenizer = getattr(process, "tokenizer", None)
        if tokenizer is not None and tokenizer is not self.tokenizer:
            with suppress(RequestError):  # which a request that wants to know is told
                vocabulary_of(tokenizer).prepare()
        self.tokenizer = tokenizer

    def admit(
        self,
        payload: Any,
        custom_params: object,
        beam_width: object = None,
        *,
        sampled: bool = True,
    ) -> Admitted:
        """Check what a request asks for.

        Args:
            payload: Its ``custom_logit_processor``.
            custom_params: Its ``custom_params``, or ``None``.
            beam_width: Its ``beam_width``, or ``None``.
            sampled: Whether its tokens are sampled, not the most likely ones.

        Raises:
            RequestError: Refused, with a message for the caller. The refusal is in the audit
                trail already.
            ProcessorFault: The allowed class failed.
        """
        with self.counting():
            allowed = self.verifier.lookup(payload)
            self._check_diffusion(allowed.name)
            _check_beams(beam_width)
            if not issubclass(allowed.processor, LogitProcessor):
                check_flat(custom_params)
            try:
                made, params = self._make(allowed.processor, custom_params)
                if self.speculation is not None:
                    self.speculation.check(allowed.name, made, sampled=sampled)
            except BaseException as error:  # noqa: BLE001 - the allowed class's own code
                raise as_fault(allowed.name, "before its request began", error) from None
        return Admitted(allowed.payload, made, params)

    def _make(self, kind: type, custom_params: object) -> tuple[LogitProcessor, Parameters | None]:
        """Make the processor that serves a request."""
        if issubclass(kind, ChainLogitProcessor):
            kind = self._limited(kind)
        made: Any = kind()
        served = ServedModel.of(self.tokenizer, self.vocab_size, self.eos_token_ids)
        if isinstance(made, LogitProcessor):
            return prepare(made, custom_params, served)
        known = same_in_builtins(kind)
        if known is not None:
            prepare(known(), custom_params, served)
        return ForeignProcessor(made), None

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Take down a refusal on its way to the caller in the audit trail."""
        try:
            yield
        except RequestError as error:
            self.audit.refused(self.gate, error)
            raise

    def _check_diffusion(self, name: str) -> None:
        if self.diffusion is not None:
            raise Unsupported(
                f"{name}: this server runs a diffusion language model ({self.diffusion}), which "
                "does not call custom logit processors; send the request to another one"
            )


def _check_beams(beam_width: object) -> None:
    if isinstance(beam_width, int | float) and beam_width > 1:
        raise Unsupported(
            "custom logit processors do not combine with beam search: leave out one of "
            "custom_logit_processor and beam_width"
        )
