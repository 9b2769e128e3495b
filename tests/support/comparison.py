"""hitbox against the second evaluator: random cases through every door, and after every kind of history.

    python tests/support/comparison.py --minutes 5 --seed 1          # until the time is over; all matchers in turn
    python tests/support/comparison.py --case 1234 --matcher rein    # one case again

A difference prints its seed and the smallest predicate and event that still show it.
"""

from __future__ import annotations

import argparse
import copy
import pickle
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import pyarrow as pa

import hitbox
from hitbox.errors import LimitExceeded
from support.random_cases import (
    Case,
    Event,
    handed_over,
    may_refuse,
    meaning,
    random_bounds,
    random_case,
    random_event,
    random_node,
    random_table,
    refused_columns,
    refused_values,
    spell,
    table_of,
    undressed,
)
from support.second_evaluator import (
    And,
    Compare,
    In,
    Interval,
    Literal,
    Node,
    Not,
    Or,
    Rejected,
    answers,
    atoms,
    flat,
    parse,
    points_to_try,
    truth,
)

Id = Any
identity = id
ENGINES: list[dict[str, Any]] = [
    {},
    {"tail": 1},
    {"tail": 4, "kind": "bitmap", "block": 3},
    {"tail": 1, "kind": "bitmap", "band": 8},
    {"tail": 1, "kind": "postings"},
    {"tail": 1, "kind": "bitmap", "compact": True},
    {"tail": 4, "compact": True, "block": 3, "lines": 1},
]
MOST_POINTS = 500  # of an interval event; a larger one is left out
BAD_IDS: list[Any] = ["\0", "a\0b", "\ud800", "a\udfff", None, 1.5, True, b"a", ("a",), 2**63, -(2**63) - 1]


class Difference(AssertionError):
    """hitbox and the second evaluator do not agree; where it is known, about this predicate and event."""

    node: Node | None = None
    event: Event | None = None


@dataclass
class Model:
    """What the index should hold."""

    case: Case
    held: dict[Id, tuple[Node, int]] = field(default_factory=dict)
    known: dict[Any, tuple[Node, set[bool]]] = field(default_factory=dict)

    def answers(self, event: Mapping[str, Any]) -> dict[Id, set[bool]]:
        """What is right for each subscription. The same event is asked at many doors, so answers are kept."""
        found = {}
        asked = frozenset(event.items())
        for id, (node, _) in self.held.items():
            key = (identity(node), asked)
            if key not in self.known:
                self.known[key] = (node, answers(node, self.case.types, event))  # the node is kept, so its key stays
            found[id] = self.known[key][1]
        return found

    def few_points(self, event: Mapping[str, Any]) -> bool:
        return all(points_to_try(node, self.case.types, event) <= MOST_POINTS for node, _ in self.held.values())


# --- one index, one event ---------------------------------------------------------------------------------------------


def check_ids(model: Model, event: Mapping[str, Any], ids: Sequence[Id], door: str) -> None:
    """The ids are those that the second evaluator finds, each once, the most urgent first."""
    expected = model.answers(event)
    wrong = [id for id, right in expected.items() if (id in ids) not in right]
    if wrong:
        node, _ = model.held[wrong[0]]
        difference = Difference(
            f"{door}: {spell(node)!r} {'matched' if wrong[0] in ids else 'did not match'} {dict(event)!r}"
            f" (subscription {wrong[0]!r}; {len(wrong)} are wrong)"
        )
        difference.node = node
        difference.event = {name: undressed(model.case.types[name], value) for name, value in event.items()}
        raise difference
    if len(set(ids)) != len(ids) or not set(ids) <= set(expected):
        raise Difference(f"{door}: ids that are unknown or come twice: {list(ids)!r}")
    levels = [model.held[id][1] for id in ids]
    if levels != sorted(levels, reverse=True):
        raise Difference(f"{door}: not the most urgent first: {levels}")


