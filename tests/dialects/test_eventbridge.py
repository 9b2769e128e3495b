"""Event patterns mean what EventBridge's documents say, whichever way they are translated."""

from __future__ import annotations

import json
import random
import warnings
from decimal import Decimal
from typing import Any

import pytest

from hitbox import Index
from hitbox.dialects import eventbridge
from hitbox.errors import DialectError, HitboxError, NeverMatches
from support import event_ruler
from support.open_index import open_index

EVENT = {
    "version": "0",
    "id": "ddddd4-aaaa-7777-4444-345dd43cc333",
    "detail-type": "EC2 Instance State-change Notification",
    "source": "aws.ec2",
    "account": "012345679012",
    "time": "2017-10-02T16:24:49Z",
    "region": "us-east-1",
    "resources": ["arn:aws:ec2:us-east-1:123456789012:instance/i-000000aaaaaa00000"],
    "detail": {
        "c-count": 5,
        "d-count": 3,
        "x-limit": 301.8,
        "source-ip": "10.0.0.33",
        "instance-id": "i-000000aaaaaa00000",
        "state": "running",
    },
}
SCHEMA = {
    **dict.fromkeys(("version", "id", "detail-type", "source", "account", "time", "region"), "string"),
    "resources": "string[]",
    "detail": {
        "c-count": "int",
        "d-count": "int",
        "x-limit": "float",
        "source-ip": "string",
        "instance-id": "string",
        "state": "string",
        "tags": "string[]",
        "flag": "bool",
    },
    "employees": [{"firstName": "string", "lastName": "string"}],
}


def matches(pattern: Any, event: Any = EVENT, schema: Any = SCHEMA, known: bool = True) -> bool:
    """`known`: whether there is a schema."""
    index = Index(schema) if known else open_index()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NeverMatches)
        index.subscribe(1, eventbridge.parse(pattern, index.schema if known else None))
    return index.match(event) == [1]


def detail(**alternatives: Any) -> dict[str, Any]:
    return {"detail": {name.replace("_", "-"): value for name, value in alternatives.items()}}


