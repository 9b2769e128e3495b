"""Conditions of our language, put together from parts: the fewest parentheses, TRUE and FALSE folded away.

A part may stand in several conditions, whose text may then be long. So every condition knows its size, and one that is
much larger than a predicate may be is an error before its text is made.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hitbox.encoding.schema import Schema
from hitbox.errors import DialectError
from hitbox.language import DEFAULT_LIMITS
from hitbox.language.syntax.expressions import fold, quoted

MAX_TEXT = DEFAULT_LIMITS.text
MAX_DEPTH = DEFAULT_LIMITS.depth
JOINED = {"AND": ("OR",), "OR": (), "NOT": ("AND", "OR")}
"""The conditions that stand in parentheses inside another one."""
PARENTHESIS = re.compile(r"""[()]|'[^']*'|"[^"]*\"""")


@dataclass(frozen=True, slots=True, eq=False)
class Condition:
    """`op` is AND, OR, NOT, or the text of one test; `size` is about how many characters the whole has."""

    op: str
    children: tuple[Condition, ...]
    size: int = field(repr=False)


def test(text: str) -> Condition:
    """A condition of one test, as our language writes it."""
    return Condition(text, (), len(text))


TRUE, FALSE = test("TRUE"), test("FALSE")


def both(*parts: Condition) -> Condition:
    """AND."""
    return _joined("AND", parts, FALSE, TRUE)


def either(*parts: Condition) -> Condition:
    """OR."""
    return _joined("OR", parts, TRUE, FALSE)


def negation(part: Condition) -> Condition:
    """NOT."""
    if part is TRUE or part is FALSE:
        return FALSE if part is TRUE else TRUE
    return part.children[0] if part.op == "NOT" else _sized("NOT", (part,))


def _joined(op: str, parts: Sequence[Condition], decides: Condition, says_nothing: Condition) -> Condition:
    if any(part is decides for part in parts):
        return decides
    left = tuple(part for part in parts if part is not says_nothing)
    if len(left) < 2:
        return left[0] if left else says_nothing
    return _sized(op, left)


def _sized(op: str, parts: tuple[Condition, ...]) -> Condition:
    return Condition(op, parts, sum(part.size + 5 for part in parts))


def limited(condition: Condition) -> Condition:
    """The condition; an error if it is much too large, so that no more is made of it."""
    if condition.size > 2 * MAX_TEXT:
        raise _too_long()
    return condition


def _too_long() -> DialectError:
    return DialectError(f"the predicate would have more than {MAX_TEXT} characters: split it into several filters")


def predicate(root: Condition) -> str:
    """The text of a condition."""
    op, parts, depth = fold(limited(root), _written)
    if depth > MAX_DEPTH:
        raise DialectError(f"the predicate would be nested more than {MAX_DEPTH} deep: flatten the filter")
    text = f" {op} ".join(parts)
    if len(text) > MAX_TEXT:
        raise _too_long()
    return text


def _written(node: Condition, done: Sequence[tuple[str, deque[str], int]]) -> tuple[str, deque[str], int]:
    """The operator of a condition, the texts that it joins, and how deep their parentheses are."""
    if not done:
        return "", deque([node.op]), _nesting(node.op)
    if node.op == "NOT":
        text, depth = _inside("NOT", done[0])
        return "", deque([f"NOT {text}"]), depth + 1
    whole, most = deque[str](), 0
    for part in done:
        text, depth = ("", part[2]) if part[0] == node.op else _inside(node.op, part)
        most = max(most, depth)
        if text:
            whole.append(text)
        elif len(part[1]) < len(whole):
            whole.extend(part[1])
        else:  # chains may be long on either side
            part[1].extendleft(reversed(whole))
            whole = part[1]
    return node.op, whole, most


def _inside(op: str, part: tuple[str, deque[str], int]) -> tuple[str, int]:
    """A part as it stands inside another condition."""
    inner, texts, depth = part
    text = f" {inner} ".join(texts)
    return (f"({text})", depth + 1) if inner in JOINED[op] else (text, depth)


def _nesting(text: str) -> int:
    """How deep the parentheses of a text are that are not part of a string or a name."""
    depth = most = 0
    for one in PARENTHESIS.finditer(text):
        depth += {"(": 1, ")": -1}.get(one[0], 0)
        most = max(most, depth)
    return most


def name(path: str) -> str:
    """An attribute as our language writes it; OLD and NEW at its start are quoted, since they would mean an image."""
    first = path.split(".", 1)[0]
    shown = quoted(path)
    if "." in path and first.upper() in ("OLD", "NEW"):
        return f'"{first}"{shown[len(first) :]}'
    return shown


def as_schema(schema: Schema | Mapping[str, Any] | None) -> Schema | None:
    return schema if schema is None or isinstance(schema, Schema) else Schema(schema)
