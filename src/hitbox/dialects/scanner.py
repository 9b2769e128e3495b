"""The tokens of a text, and a place in it: what the parsers of selectors and expressions share."""

from __future__ import annotations

import re

from hitbox.dialects.conditions import MAX_DEPTH, MAX_TEXT
from hitbox.encoding.values import forbidden, forbidden_name
from hitbox.errors import DialectError, printable


class Scanner:
    """`kind` and `piece` are those of the token that comes next. A keyword, and a mark such as `(`, is its own kind;
    the others have the name of their group in the pattern. The last token is `end`."""

    def __init__(self, text: str, what: str, pattern: re.Pattern[str], keywords: frozenset[str], hints: dict[str, str]):
        """`what` is what a text of the dialect is called; `hints` say what to write instead of a strange character."""
        if not isinstance(text, str):
            raise DialectError(f"a {what} is a text, not {type(text).__name__}")
        if len(text) > MAX_TEXT:
            raise DialectError(f"the {what} has {len(text)} characters; the limit is {MAX_TEXT}: split it")
        self.text, self._what, self._depth = text, what, 0
        bad = forbidden(text)
        if bad is not None:
            raise self.error(f"{forbidden_name(text[bad])} cannot be part of a predicate: remove it", bad)
        self._tokens: list[tuple[str, str, int]] = []
        for match in pattern.finditer(text):
            kind = match.lastgroup or "end"
            piece, start = match[kind], match.start(kind)
            if kind == "bad":
                raise self.error(_hint(piece, text[start : start + 2], hints), start)
            if kind == "mark" or (kind == "name" and piece.upper() in keywords):
                kind = piece.upper()
            self._tokens.append((kind, piece, start))
            if kind == "end":
                break
        self._at = 0
        self.kind, self.piece, self.position = self._tokens[0]

    def advance(self) -> str:
        """Go on to the next token; the text of this one."""
        piece = self.piece
        self._at += 1
        self.kind, self.piece, self.position = self._tokens[self._at]
        return piece

    def take(self, kind: str) -> bool:
        """Go on if the token is of this kind; whether it was."""
        if self.kind != kind:
            return False
        self.advance()
        return True

    def expect(self, kind: str, wanted: str) -> str:
        if self.kind != kind:
            raise self.unexpected(wanted)
        return self.advance()

    def following(self) -> str:
        """The kind of the token after this one."""
        return self._tokens[min(self._at + 1, len(self._tokens) - 1)][0]

    def deeper(self) -> None:
        """Parentheses open."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self.error(f"the {self._what} is nested more than {MAX_DEPTH} deep: flatten it")

    def shallower(self) -> None:
        """Parentheses close."""
        self._depth -= 1

    def error(self, message: str, position: int | None = None) -> DialectError:
        """An error that points at a place, by default at this token."""
        return DialectError(message, self.text, self.position if position is None else position)

    def unexpected(self, wanted: str) -> DialectError:
        found = f"the end of the {self._what}" if self.kind == "end" else printable(self.piece[:40])
        return self.error(f"expected {wanted}, found {found}")


def _hint(character: str, two: str, hints: dict[str, str]) -> str:
    found = hints.get(two) or hints.get(character)
    return found or f"unexpected character {printable(character)!r} (U+{ord(character):04X})"