ARN = "arn:aws:ec2:us-east-1:123456789012:instance/i-000000aaaaaa00000"
DOCUMENTED: list[tuple[Any, bool]] = [
    ({"source": ["aws.ec2"]}, True),
    ({"source": ["aws.s3"]}, False),
    ({"detail-type": ["EC2 Instance State-change Notification"], "resources": [ARN]}, True),
    ({"resources": [ARN, "other"], **detail(state=["initializing", "running"])}, True),
    ({"resources": ["other"]}, False),
    ({"resources": [{"prefix": "arn:aws:ec2:"}]}, True),
    ({"time": [{"prefix": "2017-10-02"}]}, True),
    ({"time": [{"prefix": "2017-10-03"}]}, False),
    ({"source": [{"suffix": "ec2"}]}, True),
    ({"source": [{"suffix": "ec3"}]}, False),
    ({"source": [{"equals-ignore-case": "AWS.EC2"}]}, True),
    ({"source": [{"prefix": {"equals-ignore-case": "AWS"}}]}, True),
    ({"source": [{"suffix": {"equals-ignore-case": ".EC2"}}]}, True),
    ({"source": [{"suffix": {"equals-ignore-case": ".EC3"}}]}, False),
    ({"source": [{"wildcard": "a*.ec2"}]}, True),
    ({"source": [{"wildcard": "*"}]}, True),
    ({"source": [{"wildcard": "a*s"}]}, False),
    ({"source": [{"wildcard": "aws\\*ec2"}]}, False),
    ({"source": [{"wildcard": "aws_ec2"}]}, False),
    ({"source": [{"prefix": "%"}]}, False),
    ({"source": [""]}, False),
    (detail(state=[{"anything-but": "initializing"}]), True),
    (detail(state=[{"anything-but": "running"}]), False),
    (detail(state=[{"anything-but": ["stopped", "overloaded"]}]), True),
    (detail(state=[{"anything-but": ["stopped", "running"]}]), False),
    (detail(x_limit=[{"anything-but": 123}]), True),
    (detail(x_limit=[{"anything-but": [100, 200, 301.8]}]), False),
    (detail(state=[{"anything-but": {"prefix": "init"}}]), True),
    (detail(state=[{"anything-but": {"prefix": "run"}}]), False),
    (detail(state=[{"anything-but": {"prefix": ["x", "run"]}}]), False),
    (detail(state=[{"anything-but": {"suffix": "ning"}}]), False),
    (detail(state=[{"anything-but": {"suffix": ["x", "y"]}}]), True),
    (detail(state=[{"anything-but": {"equals-ignore-case": "RUNNING"}}]), False),
    (detail(state=[{"anything-but": {"equals-ignore-case": ["STOPPED", "RUNNING"]}}]), False),
    (detail(state=[{"anything-but": {"equals-ignore-case": ["STOPPED", "DONE"]}}]), True),
    (detail(state=[{"anything-but": {"wildcard": "r*g"}}]), False),
    (detail(state=[{"anything-but": {"wildcard": ["a*", "*b*"]}}]), True),
    (detail(tags=[{"anything-but": "a"}]), False),
    (detail(c_count=[{"numeric": [">", 0, "<=", 5]}]), True),
    (detail(c_count=[{"numeric": [">", 5]}]), False),
    (detail(d_count=[{"numeric": ["<", 10]}]), True),
    (detail(x_limit=[{"numeric": ["=", 3.018e2]}]), True),
    (detail(x_limit=[{"numeric": [">=", 301.8, "<", 302]}]), True),
    (detail(c_count=[5]), True),
    (detail(c_count=[5.0, 7]), True),
    (detail(source_ip=[{"cidr": "10.0.0.0/24"}]), True),
    (detail(source_ip=[{"cidr": "10.0.1.0/24"}]), False),
    (detail(source_ip=[{"cidr": "2001:db8::/32"}]), False),
    (detail(c_count=[{"exists": True}]), True),
    (detail(c_count=[{"exists": False}]), False),
    (detail(tags=[{"exists": False}]), True),
    (detail(flag=[{"exists": True}]), False),
    (detail(flag=[None]), False),
    ({"$or": [{"source": ["x"]}, detail(state=["running"])]}, True),
    ({"source": ["aws.ec2"], "$or": [{"region": ["x"]}, {"account": ["y"]}]}, False),
    (
        {
            "time": [{"prefix": "2017-10-02"}],
            "detail": {
                "state": [{"anything-but": "initializing"}],
                "c-count": [{"numeric": [">", 0, "<=", 5]}],
                "d-count": [{"numeric": ["<", 10]}],
                "x-limit": [{"anything-but": [100, 200, 300]}],
                "source-ip": [{"cidr": "10.0.0.0/8"}],
            },
        },
        True,
    ),
]


@pytest.mark.parametrize("known", [True, False], ids=["schema", "open"])
@pytest.mark.parametrize(("pattern", "wanted"), DOCUMENTED, ids=lambda one: json.dumps(one)[:60])
def test_documented_patterns(pattern: Any, wanted: bool, known: bool) -> None:
    assert matches(pattern, known=known) == wanted
    assert matches(json.dumps(pattern), known=known) == wanted
    assert matches(json.dumps(pattern).encode(), known=known) == wanted


WAYS = pytest.mark.parametrize("known", [True, False], ids=["schema", "open"])


@WAYS
def test_null_is_not_missing(known: bool) -> None:
    null, missing, value = ({"detail": {"flag": None}}, {"detail": {"state": "x"}}, {"detail": {"flag": True}})
    for pattern, fit in (
        (detail(flag=[None]), [null]),
        (detail(flag=[{"exists": True}]), [null, value]),
        (detail(flag=[{"exists": False}]), [missing]),
        (detail(flag=[None, True]), [null, value]),
    ):
        assert [one for one in (null, missing, value) if matches(pattern, one, known=known)] == fit


