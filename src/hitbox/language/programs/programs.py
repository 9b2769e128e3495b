"""Tree -> program: what boxes leave open, as tests of keys that native code runs on the candidates.

    (a = 1 OR b > 3) AND s <> 'x'     shape     AND | TEST s | OR | TEST a | TEST b
                                      literals  'x', after 'x', 1, 2, 4

All predicates of one shape share its code; the literals are keys. Both are linear in the text. A test says whether the
key of an attribute lies in a set, which is given by the keys at which "inside" and "outside" alternate. A place is
tested by a circle or an area (place_conditions.py). What needs more of the event than its keys (a list, a general LIKE,
NOW) is tested in a second look (second_look.py). Any other condition that no set of keys can say, such as a REGEXP, is
open: where nothing else decides, the tree is asked.

Where only "true or not" counts, which is everywhere but below an XOR, unknown is as good as false. There the sets of
one attribute are merged, and an open condition is asked only inside the sets that cover it.

src/engine/program/program.hpp describes the code, and runs it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hitbox.encoding.arrays import HIGHEST, LOWEST, MISSING
from hitbox.language.boxes.sets import Set, intersection, union
from hitbox.language.syntax.expressions import fold
from hitbox.language.syntax.tree import Branch, Leaf, Node

AND, OR, XOR, TEST, OPEN, PLACE, TEST_ELEMENT, MORE = range(8)
EACH_AND, EACH_OR, LIKE, SINCE = range(4)
"""Kinds of MORE."""
OPS = {"AND": AND, "OR": OR, "XOR": XOR}
TRUE, FALSE, UNKNOWN, OUT_OF_STEPS = 1, 2, 4, 8
NULL_CODES = {TRUE: 0, FALSE: 1, UNKNOWN: 2}
LIST = 3
MAX_DEPTH = 64
"""Branches inside each other; what lies deeper is open."""


class Program(NamedTuple):
    shape: bytes
    """Code: unsigned 32-bit words."""
    literals: bytes
    """Keys, and where lists of keys are: 64-bit words."""


@dataclass(slots=True)
class KeyTest:
    """The key of an attribute lies in a set. `null` is the truth where the value is missing."""

    number: int
    keys: Set
    null: int
    is_open: bool = False
    size: int = 0
    op: int = TEST


@dataclass(slots=True)
class PlaceTest:
    """A latitude and a longitude are in a circle or an area. It is unknown where one of them is missing or is none."""

    latitude: int
    longitude: int
    whole_latitude: bool
    whole_longitude: bool
    """Whether they are int attributes."""
    words: bytes
    is_area: bool
    is_negated: bool
    is_open: bool = False

    @property
    def size(self) -> int:
        return 8 * len(self.words)  # a sine takes as long as many comparisons


@dataclass(slots=True)
class EachTest:
    """A condition on the elements of a list: all of them (AND), or one of them (OR)."""

    number: int
    """An attribute that has a key for each element."""
    op: int
    condition: Part
    is_negated: bool = False
    is_open: bool = False
    size: int = 1 << 18


@dataclass(slots=True)
class LikeTest:
    """A text is like a pattern. It is unknown where the text is missing."""

    number: int
    pattern: bytes
    is_negated: bool
    is_open: bool = False
    size: int = 1 << 17


@dataclass(slots=True)
class SinceTest:
    """The time from NOW() to a timestamp lies in a set."""

    test: KeyTest
    is_open: bool = False
    size: int = 1 << 16


@dataclass(slots=True)
class Open:
    """One of several truths; `covers` are sets by attribute, in one of which it must lie to be true. If `exact`, it is
    true in each of them."""

    truths: int
    covers: list[dict[int, Set]] | None = None
    exact: bool = False
    is_open: bool = True
    size: int = 1 << 20


@dataclass(slots=True)
class Parts:
    op: int
    parts: list[Part]
    depth: int
    is_open: bool
    size: int


Tested = PlaceTest | EachTest | LikeTest | SinceTest
Part = KeyTest | Tested | Open | Parts
ALWAYS, NEVER = Open(TRUE, is_open=False, size=0), Open(FALSE, is_open=False, size=0)
Covers = Callable[[Node], tuple[list[dict[int, Set]], bool]]
"""The sets that cover a condition, by attribute, and whether these sets are exactly it."""
Tests = Callable[[Node], Tested | None]


def program(root: Node, covers: Covers, tests: Tests) -> Program:
    """The program of a tree without NOT. `tests` are those of conditions that are more than sets; None of any other."""
    return _written(_as_true_or_not(part_of(root, lambda node: tests(node) or _condition(node, *covers(node)))))


def part_of(root: Node, condition: Callable[[Node], Part]) -> Part:
    """A tree without NOT, whose conditions are given."""

    def visit(node: Node, done: Sequence[Part]) -> Part:
        if not isinstance(node, Branch):
            return condition(node)
        if not done:
            return ALWAYS if node.op == "TRUE" else NEVER
        return _joined(OPS[node.op], done)

    return fold(root, visit)


def _condition(node: Node, found: list[dict[int, Set]], exact: bool) -> Part:
    if exact and len(found) == 1 and len(found[0]) == 1:
        ((number, keys),) = found[0].items()
        return key_test(number, keys, node.op)
    if exact and isinstance(node, Leaf):  # never true
        return KeyTest(node.number, (), UNKNOWN)
    return Open(TRUE | FALSE | UNKNOWN, found, exact)


def key_test(number: int, keys: Set, condition: str = "IS NULL", op: int = TEST) -> KeyTest:
    """`condition` is the operator that the set comes from: most are unknown where the value is missing."""
    null = TRUE if _has_missing(keys) else FALSE if condition in ("IS NULL", "IS NOT NULL") else UNKNOWN
    return KeyTest(number, keys, null, size=len(keys), op=op)


def _has_missing(keys: Set) -> bool:
    return bool(keys) and keys[0][0] == MISSING


def _joined(op: int, parts: Sequence[Part]) -> Part:
    """Parts of one branch, those that cost least first."""
    depth = 1 + max((part.depth for part in parts if isinstance(part, Parts)), default=0)
    if depth > MAX_DEPTH - 4:  # an open condition and its covers are up to three branches
        return Open(TRUE | FALSE | UNKNOWN)
    ordered = sorted(parts, key=_cost)
    return Parts(op, ordered, depth, ordered[-1].is_open, sum(part.size for part in ordered) + len(ordered))


def _cost(part: Part) -> tuple[bool, int, int]:
    return part.is_open, part.size, part.number if isinstance(part, KeyTest) else 0


def _as_true_or_not(part: Part) -> Part:
    """A part that is true where this one is, and may be false where this one is unknown."""
    if isinstance(part, KeyTest):
        return KeyTest(part.number, part.keys, TRUE if part.null == TRUE else FALSE, size=part.size)
    if isinstance(part, Open):
        return _covered(part)
    if isinstance(part, Tested) or part.op == XOR:
        return part
    sets: dict[int, list[Set]] = {}
    others: list[Part] = []
    for one in map(_as_true_or_not, part.parts):
        if one is (ALWAYS if part.op == AND else NEVER) and len(part.parts) > 1:
            continue
        if isinstance(one, KeyTest):
            sets.setdefault(one.number, []).append(one.keys)
        else:
            others.append(one)
    tests: list[Part] = [key_test(number, _merged(part.op, several)) for number, several in sets.items()]
    return tests[0] if len(tests) == 1 and not others else _joined(part.op, tests + others)


def _merged(op: int, several: list[Set]) -> Set:
    if len(several) == 1:
        return several[0]
    return intersection(several) if op == AND else union(several)


def _covered(part: Open) -> Part:
    """An open condition after the tests without which it is not true."""
    if part is ALWAYS or part is NEVER:
        return part
    plain = Open(TRUE | FALSE)
    if part.covers is None or not all(part.covers):
        return ALWAYS if part.exact and part.covers else plain
    if not part.covers:
        return NEVER
    areas = [_one_or_joined(AND, [key_test(*item) for item in sets.items()]) for sets in part.covers]
    area = _one_or_joined(OR, areas)
    return area if part.exact else _joined(AND, [area, plain])


def _one_or_joined(op: int, parts: Sequence[Part]) -> Part:
    return parts[0] if len(parts) == 1 else _joined(op, parts)


def _written(root: Part) -> Program:
    """The code and the literals: first one or two ends per test, and the circles, then lists of ends, areas and
    patterns."""
    code, literals = array("I"), array("q")
    lists: list[tuple[int, array[int]]] = []

    def later(words: array[int]) -> None:
        lists.append((len(literals), words))
        literals.append(0)

    def write_test(part: KeyTest) -> None:
        inside, ends = _ends(part.keys)
        size = min(len(ends), LIST)
        code.extend((part.op | NULL_CODES[part.null] << 3 | inside << 5 | size << 6 | part.number << 8, len(literals)))
        if size == LIST:
            later(array("q", ends))
        else:
            literals.extend(ends)

    def write_place(part: PlaceTest) -> None:
        flags = part.is_area | part.is_negated << 1 | part.whole_latitude << 2 | part.whole_longitude << 3
        code.extend((PLACE | flags << 3, part.latitude, part.longitude, len(literals)))
        words = array("q", part.words)
        if part.is_area:
            later(words)
        else:
            literals.extend(words)

    def write(part: Part) -> None:
        start = len(code)
        if isinstance(part, Open):
            code.append(OPEN | part.truths << 3)
        elif isinstance(part, KeyTest):
            write_test(part)
        elif isinstance(part, PlaceTest):
            write_place(part)
        elif isinstance(part, EachTest):
            kind = EACH_AND if part.op == AND else EACH_OR
            code.extend((MORE | kind << 3 | part.is_negated << 6 | part.number << 8, 0))
            write(part.condition)
            code[start + 1] = len(code) - start
        elif isinstance(part, LikeTest):
            code.extend((MORE | LIKE << 3 | part.is_negated << 6 | part.number << 8, len(literals)))
            padded = part.pattern + bytes(-len(part.pattern) % 8)
            later(array("q", [len(part.pattern)]) + array("q", padded))
        elif isinstance(part, SinceTest):
            code.append(MORE | SINCE << 3)
            write_test(part.test)
        else:
            code.append(0)
            for one in part.parts:
                write(one)
            code[start] = part.op | len(code) - start << 3

    write(root)
    for place, words in lists:
        literals[place] = len(literals) | len(words) << 32
        literals.extend(words)
    return Program(code.tobytes(), literals.tobytes())


def _ends(keys: Set) -> tuple[bool, list[int]]:
    """Whether the lowest key of a value is inside a set, and the keys at which that changes."""
    ends: list[int] = []
    inside = False
    for low, high in keys:
        if high < LOWEST:  # only what is missing
            continue
        if low <= LOWEST:
            inside = True
        else:
            ends.append(low)
        if high < HIGHEST:
            ends.append(high + 1)
    return inside, ends


Programs = Mapping[int, Program]
"""Programs by row; a row without one is decided by its boxes, or by its tree."""
NO_PROGRAMS: Programs = {}


def tested_attributes(shape: Sequence[int]) -> list[int]:
    """The numbers of the attributes that a shape tests, one per test, or two of a place. `shape` has its words."""
    found: list[int] = []
    at = 0
    while at < len(shape):
        word = shape[at]
        op, kind = word & 7, word >> 3 & 7
        if op in (TEST, TEST_ELEMENT) or (op == MORE and kind != SINCE):
            found.append(word >> 8)
            at += 2
        elif op == PLACE:
            found.extend(shape[at + 1 : at + 3])
            at += 4
        else:
            at += 1
    return found
