"""Events that come as JSON texts. Most are read by native code alone (src/engine/document); here is what a text means
otherwise, and what is wrong with one that means nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import pyarrow as pa

from hitbox.encoding.arrays import I64
from hitbox.encoding.codecs import decoded, is_text
from hitbox.encoding.values import brief
from hitbox.errors import TableError, ValueProblem

AROUND = 20
"""Characters of a text that a message shows on each side of a mistake."""
UNREADABLE: Any = object()
TAKES = "JSON events are a list of texts or bytes, an Arrow column of them, or bytes with one event per line"


def read_event(text: Any) -> dict[str, Any]:
    """The event that a text, in JSON and if it is bytes in UTF-8, stands for."""
    if not isinstance(text, (str, bytes)):
        if not isinstance(text, (bytearray, memoryview)):
            raise ValueProblem(f"a JSON event is a text or bytes, not {brief(text)}")
        text = bytes(text)
    try:
        found = json.loads(text)
    except json.JSONDecodeError as problem:
        shown = problem.doc[max(problem.pos - AROUND, 0) : problem.pos + AROUND]
        where = len(problem.doc[: problem.pos].encode(errors="surrogatepass"))
        raise ValueProblem(f"the event is no JSON: {problem.msg} at byte {where}, near {shown!r}") from None
    except UnicodeDecodeError as problem:
        raise ValueProblem(f"the event is not UTF-8: {problem.reason} at byte {problem.start}") from None
    except (RecursionError, ValueError) as problem:  # a number of thousands of digits
        raise ValueProblem(f"the event is no JSON that can be read: {problem}") from None
    if not isinstance(found, dict):
        raise ValueProblem(f"an event is an object of JSON, not {brief(found)}")
    return found


class JsonEvents(Sequence[dict[str, Any]]):
    """Many events: as a list of texts, or as the bytes of all of them with the place where each begins and ends."""

    def __init__(self, texts: list[Any], starts: I64 | None = None, data: Any = None):
        self.texts = texts
        self.starts, self.data = starts, data
        """`data` are the bytes, of which event i has those from starts[i] to starts[i + 1]; then `texts` is empty."""

    @classmethod
    def of(cls, given: Any) -> JsonEvents:
        if isinstance(given, cls):
            return given
        if isinstance(given, (list, tuple)):
            return cls(list(given))
        if isinstance(given, (pa.Array, pa.ChunkedArray)):
            return cls._of_column(given)
        if isinstance(given, (bytes, bytearray, memoryview)):
            return cls._of_lines(bytes(given))
        raise ValueProblem(f"{TAKES}, not {brief(given)}")

    @classmethod
    def _of_column(cls, column: Any) -> JsonEvents:
        array = decoded(column)
        kind = array.type
        if not (is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
            raise TableError(f"a column of {kind} holds no JSON texts; {TAKES}")
        if array.null_count:
            row = int(np.argmax(array.is_null().to_numpy(zero_copy_only=False)))
            raise TableError(f"event {row}: it is null, and no JSON text", [(row, "null")])
        array = array.cast(pa.large_binary())
        _, ends, data = array.buffers()
        starts = np.frombuffer(ends, np.int64)[array.offset : array.offset + len(array) + 1] if len(array) else [0]
        return cls([], np.ascontiguousarray(starts, np.int64), np.frombuffer(data or b"", np.uint8))

    @classmethod
    def _of_lines(cls, lines: bytes) -> JsonEvents:
        data = np.frombuffer(lines, np.uint8)
        ends = np.flatnonzero(data == ord("\n")) + 1
        if len(data) and data[-1] != ord("\n"):
            ends = np.append(ends, len(data))
        return cls([], np.append(np.int64(0), ends), data)

    def __len__(self) -> int:
        return len(self.texts) if self.starts is None else len(self.starts) - 1

    def text(self, number: int) -> Any:
        if self.starts is None:
            return self.texts[number]
        return self.data[self.starts[number] : self.starts[number + 1]].tobytes()

    @overload
    def __getitem__(self, at: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, at: slice) -> JsonEvents: ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, int):
            return read_event(self.text(at))
        if at.step not in (None, 1):
            return JsonEvents([self.text(number) for number in range(*at.indices(len(self)))])
        if self.starts is None:
            return JsonEvents(self.texts[at])
        first, end, _ = at.indices(len(self))
        return JsonEvents([], self.starts[first : max(first, end) + 1], self.data)

    def each(self) -> Iterator[tuple[int, Any, str]]:
        """(number, event, what is wrong with its text, which makes it UNREADABLE)."""
        for number in range(len(self)):
            try:
                yield number, self[number], ""
            except ValueProblem as problem:
                yield number, UNREADABLE, str(problem)