@WAYS
def test_anything_but_takes_null_but_not_a_missing_field(known: bool) -> None:
    pattern = detail(state=[{"anything-but": ["a", "b"]}])
    assert matches(pattern, {"detail": {"state": None}}, known=known)
    assert not matches(pattern, {"detail": {"flag": True}}, known=known)


def test_values_of_several_types() -> None:
    """Only without a schema."""
    event = {"a": "x", "n": 5, "l": ["x", 5, True, None]}
    for pattern, wanted in (
        ({"n": [{"anything-but": "x"}]}, True),
        ({"n": ["x", 5]}, True),
        ({"n": ["5"]}, False),
        ({"a": [{"numeric": ["=", 5]}]}, False),
        ({"a": [{"anything-but": 5}]}, True),
        ({"a": [True, {"prefix": "x"}]}, True),
        ({"l": [5]}, True),
        ({"l": [True]}, True),
        ({"l": [None]}, True),
        ({"l": [False]}, False),
        ({"l": [{"anything-but": ["x", "y"]}]}, True),
        ({"n": [{"prefix": "5"}]}, False),
        ({"a": {"b": ["x"]}}, False),
    ):
        assert matches(pattern, event, known=False) == wanted, pattern


@WAYS
def test_lists_of_events(known: bool) -> None:
    for pattern, tags, wanted in (
        (["a"], ["b", "a"], True),
        (["a"], [], False),
        ([{"anything-but": "a"}], ["a", "b"], True),
        ([{"anything-but": "a"}], ["a", "a"], False),
        ([{"anything-but": {"prefix": ["a", "b"]}}], ["a1", "b1"], False),
        ([{"anything-but": {"prefix": ["a", "b"]}}], ["a1", "c"], True),
        ([None], ["a", None], True),
        ([{"anything-but": "a"}], ["a", None], True),
    ):
        assert matches(detail(tags=pattern), {"detail": {"tags": tags}}, known=known) == wanted, (pattern, tags)
    for tags, there in (([], False), (["a"], True), ([None], True), (None, True)):
        event = {"detail": {"tags": tags}}
        assert matches(detail(tags=[{"exists": True}]), event, known=known) == there, tags
        assert matches(detail(tags=[{"exists": False}]), event, known=known) != there, tags


@WAYS
def test_a_range_is_one_of_a_single_element(known: bool) -> None:
    schema = {"n": "float[]"}
    pattern = {"n": [{"numeric": [">", 0, "<", 5]}]}
    assert not matches(pattern, {"n": [0, 5]}, schema, known)
    assert not matches(pattern, {"n": [-1, 9]}, schema, known)
    assert matches(pattern, {"n": [-1, 4.999]}, schema, known)
    assert matches(pattern, {"n": [5e-324]}, schema, known)


@WAYS
def test_fields_of_one_object_of_a_list(known: bool) -> None:
    event = {
        "employees": [
            {"firstName": "John", "lastName": "Doe"},
            {"firstName": "Anna", "lastName": "Smith"},
            {"firstName": "Peter", "lastName": "Jones"},
        ]
    }
    for employee, wanted in (
        ({"firstName": ["Anna"]}, True),
        ({"firstName": ["Anna"], "lastName": ["Smith"]}, True),
        ({"firstName": ["Anna"], "lastName": ["Jones"]}, False),
        ({"firstName": ["Anna"], "$or": [{"lastName": ["Jones"]}, {"lastName": ["Smith"]}]}, True),
        ({"firstName": ["Anna"], "$or": [{"lastName": ["Jones"]}, {"lastName": ["Doe"]}]}, False),
        ({"firstName": [{"exists": True}]}, True),
    ):
        assert matches({"employees": employee}, event, known=known) == wanted, employee


