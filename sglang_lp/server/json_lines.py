"""One JSON object for each line of the log, for SGLang's ``SGLANG_LOGGING_CONFIG_PATH``."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import orjson


class JsonLines(logging.Formatter):
    """Formats a record as a JSON object on one line.

    The object has ``time`` (ISO 8601, UTC), ``level``, ``logger``, ``process`` and ``message``;
    a record of an exception also has ``traceback``. A record of the audit trail has the entries of
    its own object in place of ``message``.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
        }
        message = record.getMessage()
        if record.name == "sglang_lp.audit":
            line |= orjson.loads(message)
        else:
            line["message"] = message
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        try:
            return orjson.dumps(line).decode()
        except TypeError:  # half of a surrogate pair, which UTF-8 does not have
            return orjson.dumps({key: ascii(value) for key, value in line.items()}).decode()
