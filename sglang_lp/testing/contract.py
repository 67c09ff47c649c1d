"""The tests that every processor must pass."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from sglang_lp._engine.batch import Batch
from sglang_lp._engine.history.attached import attach_row, rows_of
from sglang_lp.builtins.chain import ChainLogitProcessor
from sglang_lp.errors import InvalidParameter
from sglang_lp.flags import Flags
from sglang_lp.links import prepare
from sglang_lp.processor import LogitProcessor, Recording
from sglang_lp.request import History
from sglang_lp.served_model import ServedModel
from sglang_lp.server.scheduler.sglang_host import StockHost
from sglang_lp.testing.cases import Case, random_cases, random_logits
from sglang_lp.testing.deciding import decided_as_on_a_gpu
from sglang_lp.testing.drafting import drafted_twice
from sglang_lp.testing.failures import bits, check, check_rows, same_bits

if TYPE_CHECKING:
    import torch

    from sglang_lp.edits import Edits
    from sglang_lp.request import Request

__all__ = ["ProcessorContract"]


_NOTHING_SHARED = (
    "keep nothing on self, on the class or in a module: state belongs to request.state"
)


class _NoEdits(LogitProcessor):
    """Edits nothing, as another link of a chain, whose flags are those of the other links."""

    needs = History.NONE
    early = exclusion_only = True

    def edit(self, request: Request, edits: Edits) -> None:
        """Edit nothing."""


class ProcessorContract:
    """The tests that every processor must pass, as a base class of a test class.

    ::

        class TestNoEarlyStop(ProcessorContract):
            processor = NoEarlyStop
            valid_params = ({"eos_token_ids": [2], "min_tokens": 5},)
            invalid_params = (({"eos_token_ids": [-1]}, "eos_token_ids"),)

    A failure shows the expected and the actual edits, the request, its step and a hint. Works with
    pytest and with anything else that calls methods named ``test_*``.

    Attributes:
        processor: The class to test.
        valid_params: Valid ``custom_params``, as different as possible.
        invalid_params: Pairs of invalid ``custom_params`` and the parameter at fault.
        vocab_size: Number of logits in a row.
        token_ids: Ids that matter to the processor in addition to those in its parameters. Random
            histories are made of all these ids and a few others.
        tokenizer: The model's tokenizer, for a processor with text parameters.
        eos_token_ids: The model's end tokens, for a processor that takes them from the model.
    """

    processor: ClassVar[type[LogitProcessor]]
    valid_params: ClassVar[Sequence[Mapping[str, Any]]]
    invalid_params: ClassVar[Sequence[tuple[Mapping[str, Any], str]]] = ()
    vocab_size: ClassVar[int] = 1000
    token_ids: ClassVar[Sequence[int]] = ()
    tokenizer: ClassVar[Any] = None
    eos_token_ids: ClassVar[Sequence[int]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a test class that lacks what it tests, before each of its tests fails.

        Raises:
            TypeError: ``processor`` or ``valid_params`` is missing or empty.
        """
        super().__init_subclass__(**kwargs)
        if not cls.__name__.startswith("Test"):
            return
        if not isinstance(getattr(cls, "processor", None), type):
            raise TypeError(f"{cls.__name__}.processor: expected the class to test")
        if not getattr(cls, "valid_params", ()):
            raise TypeError(
                f"{cls.__name__}.valid_params: expected the custom_params of one request or more, "
                'as in ({"token_ids": [2]},)'
            )

    # Parameters and payload

    def test_takes_valid_parameters_as_json_carries_them(self) -> None:
        """Valid parameters parse the same before and after a trip over HTTP."""
        for params in self.valid_params:
            here = self.processor.parse_params(params, self.vocab_size)
            there = self.processor.parse_params(json.loads(json.dumps(params)), self.vocab_size)
            check(here == there, f"{params} changes on its way through JSON")

    def test_names_the_parameter_that_it_refuses(self) -> None:
        """Invalid parameters, and unknown ones, are refused with a message that names them."""
        unknown = ({**params, "no_such_parameter": 1} for params in self.valid_params)
        refused = [*self.invalid_params, *((params, "no_such_parameter") for params in unknown)]
        for params, name in refused:
            try:
                self.processor.parse_params(params, self.vocab_size)
            except InvalidParameter as error:
                check(name in str(error), f"{params}: {error} does not name {name!r}")
            else:
                raise AssertionError(f"{params} was taken, expected InvalidParameter")

    def test_its_payload_leads_back_to_it(self) -> None:
        """``to_str`` writes SGLang's format, and ``from_str`` finds the class again."""
        payload = self.processor.to_str()
        check([*json.loads(payload)] == ["callable"], "the payload is not SGLang's")
        found = type(self.processor.from_str(payload))
        check(found is self.processor, f"the payload leads to {found}")

    # Logits

    def test_keeps_shape_type_and_device(self) -> None:
        """The result has the shape, dtype and device of the logits."""
        for vocab_size in (self.vocab_size, self.vocab_size + 1, self.vocab_size | 127):
            for before in self._every_type(len(self._cases()), vocab_size):
                after = self._edited(self._cases(), before)
                check(after.shape == before.shape, f"{before.shape} became {after.shape}")
                check(after.dtype == before.dtype, f"{before.dtype} became {after.dtype}")
                check(after.device == before.device, f"{before.device} became {after.device}")

    def test_edits_in_place(self) -> None:
        """The same tensor is returned, unless the class overrides ``__call__``."""
        if self.processor.dense:
            return
        logits = random_logits(len(self._cases()), self.vocab_size)
        after = self.processor()(logits, [case.custom_params() for case in self._cases()])
        check(after is logits, "it returned another tensor than it was given")

    def test_no_batch_at_all(self) -> None:
        """Logits without ``custom_param_list`` do not change."""
        logits = random_logits(2, self.vocab_size)
        for after in (self.processor()(logits.clone()), self.processor()(logits.clone(), [])):
            check(same_bits(after, logits), "logits without custom_param_list were edited")

    def test_leaves_rows_without_parameters_alone(self) -> None:
        """A row with ``None`` does not change."""
        cases = self._cases()
        for before in self._every_type(len(cases) * 2, self.vocab_size):
            mixed = [params for case in cases for params in (None, case.custom_params())]
            after = self.processor()(before.clone(), mixed)
            check(same_bits(after[::2], before[::2]), "a row without parameters was edited")
            alone = self._edited(cases, before[1::2].contiguous())
            check_rows(
                "a row depends on a row without parameters",
                cases,
                before[1::2],
                after[1::2],
                alone,
                _NOTHING_SHARED,
            )

    def test_no_row_depends_on_another(self) -> None:
        """A batch gives what its rows give one by one, in any order, whatever their parameters."""
        cases = self._cases()
        for before in self._every_type(len(cases), self.vocab_size):
            after = self._edited(cases, before)
            for i, case in enumerate(cases):
                alone = self._edited([case], before[i : i + 1])
                check_rows(
                    f"row {i} of a batch is not what it is by itself",
                    [case],
                    before[i : i + 1],
                    after[i : i + 1],
                    alone,
                    _NOTHING_SHARED,
                )
            order = random.Random(1).sample(range(len(cases)), len(cases))  # noqa: S311 - no secret
            shuffled = self._edited([cases[i] for i in order], before[order])
            check_rows(
                "rows depend on their order",
                [cases[i] for i in order],
                before[order],
                shuffled,
                after[order],
                _NOTHING_SHARED,
            )

    def test_keeps_the_bits_of_what_it_does_not_edit(self) -> None:
        """A logit without an edit keeps its bits: adding 0.0 would turn -0.0 into 0.0."""
        cases = self._cases()
        for before in self._every_type(len(cases), self.vocab_size):
            before[:, ::3] = -0.0
            after = self._edited(cases, before)
            rewritten = (after == before) & (bits(after) != bits(before))
            # Forcing a token makes its logit 0.0, and every other one -inf.
            forced = after.isfinite().sum(-1, keepdim=True) == 1
            check(not (rewritten & ~forced).any(), "entries that do not change were rewritten")

    def test_leaves_every_row_a_token(self) -> None:
        """Each row has a finite logit, and neither NaN nor +inf."""
        for before in self._every_type(len(self._cases()), self.vocab_size):
            highest = self._edited(self._cases(), before).amax(-1)
            check(bool(highest.isfinite().all()), "a row has no finite logit, or NaN or +inf")

    def test_only_excludes_tokens_if_it_says_so(self) -> None:
        """With ``exclusion_only`` logits keep their bits or are ``-inf``, or one token is left."""
        for case in self._cases():
            model = ServedModel.of(self.tokenizer, self.vocab_size, case.eos_token_ids)
            servings = prepare(self.processor(), case.params, model)
            if not all(one.processor.exclusion_only for one in servings):
                continue
            before = random_logits(1, self.vocab_size)
            after = self._edited([case], before)
            left = after.isfinite()
            kept = bool((bits(after) == bits(before))[left].all())
            check(kept or int(left.sum()) == 1, f"{case.params}: it changes what it leaves")

    def test_a_gpu_decides_as_a_cpu(self) -> None:
        """Questions about logits (``is_among_top``, ``top``) have one answer on CPU and GPU."""
        for before in self._every_type(len(self._cases()), self.vocab_size):
            expected = self._edited(self._cases(), before)
            with decided_as_on_a_gpu():
                after = self._edited(self._cases(), before)
            check_rows(
                "the device decides otherwise than the host",
                self._cases(),
                before,
                after,
                expected,
                "ask with is_among_top() or top(); do not read request.logits to decide",
            )

    def test_respects_the_layout_of_the_logits(self) -> None:
        """Rows may be part of a wider, padded tensor; the padding does not change."""
        import torch

        cases = self._cases()
        rows, vocab_size = len(cases), self.vocab_size
        before = random_logits(rows, vocab_size)
        expected = self._edited(cases, before)
        width = vocab_size + 64
        for strides, offset in (((width, 1), 32), ((2 * width, 1), 1), ((1, rows + 2), 5)):
            wide = torch.zeros(2 * (rows + 1) * width)
            view = wide.as_strided((rows, vocab_size), strides, offset)
            view.copy_(before)
            untouched = wide.clone()
            after = self.processor()(view, [case.custom_params() for case in cases])
            check_rows(
                "the result depends on the layout of the logits",
                cases,
                before,
                after,
                expected,
                "index rows and tokens; do not view or flatten the logits",
            )
            view.copy_(before)
            check(same_bits(wide, untouched), "it wrote outside its rows")

    # History

    def test_the_same_history_gives_the_same_result(self) -> None:
        """Called again with the same requests or equal requests, it makes the same edits."""
        cases = self._cases()
        before = random_logits(len(cases), self.vocab_size)
        processor = self.processor()
        requests = [case.custom_params() for case in cases]
        first = processor(before.clone(), requests).clone()
        for again in (
            processor(before.clone(), requests),
            self.processor()(before.clone(), requests),
            self._edited(cases, before),
        ):
            check_rows(
                "called again for the same step, it makes other edits",
                cases,
                before,
                again,
                first,
                "edit() may be called again for a step: change state in advance() only",
            )

    def test_step_by_step_is_the_same_as_at_once(self) -> None:
        """A decode token by token ends where a request with that history begins.

        Each step has a new instance, as SGLang may: state belongs to the request.
        """
        before = random_logits(1, self.vocab_size)
        for case in self._cases():
            request = case.request()
            custom_params = request.custom_params(case.params)
            for position in range(len(case.output_ids) + 1):
                after = self.processor()(before.clone(), [custom_params])
                so_far = case._replace(output_ids=case.output_ids[:position])
                check_rows(
                    f"step {position} of a decode is not what its history gives",
                    [so_far],
                    before,
                    after,
                    self._edited([so_far], before),
                    self._hint_on_steps(),
                )
                if position < len(case.output_ids):
                    request.append(case.output_ids[position])

    def test_survives_a_retraction(self) -> None:
        """A retracted request continues as before."""
        before = random_logits(1, self.vocab_size)
        for case in self._cases():
            request = case.request(served=True)
            del request.to_finish  # an error of the processor is raised here
            custom_params = request.custom_params(case.params)
            model = ServedModel.of(self.tokenizer, self.vocab_size, case.eos_token_ids)
            served = prepare(self.processor(), case.params, model)
            attach_row(custom_params, served, StockHost(request, may_lag=False))
            length = len(case.prompt_ids)
            for position, token_id in enumerate(case.output_ids):
                for chunk_end in (length // 2, length, length + position - 1):
                    request.kv.kv_committed_len = min(chunk_end, length + position - 1)
                    self.processor()(before.clone(), [custom_params])
                request.commit()
                self.processor()(before.clone(), [custom_params])
                request.append(token_id)
            after = self.processor()(before.clone(), [custom_params])
            check_rows(
                "a retraction changes the edits",
                [case],
                before,
                after,
                self._edited([case], before),
                "edit() must not change state; where it does, override rewind()",
            )

    def test_goes_on_where_an_answer_was_cut(self) -> None:
        """With ``resumed_tokens`` the edits are the edits of the uncut answer."""
        if self.processor.reads_request:
            return
        before = random_logits(1, self.vocab_size)
        for case in self._cases():
            for cut in range(1, len(case.output_ids) + 1):
                so_far, rest = case.output_ids[:cut], case.output_ids[cut:]
                again = case._replace(prompt_ids=[*case.prompt_ids, *so_far], output_ids=rest)
                custom_params = again.custom_params()
                model = ServedModel.of(self.tokenizer, self.vocab_size, case.eos_token_ids)
                servings = prepare(self.processor(), case.params, model)
                host = StockHost(custom_params["__req__"], may_lag=False)
                host.resumed = cut
                attach_row(custom_params, servings, host)
                after = self.processor()(before.clone(), [custom_params])
                check_rows(
                    f"cut after {cut} tokens and resumed, the answer has other edits",
                    [case],
                    before,
                    after,
                    self._edited([case], before),
                    "count tokens in advance(): request.prompt_ids holds resumed tokens too",
                )

    def test_a_fork_is_thrown_away_without_trace(self) -> None:
        """Each node of a draft gets the edits of its history, and the request is unchanged."""
        if self.processor.reads_request or not self.processor.can_fork:
            return
        for case in self._cases():
            known = len(case.output_ids) // 2
            drafted = case.output_ids[known : known + 4]
            width = 2 * len(drafted) + 1
            lengths = [known + (node + 1) // 2 for node in range(width)]
            histories = [case._replace(output_ids=case.output_ids[:n]) for n in lengths]
            before = random_logits(width, self.vocab_size)
            expected = self._edited(histories, before)
            custom_params = histories[0].custom_params()
            self.processor()(before[:1].clone(), [custom_params])
            rows = rows_of([custom_params])
            drafts = drafted_twice(drafted)
            for _ in range(2):
                after = before.clone()
                Batch().step(after, rows, [custom_params], drafts=drafts, width=width)
                for node, length in enumerate(lengths):
                    check_rows(
                        f"{length - known} drafted tokens after {known} others are not edited as "
                        "if they had come",
                        [histories[node]],
                        before[node : node + 1],
                        after[node : node + 1],
                        expected[node : node + 1],
                        "fork() must copy every part of the state that advance() changes",
                    )

    def test_keeps_nothing_on_the_instance(self) -> None:
        """An instance that served other requests makes the edits of a new instance."""
        cases = self._cases()
        used = self.processor()
        before = random_logits(1, self.vocab_size)
        for case in cases:
            after = used(before.clone(), [case.custom_params()])
            check_rows(
                "the edits depend on requests that the instance served before",
                [case],
                before,
                after,
                self._edited([case], before),
                _NOTHING_SHARED,
            )

    def test_in_a_chain_it_is_what_it_is_alone(self) -> None:
        """In a chain it makes the same edits, and a link that edits nothing changes no flag."""
        if issubclass(self.processor, ChainLogitProcessor):
            return
        chain = ChainLogitProcessor.limited_to({"it": self.processor, "none": _NoEdits}.__getitem__)
        cases, linked = self._cases(), []
        for case in cases:
            params = {f"0.{name}": value for name, value in case.params.items()}
            linked.append(case._replace(params={"chain": ["it", "none"], **params}))
            model = ServedModel.of(self.tokenizer, self.vocab_size, case.eos_token_ids)
            (alone,) = prepare(self.processor(), case.params, model)
            links = prepare(chain(), linked[-1].params, model)
            flags = attach_row(linked[-1].custom_params(), links).flags
            for name, flag, expected in zip(Flags._fields, flags, alone.in_row, strict=True):
                same = flag == expected or name == "name"
                check(same, f"beside another link {name} is {flag}, alone {expected}")
        before = random_logits(len(cases), self.vocab_size)
        check_rows(
            "in a chain it makes other edits",
            linked,
            before,
            chain()(before.clone(), [case.custom_params() for case in linked]),
            self._edited(cases, before),
            "read parameters from request.params, and declare edits on the argument of edit()",
        )

    def test_another_processor_can_run_it(self) -> None:
        """Its recorded edits can be added to the edits of another processor, as in a chain."""
        if self.processor.edit is LogitProcessor.edit:
            return

        class RunsAnother(self.processor):  # type: ignore[misc, name-defined]
            def edit(self, request: Any, edits: Edits) -> None:
                own = Recording(edits.vocab_size)
                super().edit(request, own)
                edits.add(own)
                if own.standing is not None:
                    edits.always().add(own.standing)

        cases = self._cases()
        before = random_logits(len(cases), self.vocab_size)
        after = RunsAnother()(before.clone(), [case.custom_params() for case in cases])
        check_rows(
            "run by another processor, as in a chain, it makes other edits",
            cases,
            before,
            after,
            self._edited(cases, before),
            "declare edits on the argument of edit() only",
        )

    # Helpers

    def _hint_on_steps(self) -> str:
        if self.processor.needs == History.NONE:
            return (
                "needs = History.NONE: edit() is called once for a request; a rule that reads "
                "tokens or positions needs History.TOKENS or History.POSITION"
            )
        if self.processor.needs == History.POSITION:
            return "needs = History.POSITION: advance() gets no tokens; set History.TOKENS"
        return "the state must follow from start() and advance(); check wake_at() as well"

    def _cases(self) -> list[Case]:
        """Make requests with random histories, the same at every call."""
        return random_cases(
            self.valid_params,
            self.token_ids,
            self.vocab_size,
            tokenizer=self.tokenizer,
            eos_token_ids=self.eos_token_ids,
        )

    def _edited(self, cases: Sequence[Case], logits: torch.Tensor) -> torch.Tensor:
        """Return edited logits, made by a new instance for new requests.

        Args:
            cases: The requests.
            logits: Shape ``(len(cases), vocab)``; not changed.
        """
        return self.processor()(logits.clone(), [case.custom_params() for case in cases])

    def _every_type(self, rows: int, vocab_size: int) -> Iterator[torch.Tensor]:
        """Yield random logits ``(rows, vocab_size)`` in every float type that SGLang serves."""
        for name in ("float32", "bfloat16", "float16"):
            yield random_logits(rows, vocab_size, name)