@WAYS
def test_branches_about_one_object_of_a_list(known: bool) -> None:
    """The branches of a $or beside a list are about the same object as the fields of the list."""
    pattern = {
        "employees": {"firstName": ["Anna"]},
        "$or": [{"employees": {"lastName": ["Smith"]}}, {"source": ["shop"]}],
    }
    anna, smith = {"firstName": "Anna"}, {"lastName": "Smith"}
    assert matches(pattern, {"employees": [anna | smith]}, known=known)
    assert not matches(pattern, {"employees": [anna, smith]}, known=known)
    assert matches(pattern, {"employees": [anna], "source": "shop"}, known=known)


@WAYS
def test_absent_fields_of_objects_of_a_list(known: bool) -> None:
    """The first field that is there chooses the object: before, a field is absent from all, afterwards from it."""
    anna, doe, both = {"firstName": "Anna"}, {"lastName": "Doe"}, {"firstName": "Anna", "lastName": "Doe"}
    absent = {"exists": False}
    for first, last, fit in (
        ([absent], ..., ["[]", "missing", "doe"]),
        ([absent, "John"], ["Doe"], ["doe"]),
        ([absent, "Anna"], ["Doe"], ["doe", "both", "anna, both"]),
        (["Anna"], [absent], ["anna", "anna, doe", "anna, both"]),
        (["Anna"], [absent, "Doe"], ["anna", "anna, doe", "both", "anna, both"]),
        (["Anna"], [absent, "Smith"], ["anna", "anna, doe", "anna, both"]),
    ):
        pattern = {"employees": {"firstName": first} | ({} if last is ... else {"lastName": last})}
        events: dict[str, Any] = {
            "[]": {"employees": []},
            "missing": {"source": "x"},
            "anna": {"employees": [anna]},
            "doe": {"employees": [doe]},
            "anna, doe": {"employees": [anna, doe]},
            "both": {"employees": [both]},
            "anna, both": {"employees": [anna, both]},
        }
        assert [name for name, event in events.items() if matches(pattern, event, known=known)] == fit, pattern


def test_any_object_may_be_a_list_without_a_schema() -> None:
    there = {"d": {"a": [{"exists": True}]}}
    for event, wanted in (
        ({"d": {"a": 1}}, True),
        ({"d": [{"a": 1}]}, True),
        ({"d": [{"b": 1}, {"a": None}]}, True),
        ({"d": [{"b": 1}]}, False),
        ({"d": [{"a": []}]}, False),
        ({"d": {"a": {"b": 1}}}, False),  # an object is no field
        ({"d": [{"a": [{"b": 1}]}, 5]}, False),
        ({"d": 5}, False),
        ({"d.a": 1}, True),
    ):
        assert matches(there, event, known=False) == wanted, event
        assert matches({"d": {"a": [{"exists": False}]}}, event, known=False) != wanted, event
    pattern = {"d": {"a": [1], "e": {"x": [2], "y": [3]}}}
    for event, wanted in (
        ({"d": {"a": 1, "e": {"x": 2, "y": 3}}}, True),
        ({"d": {"a": 1, "e": [{"x": 2}, {"y": 3}]}}, False),
        ({"d": [{"a": 1, "e": [{"x": 2, "y": 4}, {"x": 2, "y": 3}]}]}, True),
        ({"d": [{"a": 1, "e": [{"x": 2, "y": 4}]}, {"a": 2, "e": [{"x": 2, "y": 3}]}]}, False),
        ({"d.a": 1, "d.e.x": 2, "d.e.y": 3}, True),
    ):
        assert matches(pattern, event, known=False) == wanted, event
    assert not matches({"a": [{"anything-but": "x"}]}, {"a": {"b": 1}}, known=False)