def check_event(index: hitbox.Index, model: Model, event: Event, explained: Sequence[Id] = ()) -> bool:
    """One event through every door for one event; whether it was accepted."""
    given, means = handed_over(event), meaning(event)
    try:
        ids = index.match(given)
    except hitbox.HitboxError as error:
        if may_refuse(event):
            return False
        raise Difference(f"match: {given!r} was refused: {error}") from error
    check_ids(model, means, ids, "match")
    check_ids(model, means, [id for _, level in index.match_levels(given) for id in level], "match_levels")
    for level, of_level in index.match_levels(given):
        if any(model.held[id][1] != level for id in of_level):
            raise Difference(f"match_levels: wrong level {level}")
    for limit in (1, 2):
        first = index.match(given, limit=limit)
        if [model.held[id][1] for id in first] != [model.held[id][1] for id in ids[:limit]] or not set(first) <= set(
            ids
        ):
            raise Difference(f"match(limit={limit}) gave {first} of {ids}")
    check_ids(model, means, index.match_batch([given])[0], "match_batch of one")
    for id in explained:
        explanation = index.explain(given, id)
        if explanation.matched != (id in ids):
            text = spell(model.held[id][0])
            raise Difference(f"explain says {explanation.matched}, match says {id in ids}: {text!r} of {given!r}")
        if not any(isinstance(value, Interval) for value in means.values()):
            check_tree(model.case, means, explanation.to_dict()["tree"])
    return True


def check_tree(case: Case, event: Mapping[str, Any], tree: Mapping[str, Any]) -> None:
    """Each condition that `explain` shows is as true as it says."""
    for part in tree.get("children", []):
        check_tree(case, event, part)
    if not tree.get("children"):
        right = {True: "true", False: "false", None: "unknown"}[
            truth(parse(tree["text"], case.types), case.types, event)
        ]
        if tree["truth"] != right:
            raise Difference(f"explain: {tree['text']!r} of {dict(event)!r} is {right}, not {tree['truth']}")


def check_refused(index: hitbox.Index, given: Mapping[str, Any], id: Id) -> None:
    """A value that must be refused is refused at every door, with an error of ours."""
    doors: dict[str, Callable[[], object]] = {
        "match": lambda: index.match(given),
        "match_levels": lambda: list(index.match_levels(given)),
        "match_batch": lambda: index.match_batch([{}, given]),
        "explain": lambda: index.explain(given, id),
    }
    for door, call in doors.items():
        try:
            call()
        except hitbox.HitboxError:
            continue
        except Exception as error:
            raise Difference(f"{door}: {given!r} ends in {error!r}") from error
        raise Difference(f"{door}: {given!r} was not refused")


def check_index(index: hitbox.Index, model: Model, rng: random.Random, events: int = 6) -> None:
    """An index against the model: what it holds, and what it answers."""
    if len(index) != len(model.held) or set(index) != set(model.held):
        raise Difference(f"holds {sorted(map(str, index))}, should hold {sorted(map(str, model.held))}")
    nodes = [node for node, _ in model.held.values()]
    some = rng.sample(list(model.held), min(3, len(model.held)))
    accepted = []
    for _ in range(events):
        event = random_event(rng, model.case, nodes, intervals=index.takes_intervals and rng.random() < 0.4)
        if model.few_points(meaning(event)) and check_event(index, model, event, some):
            accepted.append(event)
    matches = index.match_batch([handed_over(event) for event in accepted])
    for number, event in enumerate(accepted):
        check_ids(model, meaning(event), matches[number], "match_batch of many")
    table, rows = random_table(rng, model.case, nodes, events, intervals=index.takes_intervals and rng.random() < 0.3)
    matches = index.match_batch(table, threads=rng.choice([1, 2]))
    for number, row in enumerate(rows):
        if not model.few_points(row):
            continue
        try:
            check_ids(model, row, matches[number], "match_batch of a table")
        except Difference as difference:
            difference.args = (f"{difference} [{table.schema.to_string()}]",)
            raise
    for id in some:
        if index.priority(id) != model.held[id][1]:
            raise Difference(f"priority of {id!r}")
        try:
            again = parse(index.where(id), model.case.types, model.case.grids)
        except Rejected as error:
            raise Difference(f"where({id!r}) is not in the language: {index.where(id)!r}: {error}") from error
        for event in accepted:
            if answers(again, model.case.types, meaning(event)) != model.answers(meaning(event))[id]:
                raise Difference(f"where({id!r}) is {index.where(id)!r}, which means something else")


# --- one case ---------------------------------------------------------------------------------------------------------


