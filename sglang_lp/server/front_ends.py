"""Every way into a server: guarded, or refused before it serves.

``docs/deploying.md`` shows this table.
"""

from __future__ import annotations

from typing import NamedTuple

from sglang_lp.server.launch import REFUSED

__all__ = ["FRONT_ENDS", "FrontEnd"]


class FrontEnd(NamedTuple):
    """A way into a server.

    Attributes:
        name: What SGLang calls it.
        started: How an operator starts it.
        way: Of the entry of ``REFUSED`` that refuses it, or ``None`` where it serves.
        note: What else there is to know.
    """

    name: str
    started: str
    way: str | None = None
    note: str = ""

    @property
    def why(self) -> str:
        """Why it is refused; empty where it serves."""
        return next((refused.why for refused in REFUSED if refused.way == self.way), "")


FRONT_ENDS = (
    FrontEnd("HTTP server", "`sglang-lp serve`, `sglang serve`, `python -m sglang.launch_server`"),
    FrontEnd("HTTP server of a program", "`launch_server(server_args)`"),
    FrontEnd("engine", "`sglang.Engine(...)`"),
    FrontEnd(
        "tokenizer workers",
        "`--tokenizer-worker-num N`",
        note="refused on SGLang 0.5.18, which loads no plugin in them",
    ),
    FrontEnd(
        "gRPC beside HTTP",
        "`--grpc-port`",
        note="through the HTTP server's gate; SGLang's own messages have no field for a processor",
    ),
    FrontEnd(
        "further nodes",
        "`--nnodes N --node-rank I`",
        note="no front end of their own; their schedulers are guarded",
    ),
    FrontEnd(
        "prefill and decode servers",
        "`--disaggregation-mode`",
        note="with `--enable-custom-logit-processor`, which `sglang-lp serve` adds",
    ),
    FrontEnd("encoder", "`--encoder-only`", note="samples nothing, so there is nothing to guard"),
    FrontEnd("Rust server", "`SGLANG_RUST_SERVER=1`", "SGLANG_RUST_SERVER=1"),
    FrontEnd("SMG gRPC", "`--smg-grpc-mode`", "--smg-grpc-mode"),
    FrontEnd(
        "SMG headless",
        "`SMG_SGLANG_ZMQ_HANDSHAKE`",
        "SMG_SGLANG_ZMQ_HANDSHAKE (smg_grpc_servicer.sglang.headless)",
    ),
    FrontEnd("Ray", "`--use-ray`, `RayEngine`", "--use-ray"),
)
