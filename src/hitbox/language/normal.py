"""Tree -> boxes: the normal form, with the intervals of one attribute merged before anything is multiplied out.

A **term** is a product of key sets, one per attribute, plus the leaves that a set cannot express (`name LIKE '%x'`):

    a <> 1 AND a <> 2 AND (b = 3 OR b > 7)   ->   one term   a in {..0, 3..}  b in {3, 8..}   ->   4 boxes

A conjunction intersects sets; a disjunction over one attribute unites them; only a disjunction over several attributes
makes several terms, and only the last step cuts sets into boxes. Fifty `<>` on one attribute thus cost fifty intervals,
not 2^50 boxes. Cost: a sort of the literals of each attribute, then the answer's size, which `limits.boxes` bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from hitbox.encoding.arrays import HIGHEST, LOWEST
from hitbox.encoding.codecs import Codec
from hitbox.encoding.keys import Keys
from hitbox.errors import LimitExceeded, TypeProblem, ValueProblem
from hitbox.language.limits import Limits
from hitbox.language.patterns import successor
from hitbox.language.sets import (
    ABSENT,
    EVERYTHING,
    PRESENT,
    Interval,
    Set,
    complement,
    intersection,
    span,
    union,
    within,
)
from hitbox.language.tree import Leaf, Literal, Node, Predicate, fold, leaves, without_not

BOOLS: Set = ((0, 1),)  # no key above or below, so `<> TRUE` is one interval
PRODUCT_FACTOR = 4  # a product may be this many times over the limit before empty and equal terms are dropped
MAX_PAIRWISE_TERMS = 32  # terms that are compared pair by pair
MAX_UNION_SEARCH = 20_000  # terms times attributes that are searched for partners to unite with


@dataclass(frozen=True, slots=True)
class Term:
    """A conjunction: key sets by attribute number, and the leaves whose set is only a superset of what they say."""

    sets: dict[int, Set]
    rest: tuple[Leaf, ...] = ()


@dataclass(frozen=True, slots=True)
class Compiled:
    """A disjunction of boxes. If `exact[i]` is False, a point in box i must still be checked with the tree."""

    boxes: list[dict[int, Interval]]
    exact: list[bool]


def compile(predicate: Predicate, keys: Keys, limits: Limits | None = None) -> Compiled:
    """The boxes of a predicate, whose `strings` must have been admitted to `keys`; `limits` are those of `parse`."""
    limits = limits or predicate.limits
    found = terms(predicate, keys, limits)
    count = sum(prod(map(len, term.sets.values())) for term in found)
    if count > limits.boxes:
        raise LimitExceeded(_too_many(count, limits), predicate.text)
    boxes: list[dict[int, Interval]] = []
    exact: list[bool] = []
    for term in found:
        numbers = sorted(term.sets)
        for box in product(*(term.sets[number] for number in numbers)):
            boxes.append(dict(zip(numbers, box, strict=True)))
            exact.append(not term.rest)
    return Compiled(boxes, exact)


def never(compiled: Compiled) -> bool:
    """Can the predicate never be true?"""
    return not compiled.boxes


def strings(predicate: Predicate) -> dict[int, set[str]]:
    """The strings that must have labels before `compile`, by attribute number."""
    found: dict[int, set[str]] = {}
    for leaf in leaves(predicate.root):
        if leaf.type != "string" or not leaf.values:
            continue
        texts = leaf.pattern.bounds() if leaf.op.endswith("LIKE") else map(str, leaf.values)
        found.setdefault(leaf.number, set()).update(texts)
    return {number: texts for number, texts in found.items() if texts}


def terms(predicate: Predicate, keys: Keys, limits: Limits) -> list[Term]:
    """The terms whose disjunction is the predicate; empty if it can never be true."""
    codecs = keys.codecs

    def visit(node: Node, done: Sequence[list[Term]]) -> list[Term]:
        if isinstance(node, Leaf):
            try:
                return _leaf_terms(node, codecs[node.number])
            except ValueProblem as problem:
                raise _misfit(node, codecs[node.number], predicate.text, problem) from None
        if not done:
            return [Term({})] if node.op == "TRUE" else []
        found = _conjunction(done, limits) if node.op == "AND" else _disjunction(done)
        if found is None or len(found) > limits.boxes:
            raise LimitExceeded(_too_many(None, limits), predicate.text, node.position)
        return found

    root = predicate.root
    found = fold(root if _plain(root) else without_not(root), visit)
    if not any(term.rest for term in found):
        return found
    labels = _labels(predicate, codecs)
    settled = (_settle(term, labels) for term in found)
    return _tidy([term for term in settled if all(term.sets.values())])


def _settle(term: Term, labels: dict[int, dict[int, str]]) -> Term:
    """If only a few strings are left, the patterns are tried on them: `s IN ('ab', 'cd') AND s LIKE '%b'`."""
    sets, rest = dict(term.sets), []
    for leaf in term.rest:
        known = labels.get(leaf.number, {})
        if all(low == high and low in known for low, high in sets[leaf.number]):
            wanted = leaf.op == "LIKE"
            sets[leaf.number] = tuple(i for i in sets[leaf.number] if leaf.pattern(known[i[0]]) == wanted)
        else:
            rest.append(leaf)
    return Term(sets, tuple(rest))


def _labels(predicate: Predicate, codecs: Sequence[Codec]) -> dict[int, dict[int, str]]:
    """The keys of the predicate's strings, by attribute number."""
    return {n: {codecs[n].cut(text)[0] + 1: text for text in texts} for n, texts in strings(predicate).items()}


