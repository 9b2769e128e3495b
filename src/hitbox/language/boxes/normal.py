"""Tree -> boxes: the normal form, with the intervals of one attribute merged before anything is multiplied out.

A **term** is a product of key sets, one per attribute, plus the conditions that these sets only cover:

    a <> 1 AND a <> 2 AND (b = 3 OR b > 7)   ->   one term   a in {..0, 3..}  b in {3, 8..}   ->   4 boxes
    a > 3 AND name LIKE '%x%'                ->   one term   a in {4..}   name is present     and   name LIKE '%x%'

A conjunction intersects sets; a disjunction over one attribute unites them; only a disjunction over several attributes
makes several terms, and only the last step cuts sets into boxes. Fifty `<>` on one attribute thus cost fifty intervals,
not 2^50 boxes.

What is multiplied out stays within a bound (`most_boxes`): beyond it, a part of a conjunction is only covered, by the
sets that all of its terms have in common, and sets are widened to one interval each. Then the boxes are a superset, and
a program checks each candidate (programs.py). So a predicate of any shape has about as many boxes as its text has
literals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from math import ceil, floor, prod

from hitbox.encoding.arrays import HIGHEST, LOWEST
from hitbox.encoding.codecs import Codec
from hitbox.encoding.keys import Keys
from hitbox.errors import TypeProblem, ValueProblem
from hitbox.language.boxes.anchors import covering
from hitbox.language.boxes.derived import Condition, DerivedAttribute, condition, conditions, open_attribute
from hitbox.language.boxes.place_conditions import areas, place_test
from hitbox.language.boxes.sets import (
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
from hitbox.language.conditions.patterns import successor
from hitbox.language.conditions.places import Span
from hitbox.language.limits import Limits
from hitbox.language.programs.programs import Program, Tested, program
from hitbox.language.programs.second_look import conditions as second_conditions
from hitbox.language.programs.second_look import second_test
from hitbox.language.steps import Steps
from hitbox.language.syntax.expressions import Call, Constant, Expression, Field, Length, ListPath, Literal, fold
from hitbox.language.syntax.tree import Branch, Leaf, Node, Predicate, Quantifier, Test, leaves, needed, without_not

BOOLS: Set = ((0, 1),)  # no key above or below, so `<> TRUE` is one interval
SOME: Set = ((1, HIGHEST),)  # lists that are not empty: the key of a list is its length
MAX_WASTED = 50_000
"""Products of terms that may turn out to be too many before no more are tried."""
EXACT_BOXES = 10_000
"""Terms and boxes up to which an event with intervals is judged exactly."""
MOST_ODD = 256
"""Terms that an XOR is multiplied out to; it is one condition beyond."""
LITERAL_LENGTH = 2  # characters that a literal takes, with what separates it from the next one, at least
PRODUCT_FACTOR = 4  # a product may be this many times over the bound before empty and equal terms are dropped
MAX_PAIRWISE_TERMS = 32  # terms that are compared pair by pair
POINT_BITS, PREFIX_BITS, RANGE_BITS = 24, 10, 5  # how telling a value, a prefix and a range are: see FRAGMENT_BITS
EXACT_BITS = 4  # an anchor that saves the check of the tree is preferred
STEPS_OF_PAIR, ENDS_PER_STEP = 3, 8  # of two terms that are joined, and of the intervals of their sets
MAX_UNION_SEARCH = 20_000  # terms times attributes that are searched for partners to unite with


@dataclass(frozen=True, slots=True)
class Term:
    """A conjunction: key sets by attribute number, and the conditions that the sets only cover."""

    sets: dict[int, Set]
    rest: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class Compiled:
    """A disjunction of covers: boxes, some of which have an anchor (anchors.py), too. If `exact[i]` is False, a point
    in box i must still be checked: with the program, if there is one, and where that leaves it open, with the tree."""

    boxes: list[dict[int, Interval]]
    exact: list[bool]
    program: Program | None = None
    anchors: list[bytes] = field(default_factory=list)
    """Empty, or the anchor of each box; b"" stands for none."""


def compile(predicate: Predicate, keys: Keys, limits: Limits | None = None, anchored: bool = False) -> Compiled:
    """The boxes of a predicate, whose `strings` must have been admitted to `keys`; `limits` are those of `parse`. With
    `anchored`, terms whose boxes tell little have anchors, if there are any."""
    limits = limits or predicate.limits
    bound = most_boxes(len(predicate.text), limits)
    found: dict[tuple[tuple[tuple[int, Interval], ...], bytes], bool] = {}  # of equal covers one is enough
    root = predicate.root
    of_nodes: dict[int, list[Term]] = {}
    if isinstance(root, Leaf) and root.op == "LIKE":  # often alone, and there are many: this is quicker
        of_nodes[id(root)] = _leaf_terms(root, keys.codecs[root.number])
        several = [_with_derived(term, keys) for term in of_nodes[id(root)]]
        several = [term for term in several if all(term.sets.values())]
    else:
        root = _without_not(root)
        several = terms(predicate, keys, limits.boxes, bound, root, of_nodes)
    decidable = False

    def test(node: Node) -> Tested | None:
        found = place_test(node, lambda of: _number_of(of, keys), keys.codecs)
        return found or second_test(node, keys, _condition_set)

    for term, (cover, sure) in zip(several, _bounded(several, limits.boxes, bound), strict=True):
        anchors: Sequence[bytes] = (b"",)
        if anchored and cover.rest:
            cover, anchors, sure = _anchored(cover, keys.codecs, limits.boxes, bound)
            sure = sure and cover is term
        decidable |= cover is not term or any(isinstance(node, Branch) or test(node) for node in term.rest)
        numbers = sorted(cover.sets)
        for box, anchor in product(product(*(cover.sets[number] for number in numbers)), anchors):
            made = tuple(zip(numbers, box, strict=True)), anchor
            found[made] = sure or found.get(made, False)
    exact = list(found.values())
    made_program = None
    if decidable and not all(exact):  # otherwise a box leaves open only what a program does, too
        made_program = program(root, lambda node: _covers_of(of_nodes[id(node)], keys), test)
    anchors = [anchor for _, anchor in found]
    return Compiled([dict(box) for box, _ in found], exact, made_program, anchors if any(anchors) else [])


def _covers_of(several: list[Term], keys: Keys) -> tuple[list[dict[int, Set]], bool]:
    several = [_with_derived(term, keys) for term in several]
    return [term.sets for term in several], not any(term.rest for term in several)


def _anchored(term: Term, codecs: Sequence[Codec], most: int, bound: int) -> tuple[Term, Sequence[bytes], bool]:
    """A term that its sets do not decide; its anchors, if they tell more than the sets; and whether they decide."""
    chosen = [one for node in term.rest if (one := covering(node)) is not None]
    if not chosen:
        return term, (b"",), False
    best = max(chosen, key=lambda one: one.bits)
    exact = best.exact and len(term.rest) == 1
    bits = sum(_bits(one, codecs[number]) for number, one in term.sets.items())
    if len(best.anchors) > bound or best.bits + (EXACT_BITS if exact else 0) < bits:
        return term, (b"",), False
    boxes = prod(map(len, term.sets.values()))
    if boxes > 1 and boxes * len(best.anchors) > most:
        term = _widened(term, 1, 1)
    return term, best.anchors, exact


def _bits(one: Set, codec: Codec) -> float:
    """How telling a set is, in the measure of anchors: a guess, because values are not known."""
    if one in (PRESENT, SOME, EVERYTHING):
        return 0
    if one == ABSENT or codec.type == "bool" or codec.is_list:
        return 1
    if _are_points(one):
        return POINT_BITS
    if one[0][0] == LOWEST or one[-1][1] == HIGHEST:
        return 1
    return PREFIX_BITS if codec.type == "string" else RANGE_BITS


def most_boxes(length: int, limits: Limits) -> int:
    """How many boxes a predicate is multiplied out to at most: those of the limit, or one per literal of a text."""
    return max(limits.boxes, length // LITERAL_LENGTH)


def _bounded(several: list[Term], most: int, bound: int) -> list[tuple[Term, bool]]:
    """The terms, and whether each is exact. If they have more boxes than the bound, or a term has more than `most` with
    a set of nearly everything, sets are widened to one interval, until a term has `most` boxes, or those of one list of
    literals."""
    sizes = [prod(map(len, term.sets.values())) for term in several]
    wasteful = any(
        size > most and any(map(_leaves_keys_out, term.sets.values()))
        for size, term in zip(sizes, several, strict=True)
    )
    if sum(sizes) <= bound and not wasteful:
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
    single keys are the last to be widened: they are the most selective ones. Sets of nearly everything are not worth a
    box per interval."""
    sets: dict[int, Set] = {}
    count = 1
    for number, one in sorted(term.sets.items(), key=lambda item: (not _are_points(item[1]), len(item[1]), item[0])):
        if count * len(one) > (room if count == 1 else min(room, most)) or _leaves_keys_out(one):
            one = ((one[0][0], one[-1][1]),)
        count *= len(one)
        if one != EVERYTHING:
            sets[number] = one
    return Term(sets, term.rest) if sets != term.sets else term


