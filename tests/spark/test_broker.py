"""Snapshots go both ways: what Spark built a broker opens, and what a broker exports Spark matches against."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from hitbox import Client, Index
from hitbox import spark as hs
from support.served import served


def test_a_broker_opens_what_spark_built_and_the_other_way(spark: Any, tmp_path: Path) -> None:
    built, exported, data = str(tmp_path / "built"), str(tmp_path / "exported"), tmp_path / "data"
    made = hs.generate("w1", 2000, 20, spark=spark, levels=10, width=0.7)
    hs.build(made.subscriptions, built, parts=2)
    events = made.events.toArrow()
    wanted = Index.open(built).match_batch(events.drop_columns(["event_id"]))
    assert len(wanted.ids) > 100
    with served(data, "--import", built, "--as", "ann") as url, Client.sync(url) as client:
        for number, event in enumerate(events.drop_columns(["event_id"]).to_pylist()):
            tried = client.request("POST", "/v1/try", {"event": event, "limit": 1000})
            assert {m["name"] for m in tried["matches"]} == {str(id) for id in wanted[number]}
        client.request("DELETE", "/v1/subscribers/ann/subscriptions/0")
        client.request("PUT", "/v1/subscribers/bob/subscriptions/all", {"where": "a0 IS NOT NULL", "priority": 9})
    subprocess.run([sys.executable, "-m", "hitbox", "admin", "export", exported, "--data", str(data)], check=True)
    found = {row.event_id: row.subscriptions for row in hs.match(made.events, exported).collect()}
    for number, id in enumerate(events["event_id"].to_pylist()):
        assert sorted(found[id]) == sorted(["bob/all", *(f"ann/{n}" for n in wanted[number] if n != 0)])