def test_lists_inside_lists_without_a_schema() -> None:
    """They count as one list, in which the fields of an object still belong together."""
    people = [[{"first": "John", "last": "Doe", "ids": [1, [2]]}, {"first": "Anna"}], [[{"last": "Doe", "ids": []}]]]
    for pattern, wanted in (
        ({"first": ["Anna"]}, True),
        ({"first": ["John"], "last": ["Doe"]}, True),
        ({"first": ["Anna"], "last": ["Doe"]}, False),
        ({"first": ["John"], "ids": [2]}, True),
        ({"first": ["Anna"], "ids": [2]}, False),
        ({"first": ["Anna"], "ids": [{"exists": False}]}, True),
        ({"first": ["John"], "ids": [{"exists": False}]}, False),
        ({"ids": [{"anything-but": [1, 2]}]}, False),
        ({"ids": [{"numeric": [">", 1, "<", 3]}]}, True),
    ):
        assert matches({"people": pattern}, {"people": people}, known=False) == wanted, pattern
    for tags, wanted in (([["a"], ["b", None]], True), ([[[]], [["a"]]], False), ([[], [[]]], False)):
        assert matches({"tags": ["b"]}, {"tags": tags}, known=False) == wanted, tags
    for tags, there in (([[]], False), ([[], [[None]]], True), ([[{"a": 1}]], False)):
        for exists in (True, False):
            assert matches({"tags": [{"exists": exists}]}, {"tags": tags}, known=False) == (there == exists), tags


def test_cases_are_limited() -> None:
    schema = {"d": [{"z": "int"} | {f"k{number}": {"a": "int", "b": "int"} for number in range(10)}]}
    either = {"$or": [{"a": [1]}, {"b": [1]}]}
    with pytest.raises(DialectError, match="makes more than 1000 cases"):
        eventbridge.parse({"d": {"z": [1, {"exists": False}]} | {f"k{number}": either for number in range(10)}}, schema)
    with pytest.raises(DialectError, match="more than 500000 characters"):
        eventbridge.parse({"d": {f"k{number}": [1, {"exists": False}] for number in range(900)}})


def test_or_may_be_a_field() -> None:
    schema = {"source": "string", "$or": {"type": {"type": "string"}}}
    assert matches({"$or": {"type": ["a"]}}, {"$or": {"type": "a"}}, schema)
    schema = {"source": "string", "$or": "string"}
    assert matches({"$or": ["a"]}, {"$or": "a"}, schema)
    assert "$or" in eventbridge.parse({"$or": ["a", "b"]})


def test_names_are_quoted() -> None:
    schema = {"old": {"x": "int"}, "a b": {"c.d": "int"}, "is": "int", 'q"': "int"}
    pattern = {"old": {"x": [1]}, "a b": {"c": {"d": [2]}}, "is": [3], 'q"': [4]}
    assert matches(pattern, {"old": {"x": 1}, "a b": {"c.d": 2}, "is": 3, 'q"': 4}, schema)
    assert matches(pattern, {"old": {"x": 1}, "a b": {"c": {"d": 2}}, "is": 3, 'q"': 4}, known=False)
    several = {"old": {"x": [1], "is": [2]}, "a b": {"q": [3], '"': [4]}}
    assert matches(several, {"old": [{"x": 1, "is": 2}], "a b": [{"q": 3, '"': 4}]}, known=False)


def test_numbers_are_exact() -> None:
    assert eventbridge.parse('{"a": [0.1, 300, 3.0e2]}', {"a": "float"}) == "a IN (0.1, 300, 3.0E+2)"
    assert matches('{"a": [9007199254740993]}', {"a": 9007199254740993}, {"a": "int"})
    assert not matches('{"a": [9007199254740993]}', {"a": 9007199254740992}, {"a": "int"})
    assert eventbridge.parse({"a": [Decimal("1.50"), 2.5]}, {"a": "float"}) == "a IN (1.50, 2.5)"
    assert matches({"a": [{"numeric": ["<", 10**30]}]}, {"a": 1e29}, {"a": "float"})


