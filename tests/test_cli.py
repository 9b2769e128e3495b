"""The command line: what goes in and out, exit status 2 with the error on stderr."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pyarrow.json
import pyarrow.parquet
import pytest
from typer.testing import CliRunner, Result

import hitbox
from hitbox import Index, Schema
from hitbox.cli import app

EVENTS = '{"price": 12.5, "city": "Paris"}\n{"price": 1.0, "city": "Rome"}\n'
SUBSCRIPTIONS = "id,where,priority\ns1,price BETWEEN 10 AND 20 AND city = 'Paris',7\ns2,price > 5,4\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "events.jsonl").write_text(EVENTS)
    (tmp_path / "subs.csv").write_text(SUBSCRIPTIONS)
    return tmp_path


def run(*words: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, list(words), input=stdin)


def test_version() -> None:
    done = run("--version")
    assert (done.exit_code, done.stdout) == (0, f"hitbox {hitbox.__version__}\n")


def test_match_to_screen_and_json(here: Path) -> None:
    shown = run("match", "events.jsonl", "-s", "subs.csv")
    assert shown.exit_code == 0
    assert "s1, s2" in shown.stdout
    assert "2 matches" in shown.stderr
    lines = run("match", "events.jsonl", "-s", "subs.csv", "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"event": 0, "subscriptions": ["s1", "s2"]},
        {"event": 1, "subscriptions": []},
    ]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_match_to_files(here: Path, ending: str) -> None:
    done = run("match", "events.jsonl", "-s", "subs.csv", "--schema", "price:float,city:string", "-o", f"out.{ending}")
    assert done.exit_code == 0, done.output
    file = here / f"out.{ending}"
    if ending == "csv":
        assert file.read_text().splitlines() == ['"event","subscription"', '0,"s1"', '0,"s2"']
    elif ending == "jsonl":
        assert json.loads(file.read_text().splitlines()[0]) == {"event": 0, "subscriptions": ["s1", "s2"]}
    else:
        assert pyarrow.parquet.read_table(file)["subscriptions"].to_pylist() == [["s1", "s2"], []]


def test_match_a_snapshot(here: Path) -> None:
    index = Index(Schema({"price": "float", "city": "string"}))
    index.subscribe(7, "price > 5")
    index.save("snap")
    done = run("match", "events.jsonl", "--snapshot", "snap", "--json")
    assert json.loads(done.stdout.splitlines()[0]) == {"event": 0, "subscriptions": [7]}


def test_events_that_do_not_fit(here: Path) -> None:
    (here / "bad.jsonl").write_text('{"qty": 3}\n{"qty": 3.5}\n')
    (here / "wanted.csv").write_text("id,where\nmany,qty > 2\nall,TRUE\n")
    given = ("match", "bad.jsonl", "-s", "wanted.csv", "--schema", "qty:int")
    stopped = run(*given)
    assert stopped.exit_code == 2
    assert "row 1: 3.5 is a float" in stopped.stderr
    nulls = run(*given, "--on-error", "null", "--json")
    assert [sorted(json.loads(line)["subscriptions"]) for line in nulls.stdout.splitlines()] == [
        ["all", "many"],
        ["all"],
    ]
    back = run(*given, "--on-error", "return", "--json")
    first, second = map(json.loads, back.stdout.splitlines())
    assert sorted(first["subscriptions"]) == ["all", "many"]
    assert second["event"] == 1
    assert second["subscriptions"] is None
    assert second["error"].startswith("attribute 'qty': 3.5 is a float")
    assert "attribute 'qty'" in " ".join(run(*given, "--on-error", "return").stdout.split())
    for ending in ("csv", "jsonl", "parquet"):
        done = run(*given, "--on-error", "return", "-o", f"out.{ending}")
        assert "2 events, 2 matches, 1 bad events" in done.stderr
    rows = (here / "out.csv").read_text().splitlines()
    assert rows[0] == '"event","subscription","error"'
    assert rows[3].startswith("1,,\"attribute 'qty': 3.5")
    table = pyarrow.parquet.read_table(here / "out.parquet").to_pylist()
    assert (table[0]["error"], table[1]["subscriptions"]) == (None, None)
    assert table[1] == json.loads((here / "out.jsonl").read_text().splitlines()[1])
    refused = run(*given, "--on-error", "ignore")
    assert refused.exit_code == 2
    assert "on_error is 'raise', 'null' or 'return', not 'ignore'" in refused.stderr


def parquet(text: str) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.json.read_json(io.BytesIO(text.encode())), file)
    return file.getvalue()


@pytest.mark.parametrize("events", [EVENTS, "price,city\n12.5,Paris\n1.0,Rome\n", parquet(EVENTS), "\n \t" + EVENTS])
def test_events_from_stdin(here: Path, events: str | bytes) -> None:
    done = run("match", "-", "-s", "subs.csv", "--json", stdin=events)
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["subscriptions"] for line in done.stdout.splitlines()] == [["s1", "s2"], []]


def test_other_inputs_from_stdin(here: Path) -> None:
    schema = '{"price": "float", "city": "string"}'
    subscriptions = run("match", "events.jsonl", "-s", "-", "--json", stdin=SUBSCRIPTIONS)
    assert json.loads(subscriptions.stdout.splitlines()[0])["subscriptions"] == ["s1", "s2"]
    described = run("match", "events.jsonl", "-s", "subs.csv", "--schema", "-", "--json", stdin=schema)
    assert json.loads(described.stdout.splitlines()[0])["subscriptions"] == ["s1", "s2"]
    options = ("--id", "s1", "-s", "subs.csv", "--schema", "price:float,city:string")
    assert "at least 10" in run("explain", "-", *options, stdin='{"price": 9}').stdout


@pytest.mark.parametrize(
    ("words", "stdin", "says"),
    [
        (["match", "-", "-s", "-"], "", "only one input can be -"),
        (["explain", "-", "-s", "subs.csv", "--schema", "-"], "", "only one input can be -"),
        (["match", "-", "-s", "subs.csv"], "", "cannot read standard input"),
        (["match", "-", "-s", "subs.csv"], '{"price": ', "cannot read standard input"),
        (["match", "events.jsonl", "-s", "subs.csv", "--schema", "-"], "price", "cannot read the schema"),
        (["match", "-", "--snapshot", "s", "--spark", "-o", "x"], "", "not from standard input"),
    ],
)
def test_bad_stdin(here: Path, words: list[str], stdin: str, says: str) -> None:
    done = run(*words, stdin=stdin)
    assert done.exit_code == 2
    assert says in done.stderr


def test_explain(here: Path) -> None:
    schema = ("--schema", "price:float,city:string")
    text = run("explain", '{"price": 9}', "--id", "s1", "-s", "subs.csv", *schema)
    assert text.exit_code == 0
    assert "no match" in text.stdout
    assert "at least 10" in text.stdout
    listed = run("explain", '{"price": 9}', "-s", "subs.csv", *schema, "--misses", "1", "--json")
    found = json.loads(listed.stdout)
    assert found["matches"] == ["s2"]
    assert [miss["id"] for miss in found["misses"]] == ["s1"]


DOCUMENT = '{"order": {"city": "Paris"}, "tags": ["new", "red"], "items": [{"sku": "A", "price": 12}], "name": "Bob"}'
WANTED = {
    "a": "order.city = 'Paris' AND ANY(tags) = 'new'",
    "b": "EXISTS(items WHERE sku = 'A' AND price < 10)",
    "c": "name ILIKE 'b%' AND LENGTH(items) = 1",
}


def test_documents(here: Path) -> None:
    """Objects and lists in JSON lines, with a schema that follows from them, or without any."""
    (here / "wanted.jsonl").write_text("".join(f"{json.dumps({'id': id, 'where': w})}\n" for id, w in WANTED.items()))
    (here / "documents.jsonl").write_text(f'{DOCUMENT}\n{{"order": null}}\n')
    done = run("match", "documents.jsonl", "-s", "wanted.jsonl", "--json")
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["subscriptions"] for line in done.stdout.splitlines()] == [["a", "c"], []]
    text = run("explain", DOCUMENT, "--id", "b", "-s", "wanted.jsonl")
    assert text.exit_code == 0, text.output
    assert "nearest change: price of element 1 of items: 12 -> less than 10" in text.stdout
    change = f'{{"old": {{"name": "Rob"}}, "new": {DOCUMENT}}}'
    assert json.loads(run("explain", change, "-s", "wanted.jsonl", "--json").stdout)["matches"] == ["a", "c"]


def test_intervals_in_json(here: Path) -> None:
    (here / "ranges.jsonl").write_text('{"price": {"low": 9, "high": 11}, "city": "Paris"}\n{"price": null}\n')
    done = run("match", "ranges.jsonl", "-s", "subs.csv", "--json")
    assert json.loads(done.stdout.splitlines()[0]) == {"event": 0, "subscriptions": ["s1", "s2"]}
    schema = ("--schema", "price:float,city:string")
    text = run("explain", '{"price": {"low": 9, "high": 11}, "city": "Paris"}', "--id", "s1", "-s", "subs.csv", *schema)
    assert text.stdout.startswith("match")
    assert "price is 9.0 to 11.0" in text.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["match", "nope.csv", "-s", "subs.csv"], "no file"),
        (["match", "events.jsonl"], "--subscriptions"),
        (["match", "events.txt", "-s", "subs.csv"], "cannot read (known: .csv"),
        (["match", "events.jsonl", "-s", "bad.csv"], "did you mean 'price'"),
        (["match", "events.jsonl", "-s", "subs.csv", "--schema", "price"], "name:type"),
        (["match", "events.jsonl", "-s", "subs.csv", "--matcher", "bruted"], "did you mean 'brute'"),
        (["match", "events.jsonl", "--snapshot", "nope"], "there is none"),
        (["match", "events.jsonl", "-s", "subs.csv", "-o", "nowhere/out.csv"], "cannot write"),
        (["explain", "{", "-s", "subs.csv", "--schema", "price:float,city:string"], "not JSON"),
        (["explain", "[]", "-s", "subs.csv", "--schema", "price:float,city:string"], "JSON object"),
        (
            ["explain", '{"price": [1, 2]}', "-s", "subs.csv", "--schema", "price:float,city:string"],
            "tuple (low, high)",
        ),
        (["explain", r'{"city": "\ud800"}', "-s", "subs.csv", "--schema", "price:float,city:string"], "surrogate"),
        (["explain", '{"a":' * 3000, "-s", "subs.csv", "--schema", "price:float,city:string"], "not JSON"),
        (["explain", "{}", "--id", "--5", "-s", "subs.csv", "--schema", "price:float,city:string"], "no subscription"),
        (["explain", "{}", "--id", "²", "-s", "subs.csv", "--schema", "price:float,city:string"], "no subscription"),
        (["match", "events.jsonl", "-s", "subs.csv", "--threads", "99999999999"], "1 to 10000"),
        (["explain", "{}", "--id", "x", "-s", "subs.csv", "--schema", "price:float,city:string"], "no subscription"),
    ],
)
def test_bad_input(here: Path, words: list[str], says: str) -> None:
    (here / "bad.csv").write_text("id,where\na,prise > 3\n")
    (here / "events.txt").write_text("x")
    done = run(*words)
    assert done.exit_code == 2
    assert says in done.stderr
    assert done.stdout == ""


def test_the_command_itself(here: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hitbox", "match", "events.jsonl", "-s", "subs.csv", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 2
    helped = subprocess.run([sys.executable, "-m", "hitbox", "--help"], capture_output=True, text=True, check=True)
    for command in ("match", "explain", "serve"):
        assert command in helped.stdout


def test_warnings_in_one_line(here: Path) -> None:
    (here / "never.csv").write_text("id,where\nn1,price > 2 AND price < 1\n")
    done = run("match", "events.jsonl", "-s", "never.csv")
    assert done.exit_code == 0
    assert "hitbox: warning: 1 of the subscriptions loaded can never match\n" in done.stderr


def test_translate(here: Path) -> None:
    (here / "rule.json").write_text('{"source": ["shop"], "total": [{"numeric": ["<", 10]}]}\n')
    done = run("translate", "rule.json", "--from", "eventbridge", "--schema", "source:string,total:float")
    assert (done.exit_code, done.stdout) == (0, "source = 'shop' AND total < 10\n")
    assert run("translate", "-", "--from", "jms", stdin="a = 0x10").stdout == "a = 16\n"
    assert run("translate", "-", "--from", "cesql", stdin="EXISTS subject").stdout == "subject IS NOT NULL\n"
    for words, stdin, says in (
        (["-", "--from", "jmss"], "a = 1", "did you mean 'jms'"),
        (["-", "--from", "jms"], "a !", "expected"),
        (["-", "--from", "jms"], b"\xff", "cannot read"),
        (["none.json", "--from", "eventbridge"], "", "no file none.json"),
        (["-", "--from", "jms", "--schema", "-"], "", "only one input"),
    ):
        done = run("translate", *words, stdin=stdin)
        assert done.exit_code == 2
        assert says in done.stderr


@pytest.fixture
def orders(here: Path) -> Path:
    (here / "orders.csv").write_text("event_id,price,city,note\no7,12.5,Paris,first\no8,1.0,Rome,\n")
    return here


def test_matches_are_under_the_ids_of_the_events(orders: Path) -> None:
    lines = run("match", "orders.csv", "-s", "subs.csv", "--json").stdout.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"event_id": "o7", "subscriptions": ["s1", "s2"]},
        {"event_id": "o8", "subscriptions": []},
    ]
    assert "o7" in run("match", "orders.csv", "-s", "subs.csv").stdout
    named = run("match", "orders.csv", "-s", "subs.csv", "--event-id", "note", "--json").stdout.splitlines()
    assert [json.loads(line)["note"] for line in named] == ["first", ""]
    (orders / "ids.jsonl").write_text('{"price": 12.5, "city": "Paris", "id": 77}\n')
    assert json.loads(run("match", "ids.jsonl", "-s", "subs.csv", "--json").stdout)["id"] == 77


def test_the_options_of_spark_mean_the_same_without_it(orders: Path) -> None:
    def found(*options: str) -> list[dict[str, object]]:
        done = run("match", "orders.csv", "-s", "subs.csv", "--json", *options)
        assert done.exit_code == 0, done.output
        return [json.loads(line) for line in done.stdout.splitlines()]

    assert [one["subscriptions"] for one in found("--limit", "1")] == [["s1"], []]
    assert found("--form", "pairs", "--keep", "city, price") == [
        {"event_id": "o7", "city": "Paris", "price": 12.5, "subscription": id} for id in ("s1", "s2")
    ]
    assert [one["matches"] for one in found("--form", "counts")] == [2, 0]
    assert [one["matches"] for one in found("--form", "counts", "--limit", "0")] == [0, 0]
    done = run("match", "orders.csv", "-s", "subs.csv", "-o", "out.csv", "--form", "counts")
    assert done.exit_code == 0, done.output
    assert (orders / "out.csv").read_text().splitlines() == ['"event_id","matches"', '"o7",2', '"o8",0']


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--form", "pair"], "did you mean 'pairs'"),
        (["--limit", "-1"], "--limit is a whole number"),
        (["--keep", "citty"], "no column 'citty'; did you mean 'city'"),
        (["--event-id", "nope"], "no column 'nope'"),
        (["--form", "arrays", "-o", "out.csv"], "a CSV file has no lists"),
        (["--master", "local[2]"], "--master is for matching on Spark"),
        (["--spark", "-o", "out", "--threads", "2"], "--threads is for matching in this process"),
        (["--spark", "-o", "out", "--matcher", "brute"], "--matcher is for matching in this process"),
        (["--spark", "-o", "out", "--schema", "price:float"], "--schema is for matching in this process"),
    ],
)
def test_options_that_do_not_fit(orders: Path, options: list[str], says: str) -> None:
    done = run("match", "orders.csv", "-s", "subs.csv", *options)
    assert done.exit_code == 2
    assert says in done.stderr