def new_index(case: Case, matcher: str, rng: random.Random) -> hitbox.Index:
    return hitbox.Index(case.schema(), matcher, **(rng.choice(ENGINES) if matcher == "hitbox" else {}))


def random_id(rng: random.Random, kind: str, most: int = 12) -> Id:
    number = rng.randint(0, most)
    return number * 10**17 - 5 if kind == "int" else rng.choice(["s", "😀", "é"]) + str(number % 5)


def subscribe(index: hitbox.Index, model: Model, id: Id, node: Node, priority: int, rng: random.Random) -> None:
    try:
        index.subscribe(id, spell(node, rng), priority=priority)
    except LimitExceeded:
        return  # too many boxes; nothing may have changed, which the next check sees
    model.held[id] = (node, priority)


def check_predicates(seed: int, matcher: str, subscriptions: int = 25, events: int = 10) -> None:
    """Many predicates, many events, no history."""
    rng = random.Random(seed)
    model = Model(random_case(rng))
    index = new_index(model.case, matcher, rng)
    for id in range(subscriptions):
        subscribe(index, model, id, random_node(rng, model.case), rng.randint(0, 9), rng)
    if not model.held:
        return
    try:
        check_index(index, model, rng, events)
        check_refusals(index, model, rng)
    except Difference as difference:
        smallest = shrunk(index, model, matcher, rng, difference)
        raise Difference(f"{difference}\n  schema {model.case.schema()}\n  smallest: {smallest}") from difference


def check_refusals(index: hitbox.Index, model: Model, rng: random.Random, tries: int = 3) -> None:
    """Bad values, bad ids and bad texts are refused and change nothing."""
    for _ in range(tries):
        name = rng.choice(list(model.case.types))
        check_refused(index, {name: rng.choice(refused_values(model.case.types[name]))}, next(iter(model.held)))
        column = rng.choice(refused_columns(model.case.types[name]))
        try:
            index.match_batch(pa.table({name: column}))
        except hitbox.HitboxError:
            continue
        raise Difference(
            f"match_batch: the column {name!r} of {column.type} with {column.to_pylist()!r} was not refused"
        )
    for id in rng.sample(BAD_IDS, 2):
        try:
            index.subscribe(id, "TRUE")
        except hitbox.HitboxError:
            continue
        raise Difference(f"the id {id!r} was accepted")
    for text in ("", "nonsense = 1", "TRUE AND", "TRUE AND '\ud800' = ''", "TRUE\0"):
        try:
            index.subscribe(next(iter(model.held)), text)
        except hitbox.HitboxError:
            continue
        raise Difference(f"the predicate {text!r} was accepted")
    check_index(index, model, rng, 2)


def smaller(node: Node) -> Iterator[Node]:
    """Simpler trees, the simplest first."""
    if isinstance(node, Not):
        yield node.part
        yield from (Not(part) for part in smaller(node.part))
    elif isinstance(node, And | Or):
        yield from node.parts
        for number, part in enumerate(node.parts):
            rest = node.parts[:number] + node.parts[number + 1 :]
            if len(rest) > 1:
                yield type(node)(rest)
            for simpler in smaller(part):
                yield type(node)((*node.parts[:number], simpler, *node.parts[number + 1 :]))
    elif isinstance(node, In) and len(node.literals) > 1:
        for number in range(len(node.literals)):
            yield In(node.name, node.literals[:number] + node.literals[number + 1 :], node.negated)


def fails_alone(case: Case, matcher: str, node: Node, event: Event) -> str | None:
    """What goes wrong with one subscription and one event, if anything does."""
    index, model = hitbox.Index(case.schema(), matcher), Model(case, {0: (node, 4)})
    try:
        index.subscribe(0, spell(node))
        check_event(index, model, event, [0])
    except hitbox.HitboxError:
        return None
    except Difference as difference:
        return str(difference)
    except Exception as error:
        return repr(error)
    return None


