"""One request in the batch: its processor, its history as far as fed, and when to look again."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sglang_lp._engine.apply.placing import prepare
from sglang_lp._engine.apply.reading import ServedRequest
from sglang_lp._engine.compiled.standing import Standing
from sglang_lp._engine.history.acts import Acts
from sglang_lp._engine.history.clock import clock
from sglang_lp._engine.history.host import Host, host_of
from sglang_lp.edits import NEVER
from sglang_lp.edits.ids import Ids, prepared
from sglang_lp.edits.recording import Recording
from sglang_lp.errors import ProcessorFault, SglangLpError
from sglang_lp.faults import as_fault, from_signal
from sglang_lp.request import History

if TYPE_CHECKING:
    from logging import Logger

    from sglang_lp.params import Parameters
    from sglang_lp.processor import LogitProcessor

__all__ = ["Row", "attach_row", "detach_row", "rows_of", "same_tokens"]

#: Looking up a member of an enumeration takes 0.1 µs in Python 3.11, and this is per row.
_NONE, _TOKENS = History.NONE, History.TOKENS

#: Classes of processors whose missing history was reported. One line each is enough.
_reported_lag: set[type] = set()

_LAGS = (
    "%s cannot see the newest token of its request and leaves such steps unedited. "
    "Any of these gives it the exact history: run the server with the sglang-lp plugin; "
    "set SGLANG_ENABLE_DELAY_SAMPLE=1; start with --disable-overlap-schedule."
)

_BIASED = (
    "return_sampling_mask goes with processors that only ban, allow and force, and it did "
    "something else; its class says exclusion_only = True, which has to go"
)


class _Slot:
    """Key of a request's row in its ``custom_params``; no JSON object can spell it."""

    def __repr__(self) -> str:
        return "<sglang_lp row>"


_SLOT = _Slot()


