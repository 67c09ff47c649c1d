"""``sglang-lp doctor``: check this environment and policy, or a running server."""

from __future__ import annotations

import stat
import sys
from functools import cache, partial
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_lp.adapters import AdaptedProcessor, find_entry_points
from sglang_lp.cli import matrix, policy_option, server_checks
from sglang_lp.cli.terminal import counted, progress, say, say_json
from sglang_lp.errors import SglangLpError, UsageError, shown

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from sglang_lp.catalogue.opened import Catalogue
    from sglang_lp.trust import Verifier

    Opened = Callable[[], Mapping[str, Catalogue]]


#: Results of a check, as a person and as a program reads them.
_RESULTS = {"ok": "ok", "--": "skipped", "!!": "warning", "FAILED": "failed"}


def add(verbs: Any) -> None:
    """Add the verb's parser."""
    parser = verbs.add_parser(
        "doctor",
        help="check this environment and policy, or a running server",
        description="Check, without starting a server, that a guarded server can start here. With "
        "--url, check instead that a running server is guarded, and that processors reach each "
        "endpoint through all routers and proxies. OPENAI_API_KEY is sent if it is set.",
    )
    parser.add_argument(
        "--url",
        metavar="URL",
        action="append",
        help="check the server at this URL, and not this environment; give it several times to "
        "compare the policies of several servers",
    )
    parser.add_argument(
        "--matrix",
        action="store_true",
        help="with --url: ask for JSON, regular expressions and tool calls in every combination "
        "with streams and thinking, and say what came; about 160 short requests",
    )
    policy_option.add_option(parser)
    parser.add_argument(
        "--model",
        metavar="DIR",
        help="a model's directory: also check that the policy fits this model",
    )
    parser.add_argument(
        "--reasoning-parser",
        metavar="NAME",
        help="with --model, the server's --reasoning-parser, which names the delimiters of "
        "thinking",
    )
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each check")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.matrix and arguments.url is None:
        raise UsageError("--matrix: expected --url with it")
    for name in ("policy", "model", "reasoning_parser") if arguments.url else ():
        if getattr(arguments, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option}: expected none with --url, which checks a running server")
    if arguments.matrix:
        return max(_show_matrix(url, json=arguments.json) for url in arguments.url)
    if arguments.url is not None:
        return _ask(arguments.url, json=arguments.json)
    if arguments.reasoning_parser is not None and arguments.model is None:
        raise UsageError("--reasoning-parser: expected --model with it")
    verifier = cache(partial(_verifier, arguments.policy))
    opened = cache(partial(_open_catalogues, arguments.policy))
    checks: list[tuple[str, Callable[[], str]]] = [
        ("Python", lambda: sys.version.split()[0]),
        ("SGLang", lambda: _check_sglang(arguments.policy)),
        ("plugin", _check_plugin),
        ("policy", lambda: _check_policy(arguments.policy, verifier)),
        ("catalogues", lambda: _check_catalogues(verifier, opened)),
        ("policy and model", lambda: _check_model(arguments, verifier, opened)),
        ("other engines' processors", lambda: _check_adapted(verifier)),
    ]
    return _report(checks, json=arguments.json)


def _ask(urls: Sequence[str], *, json: bool) -> int:
    if len(urls) == 1:
        return _report(server_checks.checks(urls[0]), urls[0], json=json)
    code = 0
    for url in urls:
        if not json:
            say(f"{url}:")
        code |= _report(server_checks.checks(url), url, json=json)
    if not json:
        say("all of them:")
    same = partial(server_checks.check_same_policy, urls)
    return code | _report([("the same policy", same)], "all of them", json=json)


def _show_matrix(url: str, *, json: bool) -> int:
    """Ask a server for every combination, and print what came; return the exit code."""
    served = matrix.look_at(url)
    with progress(f"asking {url}"):
        results = matrix.ask(served)
    if json:
        for result in results:
            say_json({"where": url, **result.line()})
        return 0 if matrix.passed(results) else 1
    say(f"{url}: {matrix.describe(served)}")
    rows = matrix.table(results)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        say("  ".join(map(str.ljust, row, widths)).rstrip())
    for remark in matrix.remarks(results):
        say(remark)
    for error in matrix.errors(results):
        say(f"error: {error}")
    return 0 if matrix.passed(results) else 1


def _report(
    checks: Iterable[tuple[str, Callable[[], str]]], where: str = "here", *, json: bool
) -> int:
    """Run checks, and print each result as soon as it is known; return the exit code."""
    failed = False
    for name, check in checks:
        try:
            result, text = "ok", check()
        except server_checks.Skipped as why:
            result, text = "--", str(why)
        except server_checks.Warned as why:
            result, text = "!!", str(why)
        except SglangLpError as error:
            result, text = "FAILED", str(error)
            failed = True
        if json:
            say_json({"where": where, "check": name, "result": _RESULTS[result], "text": text})
        else:
            say(f"{result:<8}{name}: {text}")
    return 1 if failed else 0