def shrunk(index: hitbox.Index, model: Model, matcher: str, rng: random.Random, difference: Difference) -> str:
    """The smallest predicate and event that differ by themselves, as far as simple steps find it."""
    for node, event in suspects(index, model, rng, difference):
        if points_to_try(node, model.case.types, meaning(event)) > MOST_POINTS:
            continue
        found = fails_alone(model.case, matcher, node, event)
        if found is None:
            continue
        steps = True
        while steps:
            steps = False
            fewer = [{other: value for other, value in event.items() if other != name} for name in event]
            for simpler, less in [*((part, event) for part in smaller(node)), *((node, rest) for rest in fewer)]:
                again = fails_alone(model.case, matcher, simpler, less)
                if again:
                    node, event, found, steps = simpler, less, again, True
                    break
        used = {atom.name: model.case.types[atom.name] for atom in atoms(node) if hasattr(atom, "name")}
        return f"{used} {spell(node)!r} with {handed_over(event)!r}: {found}"
    return "none with a single subscription: the door, the history or the other subscriptions matter"


def suspects(
    index: hitbox.Index, model: Model, rng: random.Random, difference: Difference
) -> Iterator[tuple[Node, Event]]:
    """The pair that differed, then others of the same kind."""
    if difference.node is not None and difference.event is not None:
        yield difference.node, difference.event
    nodes = [node for node, _ in model.held.values()]
    for _ in range(200):
        node = rng.choice(nodes)
        yield node, random_event(rng, model.case, [node], intervals=index.takes_intervals and rng.random() < 0.4)


# --- histories --------------------------------------------------------------------------------------------------------


STEPS = ["subscribe", "subscribe", "unsubscribe", "many", "texts", "bounds", "save", "copy", "bad", "squeeze"]


def check_history(seed: int, matcher: str, steps: int = 12) -> None:
    """Changes of every kind in a random order; after each the index must equal the model."""
    rng = random.Random(seed)
    model = Model(random_case(rng))
    index = new_index(model.case, matcher, rng)
    kind = rng.choice(["int", "string"])
    done: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(steps):
            step = rng.choice(
                ["subscribe", "subscribe", "unsubscribe", "many", "texts", "bounds", "save", "copy", "bad"]
            )
            done.append(step)
            try:
                index = take_step(step, index, model, rng, kind, folder)
                check_index(index, model, rng, 2)
            except Difference as difference:
                raise Difference(f"after {done}: {difference}\n  schema {model.case.schema()}") from difference


def take_step(step: str, index: hitbox.Index, model: Model, rng: random.Random, kind: str, folder: str) -> hitbox.Index:
    if step == "subscribe":
        for _ in range(rng.randint(1, 4)):
            subscribe(index, model, random_id(rng, kind), random_node(rng, model.case, 2), rng.randint(0, 9), rng)
    elif step == "unsubscribe" and model.held:
        id = rng.choice(list(model.held))
        index.unsubscribe(id)
        del model.held[id]
    elif step == "many":
        ids = {random_id(rng, kind) for _ in range(3)}
        assert index.unsubscribe_many(list(ids)) == sum(model.held.pop(id, None) is not None for id in ids)
    elif step == "texts":
        rows = {
            random_id(rng, kind): (random_node(rng, model.case, 1), rng.randint(0, 9)) for _ in range(rng.randint(1, 6))
        }
        index.load(table_of({id: (spell(node, rng), level) for id, (node, level) in rows.items()}, rng))
        model.held |= rows
    elif step == "bounds":
        ids = list({random_id(rng, kind) for _ in range(rng.randint(1, 6))})
        table, bounds = random_bounds(rng, model.case, ids)
        index.load(table)
        model.held |= dict(zip(ids, bounds, strict=True))
    elif step == "squeeze":
        squeeze(index, model, rng, kind)
    elif step == "save":
        index.save(folder)
        return hitbox.Index.open(folder)
    elif step == "copy":
        return copied(index, rng)
    elif step == "bad":
        refuse_changes(index, model, rng, kind)
    return index


def squeeze(index: hitbox.Index, model: Model, rng: random.Random, kind: str) -> None:
    """New strings, each between the last one and the empty one, until no number is left between their labels."""
    names = [name for name, type_ in model.case.types.items() if type_ == "string"]
    if not names or rng.random() < 0.5:
        return
    name, letter = rng.choice(names), rng.choice("aZ!")
    for length in range(70):
        text = letter * length + "b"
        node = Compare(name, rng.choice(["=", "<", ">="]), Literal("string", text, f"'{text}'"))
        subscribe(index, model, random_id(rng, kind), node, 5, rng)