class Row:
    """Feeds a processor the history of its request, and remembers when to look again.

    The history is read from the host, never counted: how often the sampler runs says nothing
    (chunked prefill samples results that are thrown away, retraction runs a request again). State
    is fed from that history and can always be rebuilt from it.

    Attributes:
        processor: Serves the request.
        name: The processor's, read once: what names a fault must not fail itself.
        needs: What it must know of the tokens.
        dense: Whether it computes on whole rows, or runs others that do.
        request: What the processor sees.
        host: Who runs the request.
        source: The host's own object for it (or a proxy of it), or ``None``.
        resumed: How many of the prompt's last tokens the processor takes for generated ones.
            Positions count these, too.
        wake: Reading of the batch's clock before which this row needs no look.
        tokens: The history as far as fed.
        standing: Edits that hold at every step, or until the row is woken, once there are any.
        held: Those among them that hold until the row is woken.
        acting: What the edits of its last step were put together to, for the next one.
        serial: Another number for every row, and a new one when ``standing`` changes or the row is
            woken from outside of a step.
        acts: What was done to the request.
        unread: Whether it waits for its prompt to be read.
        forces: Whether its last step forced a token.
    """

    __slots__ = (
        "__weakref__",
        "_always",
        "_ended",
        "_first",
        "_ids",
        "_output_ids",
        "_prompt_ids",
        "_started",
        "acting",
        "acts",
        "dense",
        "forces",
        "held",
        "host",
        "name",
        "needs",
        "processor",
        "request",
        "resumed",
        "serial",
        "source",
        "standing",
        "tokens",
        "unread",
        "wake",
    )

    def __init__(self, processor: LogitProcessor, params: Parameters | None, host: Host) -> None:
        self.processor = processor
        self.name = str(processor.name)
        self.needs = processor.needs
        self.dense = processor.dense
        self.request = ServedRequest(
            params,
            may_lag=host.may_lag,
            tokenizer=host.tokenizer,
            sampling=getattr(host.request, "sampling_params", None),
        )
        self.host = host
        self.source = host.request
        self.resumed = host.resumed
        self.wake = 0
        self.acts = Acts()
        self.unread = False
        self.forces = False
        self.tokens = array("q")
        self.standing: Standing | None = None
        self.serial = clock.change()
        self.held: Recording | None = None
        self.acting: Standing | None = None
        self._always: Recording | None = None
        self._ended = False
        #: The edits of the first step, if they were asked for before it.
        self._first: Recording | None = None
        #: Converted now and not while a batch waits, once for all copies of a request.
        self._ids: list[Ids] = prepared(params)
        self._started = False
        self._prompt_ids: Sequence[int] = ()
        self._output_ids: Sequence[int] = ()

    def arrive(self) -> None:
        """Start the processor of a request before its first step, so that this does not wait.

        If the prompt is replaced afterwards, it starts again there.
        """
        source = self.source
        self._prompt_ids, self._output_ids = source.origin_input_ids, source.output_ids
        self.request.position = self.resumed
        self._begin()

    def resume(self, most: int = NEVER) -> int:
        """Let a started processor take in tokens that it resumes.

        Args:
            most: How many of them.

        Returns:
            How many are left.
        """
        fed, tokens = len(self.tokens), len(self._prompt_ids)
        since = tokens - self.resumed + fed
        new = self._prompt_ids[since : min(tokens, since + most)]
        if len(new):
            self.tokens.extend(new)
            self.processor.advance(self.request, new)
        return max(0, self.resumed - len(self.tokens))

    def split(self, prompt_ids: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        """Return the tokens of a prompt that are one to the processor, and those it resumes."""
        if not self.resumed:
            return prompt_ids, ()
        end = len(prompt_ids) - self.resumed
        return prompt_ids[:end], prompt_ids[end:]

    @property
    def started(self) -> bool:
        """Whether its processor has been started."""
        return self._started

    def ask_early(self, vocab_size: int) -> None:
        """Ask for the edits of the first step, so that it does not wait for them.

        Args:
            vocab_size: Number of logits in a row of the model.
        """
        recording = Recording(vocab_size)
        try:
            self.processor.edit(self.request, recording)
            if self.needs is _NONE:
                recording.act()
                recording.hold_until(NEVER)
            prepare(recording)
        except BaseException as error:
            if from_signal(error):
                raise
            self._start()  # the step asks again, and takes care of what it raises
        else:
            self._first = recording

    def ask(self, vocab_size: int) -> Recording:
        """Return the edits of this step."""
        recording = self._first
        if recording is not None:
            self._first = None
            if recording.vocab_size != vocab_size:
                self._start()
                recording = None
        if recording is None:
            recording = Recording(vocab_size)
            self.processor.edit(self.request, recording)
        if self.host.masked and not (recording.only_excludes and self.request.copied is None):
            raise ProcessorFault(_BIASED)
        return recording

    def look(self) -> bool:
        """Read the history anew, and feed the state every token that it has not seen, once.

        Returns:
            Whether there is something to do: not if the processor cannot see what it needs; and
            not, unless it needs nothing, if the result of this step will be thrown away (a chunk
            of a prefill that is not its last, a request that has just finished).
        """
        needs, request = self.needs, self.request
        prompt_ids, output_ids, pending, position, counts = self.host.look(tokens=needs is _TOKENS)
        seen, resumed = len(output_ids), self.resumed
        total = seen + len(pending)
        request.position = position + resumed
        request.exact = exact = position == total
        if needs is not _NONE:
            if not counts:
                return False
            if not exact and not self._copes_with_lag():
                return False
        tokens = self.tokens
        fed = len(tokens) - resumed
        if prompt_ids is not self._prompt_ids or output_ids is not self._output_ids:
            self._adopt(prompt_ids, output_ids)
        if fed > 0 and (
            fed > total
            or (output_ids[fed - 1] if fed <= seen else pending[fed - seen - 1]) != tokens[-1]
        ):
            self._started = False  # the history was rewritten
        if self._first is not None and position:
            self._started = False  # the first step was elsewhere
        if not self._started or fed < 0:
            fed = 0
            self._start()
            tokens = self.tokens
        if total > fed:
            if total == fed + 1:  # nearly always: no slice of an array
                new = [output_ids[fed] if fed < seen else pending[fed - seen]]
                tokens.append(new[0])
            else:
                new = [*output_ids[fed:seen], *pending[max(0, fed - seen) :]]
                tokens.extend(new)
            self.acts.settle(tokens)
            self.processor.advance(request, new)
        return True

    def _start(self) -> None:
        """Begin with no tokens but those that are resumed."""
        self._begin()
        if self.resumed:
            self.resume()

    def _begin(self) -> None:
        request = self.request
        request.prompt_ids, _ = self.split(self._prompt_ids)
        self.tokens = request.output_ids = array("q")
        self._first = None
        self._stand(None, None)
        request.state = self.processor.start(request)
        self._started = True

    def end(self, error: SglangLpError) -> None:
        """End this running request with an error; the rest of the batch goes on.

        Args:
            error: Becomes the message.

        Raises:
            SglangLpError: ``error`` itself, if nobody runs the request.
        """
        self.wake = NEVER
        self._ended = True
        self._first = None
        self._stand(None, None)
        self.host.end(error)

    def fault(self, error: BaseException, position: int | None = None) -> SglangLpError:
        """Return what its processor raised as the error of its request, see :func:`as_fault`.

        Args:
            error: What was raised.
            position: Where along a draft; ``None`` where the request is.
        """
        at = self.request.position if position is None else position
        return as_fault(self.name, f"at token {max(0, at - self.resumed)}", error)

    def rewind(self) -> None:
        """Look again at the next step: the host dropped what the last one sampled.

        A row may have gone to sleep at a position that is sampled once more.
        """
        if not (self._ended or self.needs is _NONE):
            self.wake = 0
            self.serial = clock.change()
            if self._started and self._first is None:
                self.processor.rewind(self.request)

    def restart(self) -> None:
        """Begin again at the next look, with a new state."""
        self._started = False

    def settle(self, recording: Recording) -> None:
        """Look at this row no more, and make these edits at every step."""
        self.wake = NEVER
        self._stand(recording, None)

    def keep(self, recording: Recording) -> None:
        """Make these edits at every step, beside those that hold already."""
        if self._always is not None:
            recording.add(self._always)
        self._stand(recording, self.held)

    def hold(self, recording: Recording | None) -> None:
        """Make these edits at every step until told otherwise, and no longer those held so far."""
        self._stand(self._always, recording)

    def _stand(self, always: Recording | None, held: Recording | None) -> None:
        self._always, self.held = always, held
        both = [one for one in (always, held) if one is not None and not one.is_empty]
        standing = None
        if both:
            recording = both[0]
            if len(both) > 1:
                recording = Recording(recording.vocab_size)
                for one in both:
                    recording.add(one)
            standing = Standing.of(recording)
        if standing is not self.standing:
            self.acts.stand(
                self.request.position,
                some=standing is not None,
                forced=any(one.forced is not None for one in both),
            )
            self.standing = standing
            self.serial = clock.change()

    def _adopt(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> None:
        """Take over new sequence objects; the state stays only if they extend the old ones."""
        known = self.tokens[self.resumed :]
        self._started = (
            self._started
            and [*output_ids[: len(known)]] == [*known[: len(output_ids)]]
            and same_tokens(prompt_ids, self._prompt_ids)
        )
        self._prompt_ids, self._output_ids = prompt_ids, output_ids
        self.request.prompt_ids, _ = self.split(prompt_ids)

    def _copes_with_lag(self) -> bool:
        """Tell whether the processor does without the newest token; if not, say so once."""
        processor = self.processor
        if self.needs is not _TOKENS or processor.tolerates_lag:
            return True
        if not self.host.may_lag:
            raise ProcessorFault("the newest token of the request cannot be read on this server")
        if processor.kind not in _reported_lag:
            _reported_lag.add(processor.kind)
            _logger().error(_LAGS, processor.name)
        return False


def same_tokens(one: Sequence[int], other: Sequence[int]) -> bool:
    """Tell whether two prompts of perhaps different types hold the same tokens."""
    return one == other if type(one) is type(other) else [*one] == [*other]


def rows_of(custom_param_list: Sequence[Any]) -> list[Row | None]:
    """Return the row of each request, ``None`` for one that has none.

    It is kept in the request's own ``custom_params``, a dict that SGLang makes for each request,
    and so dies with it.

    Args:
        custom_param_list: For each request SGLang's ``custom_params``, with ``__req__`` in it, or
            ``None``.
    """
    try:  # every one has a row, which is found in half the time
        return [
            # A dict may have been copied together with the row of another request.
            row if (row := custom_params[_SLOT]).source is custom_params["__req__"] else None
            for custom_params in custom_param_list
        ]
    except (KeyError, TypeError):  # one has none, and may have sent anything
        return [
            row
            if isinstance(custom_params, dict)
            and (row := custom_params.get(_SLOT)) is not None
            and row.source is custom_params.get("__req__")
            else None
            for custom_params in custom_param_list
        ]


def attach_row(
    custom_params: Any,
    processor: LogitProcessor,
    params: Parameters | None,
    host: Host | None = None,
) -> Row:
    """Make the row of a request and keep it in its ``custom_params``.

    Args:
        custom_params: As for :func:`rows_of`. Without ``__req__`` nothing is kept.
        processor: Serves the request, as :func:`sglang_lp.processor.prepare` returned it.
        params: Its parsed parameters, or ``None`` if the processor has no schema.
        host: Who runs the request; found out if ``None``.
    """
    source = custom_params.get("__req__")
    row = Row(processor, params, host_of(source) if host is None else host)
    if source is not None:
        custom_params[_SLOT] = row
    return row


def detach_row(custom_params: Any) -> None:
    """Let go of the row of a request that has finished, and of all that the row keeps.

    Args:
        custom_params: As for :func:`rows_of`, of one request.
    """
    if isinstance(custom_params, dict):
        custom_params.pop(_SLOT, None)


def _logger() -> Logger:
    # Not imported above, because the client imports this module and logs nothing.
    import logging

    return logging.getLogger(__name__)
