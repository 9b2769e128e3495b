"""hitbox against a second evaluator that shares no code with it, on random cases and after random histories.

Some seconds of it run here, with the same seeds every time. `python tests/support/comparison.py --minutes 10 --seed 7`
goes on for as long as you like; a difference prints its seed and the smallest predicate and event that show it.
"""

from __future__ import annotations

import ast
import datetime
import random
import re
from fractions import Fraction
from pathlib import Path

import pytest

import hitbox
from support import second_evaluator
from support.comparison import check_interrupts, run
from support.golden_files import FOLDER, unescape
from support.random_cases import random_case, random_node, random_text, spell
from support.second_evaluator import (
    FIRST_MOMENT,
    LAST_MOMENT,
    Grid,
    Interval,
    Rejected,
    answers,
    flat,
    like,
    moment,
    parse,
)

PUBLISHED = [name for name in hitbox.matchers() if name not in ("hitbox", "brute")]
TODAY = PUBLISHED[datetime.date.today().toordinal() % len(PUBLISHED)]  # one a day: their kernels take long to compile
TYPES = {"price": "float", "qty": "int", "city": "string", "ok": "bool", "at": "timestamp", "timestamp": "timestamp"}
TYPES |= {"odd name": "string", "Or": "int", 'say "hi"': "int", "größe": "float", "step": "float"}
STEP = {"step": Grid(Fraction(0), Fraction(5), Fraction(1, 2))}


# --- the evaluator itself ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["second_evaluator", "random_cases"])
def test_it_imports_nothing_from_hitbox(name: str) -> None:
    tree = ast.parse(Path(second_evaluator.__file__).with_name(f"{name}.py").read_text(encoding="utf-8"))
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    found |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not any(module.split(".")[0] == "hitbox" for module in found)


def golden(name: str) -> list[tuple[str, str]]:
    """(predicate, what follows it) of a golden file."""
    parts = (FOLDER / name).read_text(encoding="utf-8").split("\n>")[1:]
    found = [part.partition("\n") for part in parts]
    return [(unescape(text[1:]), re.sub(r"(?m)^    ", "", rest).strip("\n")) for text, _, rest in found]


def test_it_reads_the_golden_files_alike() -> None:
    for text, canonical in golden("round_trips.txt"):
        assert flat(parse(text, TYPES, STEP)) == parse(canonical, TYPES, STEP), text
    for text, _ in golden("boxes.txt"):
        parse(text, TYPES, STEP)
    for text, _ in golden("errors.txt"):
        with pytest.raises(Rejected):
            parse(text, TYPES, STEP)


def test_it_reads_what_it_writes() -> None:
    rng = random.Random(1)
    for _ in range(300):
        case = random_case(rng)
        node = random_node(rng, case)
        assert parse(spell(node), case.types, case.grids) == node
        assert parse(spell(node, rng), case.types, case.grids) == node


def test_its_like_is_that_of_a_regular_expression() -> None:
    rng = random.Random(2)
    for _ in range(2000):
        pattern, text = random_text(rng, 5), random_text(rng, 5)
        parts = [".*" if letter == "%" else "." if letter == "_" else re.escape(letter) for letter in pattern]
        assert like(text, pattern, None) == bool(re.fullmatch("".join(parts), text, re.DOTALL)), (text, pattern)


def test_its_calendar_is_that_of_datetime() -> None:
    epoch = datetime.datetime(1970, 1, 1)
    for micros in (
        FIRST_MOMENT,
        LAST_MOMENT,
        *(random.Random(3).randint(FIRST_MOMENT, LAST_MOMENT) for _ in range(500)),
    ):
        assert moment((epoch + datetime.timedelta(microseconds=micros)).isoformat()) == micros


@pytest.mark.parametrize(
    ("text", "event", "right"),
    [
        ("qty < 2 AND qty > 3", {"qty": Interval(0, 9)}, {False}),
        ("qty < 5", {"qty": Interval(4, 6)}, {True}),
        ("NOT qty < 5", {"qty": Interval(4, 6)}, {True}),
        ("price = 9007199254740993", {"price": Fraction(2**53)}, {False}),
        ("price = 9007199254740993.0", {"price": Fraction(2**53)}, {True}),
        ("qty < 9007199254740993.0000000001", {"qty": 2**53 + 1}, {True}),
        ("NOT qty = 1", {}, {False}),
        ("qty = 1 OR city IS NULL", {}, {True}),
        ("city LIKE 'Pa_'", {"city": Interval("Paaaa", "Paaab")}, {True, False}),
        ("city LIKE '%x' AND city < 'a'", {"city": Interval("b", "c")}, {False}),
    ],
)
def test_it_knows_the_description(text: str, event: dict[str, object], right: set[bool]) -> None:
    assert answers(parse(text, TYPES), TYPES, event) == right


# --- hitbox against it ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("matcher", ["hitbox", "brute", TODAY])
def test_predicates(matcher: str) -> None:
    for seed in range(12 if matcher == "hitbox" else 4):
        run("predicates", seed, matcher)


@pytest.mark.parametrize("matcher", ["hitbox", "brute", TODAY])
def test_histories(matcher: str) -> None:
    for seed in range(8 if matcher == "hitbox" else 3):
        run("history", seed, matcher)


@pytest.mark.parametrize("matcher", ["hitbox", TODAY])
def test_many_of_both(matcher: str) -> None:
    for seed in range(3):
        run("many", seed, matcher)


@pytest.mark.parametrize("matcher", ["hitbox", "brute"])
def test_both_sides(matcher: str) -> None:
    for seed in range(6):
        run("both", seed, matcher)


@pytest.mark.parametrize("matcher", ["hitbox", "brute"])
def test_exchange(matcher: str) -> None:
    for seed in range(10):
        run("exchange", seed, matcher)


def test_mangled_texts() -> None:
    for seed in range(8):
        run("grammar", seed, "brute")


def test_changes_in_another_thread() -> None:
    for seed in range(8):
        run("threads", seed, "hitbox")


@pytest.mark.filterwarnings("ignore::hitbox.errors.HitboxWarning")
def test_interrupted_changes() -> None:
    assert sum(check_interrupts(seed, "hitbox", rounds=20) for seed in range(6)) > 10


@pytest.mark.parametrize("matcher", ["hitbox", "brute"])
def test_nothing_lies_between_two_steps_of_a_whole_number(matcher: str) -> None:
    index = hitbox.Index({"qty": {"type": "int", "domain": [0, 40]}}, matcher)
    with pytest.warns(hitbox.HitboxWarning):
        index.subscribe("never", "qty > 3 AND qty < 4")
    index.subscribe("five", "qty > 4 AND qty < 6")
    index.subscribe("not five", "qty <> 5")
    assert sorted(index.match({"qty": (0, 40)})) == ["five", "not five"]
    assert index.match({"qty": 5}) == ["five"]