def copied(index: hitbox.Index, rng: random.Random) -> hitbox.Index:
    """A copy that lives its own life."""
    ways: list[Callable[[hitbox.Index], hitbox.Index]] = [
        lambda index: pickle.loads(pickle.dumps(index)),
        copy.deepcopy,
        copy.copy,
    ]
    another = rng.choice(ways)(index)
    index.unsubscribe_many(list(index))
    return another


def refuse_changes(index: hitbox.Index, model: Model, rng: random.Random, kind: str) -> None:
    """A load with one bad row changes nothing."""
    good, bad = random_id(rng, kind), random_id(rng, kind)
    where = rng.choice(["", "nonsense = 1", "TRUE OR", None])
    try:
        index.load(pa.table({"id": [good, bad], "where": ["TRUE", where]}))
    except hitbox.HitboxError:
        return
    raise Difference(f"load took the predicate {where!r}")


# --- many of both -----------------------------------------------------------------------------------------------------


def check_many(seed: int, matcher: str) -> None:
    """Many copies of a few predicates and events: full blocks in the engine, several slices in a batch."""
    rng = random.Random(seed)
    case = random_case(rng)
    subscriptions, rows = rng.choice([(700, 2500), (3000, 60)])
    few = Model(case, {number: (random_node(rng, case, 2), 4) for number in range(20)})
    texts = {number: spell(node, rng) for number, (node, _) in few.held.items()}
    node_of = np.array(rng.choices(range(20), k=subscriptions))
    index = new_index(case, matcher, rng)
    index.load(table_of({id: (texts[node], id % 10) for id, node in enumerate(node_of.tolist())}, rng))
    gone = rng.sample(range(subscriptions), subscriptions // 10)
    index.unsubscribe_many(gone)
    node_of[gone] = -1
    table, events = random_table(rng, case, [node for node, _ in few.held.values()], 12)
    event_of = rng.choices(range(12), k=rows)
    matches = index.match_batch(table.take(event_of), threads=rng.choice([1, 2]))
    ids = matches.ids.to_numpy(zero_copy_only=False)
    right = [np.array([True in few.answers(event)[node] for node in range(20)] + [False]) for event in events]
    expected = [np.flatnonzero(of_nodes[node_of]) for of_nodes in right]
    for row, event in enumerate(event_of):
        found = ids[matches.offsets[row] : matches.offsets[row + 1]].astype(np.int64)
        if not np.array_equal(np.sort(found), expected[event]):
            wrong = np.setxor1d(found, expected[event])
            raise Difference(
                f"row {row}: {texts[int(node_of[wrong[0]])]!r} of {events[event]!r}: wrong for {wrong[:5]}"
            )
        if np.any(np.diff(found % 10) > 0):
            raise Difference(f"row {row}: not the most urgent first")


# --- both sides filter ------------------------------------------------------------------------------------------------


def check_both_sides(seed: int, matcher: str, subscriptions: int = 12, events: int = 8) -> None:
    """Events that ask something of the subscribers, who say something about themselves."""
    rng = random.Random(seed)
    asked, told = random_case(rng), random_case(rng)
    told = Case({f"my {name}": type_ for name, type_ in told.types.items()})
    roles = {name: {"type": type_, "role": "information"} for name, type_ in told.types.items()}
    index = hitbox.Index({**asked.schema(), **roles}, matcher)
    if not index.takes_intervals:
        return
    model, abouts = Model(asked), {}
    wants = [random_node(rng, told, 2) for _ in range(events)]
    for id in range(subscriptions):
        node, priority, about = random_node(rng, asked, 2), rng.randint(0, 9), random_event(rng, told, wants, True)
        try:
            index.subscribe(id, spell(node, rng), priority=priority, about=handed_over(about))
        except LimitExceeded:
            continue
        except hitbox.HitboxError:
            if not may_refuse(about):
                raise
            continue
        model.held[id], abouts[id] = (node, priority), meaning(about)
    nodes = [node for node, _ in model.held.values()]
    for want in wants:
        event, where = random_event(rng, asked, nodes, intervals=rng.random() < 0.4), spell(want, rng)
        if may_refuse(event) or not model.few_points(meaning(event)):
            continue
        if any(points_to_try(want, told.types, about) > MOST_POINTS for about in abouts.values()):
            continue
        try:
            ids = index.match(handed_over(event), where)
        except LimitExceeded:
            continue
        batched = index.match_batch([handed_over(event)], [where])[0]
        ours = model.answers(meaning(event))
        for id, about in abouts.items():
            theirs = answers(want, told.types, about)
            right = {one and other for one in ours[id] for other in theirs}
            explained = index.explain(handed_over(event), id, where).matched
            for door, verdict in (("match", id in ids), ("match_batch", id in batched), ("explain", explained)):
                if verdict not in right:
                    text = spell(model.held[id][0])
                    raise Difference(
                        f"{door} with where: {verdict}, should be {right}: {text!r} of {meaning(event)!r}"
                        f" is {ours[id]}, {spell(want)!r} of {about!r} is {theirs}\n  schema {index.schema!r}"
                    )


def check_exchange(seed: int, matcher: str, calls: int = 25) -> None:
    """Both sides come and go; the later one is matched against those that are there."""
    rng = random.Random(seed)
    asked = Case(random_case(rng).types)
    told = Case({f"my {name}": type_ for name, type_ in random_case(rng).types.items()})
    roles = {name: {"type": type_, "role": "information"} for name, type_ in told.types.items()}
    if not hitbox.Index({"a": "int"}, matcher).takes_intervals:
        return
    exchange = hitbox.Exchange({**asked.types, **roles}, matcher)
    sides: dict[str, dict[int, tuple[Node, dict[str, Any]]]] = {"subscription": {}, "event": {}}
    for _ in range(calls):
        side = rng.choice(list(sides))
        id, mine, theirs = rng.randint(0, 8), sides[side], sides["event" if side == "subscription" else "subscription"]
        asks, tells = (asked, told) if side == "subscription" else (told, asked)
        if id in mine and rng.random() < 0.3:
            (exchange.unsubscribe if side == "subscription" else exchange.withdraw)(id)
            del mine[id]
            continue
        node = random_node(rng, asks, 1)
        said = random_event(rng, tells, [want for want, _ in theirs.values()], intervals=rng.random() < 0.4)
        if any(points_to_try(node, asks.types, other) > MOST_POINTS for _, other in theirs.values()):
            continue
        if any(points_to_try(want, tells.types, meaning(said)) > MOST_POINTS for want, _ in theirs.values()):
            continue
        try:
            if side == "subscription":
                found = exchange.subscribe(id, spell(node, rng), about=handed_over(said))
            else:
                found = exchange.publish(id, handed_over(said), where=spell(node, rng))
        except LimitExceeded:
            continue
        except hitbox.HitboxError:
            if not may_refuse(said):
                raise
            continue
        mine[id] = (node, meaning(said))
        for other, (want, of_other) in theirs.items():
            ours, his = answers(node, asks.types, of_other), answers(want, tells.types, meaning(said))
            if (other in found) not in {one and two for one in ours for two in his}:
                raise Difference(
                    f"a new {side} {spell(node)!r} with {meaning(said)!r} and the other's {spell(want)!r} with"
                    f" {of_other!r}: {other in found}, should be {ours} and {his}"
                )
        if len(set(found)) != len(found) or not set(found) <= set(theirs):
            raise Difference(f"the exchange names {found}, there are {list(theirs)}")


# --- threads and interrupts -------------------------------------------------------------------------------------------


def check_threads(seed: int, matcher: str, rounds: int = 40) -> None:
    """While one thread changes subscriptions, every answer fits the state before or after a change."""
    rng = random.Random(seed)
    case = random_case(rng)
    index = new_index(case, matcher, rng)
    steady = Model(case)
    for id in range(8):
        subscribe(index, steady, id, random_node(rng, case, 2), rng.randint(0, 9), rng)
    nodes = [node for node, _ in steady.held.values()]
    variants = [random_node(rng, case, 2) for _ in range(3)]
    texts = [spell(node) for node in variants]
    index.subscribe(100, texts[0])
    failures: list[BaseException] = []
    over = threading.Event()
    writer_rng = random.Random(seed + 1)

    def write() -> None:
        try:
            with tempfile.TemporaryDirectory() as folder:
                while not over.is_set():
                    index.subscribe(100, writer_rng.choice(texts))
                    index.subscribe(101, writer_rng.choice(texts))
                    index.load(table_of({102: ("TRUE", 3), 103: ("TRUE", 3)}, writer_rng))
                    if writer_rng.random() < 0.1:
                        index.save(folder)
                    index.unsubscribe_many([102, 103])
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(rounds):
            event = random_event(rng, case, [*nodes, *variants])
            try:
                ids = index.match(handed_over(event))
            except hitbox.HitboxError:
                if may_refuse(event):
                    continue
                raise
            check_ids(steady, meaning(event), [id for id in ids if id < 100], "match beside a writer")
            possible = {answer for node in variants for answer in answers(node, case.types, meaning(event))}
            if (100 in ids) not in possible:
                raise Difference(f"{texts} of {meaning(event)!r}: 100 is {'' if 100 in ids else 'not '}matched")
            if (102 in ids) != (103 in ids):
                raise Difference("half of a load was seen")
    finally:
        over.set()
        writer.join(60)
    if writer.is_alive():
        raise Difference("the writer hangs")
    if failures:
        raise Difference(f"the writer ended in {failures[0]!r}") from failures[0]


class Interrupted(BaseException):
    """What the signal handler raises, as Ctrl-C does."""


class Hung(BaseException):
    """The watchdog's."""


def interrupt(seconds: float, exception: type[BaseException]) -> None:
    def handler(signum: int, frame: object) -> None:
        raise exception

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def check_interrupts(seed: int, matcher: str, rounds: int = 30) -> int:
    """A change that a signal handler interrupts was made or was not; how many were interrupted. Main thread only."""
    rng = random.Random(seed)
    model = Model(random_case(rng))
    index = new_index(model.case, matcher, rng)
    interrupted = 0
    before = signal.getsignal(signal.SIGALRM)
    try:
        for _ in range(rounds):
            interrupted += interrupted_change(index, model, rng)
            try:
                interrupt(20, Hung)  # a lock that is held for ever shows here
                check_index(index, model, rng, 1)
            except Hung as error:
                raise Difference("the index hangs after an interrupted change") from error
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return interrupted


def interrupted_change(index: hitbox.Index, model: Model, rng: random.Random) -> bool:
    """One change under a timer. The model follows whichever of the two states the index is in."""
    change = rng.choice(["subscribe", "load", "unsubscribe"])
    new: dict[Id, tuple[Node, int]] = {}
    gone: list[Id] = []
    if change == "unsubscribe" and model.held:
        gone = rng.sample(list(model.held), rng.randint(1, min(3, len(model.held))))
    else:
        count = 1 if change == "subscribe" else rng.randint(2, 40)
        new = {rng.randint(0, 60): (random_node(rng, model.case, 1), rng.randint(0, 9)) for _ in range(count)}
    texts = {id: (spell(node), level) for id, (node, level) in new.items()}
    table = table_of(texts, rng) if len(texts) > 1 else None
    after = {id: held for id, held in model.held.items() if id not in gone} | new
    was_interrupted = False
    try:
        try:
            interrupt(10 ** rng.uniform(-4.7, -2), Interrupted)
            if gone:
                index.unsubscribe_many(gone)
            elif table is not None:
                index.load(table)
            else:
                for id, (text, level) in texts.items():
                    index.subscribe(id, text, priority=level)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            # beside other threads Python may notice a signal late; this runs what is put off
            signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGALRM))
        model.held = after
    except Interrupted:
        was_interrupted = True
    except LimitExceeded:
        pass
    if was_interrupted and was_made(index, model, gone, new):
        model.held = after
    return was_interrupted