def _leaves_keys_out(one: Set) -> bool:
    """Is a set everything but some keys, as that of a NOT IN is?"""
    return len(one) > 1 and one[0][0] <= LOWEST and one[-1][1] == HIGHEST


def _are_points(one: Set) -> bool:
    return all(low == high for low, high in one)


def never(compiled: Compiled) -> bool:
    """Can the predicate never be true?"""
    return not compiled.boxes


def strings(predicate: Predicate, keys: Keys | None = None) -> dict[int, set[str]]:
    """The strings that must have labels before `compile`, by attribute number; with `keys` also those of the derived
    attributes that these have."""
    found: dict[int, set[str]] = {}
    if keys is not None and keys.derived:
        for one in _conditions(predicate):
            number = keys.number_of(one.of)
            if number is not None:
                found.setdefault(number, set()).update(one.strings())
    for leaf in leaves(predicate.root):
        if leaf.type != "string" or not leaf.values:
            continue
        texts = leaf.pattern.bounds() if leaf.op.endswith("LIKE") else map(str, leaf.values)
        found.setdefault(leaf.number, set()).update(texts)
    return {number: texts for number, texts in found.items() if texts}


def derived(predicate: Predicate) -> dict[str, DerivedAttribute]:
    """The derived attributes that help to decide a predicate by keys, by their texts."""
    root = predicate.root
    if isinstance(root, Leaf) and not root.op.endswith("LIKE"):
        return {}
    return {one.of.text: one.of for one in _conditions(predicate)}