def leaf_set(leaf: Leaf, codec: Codec) -> tuple[Set, bool]:
    """The keys for which a leaf is true, and whether that set is exact."""
    op = leaf.op
    if not leaf.values:
        return (ABSENT if op == "IS NULL" else PRESENT), True
    if op.endswith("LIKE"):
        return _like_set(leaf, codec)
    found = _literal_set(op, leaf.values, codec)
    if codec.even:
        found = _even(found)
    return (found if leaf.type != "bool" else intersection((found, BOOLS))), True


def _literal_set(op: str, values: Sequence[Literal], codec: Codec) -> Set:
    if len(op) <= 2 and op != "IN":
        return _comparison(op, *codec.cut(values[0]))
    if op.endswith("IN"):
        cuts = {codec.cut(value) for value in values}  # equal numbers may differ here: 2^53 + 1 and 2^53 + 1.0
        found = union(span(last + 1, first - 1) for last, first in cuts)
        return found if op == "IN" else complement(found, LOWEST)
    (last, _), (_, first) = codec.cut(values[0]), codec.cut(values[1])
    if op == "BETWEEN":
        return span(last + 1, first - 1)
    return union((span(LOWEST, last), span(first, HIGHEST)))


def _even(found: Set) -> Set:
    """The same without odd keys at its ends, so that `a > 3 AND a < 4` is empty for an interval, too."""
    ends = (
        (low + low % 2 if low != LOWEST else low, high - high % 2 if high != HIGHEST else high) for low, high in found
    )
    return tuple((low, high) for low, high in ends if low <= high)


def _comparison(op: str, last: int, first: int) -> Set:
    if op == "=":
        return span(last + 1, first - 1)
    if op == "<":
        return span(LOWEST, last)
    if op == "<=":
        return span(LOWEST, first - 1)
    if op == ">":
        return span(first, HIGHEST)
    if op == ">=":
        return span(last + 1, HIGHEST)
    below, above = span(LOWEST, last), span(first, HIGHEST)
    return below + above if last + 1 < first else union((below, above))


def _like_set(leaf: Leaf, codec: Codec) -> tuple[Set, bool]:
    pattern, positive = leaf.pattern, leaf.op == "LIKE"
    if not positive and pattern.shape == "*":
        return PRESENT, False
    found = PRESENT
    if pattern.prefix or not pattern.shape:
        last, first = codec.cut(pattern.prefix)
        if pattern.shape:
            above = successor(pattern.prefix)
            found = span(last + 1, HIGHEST if above is None else codec.cut(above)[0])
        else:
            found = span(last + 1, first - 1)
    return (found if positive else complement(found, LOWEST)), pattern.shape != "*"


def _leaf_terms(leaf: Leaf, codec: Codec) -> list[Term]:
    found, exact = leaf_set(leaf, codec)
    return [Term({leaf.number: found}, () if exact else (leaf,))] if found else []


def _conjunction(parts: Sequence[list[Term]], limits: Limits) -> list[Term] | None:
    """The terms of a conjunction; None if there are too many."""
    if not all(parts):
        return []
    found = _meet([part[0] for part in parts if len(part) == 1])
    for part in parts:
        if len(part) > 1:
            if len(found) * len(part) > PRODUCT_FACTOR * limits.boxes:
                return None
            pairs = (_both(one, other) for one in found for other in part)
            found = _tidy([term for term in pairs if term])
            if len(found) > limits.boxes:
                return None
    return found