def was_made(index: hitbox.Index, model: Model, gone: Sequence[Id], new: Mapping[Id, tuple[Node, int]]) -> bool:
    """Whether all of an interrupted change was made; a Difference where only a part was."""
    try:
        interrupt(20, Hung)
        signs = [id not in index for id in gone]
        for id, held in new.items():
            changed = id in index and (
                flat(parse(index.where(id), model.case.types, model.case.grids)) == flat(held[0])
                and index.priority(id) == held[1]
            )
            if id in model.held and model.held[id] == held:
                continue  # the same as before: no sign of anything
            signs.append(changed)
    except Hung as error:
        raise Difference("the index hangs after an interrupted change") from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    if len(set(signs)) > 1:
        raise Difference(f"an interrupted change was made in part: {signs.count(True)} of {len(signs)}")
    return bool(signs) and signs[0]


# --- the grammar ------------------------------------------------------------------------------------------------------


def check_grammar(seed: int, texts: int = 40) -> Counter[str]:
    """Mangled texts: both sides accept or both reject, and what both accept means the same."""
    rng = random.Random(seed)
    case = random_case(rng)
    index = hitbox.Index(case.schema(), "brute")
    counts: Counter[str] = Counter()
    for _ in range(texts):
        text = mangled(rng, spell(random_node(rng, case, 1), rng))
        try:
            node: Node | None = parse(text, case.types, case.grids)
        except Rejected:
            node = None
        try:
            index.subscribe(0, text)
            accepted = True
        except LimitExceeded:
            continue
        except hitbox.HitboxError:
            accepted = False
        if accepted != (node is not None):
            raise Difference(f"{text!r} is {'accepted' if accepted else 'rejected'} over {case.schema()}")
        counts["accepted" if accepted else "rejected"] += 1
        if node is not None:
            check_index(index, Model(case, {0: (node, 4)}), rng, 2)
    return counts


