"""Anchors: what an event must bring for a condition on a list or on a text to hold.

    ANY(tags) = 'x'                             the element 'x' of tags
    EXISTS(items WHERE sku = 'A' AND q > 3)     the element 'A' of items.sku
    name LIKE '%abc%'                           the fragment 'abc' of name
    name ILIKE 'x%Abc'                          the fragment 'abc' of name in lower case
    name REGEXP '^[a-z]+ing '                   the fragment 'ing ' of name

An anchor is a member of a **set**. A set has a kind and a path: the attribute, and the fields below it in a list of
objects. One anchor covers its condition, or several do, of which the event must bring one. The condition may ask for
more; then anchors are only a superset.

Where nothing is declared, an element may be of any type, and a name does not say whether it leads to a list. So the
path of an open set says both (OpenPath), and the values of another type are no members:

    ANY(tags) = 'x'                             the element 'x' of the strings in tags
    EXISTS(items WHERE sku = 'A')               the element 'A' of the strings that are the field sku of an item
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from math import isfinite, log2
from typing import Any, NamedTuple

from hitbox.encoding.open_values import CONVERT
from hitbox.encoding.values import EPOCH
from hitbox.language.conditions.letters import lower
from hitbox.language.conditions.patterns import Pattern
from hitbox.language.syntax.expressions import Call, Constant, Element, Expression, Field, ListPath
from hitbox.language.syntax.tree import Branch, Leaf, Node, Quantifier, Test, without_not

ELEMENT, FRAGMENT, FOLDED = "=", "%", "~"
"""The kinds of sets: elements of lists, fragments of texts, fragments of texts in lower case."""
STEP, END = "\x1f", "\x00"  # neither occurs in a name
LONGEST = 24
"""Characters of a fragment: more tell hardly more."""
FRAGMENT_BITS = (0, 1, 3, 6, 9, 12, 14, 15, 16)
"""How telling a fragment of so many bytes is: the binary logarithm of how many texts one of them contains it."""
ELEMENT_BITS = {"bool": 1.0, "string": 16.0}
OTHER_BITS = 14.0
Path = tuple[str, ...]


class OpenPath(NamedTuple):
    """Where the values of an open set are."""

    lists: Path
    """The lists, each in the elements of the one before it."""
    field: str
    """The field of an element, or of the event if there is no list; "" means the elements themselves."""
    type: str


class Covering(NamedTuple):
    """Anchors of which an event must bring one for a condition to hold."""

    anchors: tuple[bytes, ...]
    exact: bool
    """Whether that is all that the condition asks for."""
    bits: float
    """How telling they are."""


def covering(node: Node) -> Covering | None:
    """The anchors of a condition without NOT; None if it has none."""
    return _covering(node, ())


def _covering(node: Node, lists: tuple[Path | None, ...]) -> Covering | None:
    """`lists` are the lists around the condition, outermost first; None is one that no set stands for."""
    if isinstance(node, Leaf):
        found = _fragment(FRAGMENT, (node.name,), node.pattern) if node.op == "LIKE" else None
        return _inside(found, 0, lists)
    if isinstance(node, Test):
        return _of_test(node, lists)
    if isinstance(node, Quantifier):
        path = _list(node.list, lists) if node.op in ("ANY", "EXISTS") else None
        found = None if path is None else _covering(without_not(node.condition), (*lists, path))
        return _inside(found, node.list.level, lists)
    return _of_branch(node, lists)


def _inside(found: Covering | None, level: int, lists: tuple[Path | None, ...]) -> Covering | None:
    """What is not about the element of the innermost list does not say that there is an element."""
    return found if found is None or level == len(lists) else Covering(found.anchors, False, found.bits)


def _of_branch(node: Branch, lists: tuple[Path | None, ...]) -> Covering | None:
    if node.op not in ("AND", "OR"):
        return None
    found = [_covering(child, lists) for child in node.children]
    some = [one for one in found if one is not None]
    if node.op == "AND":
        best = max(some, key=lambda one: one.bits, default=None)
        return None if best is None else Covering(best.anchors, False, best.bits)
    if len(some) < len(found):
        return None
    anchors = tuple(dict.fromkeys(anchor for one in some for anchor in one.anchors))
    return Covering(anchors, all(one.exact for one in some), min(one.bits for one in some) - log2(len(some)))


def _of_test(test: Test, lists: tuple[Path | None, ...]) -> Covering | None:
    of = test.operands[0]
    if test.op in ("=", "IN"):
        others = test.operands[1:]
        if isinstance(of, Constant) and test.op == "=":
            of, others = others[0], (of,)
        path = _path(of, lists)
        if path is None or not isinstance(of, (Field, Element)) or not of.level:  # a field of the event is for boxes
            return None
        return _inside(_elements(path, of.type, others), of.level, lists)
    kind = FRAGMENT
    if isinstance(of, Call) and of.name == "LOWER" and test.op != "ILIKE":
        kind, of = FOLDED, of.children[0]
    path = _path(of, lists)
    if path is None or not isinstance(of, (Field, Element)):
        return None
    if test.op == "REGEXP":
        return _best_fragment(kind, path, required_texts(test.texts[0]))
    if test.op not in ("LIKE", "ILIKE"):
        return None
    kind = FOLDED if test.op == "ILIKE" else kind
    return _inside(_fragment(kind, path, test.machine), of.level, lists)


def _path(of: Expression, lists: tuple[Path | None, ...]) -> Path | None:
    """The set that a value comes from."""
    if isinstance(of, Element):
        path, is_open = lists[of.level - 1], of.list.number < 0
        end: Path = ("", of.type)
    elif isinstance(of, Field) and not of.old:
        path, is_open = _below(of.level, lists, (of.name,)), of.number < 0
        end = (of.type,)
    else:
        return None
    if not is_open or path is None:
        return path
    return None if of.type == "any" else path + end


def _list(of: ListPath, lists: tuple[Path | None, ...]) -> Path | None:
    steps = of.steps if of.number >= 0 else (".".join(of.steps),)
    return None if of.old else _below(of.level, lists, steps)


def _below(level: int, lists: tuple[Path | None, ...], steps: Path) -> Path | None:
    if any(not step or STEP in step for step in steps):  # such a name can only be in an open index
        return None
    if not level:
        return steps
    above = lists[level - 1]
    return None if above is None else above + steps


def _elements(path: Path, type_: str, others: Sequence[Expression]) -> Covering | None:
    keys = [element_key(type_, one.plain) if isinstance(one, Constant) else None for one in others]
    if None in keys:
        return None
    anchors = dict.fromkeys(anchor(ELEMENT, path, key) for key in keys if key is not None)
    return Covering(tuple(anchors), True, ELEMENT_BITS.get(type_, OTHER_BITS) - log2(len(anchors)))


def element_key(type_: str, value: Any) -> str | None:
    """The text that stands for the values of a type that equal `value`; None if it cannot be given."""
    if type_ == "string":
        return value if isinstance(value, str) else None
    if type_ == "bool":
        return "1" if value else "0"
    if type_ == "timestamp":
        return str(value.replace(tzinfo=value.tzinfo or UTC) - EPOCH) if isinstance(value, datetime) else None
    if type_ == "int":
        return str(int(value)) if value == int(value) else None
    if type_ == "number" and isfinite(value) and value == int(value):
        return str(int(value))
    return repr(float(value) + 0.0) if float(value) == value else None  # -0.0 equals 0.0


def _fragment(kind: str, path: Path, pattern: Pattern) -> Covering | None:
    fragments = pattern.fragments()
    return _best_fragment(kind, path, fragments, len(fragments) == 1 and pattern.is_fragment)


def _best_fragment(kind: str, path: Path, fragments: Sequence[str], exact: bool = False) -> Covering | None:
    """`exact`: the fragment is all that is asked for."""
    if not fragments:
        return None
    best = max(fragments, key=_bytes) if len(fragments) > 1 else fragments[0]
    bits = FRAGMENT_BITS[min(_bytes(best), len(FRAGMENT_BITS) - 1)]
    return Covering((anchor(kind, path, best[:LONGEST]),), exact and len(best) <= LONGEST, bits)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def anchor(kind: str, path: Path, key: str) -> bytes:
    """A member of a set as the index keeps it."""
    return f"{kind}{STEP.join(path)}{END}{key}".encode()


def kind_and_path(name: bytes) -> tuple[str, Path]:
    """The set whose anchors begin like this."""
    text = name.decode().removesuffix(END)
    return text[:1], tuple(text[1:].split(STEP))


def set_of(anchor: bytes) -> tuple[str, Path]:
    """The set that an anchor is a member of."""
    return kind_and_path(anchor.partition(END.encode())[0])


def open_path(path: Path) -> OpenPath:
    """The parts of an open set's path; a ValueError if it is none."""
    if len(path) < 2 or path[-1] not in CONVERT or path[-1] == "any" or not all(path[:-2]) or path[:-1] == ("",):
        raise ValueError(f"{'.'.join(path)!r} is no path of an open set")
    return OpenPath(path[:-2], path[-2], path[-1])


