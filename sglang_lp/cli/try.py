"""``sglang-lp try``: a local page that sends a prompt with and without a processor."""

from __future__ import annotations

import argparse
import webbrowser
from threading import Thread
from typing import Any

from sglang_lp.cli import policy_option
from sglang_lp.cli.terminal import say


def add(verbs: Any) -> None:
    """Add the verb's parser."""
    parser = verbs.add_parser(
        "try",
        help="open a page that sends a prompt with and without a processor",
        description="Serve a page to this machine's browser: choose a processor of a running "
        "server, fill in its parameters, and see an answer with it and one without it, with the "
        "trace and the request to copy. OPENAI_API_KEY is sent to the server if it is set. Ends "
        "with Ctrl-C.",
    )
    parser.add_argument("--url", required=True, help="URL of a server with the plugin")
    parser.add_argument(
        "--no-open", action="store_true", help="print the page's address, and open no browser"
    )
    policy_option.add_option(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from sglang_lp.cli.trying.page_server import PageServer
    from sglang_lp.cli.trying.target import Target

    with PageServer(Target.find(arguments.url, policy_option.choose(arguments.policy))) as server:
        say(f"{server.page}  (Ctrl-C ends it)")
        if not arguments.no_open:
            # In a thread: a browser in the terminal runs until the person leaves it.
            Thread(target=webbrowser.open, args=(server.page,), daemon=True).start()
        server.serve_forever()
    return 0
