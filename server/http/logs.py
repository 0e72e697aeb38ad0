"""The log: a line an event on standard error, as JSON or as text; what identifies an event stands in its own fields."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

__all__ = ["REQUESTS", "set_up"]

REQUESTS = "superopt.requests"  # the logger of requests
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


def set_up(level: str, form: str, *, access: bool = True) -> None:
    """Log to standard error, in place of what was set up before.

    Args:
        level: the least that is logged, as "info".
        form: "json", "text", or "auto": text where standard error is a terminal.
        access: whether requests are logged.
    """
    text = form == "text" or (form == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler()
    handler.setFormatter(_Text() if text else _Json())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of every malformed body
    logging.getLogger(REQUESTS).setLevel(logging.NOTSET if access else logging.WARNING)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _PLAIN}


def _when(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _when(record), "level": record.levelname.lower(), "logger": record.name,
            "event": record.getMessage(), "process": record.process, **_fields(record),
        }  # fmt: skip
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={json.dumps(value, default=str)}" for name, value in _fields(record).items())
        error = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{_when(record)} {record.levelname.lower():7} {record.name} {record.getMessage()}{fields}{error}"