def mangled(rng: random.Random, text: str) -> str:
    """The text with a few of its pieces dropped, doubled, swapped or replaced."""
    pieces = text.replace("(", " ( ").replace(")", " ) ").split(" ")
    strange = [
        "(",
        ")",
        "NOT",
        "AND",
        "=",
        "1",
        "1.",
        "'a'",
        "TRUE",
        ",",
        "NULL",
        "IN",
        "<",
        "-",
        "1e400",
        "a",
        "'",
        '"',
    ]
    for _ in range(rng.choice([0, 1, 1, 2])):
        at = rng.randrange(len(pieces))
        kind = rng.random()
        if kind < 0.3:
            pieces[at : at + 1] = []
        elif kind < 0.5:
            pieces[at:at] = [pieces[at]]
        elif kind < 0.6:
            other = rng.randrange(len(pieces))
            pieces[at], pieces[other] = pieces[other], pieces[at]
        else:
            pieces[at : at + (kind < 0.8)] = [rng.choice(strange)]
        if not pieces:
            return ""
    return " ".join(pieces)


# --- the long run -----------------------------------------------------------------------------------------------------

CHECKS: dict[str, Callable[[int, str], object]] = {
    "predicates": check_predicates,
    "history": check_history,
    "many": check_many,
    "both": check_both_sides,
    "exchange": check_exchange,
    "threads": check_threads,
    "interrupts": check_interrupts,
    "grammar": lambda seed, matcher: check_grammar(seed),
}