def _conditions(predicate: Predicate) -> Iterator[Condition]:
    """The conditions of a predicate on derived attributes."""
    yield from conditions(predicate.root, predicate.schema)
    yield from second_conditions(predicate.root, predicate.schema)


def terms(
    predicate: Predicate,
    keys: Keys,
    most: int,
    bound: int,
    root: Node | None = None,
    of_nodes: dict[int, list[Term]] | None = None,
    steps: Steps | None = None,
) -> list[Term]:
    """Terms whose disjunction is the predicate, or covers it; none if it can never be true. A conjunction is multiplied
    out to at most `most` terms; a disjunction has at most `bound`. `root` is that of the predicate without NOT;
    `of_nodes` takes the terms of each node in it, by id. It takes no more than what is left of `steps`."""
    codecs, steps = keys.codecs, steps or Steps()
    known: dict[int, list[Term]] = {} if of_nodes is None else of_nodes

    def of_branch(node: Branch) -> list[Term]:
        done = [known[id(child)] for child in node.children]
        if node.op == "AND":
            return _conjunction(node.children, done, most, steps)
        if node.op == "OR":
            found = _tidy([term for part in done for term in part], steps)
            return found if len(found) <= bound else _hull(found, node)
        if node.op == "XOR":
            odd = _odd(done, [known[id(child)] for child in node.opposites], min(most, MOST_ODD), steps)
            return [Term(dict.fromkeys(needed(node), PRESENT), (node,))] if odd is None else odd
        return [Term({})] if node.op == "TRUE" else []

    def of_condition(node: Leaf | Test | Quantifier) -> list[Term]:
        steps.spend(node.work if isinstance(node, Leaf) else 1)
        if isinstance(node, Leaf):
            try:
                return _leaf_terms(node, codecs[node.number])
            except ValueProblem as problem:
                raise _misfit(node, codecs[node.number], predicate.text, problem) from None
        return _test_terms(node, keys) if isinstance(node, Test) else _quantifier_terms(node)

    root = _without_not(predicate.root) if root is None else root
    todo: list[Node] = [root]
    while todo:  # no fold: the parts of an XOR and their negations have parts in common
        node = todo[-1]
        if isinstance(node, Branch) and id(node) not in known:
            left = [child for child in (*node.children, *node.opposites) if id(child) not in known]
            if left:
                todo += reversed(left)
                continue
        if id(todo.pop()) not in known:
            known[id(node)] = of_branch(node) if isinstance(node, Branch) else of_condition(node)
    return settled(known[id(root)], predicate, keys, steps)


def settled(found: list[Term], predicate: Predicate, keys: Keys, steps: Steps) -> list[Term]:
    """The terms of a predicate, or of a node in it, with as few patterns as possible."""
    if not any(isinstance(node, Leaf) for term in found for node in term.rest):
        return found
    labels = {  # the keys of the predicate's strings, by attribute number
        n: {keys.codecs[n].cut(text)[0] + 1: text for text in texts} for n, texts in strings(predicate).items()
    }
    several = (_with_derived(_settle(term, labels), keys) for term in found)
    return _tidy([term for term in several if all(term.sets.values())], steps)


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