def _meet(several: Sequence[Term]) -> list[Term]:
    """The conjunction of several terms: one term, or none if it is empty. Each attribute is merged once."""
    sets: dict[int, list[Set]] = {}
    rest: dict[int, Leaf] = {}
    for term in several:
        for number, one in term.sets.items():
            sets.setdefault(number, []).append(one)
        for leaf in term.rest:
            rest[id(leaf)] = leaf
    merged = {number: intersection(many) for number, many in sets.items()}
    return [Term(merged, tuple(rest.values()))] if all(merged.values()) else []


def _both(one: Term, other: Term) -> Term | None:
    """The conjunction of two terms; None where it is empty."""
    sets = dict(one.sets)
    for number, keys in other.sets.items():
        if number in sets:
            keys = intersection((sets[number], keys))
            if not keys:
                return None
        sets[number] = keys
    rest = {id(leaf): leaf for leaf in one.rest + other.rest}
    return Term(sets, tuple(rest.values()))


def _disjunction(parts: Sequence[list[Term]]) -> list[Term]:
    return _tidy([term for part in parts for term in part])


def _tidy(several: list[Term]) -> list[Term]:
    """The same disjunction with fewer terms: sets united where only one attribute differs, covered terms dropped."""
    if len(several) < 2:
        return several
    found = _unite(several, None)
    numbers = {number for term in found for number in term.sets}
    if len(found) > 1 and len(found) * len(numbers) <= MAX_UNION_SEARCH:
        for number in sorted(numbers):
            found = _unite(found, number)
    return _uncovered(found) if 1 < len(found) <= MAX_PAIRWISE_TERMS else found


def _unite(several: list[Term], number: int | None) -> list[Term]:
    """Join the terms that are equal but for their set of attribute `number`; None: of the only attribute they have."""
    groups: dict[tuple[int, object, object], list[Term]] = {}
    found: list[Term] = []
    for term in several:
        own = next(iter(term.sets), None) if number is None and len(term.sets) == 1 else number
        if own is None or own not in term.sets:
            found.append(term)
            continue
        others = frozenset(item for item in term.sets.items() if item[0] != own)
        groups.setdefault((own, others, frozenset(map(id, term.rest))), []).append(term)
    for (own, _, _), group in groups.items():
        first = group[0]
        if len(group) > 1:
            sets = first.sets | {own: union(term.sets[own] for term in group)}
            if sets[own] == EVERYTHING:
                del sets[own]
            first = Term(sets, first.rest)
        found.append(first)
    return found


def _uncovered(several: list[Term]) -> list[Term]:
    """Without the terms that another one covers; of equal terms the first stays."""

    def dropped(i: int, term: Term) -> bool:
        rivals = (j for j, other in enumerate(several) if j != i and _covers(other, term))
        return any(j < i or not _covers(term, several[j]) for j in rivals)

    return [term for i, term in enumerate(several) if not dropped(i, term)]


def _covers(outer: Term, inner: Term) -> bool:
    """Is `outer` true wherever `inner` is?"""
    if not {id(leaf) for leaf in outer.rest} <= {id(leaf) for leaf in inner.rest}:
        return False
    return all(n in inner.sets and within(inner.sets[n], one) for n, one in outer.sets.items())


def _plain(root: Node) -> bool:
    """Is there no NOT to push down? (One look is enough for the common flat shapes.)"""
    if isinstance(root, Leaf):
        return True
    return root.op != "NOT" and all(isinstance(child, Leaf) for child in root.children)


def _misfit(leaf: Leaf, codec: Codec, text: str, problem: ValueProblem) -> TypeProblem:
    """The error of a literal that the attribute's codec refuses, at the literal."""
    for value, place in zip(leaf.values, leaf.places, strict=True):
        try:
            codec.cut(value)
        except ValueProblem as found:
            return TypeProblem(f"{leaf.name!r}: {found}", text, place)
    return TypeProblem(f"{leaf.name!r}: {problem}", text, leaf.position)


def _too_many(count: int | None, limits: Limits) -> str:
    size = "more than" if count is None else f"{count} boxes; the limit is"
    boxes = " boxes" if count is None else ""
    return (
        f"the predicate multiplies out to {size} {limits.boxes}{boxes}: "
        "split it into several subscriptions, or raise Limits(boxes=...)"
    )
