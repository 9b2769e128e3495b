"""The broker's log: text or JSON, one line per message, on standard error.

Messages of the same kind come at most `BURST` times per `WINDOW_SECONDS`; the next one after that says how many were
left out. Errors that end the broker and lines of the access log are always written.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, TextIO

from hitbox.broker.clock import time

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
ACCESS = "hitbox.access"
BURST = 5
WINDOW_SECONDS = 60.0
MOST_KINDS = 1_000


def configure(level: LogLevel, format: LogFormat, stream: TextIO | None = None) -> None:
    """Write the log of this process to `stream`, standard error if None. Other packages log from warnings on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if format == "json" else TextLines())
    handler.addFilter(RepeatLimit())
    handler.addFilter(_withhold)
    root = logging.getLogger()
    for one in root.handlers[:]:
        root.removeHandler(one)
    root.addHandler(handler)
    wanted = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(max(wanted, logging.WARNING))
    logging.getLogger("hitbox").setLevel(wanted)


class MessageWithheld(Exception):
    """Stands in the log for an exception whose message may quote an event."""


def without_message(problem: BaseException) -> tuple[type[Exception], Exception, TracebackType | None]:
    """For `exc_info`: the traceback and the type of an exception."""
    return MessageWithheld, MessageWithheld(type(problem).__name__), problem.__traceback__


def _withhold(record: logging.LogRecord) -> bool:
    """The web server logs the errors of requests too."""
    if record.name.startswith("uvicorn") and record.exc_info and record.exc_info[1] is not None:
        record.exc_info, record.exc_text = without_message(record.exc_info[1]), None
    return True


class RepeatLimit(logging.Filter):
    """Leaves out repeated warnings and errors. A kind is a logger with a message before its values are filled in."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[tuple[str, int, str], list[float]] = {}  # start of the window, written, left out

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.CRITICAL or record.name == ACCESS:
            return True
        key = (record.name, record.levelno, str(record.msg))
        now = time.monotonic()
        seen = self._kinds.get(key)
        if seen is None or now - seen[0] >= WINDOW_SECONDS:
            if seen is not None and seen[2]:
                record.left_out = int(seen[2])
            self._kinds.pop(key, None)
            if len(self._kinds) >= MOST_KINDS:
                del self._kinds[next(iter(self._kinds))]
            self._kinds[key] = [now, 1, 0]
            return True
        if seen[1] < BURST:
            seen[1] += 1
            return True
        seen[2] += 1
        return False


def _when(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> str:
    left_out = getattr(record, "left_out", 0)
    return record.getMessage() + (f" ({left_out} more like this were left out)" if left_out else "")


class TextLines(logging.Formatter):
    """2026-01-31T12:00:00.000Z WARNING hitbox.broker: message. A traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in _message(record))
        lines = [f"{_when(record)} {record.levelname} {record.name}: {text}"]
        if record.exc_info:
            lines.append(self.formatException(record.exc_info))
        return "\n".join(lines)


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, logger, message, traceback, and the fields of an access line."""

    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, Any] = {
            "time": _when(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return json.dumps(found)