def _check_sglang(policy: str | None) -> str:
    from sglang_lp.server.versions import NEWEST, OLDEST, check_version

    if policy is not None and find_spec("sglang") is None:  # an author's environment
        raise server_checks.Warned(
            "not installed: this environment checks a policy, and cannot serve it"
        )
    return f"{check_version()} (supported: {OLDEST} to {NEWEST})"


def _check_plugin() -> str:
    found = [
        entry for entry in entry_points(group="sglang.srt.plugins") if entry.name == "sglang_lp"
    ]
    if not found:
        raise SglangLpError(
            "no entry point sglang_lp in the group sglang.srt.plugins; install sglang-lp with pip"
        )
    from sglang_lp.server.startup.serve import check_environment

    check_environment()
    return found[0].value


def _verifier(named: str | None) -> Verifier:
    return policy_option.check(policy_option.choose(named))


def _check_policy(named: str | None, verifier: Callable[[], Verifier]) -> str:
    policy = policy_option.choose(named)
    _check_writers(Path(policy.source))
    policy.read_watermark()
    return f"{counted(len(verifier().allowed), 'processor')} allowed ({policy.source})"


def _check_model(
    arguments: argparse.Namespace, verifier: Callable[[], Verifier], opened: Opened
) -> str:
    """Check the policy against the tokenizer and the vocabulary of a model."""
    if arguments.model is None:
        raise server_checks.Skipped("not compared; give --model DIR")
    _skip_after_error(verifier, "the policy is wrong")
    _skip_after_error(opened, "a catalogue cannot be opened")
    from sglang_lp.client.models import load_model

    policy = policy_option.choose(arguments.policy)
    served = load_model(arguments.model)._replace(
        catalogues=opened(), watermark=policy.read_watermark()
    )
    if arguments.reasoning_parser is not None:
        from sglang_lp.server.gate.reasoning_parser import reasoning_format

        reasoning = reasoning_format(arguments.reasoning_parser, served.tokenizer)
        if reasoning is None:
            raise UsageError(
                "--reasoning-parser: expected a parser of this SGLang that names its delimiters, "
                f"got {shown(arguments.reasoning_parser)}"
            )
        served = served._replace(reasoning=reasoning)
    policy_option.check(policy, served)
    return f"every decision fits {shown(arguments.model, 200)[1:-1]}"


def _open_catalogues(named: str | None) -> Mapping[str, Catalogue]:
    policy = policy_option.choose(named)
    return policy.open_catalogues().now if policy.catalogues else {}


def _skip_after_error(checked: Callable[[], object], why: str) -> None:
    """Leave out a check that would repeat the error of an earlier one.

    Raises:
        Skipped: The earlier check failed.
    """
    try:
        checked()
    except SglangLpError:
        raise server_checks.Skipped(f"not checked: {why}") from None


def _check_catalogues(verifier: Callable[[], Verifier], opened: Opened) -> str:
    _skip_after_error(verifier, "the policy is wrong")
    return (
        ", ".join(
            f"{name} ({counted(one.index.shape.items, 'item')}, version {one.index.version})"
            for name, one in opened().items()
        )
        or "none"
    )


def _check_writers(path: Path) -> None:
    """Refuse a policy file that any user can write or replace.

    Raises:
        SglangLpError: Such a file; the message says what to do.
    """
    if not path.is_file():  # the default policy
        return
    path = path.resolve()
    for place in (path, *path.parents):
        mode = place.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise SglangLpError(
                f"--policy: {shown(str(place), 200)}: expected a place that only its owner can "
                f"write, got mode {stat.S_IMODE(mode):o}; chmod o-w it"
            )


def _check_adapted(verifier: Callable[[], Verifier]) -> str:
    _skip_after_error(verifier, "the policy is wrong")
    adapted = {
        one.name: one.processor.title
        for one in verifier().allowed
        if issubclass(one.processor, AdaptedProcessor)
    }
    # The policy may name a class by an alias.
    lines = [
        title if title.startswith(f"{name} ") else f"{name}, which is {title}"
        for name, title in adapted.items()
    ]
    lines += [
        f'installed but not allowed: {entry.value}; to allow it: [[adapt]] entry_point = "{name}"'
        for name, entry in sorted(find_entry_points().items())
        if entry.value not in adapted
    ]
    return "".join(f"\n          {line}" for line in lines) or "none"
