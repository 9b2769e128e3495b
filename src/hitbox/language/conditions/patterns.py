"""LIKE patterns, matched without backtracking and never by a regular expression.

    'ab%c_e%f'   ->   head 'ab'   middle 'c_e'   tail 'f'

A pattern is cut at its `%`. Head and tail are anchored. Each middle segment is searched from left to right, and the
first place found is taken; that is right because a segment has a fixed length. A segment without `_` is found by
`str.find`. One with `_` is first tried where its longest run of plain text occurs. If a few such tries fail, the text
may be hostile, and the rest of the search takes a bounded time:

    up to AUTOMATON_LENGTH   the Shift-And automaton (Baeza-Yates and Gonnet 1992), a few machine words per character of
                             the text: about 10 ms for 60,000 characters
    longer                   a sieve: the places of a character in the text are the bits of a number, so each character
                             of the segment rules places out by one shift and one AND. At worst n * m / 64 machine
                             words: about 15 ms for a text of 60,000 and a segment of 10,000

`_` stands for one code point.
"""

from __future__ import annotations

import random
from itertools import groupby, takewhile

import numpy as np

from hitbox.errors import HitboxError
from hitbox.language.conditions.letters import lower
from hitbox.language.steps import PLAIN_TEXT, WILDCARDS

MAX_TRIES, MAX_RUNS_TRIED = 4, 200
AUTOMATON_LENGTH = 512
SIEVE_STEP = 8
ANY, ONE = b"\xff", b"\xfe"
"""`%` and `_` for native code: neither is a byte of UTF-8."""
_ONE = None
_LAST = 0x10FFFF
_Segment = list[str | None] | str  # a text, where it has no wildcard


class Pattern:
    """A compiled pattern; call it with a text.

    `prefix` is the literal text before the first wildcard. `shape` says what is left after it: "" where the
    pattern is plain text, "%" where anything may follow, "*" where the pattern must be called to know. `suffix` is the
    literal text after the last wildcard, and `ends` says whether that is all: '%abc'.
    """

    __slots__ = ("_per_step", "_segments", "ends", "prefix", "shape", "suffix", "text")

    def __init__(self, text: str, escape: str | None = None, any_case: bool = False):
        """`any_case` is for ILIKE: the text that is called must be in lower case, too."""
        self.text = text
        segments = _segments(text, escape)
        if any_case:
            segments = [
                lower(one) if isinstance(one, str) else [c if c is _ONE else lower(c) for c in one] for one in segments
            ]
        head = segments[0]
        self.prefix = "".join(_before_wildcard(head))
        whole = len(self.prefix) == len(head)
        if whole and len(segments) == 1:
            self.shape = ""
        else:
            self.shape = "%" if whole and not any(segments[1:]) else "*"
        tail = segments[-1]
        self.suffix = "".join(_before_wildcard(tail[::-1]))[::-1]
        self.ends = len(segments) > 1 and len(self.suffix) == len(tail) and not any(segments[:-1])
        kept = segments if len(segments) < 3 else [head, *(s for s in segments[1:-1] if s), segments[-1]]
        self._segments = [_Finder(segment) for segment in kept]
        self._per_step = WILDCARDS if any(segment.has_wildcards for segment in self._segments[1:-1]) else PLAIN_TEXT

    def bounds(self) -> list[str]:
        """The texts that bound the range of the prefix; none where every text may match."""
        if not self.shape:
            return [self.prefix]
        above = successor(self.prefix)
        return [text for text in (self.prefix, above) if text]

    def fragments(self) -> list[str]:
        """The texts between the wildcards, all of which a matching text contains."""
        return [run for segment in self._segments for _, run in segment.runs]

    def code(self) -> bytes:
        """The pattern as native code takes it (src/engine/program/patterns.hpp)."""
        return ANY.join(segment.code() for segment in self._segments)

    def work(self, text: str) -> int:
        """The steps that it takes at most to search a text."""
        return len(text) // self._per_step

    @property
    def is_fragment(self) -> bool:
        """Whether the pattern asks for one fragment anywhere, as '%abc%' does, and for nothing else."""
        if len(self._segments) != 3:
            return False
        head, middle, tail = self._segments
        return not head.length and not tail.length and len(middle.runs) == 1 and middle.length == len(middle.runs[0][1])

    @staticmethod
    def complete(text: str, escape: str) -> bool:
        """Does every escape character have something to escape?"""
        return not (len(text) - len(text.rstrip(escape))) % 2

    def __call__(self, text: str) -> bool:
        head, tail = self._segments[0], self._segments[-1]
        if len(self._segments) == 1:
            return len(text) == head.length and head.at(text, 0)
        place, end = head.length, len(text) - tail.length
        if place > end or not head.at(text, 0) or not tail.at(text, end):
            return False
        marks: dict[str, int] = {}
        for segment in self._segments[1:-1]:
            found = segment.find(text, place, end, marks)
            if found < 0:
                return False
            place = found + segment.length
        return True


