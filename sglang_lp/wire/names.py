"""Names of headers, of metadata and of the report, as clients see them."""

from __future__ import annotations

__all__ = ["ENTRY", "HEADER", "POLICY_HEADER", "REPORT"]

#: Key of a request's ``metadata`` that may hold a payload, a name or a routed form.
ENTRY = "sglang_lp"

#: Header of a response: names of the processors that ran, with commas between them, or ``none``.
HEADER = "X-SGLang-LP"

#: Header of a response: the fingerprint of its server's policy.
POLICY_HEADER = "X-SGLang-LP-Policy"

#: Key of an answer's ``meta_info`` that holds the report.
REPORT = "sglang_lp"