def run(check: str, seed: int, matcher: str) -> None:
    """One case; warnings of predicates that can never hold are expected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hitbox.HitboxWarning)
        try:
            CHECKS[check](seed, matcher)
        except Difference as difference:
            raise Difference(f"[{check}, seed {seed}, matcher {matcher}] {difference}") from difference
        except Exception as error:
            raise Difference(f"[{check}, seed {seed}, matcher {matcher}] {error!r}") from error


def main() -> int:
    parser = argparse.ArgumentParser(description="Random cases against the second evaluator.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, help="run this one seed only")
    parser.add_argument("--check", choices=[*CHECKS, "all"], default="all")
    parser.add_argument("--matcher", help="default: the engine, brute and the published ones in turn")
    parser.add_argument("--most", type=int, default=20, help="end after this many differences")
    asked = parser.parse_args()
    checks = list(CHECKS) if asked.check == "all" else [asked.check]
    published = [name for name in hitbox.matchers() if name not in ("hitbox", "brute")]
    counts: Counter[str] = Counter()
    differences = 0
    end = time.monotonic() + asked.minutes * 60
    seed = asked.seed if asked.case is None else asked.case
    while time.monotonic() < end and differences < asked.most:
        turn = ["hitbox", "brute", "hitbox", published[seed // 4 % len(published)]][seed % 4]
        for check in checks:
            try:
                run(check, seed, asked.matcher or turn)
            except Difference as difference:
                differences += 1
                print(difference, flush=True)
            counts[check] += 1
        if asked.case is not None:
            break
        seed += 1
    print(f"{dict(counts)} cases, {differences} differences; next seed {seed}")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
