"""The parser of the command line: errors that suggest the name that was meant."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

from sglang_lp.errors import did_you_mean


class Parser(argparse.ArgumentParser):
    """A parser whose errors suggest verbs and options."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error, and exit with code 2."""
        super().error(message + self._hint(message))

    def _hint(self, message: str) -> str:
        if choice := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            return did_you_mean(choice[1], re.findall(r"[\w-]+", choice[2]), cutoff=0.5)
        if unknown := re.match(r"unrecognized arguments: (--[\w-]+)", message):
            options = [name for action in self._actions for name in action.option_strings]
            if hint := did_you_mean(unknown[1], options):
                return hint
            if "-- " in (self.usage or ""):
                rest = message.partition(": ")[2]
                return f"; SGLang's own arguments come after --: {self.prog} -- {rest} ..."
        return ""