def _with_derived(term: Term, keys: Keys) -> Term:
    """The patterns that are left, as sets of derived attributes where they can be said so."""
    if not term.rest or not keys.derived:
        return term
    sets = dict(term.sets)
    rest: list[Node] = []
    for node in term.rest:
        found = _derived_set(node, keys) if isinstance(node, Leaf) else None
        if found is None:
            rest.append(node)
            continue
        number, one, exact = found
        sets[number] = intersection((sets[number], one)) if number in sets else one
        if not exact:
            rest.append(node)
        if isinstance(node, Leaf) and sets.get(node.number) == PRESENT:
            del sets[node.number]  # a function of it is present
    return Term(sets, tuple(rest))


def _derived_set(node: Leaf | Test, keys: Keys) -> tuple[int, Set, bool] | None:
    """The derived attribute that a condition is about, the keys for which it holds, and whether that is exact."""
    if not keys.derived:
        return None
    found = condition(node, keys.schema)
    number = None if found is None else keys.number_of(found.of)
    if found is None or number is None:
        return None
    return number, _condition_set(found, keys.codecs[number]), found.exact


def _condition_set(of: Condition, codec: Codec) -> Set:
    if of.op.startswith("IS"):
        return ABSENT if of.op == "IS NULL" else PRESENT
    if of.op.endswith("WITHIN"):
        low, above = of.ends()
        found = span(codec.cut(low)[0] + 1, HIGHEST if above is None else codec.cut(above)[0])
        return found if of.op == "WITHIN" else complement(found, LOWEST)
    exact = [Fraction(one) if isinstance(one, float) and codec.type == "int" else one for one in of.values]
    found = _literal_set(of.op, exact, codec)
    return found if codec.type != "bool" else intersection((found, BOOLS))


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


def _literal_set(op: str, values: Sequence[Literal | Fraction], codec: Codec) -> Set:
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
    """The set without odd keys at its ends, so that `a > 3 AND a < 4` is empty for an interval, too."""
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


def _conjunction(nodes: Sequence[Node], parts: Sequence[list[Term]], most: int, steps: Steps) -> list[Term]:
    """The terms of a conjunction. What would be more than `most` is covered: by what its terms have in common."""
    if not all(parts):
        return []
    steps.spend(len(parts))
    found = _meet([part[0] for part in parts if len(part) == 1])
    covered: list[Term] = []
    wasted = 0
    for node, part in sorted(zip(nodes, parts, strict=True), key=lambda pair: len(pair[1])):
        if len(part) == 1 or not found:
            continue
        size, room = len(found) * len(part), max(most, len(found), len(part))
        promising = size <= PRODUCT_FACTOR * room and wasted < MAX_WASTED
        if size <= room or (promising and _numbers(found) & _numbers(part)):
            made = _tidy(_pairs(found, part, steps), steps)
            if len(made) <= room:
                found = made
                continue
            wasted += size
        steps.spend(len(part))
        covered += _hull(part, node)
    if not covered:
        return found
    steps.spend(len(found) * len(covered))
    return [term for one in found for term in _meet([one, *covered])]