class _Finder:
    """One segment of a pattern, between two `%`."""

    __slots__ = ("_anchor", "_checks", "_masks", "_wild", "length", "runs")

    def __init__(self, segment: _Segment):
        self.length = len(segment)
        self.runs: list[tuple[int, str]] = []
        self._masks: dict[str, int] = {}
        self._checks: list[tuple[int, str]] = []
        if isinstance(segment, str):
            self._anchor = 0, segment
            if segment:
                self.runs.append(self._anchor)
            self._wild = 0
            return
        place = 0
        for literal, group in groupby(segment, key=lambda c: c is not _ONE):
            run = list(group)
            if literal:
                self.runs.append((place, "".join(map(str, run))))
            place += len(run)
        self._wild = sum(1 << i for i, c in enumerate(segment) if c is _ONE)
        self._anchor = max(self.runs, key=lambda run: len(run[1]), default=(0, ""))

    @property
    def has_wildcards(self) -> bool:
        return self._wild != 0

    def code(self) -> bytes:
        found, place = b"", 0
        for offset, run in self.runs:
            found += ONE * (offset - place) + run.encode(errors="surrogatepass")
            place = offset + len(run)
        return found + ONE * (self.length - place)

    def at(self, text: str, place: int) -> bool:
        return all(text.startswith(run, place + offset) for offset, run in self.runs)

    def find(self, text: str, start: int, end: int, marks: dict[str, int]) -> int:
        """The leftmost place within text[start:end], or -1; `marks` keeps what is known of the text between calls."""
        offset, run = self._anchor
        if not self._wild:
            return text.find(run, start, end)
        last = end - self.length
        if start > last:
            return -1
        if not run:
            return start
        for _ in range(min(MAX_TRIES, 1 + MAX_RUNS_TRIED // len(self.runs))):
            start = text.find(run, start + offset, last + offset + len(run)) - offset
            if start < 0:
                return -1
            if self.at(text, start):
                return start
            start += 1
        if self.length <= AUTOMATON_LENGTH:
            return self._automaton(text, start, end)
        return self._sieve(text, start, last, marks) if start <= last else -1

    def _automaton(self, text: str, start: int, end: int) -> int:
        wild, masks = self._wild, self._masks
        if not masks:
            for i, c in self._literals():
                masks[c] = masks.get(c, wild) | 1 << i
        state, last = 0, 1 << (self.length - 1)
        for place in range(start, end):
            state = (state << 1 | 1) & masks.get(text[place], wild)
            if state & last:
                return place - self.length + 1
        return -1

    def _literals(self) -> list[tuple[int, str]]:
        return [(offset + at, c) for offset, run in self.runs for at, c in enumerate(run)]

    def _sieve(self, text: str, start: int, last: int, marks: dict[str, int]) -> int:
        if not self._checks:
            checks = self._literals()
            random.shuffle(checks)  # so that no one can arrange for the check that fails to come last
            first = {c: (place, c) for place, c in checks}  # one of each character: some may not occur at all
            self._checks = [*first.values(), *checks]
        left = (1 << (last - start + 1)) - 1
        for count, (offset, c) in enumerate(self._checks, 1):
            if c not in marks:
                marks[c] = _places(text, c)
            left &= marks[c] >> (start + offset)
            if not left:
                return -1
            if count % SIEVE_STEP == 0 and left.bit_count() <= SIEVE_STEP:
                break
        while left:
            lowest = left & -left
            place = start + lowest.bit_length() - 1
            if self.at(text, place):
                return place
            left ^= lowest
        return -1


def _places(text: str, c: str) -> int:
    """A number whose bit i says whether character i of the text is c."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return int.from_bytes(np.packbits(codes == ord(c), bitorder="little").tobytes(), "little")


def successor(text: str) -> str | None:
    """The smallest text above every text that starts with `text`; None where there is none.

    >>> successor("ab"), successor("a\\U0010ffff"), successor("\\U0010ffff")
    ('ac', 'b', None)
    """
    for end in range(len(text), 0, -1):
        code = ord(text[end - 1])
        if code < _LAST:
            return text[: end - 1] + chr(0xE000 if code == 0xD7FF else code + 1)
    return None


def _before_wildcard(segment: _Segment) -> list[str] | str:
    return segment if isinstance(segment, str) else [c for c in takewhile(lambda c: c is not _ONE, segment) if c]


def _segments(text: str, escape: str | None) -> list[_Segment]:
    if escape is None and "_" not in text:
        return list(text.split("%"))
    segments: list[list[str | None]] = [[]]
    characters = iter(text)
    for c in characters:
        if c == escape:
            literal = next(characters, None)
            if literal is None:
                raise HitboxError(f"the pattern ends with its escape character {escape!r}: write it twice")
            segments[-1].append(literal)
        elif c == "%":
            segments.append([])
        else:
            segments[-1].append(_ONE if c == "_" else c)
    return list(segments)