def set_texts(kind: str, type_: str, values: Sequence[Any]) -> list[str]:
    """What some plain values bring to a set: keys of elements, or texts in which fragments are searched."""
    present = [value for value in values if value is not None]
    if kind == FOLDED:
        return list(map(lower, present))
    if kind == FRAGMENT or type_ == "string":
        return present
    return [key for value in present if (key := element_key(type_, value)) is not None]


def required_texts(expression: str) -> list[str]:
    """Texts that everything contains in which a regular expression of RE2 is found. Only plain characters outside of
    groups and classes count; where anything is unusual, there are none."""
    found: list[str] = []
    run = ""
    at, end = 0, len(expression)
    while at < end:
        c = expression[at]
        at += 1
        if c == "|" or c == ")":
            return []
        if c == "\\":
            escaped = expression[at : at + 1]
            at += 1
            if not escaped or escaped in "QEpPxCXzZ" or escaped.isdigit() or not escaped.isascii():
                return []
            if not escaped.isalnum():
                run += escaped
                continue
        elif c in "([":
            past = (_past_group if c == "(" else _past_class)(expression, at)
            if past is None:
                return []
            at = past
        elif c in "*?{":
            if c == "{":
                at = expression.find("}", at) + 1
                if not at:
                    return []
            run = run[:-1]
        elif c not in "+.^$":
            run += c
            continue
        found.append(run)
        run = ""
    return [one for one in (*found, run) if one]


def _past_group(expression: str, at: int) -> int | None:
    """The place behind the group that begins before `at`; None where that is not plain."""
    if expression[at : at + 1] == "?":
        return None  # flags, which may hold for what follows
    depth = 1
    while at < len(expression):
        c = expression[at]
        at += 1
        if c == "\\":
            if expression[at : at + 1] in ("Q", ""):
                return None
            at += 1
        elif c == "[":
            past = _past_class(expression, at)
            if past is None:
                return None
            at = past
        elif c == "(":
            depth += 1
        elif c == ")":
            depth -= 1
            if not depth:
                return at
    return None


def _past_class(expression: str, at: int) -> int | None:
    """The place behind the class of characters that begins before `at`; None where that is not plain."""
    at += expression[at : at + 1] == "^"
    at += expression[at : at + 1] == "]"  # here it is a character
    while at < len(expression):
        c = expression[at]
        at += 1
        if c == "[" or (c == "\\" and expression[at : at + 1] in ("Q", "")):
            return None
        if c == "\\":
            at += 1
        elif c == "]":
            return at
    return None
