"""Tree -> boxes: the normal form, with the intervals of one attribute merged before anything is multiplied out.

A **term** is a product of key sets, one per attribute, plus the conditions that these sets only cover:

    a <> 1 AND a <> 2 AND (b = 3 OR b > 7)   ->   one term   a in {..0, 3..}  b in {3, 8..}   ->   4 boxes
    a > 3 AND name LIKE '%x'                 ->   one term   a in {4..}   name is present     and   name LIKE '%x'

A conjunction intersects sets; a disjunction over one attribute unites them; only a disjunction over several attributes
makes several terms, and only the last step cuts sets into boxes. Fifty `<>` on one attribute thus cost fifty intervals,
not 2^50 boxes.

What is multiplied out stays within a bound (`most_boxes`): beyond it, a part of a conjunction is only covered, by the
sets that all of its terms have in common, and sets are widened to one interval each. Then the boxes are a superset, and
the tree is asked about each candidate. So a predicate of any shape has about as many boxes as its text has literals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, floor, prod

from hitbox.encoding.arrays import HIGHEST, LOWEST
from hitbox.encoding.codecs import Codec
from hitbox.encoding.keys import Keys
from hitbox.errors import TypeProblem, ValueProblem
from hitbox.language.expressions import Call, Constant, Expression, Field, Length, Literal, fold
from hitbox.language.limits import Limits
from hitbox.language.patterns import successor
from hitbox.language.places import Span, around
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
from hitbox.language.tree import Leaf, Node, Predicate, Quantifier, Test, leaves, needed, without_not

BOOLS: Set = ((0, 1),)  # no key above or below, so `<> TRUE` is one interval
SOME: Set = ((1, HIGHEST),)  # lists that are not empty: the key of a list is its length
EXACT_BOXES = 10_000
"""Terms and boxes up to which an event with intervals is judged exactly."""
PRODUCT_FACTOR = 4  # a product may be this many times over the bound before empty and equal terms are dropped
MAX_PAIRWISE_TERMS = 32  # terms that are compared pair by pair
MAX_UNION_SEARCH = 20_000  # terms times attributes that are searched for partners to unite with


@dataclass(frozen=True, slots=True)
class Term:
    """A conjunction: key sets by attribute number, and the conditions that the sets only cover."""

    sets: dict[int, Set]
    rest: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Compiled:
    """A disjunction of boxes. If `exact[i]` is False, a point in box i must still be checked with the tree."""

    boxes: list[dict[int, Interval]]
    exact: list[bool]


def compile(predicate: Predicate, keys: Keys, limits: Limits | None = None) -> Compiled:
    """The boxes of a predicate, whose `strings` must have been admitted to `keys`; `limits` are those of `parse`."""
    limits = limits or predicate.limits
    bound = most_boxes(len(predicate.text), limits)
    found: dict[tuple[tuple[int, Interval], ...], bool] = {}  # of equal boxes one is enough
    for term, sure in _bounded(terms(predicate, keys, limits.boxes, bound), limits.boxes, bound):
        numbers = sorted(term.sets)
        for box in product(*(term.sets[number] for number in numbers)):
            made = tuple(zip(numbers, box, strict=True))
            found[made] = sure or found.get(made, False)
    return Compiled([dict(box) for box in found], list(found.values()))


def most_boxes(length: int, limits: Limits) -> int:
    """How many boxes a predicate is multiplied out to at most: those of the limit, or one per literal of a long text. A
    literal takes two characters at least."""
    return max(limits.boxes, length // 2)


def _bounded(several: list[Term], most: int, bound: int) -> list[tuple[Term, bool]]:
    """The terms, and whether each is exact. If they have more boxes than the bound, sets are widened to one interval,
    until a term has `most` boxes, or those of one list of literals."""
    sizes = [prod(map(len, term.sets.values())) for term in several]
    if sum(sizes) <= bound:
        return [(term, not term.rest) for term in several]
    found: dict[int, tuple[Term, bool]] = {}
    for done, (size, at) in enumerate(sorted((size, at) for at, size in enumerate(sizes))):
        room = max(1, bound // (len(several) - done))
        term = several[at] if size <= min(room, most) else _widened(several[at], most, room)
        found[at] = term, term is several[at] and not term.rest
        bound -= min(bound, prod(map(len, term.sets.values())))
    return [found[at] for at in range(len(several))]


def _widened(term: Term, most: int, room: int) -> Term:
    """A term that covers this one with at most `room` boxes, and with `most` if they are not those of one set. Sets of
    single keys are the last to be widened: they are the most selective ones."""
    sets: dict[int, Set] = {}
    count = 1
    for number, one in sorted(term.sets.items(), key=lambda item: (not _are_points(item[1]), len(item[1]))):
        if count * len(one) > (room if count == 1 else min(room, most)):
            one = ((one[0][0], one[-1][1]),)
        count *= len(one)
        sets[number] = one
    return Term(sets, term.rest)


def _are_points(one: Set) -> bool:
    return all(low == high for low, high in one)


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


def terms(predicate: Predicate, keys: Keys, most: int, bound: int) -> list[Term]:
    """Terms whose disjunction is the predicate, or covers it; none if it can never be true. A conjunction is multiplied
    out to at most `most` terms; a disjunction has at most `bound`."""
    codecs = keys.codecs

    def visit(node: Node, done: Sequence[list[Term]]) -> list[Term]:
        if isinstance(node, Leaf):
            try:
                return _leaf_terms(node, codecs[node.number])
            except ValueProblem as problem:
                raise _misfit(node, codecs[node.number], predicate.text, problem) from None
        if isinstance(node, Test):
            return _test_terms(node, codecs)
        if isinstance(node, Quantifier):
            return _quantifier_terms(node)
        if node.op == "AND":
            return _conjunction(node.children, done, most)
        if node.op == "OR":
            found = _disjunction(done)
            return found if len(found) <= bound else _hull(found, node)
        if node.op == "XOR":
            return [Term(dict.fromkeys(needed(node), PRESENT), (node,))]
        return [Term({})] if node.op == "TRUE" else []

    root = predicate.root
    found = fold(root if _plain(root) else without_not(root), visit)
    if not any(isinstance(node, Leaf) for term in found for node in term.rest):
        return found
    labels = _labels(predicate, codecs)
    settled = (_settle(term, labels) for term in found)
    return _tidy([term for term in settled if all(term.sets.values())])


def _settle(term: Term, labels: dict[int, dict[int, str]]) -> Term:
    """If only a few strings are left, the patterns are tried on them: `s IN ('ab', 'cd') AND s LIKE '%b'`."""
    sets = dict(term.sets)
    rest: list[Node] = []
    for leaf in term.rest:
        if not isinstance(leaf, Leaf):
            rest.append(leaf)
            continue
        known = labels.get(leaf.number, {})
        if leaf.number in sets and all(low == high and low in known for low, high in sets[leaf.number]):
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


def _conjunction(nodes: Sequence[Node], parts: Sequence[list[Term]], most: int) -> list[Term]:
    """The terms of a conjunction. What would be more than `most` is covered: by what its terms have in common."""
    if not all(parts):
        return []
    found = _meet([part[0] for part in parts if len(part) == 1])
    covered: list[Term] = []
    for node, part in sorted(zip(nodes, parts, strict=True), key=lambda pair: len(pair[1])):
        if len(part) == 1 or not found:
            continue
        if len(found) * len(part) <= PRODUCT_FACTOR * max(most, len(found), len(part)):
            pairs = (_both(one, other) for one in found for other in part)
            made = _tidy([term for term in pairs if term])
            if len(made) <= max(most, len(found), len(part)):
                found = made
                continue
        covered += _hull(part, node)
    if not covered:
        return found
    return [term for one in found for term in _meet([one, *covered])]


def _hull(several: Sequence[Term], node: Node) -> list[Term]:
    """One term that covers several, whose disjunction is `node`."""
    common = set.intersection(*(set(term.sets) for term in several))
    sets = {number: union(term.sets[number] for term in several) for number in common}
    return [Term({number: one for number, one in sets.items() if one != EVERYTHING}, (node,))]


def _test_terms(test: Test, codecs: Sequence[Codec]) -> list[Term]:
    """What a test of expressions needs: attributes that are there, and where they can be said, bounds on them."""
    if any(_is_null(one) for one in test.strict):
        return []
    if test.op.endswith("MISSING"):
        of = test.operands[0]
        plain = isinstance(of, Field) and not of.level and not of.old and test.op == "IS MISSING"
        return [Term({of.number: ABSENT} if isinstance(of, Field) and plain else {}, (test,))]
    sets = dict.fromkeys(needed(test), PRESENT)
    left = test.operands[0]
    if isinstance(left, Length) and not left.list.level and not left.list.old:
        values = [one.literal for one in test.operands[1:] if isinstance(one, Constant)]
        if values and len(values) == len(test.operands) - 1:
            found = intersection((_literal_set(test.op, values, codecs[left.list.number]), ((0, HIGHEST),)))
            return [Term({left.list.number: found})] if found else []
    areas = _areas(test)
    if areas is None:
        return [Term(sets, (test,))]
    place, boxes = areas
    found_terms = []
    for box in boxes:
        bounds = {of.number: _bounds(codecs[of.number], span) for of, span in zip(place, box, strict=True) if of}
        if all(bounds.values()):
            found_terms.append(Term(sets | bounds, (test,)))
    return found_terms


def _is_null(of: Expression) -> bool:
    """Is an expression NULL for every event? (A function of literals that is not NULL is a literal.)"""
    return fold(
        of,
        lambda node, done: (
            isinstance(node, Call) and (any(done) or all(isinstance(child, Constant) for child in node.children))
        ),
    )


def _areas(test: Test) -> tuple[list[Field | None], list[tuple[Span, Span]]] | None:
    """If a test can hold in some boxes of latitude and longitude only: which attributes these are, and the boxes."""
    if test.op == "INSIDE":
        place, boxes = test.operands, test.machine.boxes()
    elif test.op in ("<", "<=", "=", "BETWEEN") and isinstance(test.operands[-1], Constant):
        far = test.operands[0]
        if not (isinstance(far, Call) and far.name == "DISTANCE"):
            return None
        ends = far.children[:2], far.children[2:]
        place, centre = ends if all(isinstance(one, Constant) for one in ends[1]) else ends[::-1]
        if not all(isinstance(one, Constant) for one in centre):
            return None
        metres = float(test.operands[-1].plain)
        lat, lon = (float(one.plain) for one in centre if isinstance(one, Constant))
        boxes = around(lat, lon, metres) if metres >= 0 else []
    else:
        return None
    return [one if isinstance(one, Field) and not one.level and not one.old else None for one in place], boxes


def _bounds(codec: Codec, span: Span) -> Set:
    """The keys of the numbers from one to another, or a few more."""
    low, high = (floor(span[0]), ceil(span[1])) if codec.type == "int" else span
    found: Set = ((codec.place(low), codec.place(high)),)
    return found


def _quantifier_terms(of: Quantifier) -> list[Term]:
    if of.list.level or of.list.old:
        return [Term({}, (of,))]
    return [Term({of.list.number: SOME if of.op in ("ANY", "EXISTS") else PRESENT}, (of,))]


def _meet(several: Sequence[Term]) -> list[Term]:
    """The conjunction of several terms: one term, or none if it is empty. Each attribute is merged once."""
    sets: dict[int, list[Set]] = {}
    rest: dict[int, Node] = {}
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