def _pairs(several: Sequence[Term], others: Sequence[Term], steps: Steps) -> list[Term]:
    """The terms of the conjunction of two disjunctions."""
    ends = len(others) * _intervals(several) + len(several) * _intervals(others)
    steps.spend(STEPS_OF_PAIR * len(several) * len(others) + ends // ENDS_PER_STEP)
    return [both for one in several for other in others if (both := _both(one, other))]


def _odd(parts: Sequence[list[Term]], opposites: Sequence[list[Term]], most: int, steps: Steps) -> list[Term] | None:
    """The terms for which an odd number of parts is true, and none is unknown; None if they are more than `most`."""
    odd, even = parts[0], opposites[0]
    for yes, no in zip(parts[1:], opposites[1:], strict=True):
        if (len(odd) + len(even)) * max(len(yes), len(no)) > PRODUCT_FACTOR * most:
            return None
        odd, even = (
            _tidy(_pairs(odd, one, steps) + _pairs(even, other, steps), steps) for one, other in ((no, yes), (yes, no))
        )
        if max(len(odd), len(even)) > most:
            return None
    return odd


def _intervals(several: Sequence[Term]) -> int:
    """How many intervals of keys some terms have."""
    return sum(len(one) for term in several for one in term.sets.values())


def _numbers(several: Sequence[Term]) -> set[int]:
    """The attributes of some terms. Without one in common, no product of two terms is empty or equal to another."""
    return {number for term in several for number in term.sets}


def _hull(several: Sequence[Term], node: Node) -> list[Term]:
    """One term that covers several, whose disjunction is `node`."""
    common = set.intersection(*(set(term.sets) for term in several))
    sets = {number: union(term.sets[number] for term in several) for number in common}
    return [Term({number: one for number, one in sets.items() if one != EVERYTHING}, (node,))]


def _test_terms(test: Test, keys: Keys) -> list[Term]:
    """What a test of expressions needs: keys of a derived attribute; or attributes that are there, and where they can
    be said, bounds on them."""
    if any(_is_null(one) for one in test.strict):
        return []
    codecs, derived_set = keys.codecs, _derived_set(test, keys)
    area = areas(test)
    if derived_set is not None and area is None:
        number, one, exact = derived_set
        return [Term({number: one}, () if exact else (test,))] if one else []
    if test.op.endswith("MISSING"):
        of = test.operands[0]
        plain = isinstance(of, Field) and _has_keys(of) and test.op == "IS MISSING"
        return [Term({of.number: ABSENT} if isinstance(of, Field) and plain else {}, (test,))]
    sets = dict.fromkeys(needed(test), PRESENT)
    left = test.operands[0]
    if isinstance(left, Length) and _has_keys(left.list):
        values = [one.literal for one in test.operands[1:] if isinstance(one, Constant)]
        if values and len(values) == len(test.operands) - 1:
            found = intersection((_literal_set(test.op, values, codecs[left.list.number]), ((0, HIGHEST),)))
            return [Term({left.list.number: found})] if found else []
    if area is None:
        return [Term(sets, (test,))]
    place, boxes = area
    numbers = [_number_of(one, keys) for one in place]
    found_terms = []
    for box in boxes:
        bounds = {
            number: _bounds(codecs[number], span) for number, span in zip(numbers, box, strict=True) if number >= 0
        }
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


def _number_of(of: Expression, keys: Keys) -> int:
    """The number of an attribute; -1 of what has no keys."""
    if not isinstance(of, Field):
        return -1
    if _has_keys(of):
        return of.number
    derived_attribute = open_attribute(of)
    number = None if derived_attribute is None else keys.number_of(derived_attribute)
    return -1 if number is None else number


def _has_keys(of: Field | ListPath) -> bool:
    """Whether it is an attribute of the event itself that is declared."""
    return not of.level and not of.old and of.number >= 0


def _bounds(codec: Codec, span: Span) -> Set:
    """The keys of the numbers from one to another, or a few more."""
    low, high = (floor(span[0]), ceil(span[1])) if codec.type == "int" else span
    found: Set = ((codec.place(low), codec.place(high)),)
    return found


def _quantifier_terms(of: Quantifier) -> list[Term]:
    if not _has_keys(of.list):
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


def _tidy(several: list[Term], steps: Steps) -> list[Term]:
    """The disjunction with fewer terms: sets united where only one attribute differs, covered terms dropped."""
    if len(several) < 2:
        return several
    steps.spend(STEPS_OF_PAIR * len(several))
    found = _unite(several, None)
    numbers = {number for term in found for number in term.sets}
    if len(found) > 1 and len(found) * len(numbers) <= MAX_UNION_SEARCH:
        for number in sorted(numbers):
            steps.spend(len(found))
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
    if len(outer.sets) > len(inner.sets):
        return False
    for number, one in outer.sets.items():
        other = inner.sets.get(number)
        if other is None or not (other == one or within(other, one)):
            return False
    return not outer.rest or {id(leaf) for leaf in outer.rest} <= {id(leaf) for leaf in inner.rest}


def _without_not(root: Node) -> Node:
    """One look is enough for the common flat shapes."""
    if not isinstance(root, Branch):
        return root
    flat = root.op not in ("NOT", "XOR") and not any(isinstance(child, Branch) for child in root.children)
    return root if flat else without_not(root)


def _misfit(leaf: Leaf, codec: Codec, text: str, problem: ValueProblem) -> TypeProblem:
    """The error of a literal that the attribute's codec refuses, at the literal."""
    for value, place in zip(leaf.values, leaf.places, strict=True):
        try:
            codec.cut(value)
        except ValueProblem as found:
            return TypeProblem(f"{leaf.name!r}: {found}", text, place)
    return TypeProblem(f"{leaf.name!r}: {problem}", text, leaf.position)
