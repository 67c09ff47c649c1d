"""The guard of a process: the one place that turns a request into a processor."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from sglang_lp.adapters import as_processor
from sglang_lp.adapters.arguments import Arguments
from sglang_lp.builtins import CatalogueLogitProcessor, ChainLogitProcessor
from sglang_lp.caches import Latest, packed
from sglang_lp.catalogue.index import CatalogueError
from sglang_lp.catalogue.watching import watch
from sglang_lp.errors import (
    PayloadRefused,
    PolicyError,
    RefusalReason,
    RequestError,
    did_you_mean,
)
from sglang_lp.faults import OURS, as_fault, blaming
from sglang_lp.links import Serving, serve
from sglang_lp.params import Beside, take_beside
from sglang_lp.params.parsed import forget
from sglang_lp.policy import Asked, Decided, Rules
from sglang_lp.policy.chosen import fields_of
from sglang_lp.policy.thinking import is_thinking_budget
from sglang_lp.processor import LogitProcessor
from sglang_lp.server.gate.metrics import writing
from sglang_lp.server.gate.reserved_keys import END_TOKEN_IDS
from sglang_lp.server.gate.server import Server
from sglang_lp.text.vocabulary import vocabulary_of
from sglang_lp.trust import Audit, Gate, Verifier

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from sglang_lp.catalogue.opened import Renewal
    from sglang_lp.served_model import ServedModel
    from sglang_lp.server.gate.intake import Intake
    from sglang_lp.trust import Allowed, Policy

#: Different requests of which more copies may come.
_MOST_COPIED = 8

#: Replaces the payload in SGLang's batch for a request that names no processor.
DECIDED = "decided by the operator"
#: Why a processor runs for such a request if the operator decided nothing, for messages.
_ASKED = "a field that asks for a processor"


class Admitted(NamedTuple):
    """A request that may run its processor.

    Attributes:
        payload: The operator's own spelling of the allowed class; it replaces the request's.
        servings: The processors that serve the request, in their order.
        custom_params: Replaces the request's own for a class that reads them itself; ``None`` to
            keep those.
        names: Names of the processors that the client may know of.
        beside: The keys of ``custom_params`` that are meant for no processor.
    """

    payload: str
    servings: tuple[Serving, ...]
    custom_params: dict[str, Any] | None
    names: tuple[str, ...]
    beside: Beside

    @property
    def phases(self) -> tuple[str, ...]:
        """The phase in which each processor of ``names`` holds; empty if all hold everywhere."""
        named = [one.phase for one in self.servings[: len(self.names)]]
        if not any(named):
            return ()
        words = {True: "thinking", False: "answer"}
        return tuple("everywhere" if one is None else words[one.is_thinking] for one in named)

    @property
    def making(self) -> float:
        """Seconds of the constructors of adapted classes, where they were tried."""
        params = [link.params for link in self.servings]
        return sum(one.seconds for one in params if isinstance(one, Arguments))

    @property
    def choices(self) -> frozenset[Hashable]:
        """The different choices of catalogue items."""
        found = CatalogueLogitProcessor.Fitted
        params = [link.params for link in self.servings]
        return frozenset(one.choice.rules for one in params if isinstance(one, found))

    @property
    def picks(self) -> bool:
        """Whether its choices are scored."""
        return any(getattr(one.params, "pick", None) is not None for one in self.servings)

    @property
    def thinks(self) -> bool:
        """Whether a thinking budget runs."""
        return any(is_thinking_budget(type(link.processor)) for link in self.servings)


class Found(NamedTuple):
    """The result of looking up the payload of a request.

    Attributes:
        payload: Replaces the request's payload from here on.
        name: Its name, for messages.
        runs: As in ``Asked``.
    """

    payload: str
    name: str
    runs: type[LogitProcessor] | str | None


class Counting:
    """The block of :meth:`Guard.counting`.

    A class, because a generator takes a microsecond more and each request has several blocks.
    """

    __slots__ = ("_guard",)

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Count the refusal that ends the block, if any; it goes on."""
        if isinstance(error, RequestError):
            self._guard.count(error)


