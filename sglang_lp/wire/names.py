"""Names of headers, of metadata and of the report, as clients see them."""

from __future__ import annotations

__all__ = [
    "CHOICES_HEADER",
    "ENTRY",
    "ERROR_CODE",
    "HEADER",
    "LIST_PATH",
    "MAX_TOKENIZER_BYTES",
    "POLICY_HEADER",
    "REPORT",
    "TOKENIZER_PATH",
]

#: Header of a whole response: the probabilities of the choices, in their order.
CHOICES_HEADER = "X-SGLang-LP-Choices"

#: Key of a request's ``metadata`` that may hold a payload, a name or a routed form.
ENTRY = "sglang_lp"

#: Key of SGLang's error objects for the stable code of an error of this toolkit.
ERROR_CODE = "sglang_lp_code"

#: Header of a response: names of the processors that ran, with commas between them, or ``none``.
HEADER = "X-SGLang-LP"

#: Path of the endpoint that lists what clients may ask for.
LIST_PATH = "/sglang_lp"

#: Header of a response: the fingerprint of its server's policy.
POLICY_HEADER = "X-SGLang-LP-Policy"

#: Key of an answer's ``meta_info`` that holds the report.
REPORT = "sglang_lp"

#: Path of the endpoint that returns the served model's tokenizer, and its largest size.
TOKENIZER_PATH = "/sglang_lp/tokenizer"
MAX_TOKENIZER_BYTES = 64 << 20
