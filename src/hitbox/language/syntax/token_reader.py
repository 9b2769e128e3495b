"""Reads the tokens of a predicate from left to right, and says which one does not fit and why.

The readers stand on each other: tokens, names (name_reader.py), values (value_reader.py), conditions (parser.py).
"""

from __future__ import annotations

from hitbox.errors import LimitExceeded, SyntaxProblem, TypeProblem
from hitbox.language.limits import Limits
from hitbox.language.syntax.lexer import KEYWORDS, tokens
from hitbox.language.syntax.literals import short, string

AFTER_A_VALUE = frozenset(["op", "IS", "IN", "BETWEEN", "LIKE"])
"""Tokens that begin a test: what stands before them is meant as a value."""


class TokenReader:
    __slots__ = ("at", "kinds", "limits", "starts", "text", "texts")

    def __init__(self, text: str, limits: Limits):
        self.text, self.limits = text, limits
        self.kinds, self.texts, self.starts = tokens(text)
        self.at = 0
        """The number of the token that comes next."""

    def is_word(self, word: str) -> bool:
        """Whether this word, which is no keyword, comes next."""
        return self.kinds[self.at] == "name" and self.texts[self.at].upper() == word

    def expect(self, kind: str, wanted: str) -> None:
        if self.kinds[self.at] != kind:
            raise self.unexpected(wanted)
        self.at += 1

    def quoted_text(self, wanted: str) -> str:
        self.expect("string", wanted)
        return string(self.texts[self.at - 1])

    def unexpected(self, wanted: str) -> SyntaxProblem:
        """The error of the next token, where something else was wanted."""
        kind, text = self.kinds[self.at], self.texts[self.at]
        if kind == "end":
            token = "the end of the predicate"
        elif kind in KEYWORDS:
            token = f"the keyword {kind}"
            if wanted == "a condition" and self.kinds[self.at + 1] in AFTER_A_VALUE:
                token += f' (an attribute of that name is written "{text}")'
        else:
            token = short(text)
        return self.wrong_syntax(f"expected {wanted}, found {token}")

    # ---- errors at a place in the text; without one, at the next token

    def wrong_syntax(self, message: str, position: int | None = None) -> SyntaxProblem:
        return SyntaxProblem(message, self.text, self.starts[self.at] if position is None else position)

    def wrong_type(self, message: str, position: int) -> TypeProblem:
        return TypeProblem(message, self.text, position)

    def too_large(self, message: str, position: int | None = None) -> LimitExceeded:
        return LimitExceeded(message, self.text, self.starts[self.at] if position is None else position)

    def check_depth(self, depth: int) -> None:
        if depth > self.limits.depth:
            raise self.too_large(
                f"the predicate is nested more than {self.limits.depth} deep: flatten it, or raise Limits(depth=...)"
            )

    def check_length(self, pattern: str, position: int) -> None:
        if len(pattern) > self.limits.pattern:
            raise self.too_large(
                f"the pattern has {len(pattern)} characters; the limit is {self.limits.pattern}: "
                "shorten it, or raise Limits(pattern=...)",
                position,
            )