def test_types_that_do_not_fit() -> None:
    assert eventbridge.parse({"a": ["x", 1, True]}, {"a": "int"}) == "a = 1"
    assert eventbridge.parse({"a": ["x"]}, {"a": "int"}) == "FALSE"
    assert eventbridge.parse({"a": [{"numeric": [">", 1]}]}, {"a": "string"}) == "FALSE"
    assert eventbridge.parse({"a": [{"anything-but": "x"}]}, {"a": "int"}) == "a IS NOT MISSING"


BAD: list[tuple[Any, str]] = [
    ("{", "not JSON"),
    ("[]", "a JSON object"),
    ("5", "a JSON object"),
    ({}, "empty object"),
    ({"a": {}}, r"\$\.a: an empty object"),
    ({"a": []}, r"\$\.a: the list of alternatives is empty"),
    ({"a": "x"}, r"\$\.a: a field takes a list"),
    ({"a": 5}, "takes a list"),
    ({"a": None}, "takes a list"),
    ({"a": [["x"]]}, r"\$\.a\[0\]: an alternative is"),
    ({"a": [{}]}, "one operator, not 0"),
    ({"a": [{"prefix": "a", "suffix": "b"}]}, "one operator, not 2"),
    ({"a": [{"prefx": "a"}]}, r"\$\.a\[0\]\.prefx: unknown operator; did you mean 'prefix'"),
    ({"a": [{"prefix": 5}]}, "write a text"),
    ({"a": [{"prefix": {"suffix": "x"}}]}, "prefix takes a text"),
    ({"a": [{"wildcard": "a**b"}]}, "two asterisks"),
    ({"a": [{"wildcard": "a\\b"}]}, "backslash"),
    ({"a": [{"wildcard": "a\\"}]}, "backslash"),
    ({"a": [{"cidr": "10.0.0.0"}]}, "no network"),
    ({"a": [{"cidr": "10.0.0/8"}]}, "no network"),
    ({"a": [{"cidr": "10.0.0.0/33"}]}, "no network"),
    ({"a": [{"exists": "yes"}]}, "true or false"),
    ({"a": [{"numeric": []}]}, "numeric takes"),
    ({"a": [{"numeric": [">"]}]}, "numeric takes"),
    ({"a": [{"numeric": ["!", 5]}]}, "one of = <"),
    ({"a": [{"numeric": [">", "5"]}]}, "write a number"),
    ({"a": [{"numeric": [">", True]}]}, "write a number"),
    ({"a": [{"numeric": ["<", 5, ">", 0]}]}, "first > or >="),
    ({"a": [{"numeric": [">", 0, ">", 5]}]}, "then < or <="),
    ({"a": [{"anything-but": None}]}, "an alternative is|all texts"),
    ({"a": [{"anything-but": True}]}, "all texts, or all numbers"),
    ({"a": [{"anything-but": ["a", 1]}]}, "all texts, or all numbers"),
    ({"a": [{"anything-but": []}]}, "the list is empty"),
    ({"a": [{"anything-but": {"numeric": [">", 1]}}]}, "anything-but takes"),
    ({"a": [{"anything-but": {"prefix": ""}}]}, "nothing would be left"),
    ({"a": [{"anything-but": {"prefix": [1]}}]}, "write a text"),
    ('{"a": [1], "a": [2]}', "given twice"),
    ({"a": {"b": [1]}, "a.b": [2]}, "was given at"),
    ({"a": [1], "$or": [{"a": [2]}, {"b": [1]}]}, "was given at"),
    ('{"a": [NaN]}', "no number of JSON"),
    ({"a": [float("inf")]}, "no number of JSON"),
    ('{"a": [1e999]}', "64-bit float"),
    ({"a": ["\0"]}, "NUL"),
    ({"a": ["\ud800"]}, "surrogate"),
    ({"\0": ["a"]}, "NUL"),
    ({"": ["a"]}, "not empty"),
    ({5: ["a"]}, "not empty"),
    ({"a": [Ellipsis]}, "an alternative is"),
    (b"\xff", "UTF-8"),
    (5, "a JSON object"),
]


