"""Send a batch to ``POST /generate`` in which one prompt has a processor and one has none.

python examples/http_generate.py http://127.0.0.1:30000
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any
from urllib.request import Request, urlopen

import orjson

from sglang_lp.client import attach, attach_each


def post(url: str, body: dict[str, Any]) -> Any:
    """Send one JSON request."""
    headers = {"Content-Type": "application/json"}
    request = Request(url, orjson.dumps(body), headers)  # noqa: S310 - the caller's server
    with urlopen(request, timeout=60) as response:  # noqa: S310
        return orjson.loads(response.read())


def main(url: str) -> None:
    """Print both answers."""
    hello = attach("ForcedSequenceLogitProcessor", text="Hello world!")
    batch = {
        "text": ["What is 2 + 3?", "What is 2 + 3?"],
        "sampling_params": {"temperature": 0, "max_new_tokens": 16},
    }
    for answer in post(f"{url}/generate", attach_each([hello, None]).generate_body(batch)):
        print(repr(answer["text"]))


if __name__ == "__main__":
    parser = ArgumentParser()
    parser.add_argument("url", help="of a server, such as http://127.0.0.1:30000")
    main(parser.parse_args().url.rstrip("/"))