class Guard:
    """Admits and refuses the requests of one process, by the operator's policy.

    Args:
        policy: In force.

    Attributes:
        policy: In force.
        gate: Which gate this process has, for the audit trail.
        verifier: Looks up what the policy allows.
        rules: Decide what an allowed request runs.
        server: What this process knows of its server.
        audit: Counts and logs refusals.
        processors: Names of the classes that a request can run and its client may know of.
        fingerprint: The same in every process, of every server, that enforces the same policy.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.verifier = Verifier(policy)
        self._limited: Callable[[type], type] = cache(
            lambda chain: chain.limited_to(lambda name: as_processor(self._allowed(name).processor))
        )
        with policy.named():
            self.rules = Rules(
                policy, self.verifier.resolve, [one.processor for one in self.verifier.allowed]
            )
        short = [one.name.rpartition(":")[2] for one in self.verifier.allowed]
        self.processors = (*dict.fromkeys([*short, *self.rules.chosen_names]),)
        self.audit = Audit(
            policy.limits.logged_refusals_per_minute,
            names=frozenset([*self.processors, *_names(policy, self.verifier.allowed)]),
        )
        decided = msgspec.structs.replace(policy, source="")  # wherever its file lies
        self.fingerprint = hashlib.sha256(msgspec.json.encode(decided)).hexdigest()
        self.gate = Gate.ADMISSION
        self.server = Server(policy.open_catalogues(), policy.read_watermark())
        self._follows = False
        self._model: ServedModel | None = None
        self._copies: Latest[Decided] = Latest(_MOST_COPIED)

    def learn(self, gate: Gate, process: Any) -> None:
        """Read what an object of SGLang knows of the server.

        Args:
            gate: The gate of this process.
            process: SGLang's ``TokenizerManager`` or ``Scheduler``.

        Raises:
            PolicyError: What the operator decided cannot work on this server.
        """
        server = self.server
        known = server.tokenizer, server.vocab_size
        self.gate = gate
        server.scores = gate is Gate.ADMISSION
        is_new = server.learn(process)
        self.rules.preferred = server.preferred
        if is_new:
            with suppress(RequestError):  # a request that needs the vocabulary is told
                vocabulary = vocabulary_of(server.tokenizer)
                vocabulary.prepare()
                for one in self.verifier.allowed:
                    if issubclass(one.processor, LogitProcessor):
                        one.processor.warm(vocabulary)
        self._follow_catalogues()
        with self.policy.named():
            server.check_watermark()
        if not self.rules.is_empty and known != (server.tokenizer, server.vocab_size):
            with self.policy.named():
                server.check_decisions(process)
                self.rules.fit(server.model)
                self._check_plain_requests()

    def _check_plain_requests(self) -> None:
        """Refuse a server that would refuse every request that names no processor.

        Raises:
            PolicyError: A processor of ``[defaults]`` or ``[[always]]`` cannot run here.
        """
        decided = self.rules.decide(Asked(None), self.server.model)
        speculation = self.server.speculation
        if decided is None or speculation is None:
            return
        for link in decided.links:
            why = speculation.obstacle(serve(link), sampled=False)
            if why is not None:
                raise PolicyError(
                    f"expected processors of [defaults] and [[always]] that are exact with this "
                    f"server's speculative decoding ({speculation.algorithm}), got "
                    f"{link.processor.__name__}: {why}; leave it out, or start the server without "
                    "--speculative-algorithm"
                )

    def _follow_catalogues(self) -> None:
        """Check the catalogues against the served model, and follow their files from now on.

        Raises:
            PolicyError: An item has a token that the model lacks, or that ends the answer in it.
        """
        server = self.server
        try:
            if server.vocab_size is not None:
                server.catalogues.fit(server.vocab_size, server.model.eos_token_ids)
        except CatalogueError as error:
            raise PolicyError(f"policy {self.policy.source}: {error}") from None
        # Ranks of one model have to agree on the version of each request.
        if server.ranks == 1 and not self._follows:
            self._follows = True
            watch(server.catalogues, self._renewed, self.gate.value)

    def _renewed(self, renewal: Renewal) -> None:
        """Let go of an old version of a catalogue; called in another thread."""
        self._copies = Latest(_MOST_COPIED)
        forget()
        metrics = writing()
        if metrics is not None:
            metrics.renew(self.gate, renewal, self.server.catalogues.now[renewal.name])

    def check_known(self, payload: str) -> None:
        """Check a payload of SGLang's batch.

        Raises:
            PayloadRefused: This process admits no such payload.
        """
        if payload != DECIDED and not self.rules.has_profile(payload):
            self.verifier.resolve(payload)

    def concerns(self, intake: Intake) -> bool:
        """Tell whether a processor may run for a request, so that it has to be checked."""
        if intake.payload is not None:
            return True
        if intake.names_anything and self.server.runs_processors:
            return True
        return not self.rules.is_empty and intake.limit != 0

    def admit(self, intake: Intake) -> Admitted | None:
        """Check a request.

        Returns:
            What runs it, or ``None`` if no processor does.

        Raises:
            RequestError: Refused, with a message for the caller. The refusal is in the audit
                trail already.
            SglangLpError: The allowed class or the toolkit failed.
        """
        if not self.concerns(intake):
            return None
        with self.counting():
            custom_params, beside = take_beside(intake.custom_params, intake.prompt_tokens)
            found = self._look_up(intake.payload)
            try:
                if intake.payload is not None:
                    self.server.check_calls(found.name)
                decided = self._decide(intake, found.runs, custom_params, beside.resumed)
                if decided is None:
                    return None
                if intake.payload is None:
                    self.server.check_calls(found.name)
                beside = beside._replace(resumed=decided.resumed)
                servings, own = self._make(decided, intake.limit)
                self.server.check_honours(found.name, servings, intake, beside)
            except BaseException as error:  # noqa: BLE001 - the allowed class's own code
                raise as_fault(OURS, "before its request began", error) from None
        return Admitted(found.payload, servings, own, decided.names, beside)

    def counting(self) -> Counting:
        """Count a refusal that passes through the block, and write it to the audit trail."""
        return Counting(self)

    def count(self, error: RequestError) -> None:
        """Count a refusal, and write it to the audit trail."""
        self.audit.refused(self.gate, error)
        metrics = writing()
        if metrics is not None:
            processor = self.audit.processor_of(error)
            metrics.refuse(self.gate.value, self.audit.reason_of(error), processor or "")

    def _look_up(self, payload: Any) -> Found:
        """Look a request's payload up, once: what is found here is checked and runs.

        Raises:
            RequestError: It is not allowed.
        """
        if payload is None:
            name = _ASKED if self.rules.is_empty else "what the operator decided"
            return Found(DECIDED, name, None)
        if self.rules.has_profile(payload):
            return Found(payload, payload, payload)
        allowed = self._allowed(payload, self.rules.profile_names)
        return Found(allowed.payload, allowed.name, self._running(allowed.processor))

    def _running(self, kind: type) -> type[LogitProcessor]:
        """Return the processor that runs an allowed class; a chain takes only allowed links."""
        return as_processor(self._limited(kind) if issubclass(kind, ChainLogitProcessor) else kind)

    def _allowed(self, payload: Any, others: Iterable[str] = ()) -> Allowed:
        """Return the allowed class of a payload.

        Args:
            payload: The payload, or the name of a link, which cannot be a profile.
            others: Names of no class that a request may write as well, for the suggestion.

        Raises:
            PayloadRefused: It is not allowed. The message suggests the nearest name that is.
        """
        try:
            return self.verifier.lookup(payload)
        except PayloadRefused as refused:
            if refused.reason != RefusalReason.UNKNOWN_NAME:
                raise  # the payload may have any type and size
            names = [*self.verifier.names, *others]
            hint = did_you_mean(payload, names, cutoff=0.5)
            if not hint:
                raise
            raise PayloadRefused(
                str(refused).rpartition("; ")[0] + hint, reason=refused.reason, size=refused.size
            ) from None

    def _decide(
        self,
        intake: Intake,
        runs: type[LogitProcessor] | str | None,
        custom_params: Any,
        resumed: int,
    ) -> Decided | None:
        """Return the processor that runs for a request, decided once for equal requests.

        Args:
            intake: The request.
            runs: What was found for its payload.
            custom_params: Its parameters without the keys that are meant for no processor.
            resumed: Number of tokens at the end of its prompt that are the answer so far.

        Raises:
            RequestError: Refused.
        """
        model = self.server.model
        if model is not self._model:
            self._model, self._copies = model, Latest(_MOST_COPIED)
        if isinstance(custom_params, dict) and END_TOKEN_IDS in custom_params:
            model = self.server.model_of(custom_params[END_TOKEN_IDS])
        own = intake.packed if custom_params is intake.custom_params else packed(custom_params)
        asked = intake.asked(runs, custom_params, resumed)
        if not isinstance(own, bytes):
            return self.rules.decide(asked, model)
        key = runs, own, intake.reasoning, resumed
        decided = self._copies.get(key)
        if decided is None:
            decided = self.rules.decide(asked, model)
            if decided is not None:
                self._copies.keep(key, decided)
        return decided

    def _make(
        self, decided: Decided, limit: int | None
    ) -> tuple[tuple[Serving, ...], dict[str, Any] | None]:
        """Make the processors that serve a request, and its ``custom_params``."""
        whole = None if limit is None else limit + decided.resumed
        servings = tuple(serve(link, whole) for link in decided.links)
        own, only = None, servings[0]
        if len(servings) == 1 and only.flags.dense and not self.rules.is_empty:
            with blaming(only.flags.name, is_named=only.is_named):
                own = only.processor.plain(only.params)
        return servings, own


def _names(policy: Policy, allowed: Iterable[Allowed]) -> Iterator[str]:
    """Yield the processors, profiles and parameters that a client may be told of."""
    yield from policy.profiles
    for one in allowed:
        yield one.processor.__name__
        if issubclass(one.processor, LogitProcessor):
            yield from fields_of(one.processor)