@pytest.mark.parametrize(("pattern", "message"), BAD, ids=lambda one: repr(one)[:50])
def test_errors_say_what_and_where(pattern: Any, message: str) -> None:
    with pytest.raises(DialectError, match=message):
        eventbridge.parse(pattern)


def test_hostile_nesting() -> None:
    deep: Any = ["x"]
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(DialectError, match="nested"):
        eventbridge.parse(deep)
    with pytest.raises(DialectError, match="nested"):
        eventbridge.parse('{"a":' * 50_000 + "[1]" + "}" * 50_000)
    ors: Any = {"a": ["x"]}
    for _ in range(5000):
        ors = {"$or": [ors, {"b": ["y"]}]}
    with pytest.raises(DialectError, match="nested"):
        eventbridge.parse(ors)
    while deep:  # a dict so deep is not freed by recursion either
        deep = deep.pop("a", None) if isinstance(deep, dict) else None
    with pytest.raises(DialectError, match=r"digits|limit|64-bit"):
        eventbridge.parse('{"a": [1' + "0" * 10_000 + "]}")
    with pytest.raises(DialectError, match="characters"):
        eventbridge.parse('{"a": ["' + "x" * 600_000 + '"]}')


def test_names_are_checked() -> None:
    with pytest.raises(DialectError, match="did you mean 'source'"):
        eventbridge.parse({"sorce": ["x"]}, SCHEMA)
    with pytest.raises(DialectError, match="is an object"):
        eventbridge.parse({"detail": ["x"]}, SCHEMA)
    with pytest.raises(DialectError, match="list of objects"):
        eventbridge.parse({"employees": ["x"]}, SCHEMA)
    with pytest.raises(DialectError, match="not an object"):
        eventbridge.parse({"source": {"a": ["x"]}}, SCHEMA)


# ---- random patterns and events, compared with Event Ruler


TYPES: dict[str, Any] = {
    "s": "string",
    "n": "int",
    "x": "float",
    "b": "bool",
    "tags": "string[]",
    "nums": "float[]",
    "o": {"s": "string", "n": "int", "in": {"x": "float"}},
    "items": [
        {"sku": "string", "price": "float", "tags": "string[]", "lots": [{"n": "int", "b": "bool"}], "o": {"n": "int"}}
    ],
}
TEXTS = ["", "a", "A", "ab", "aB", "ba", "b%", "a_b", "10.0.0.1", "10.1.0.1", "::1"]
NUMBERS = [-1, 0, 1, 2, 2.5, 5]


def leaves(types: dict[str, Any], above: str = "") -> dict[str, str]:
    """The fields of a schema by path."""
    found: dict[str, str] = {}
    for name, of in types.items():
        inner = of[0] if isinstance(of, list) else of
        found |= leaves(inner, f"{above}{name}.") if isinstance(inner, dict) else {above + name: inner}
    return found


