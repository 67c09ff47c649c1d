"""The served model's tokenizer, for traces: ``GET /sglang_lp/tokenizer``.

A trace replays rules on texts, which need the bytes of the whole vocabulary. SGLang's
``/detokenize`` gives the text of single tokens, without the bytes of a part of a character.
SGLang's ``--api-key`` protects the endpoint as it protects ``/generate``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import orjson

from sglang_lp.errors import Unsupported, shown
from sglang_lp.server.gate.coded import Coded
from sglang_lp.wire.names import MAX_TOKENIZER_BYTES, TOKENIZER_PATH

if TYPE_CHECKING:
    from sglang_lp.server.gate.guard import Guard

#: Bytes of one part of an answer, and so what waits for a client that does not read.
_PART = 1 << 16


@lru_cache(maxsize=1)
def write_tokenizer(tokenizer: Any) -> bytes | Unsupported:
    """Return a tokenizer as the JSON of a ``tokenizer.json``, or the error that clients get.

    Both are made once and kept: the library lets no other thread run meanwhile.

    Args:
        tokenizer: As SGLang loaded it, or ``None``.
    """
    if tokenizer is None:
        return Unsupported("this server has no tokenizer (--skip-tokenizer-init)")
    fast = getattr(tokenizer, "backend_tokenizer", tokenizer)
    try:
        written: bytes = fast.to_str().encode()
    except Exception as error:  # noqa: BLE001 - the library raises bare Exceptions
        return Unsupported(
            f"this server's tokenizer ({type(tokenizer).__name__}) cannot be written as a "
            f"tokenizer.json: {shown(str(error), 200)}"
        )
    if len(written) > MAX_TOKENIZER_BYTES:
        return Unsupported(
            f"expected a tokenizer of at most {MAX_TOKENIZER_BYTES >> 20} MiB, this server's has "
            f"{len(written) >> 20} MiB"
        )
    return written


def add_tokenizer(app: Any, guard: Guard) -> None:
    """Add the endpoint to SGLang's HTTP app.

    Args:
        app: SGLang's app.
        guard: The guard of this process.
    """
    from starlette.responses import JSONResponse, StreamingResponse

    async def answer(_request: Any) -> Any:
        model = guard.server.model
        written = write_tokenizer(model.tokenizer)
        if isinstance(written, Unsupported):
            coded = Coded.of(written)
            error = {"message": coded.message, **coded.entries}
            return JSONResponse({"error": error}, status_code=400)
        facts = {"vocab_size": model.vocab_size, "eos_token_ids": model.eos_token_ids}
        begin = orjson.dumps(facts)[:-1] + b',"tokenizer":'

        async def parts() -> AsyncIterator[bytes]:
            yield begin
            for place in range(0, len(written), _PART):
                yield written[place : place + _PART]
            yield b"}"

        length = len(begin) + len(written) + 1
        headers = {"Content-Length": str(length)}
        return StreamingResponse(parts(), media_type="application/json", headers=headers)

    app.add_route(TOKENIZER_PATH, answer, methods=["GET"])
