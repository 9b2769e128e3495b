"""Text -> tokens, by one regular expression whose alternatives never overlap, so that each character is read once.

    price >= 10.5 AND city IN ('Paris', 'Rome')
    name  op number AND name IN ( string , string ) end

A token is (kind, text, position), kept as three parallel lists. Keywords and marks are their own kind; the last token
is `end`. Few words are keywords: all others (XOR, ILIKE, ANY ...) mean something only where no name can stand, so that
attributes may have these names.
Cost: about half a microsecond per token.
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

from hitbox.encoding.values import forbidden, forbidden_name
from hitbox.errors import SyntaxProblem

KEYWORDS = frozenset(["AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"])

_TOKEN = re.compile(
    r"""[ \t\r\n]*+(?:
        (?P<name>[^\W\d]\w*+)
      | (?P<op><=|>=|<>|!=|=(?!=)|<|>)
      | (?P<number>(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?(?![\w.]))
      | (?P<string>'[^']*+(?:''[^']*+)*+')
      | (?P<mark>[(),+*%]|\.(?![0-9])|-(?!-)|/(?!\*))
      | (?P<quoted>"[^"]*+(?:""[^"]*+)*+")
      | (?P<end>\Z)
      | (?P<bad>.)
    )""",
    re.VERBOSE | re.DOTALL,
)
_NAME = re.compile(r"[^\W\d]\w*+")

_HINTS = {
    "'": "the string that starts here has no closing quote (a quote inside a string is written twice: 'it''s')",
    '"': 'the quoted name that starts here has no closing "',
    "==": "'==' is not an operator: write '='",
    "&&": "'&&' is not an operator: write AND",
    "||": "'||' is not an operator: write OR",
    ";": "';' does not belong here: a predicate is one condition, without a ';' at its end",
    "!": "'!' is not an operator: write NOT, or <> between two sides",
}
_HINTS |= dict.fromkeys(("--", "/*"), "comments are not part of the language")
_HINTS |= dict.fromkeys("`[", 'names are quoted with double quotes: "name"')
_HINTS |= dict.fromkeys("‘’“”", "strings are quoted with plain single quotes: 'text'")
_HINTS |= dict.fromkeys("?$:", "parameters are not part of the language: write the value itself")


class Tokens(NamedTuple):
    kinds: list[str]
    texts: list[str]
    starts: list[int]


def tokens(text: str) -> Tokens:
    """Cut `text` into tokens.

    >>> tokens("qty <> -5").kinds
    ['name', 'op', '-', 'number', 'end']
    """
    at = forbidden(text)
    if at is not None:
        raise SyntaxProblem(f"{forbidden_name(text[at])} cannot be part of a predicate: remove it", text, at)
    kinds: list[str] = []
    texts: list[str] = []
    starts: list[int] = []
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "end"
        piece = match[kind]
        if kind == "name":
            upper = piece.upper()
            if upper in KEYWORDS:
                kind = upper
        elif kind == "mark":
            kind = piece
        elif kind == "bad":
            raise _bad(text, match.start("bad"))
        kinds.append(kind)
        texts.append(piece)
        starts.append(match.start(match.lastgroup or "end"))
        if kind == "end":
            break
    return Tokens(kinds, texts, starts)


def is_plain(name: str) -> bool:
    """May this name stand without quotes?"""
    return _NAME.fullmatch(name) is not None and name.upper() not in KEYWORDS


def _bad(text: str, position: int) -> SyntaxProblem:
    character = text[position]
    hint = _HINTS.get(text[position : position + 2]) or _HINTS.get(character)
    if character in "0123456789" or (character == "." and text[position + 1 : position + 2].isdigit()):
        hint = "malformed number: write digits with at most one point and an exponent, as in -12.5e3"
    if hint is None and character in "^&|~":
        hint = f"{character!r} is not an operator: arithmetic has + - * / %, logic has AND, OR, XOR and NOT"
    if hint is None:
        name = unicodedata.name(character, "a control character")
        shown = f"{character!r} " if character.isprintable() else ""
        hint = f"unexpected character {shown}(U+{ord(character):04X}, {name.lower()})"
    return SyntaxProblem(hint, text, position)