class Maker:
    def __init__(self, seed: int, known: bool):
        """If no types are known, an event may have anything anywhere."""
        self.rng, self.known = random.Random(seed), known

    def pattern(self, types: dict[str, str], depth: int = 2) -> dict[str, Any]:
        rng, found = self.rng, dict[str, Any]()
        names = rng.sample(list(types), min(len(types), rng.randint(1, 4)))
        for path in names:
            *around, name = path.split(".")
            at = found
            for one in around:
                at = at.setdefault(one, {})
            at[name] = [self.alternative(types[path]) for _ in range(rng.randint(1, 3))]
        rest = {path: of for path, of in types.items() if path not in names}
        if depth and len(rest) > 1 and rng.random() < 0.4:
            found["$or"] = [self.pattern(rest, depth - 1) for _ in range(2)]
        return found

    def alternative(self, type_: str) -> Any:
        rng = self.rng
        kind = type_.removesuffix("[]") if rng.random() < 0.8 else rng.choice(["string", "int", "bool"])
        if rng.random() < 0.1:
            return None
        if rng.random() < 0.2:
            return {"exists": rng.random() < 0.5}
        if kind == "bool":
            return rng.random() < 0.5
        if kind != "string":
            low, high = sorted(rng.sample(NUMBERS, 2))
            return rng.choice(
                [
                    rng.choice(NUMBERS),
                    {"anything-but": rng.choice(NUMBERS)},
                    {"anything-but": rng.sample(NUMBERS, 2)},
                    {"numeric": [rng.choice(["=", "<", "<=", ">", ">="]), low]},
                    {"numeric": [rng.choice([">", ">="]), low, rng.choice(["<", "<="]), high]},
                ]
            )
        text = rng.choice(TEXTS[1:])
        operators: list[Any] = [
            {"prefix": text},
            {"suffix": text},
            {"equals-ignore-case": text},
            {"wildcard": rng.choice(["a*", "*b", "*", "a*b", "b", "a_*"])},
        ]
        several = rng.sample(TEXTS[1:], 2)
        return rng.choice(
            [
                text,
                rng.choice(TEXTS),
                *operators,
                {"prefix": {"equals-ignore-case": text}},
                {"suffix": {"equals-ignore-case": text}},
                {"cidr": rng.choice(["10.0.0.0/16", "10.0.0.0/8", "::/64"])},
                {"anything-but": text},
                {"anything-but": several},
                {"anything-but": rng.choice(operators)},
                {"anything-but": {rng.choice(["prefix", "suffix", "equals-ignore-case"]): several}},
            ]
        )

    def event(self, types: dict[str, Any]) -> dict[str, Any]:
        return {name: self.field(of) for name, of in types.items() if self.rng.random() < 0.8}

    def field(self, of: Any) -> Any:
        rng = self.rng
        is_list = isinstance(of, list) or (isinstance(of, str) and of.endswith("[]"))
        if not self.known:
            is_list = is_list ^ (rng.random() < 0.3)
            if rng.random() < 0.05:
                return rng.choice([{}, {"z": 1}, "a", 5, True])
        inner = of[0] if isinstance(of, list) else of
        make = (
            (lambda: self.event(inner)) if isinstance(inner, dict) else (lambda: self.value(inner.removesuffix("[]")))
        )
        if not is_list:
            return make()
        made = [make() for _ in range(rng.randint(0, 3))]
        if not self.known and rng.random() < 0.15:
            at = rng.randint(0, len(made))
            return rng.choice([[made[:at], made[at:]], [*made[:at], [[made[at:]]]]])
        return made

    def value(self, type_: str) -> Any:
        if self.rng.random() < 0.1:
            return None
        if type_ == "bool":
            return self.rng.random() < 0.5
        found = self.rng.choice(TEXTS if type_ == "string" else NUMBERS)
        return int(found) if type_ == "int" else found  # type: ignore[call-overload]


@WAYS
def test_random_patterns(known: bool) -> None:
    index = Index(TYPES) if known else open_index()
    maker, fields = Maker(7, known), leaves(TYPES)
    patterns = [maker.pattern(fields) for _ in range(400 if known else 120)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NeverMatches)
        for number, pattern in enumerate(patterns):
            index.subscribe(number, eventbridge.parse(pattern, TYPES if known else None))
    for _ in range(150 if known else 60):
        event = maker.event(TYPES)
        wanted = [number for number, pattern in enumerate(patterns) if event_ruler.matches(pattern, event)]
        found = sorted(index.match(event))
        wrong = [(patterns[number], index.where(number), event) for number in set(found) ^ set(wanted)]
        assert not wrong, wrong[:2]


def test_errors_are_of_hitbox() -> None:
    assert issubclass(DialectError, HitboxError)
