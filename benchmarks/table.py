"""Records of `make bench` as Markdown: `python table.py results/*.json`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from research import constructs, goals
from research.bench_report import FLOOR, duration, rate


def rows(record: dict[str, Any]) -> Iterable[list[str]]:
    largest = str(max(record["settings"]["batches"]))
    yield ["matcher", "one event", "times", f"in {largest}s", "times", "build/s", "insert/s", "delete/s", "bytes"]
    for m in record["matchers"]:
        batch = m["batches"][largest]
        few = f" ({batch['events']} events)" if batch["events"] < int(largest) else ""
        yield [
            m["name"],
            duration(m["single"]["mean_us"]),
            f"{m['ratio']['single']:.3g}",
            duration(batch["us"]) + few,
            f"{m['ratio'][largest]:.3g}",
            *(rate(m[f"{kind}_per_s"]) for kind in ("build", "insert", "delete")),
            f"{m['bytes_per_subscription']:,.0f}",
        ]


def markdown(name: str, record: dict[str, Any]) -> str:
    machine = record["machine"]
    lines = [
        f"### {name}: {record['workload']}, {record['subscriptions']:,} subscriptions",
        f"{record['clock']} time, seed {record['seed']}, {record['hits_per_event'] or 0:,.0f} matches per event; "
        f"{machine['cpu']}, hitbox {machine['hitbox']} ({machine['commit']})",
        "",
    ]
    for number, row in enumerate(rows(record)):
        lines.append("| " + " | ".join(row) + " |")
        if number == 0:
            lines.append("|---" + "|--:" * (len(row) - 1) + "|")
    if any(m["name"] == "floor" for m in record["matchers"]):
        lines.append(f"\n{FLOOR}.")
    lines += [f"\nLeft out {skipped['name']}: {skipped['why']}." for skipped in record["skipped"]]
    return "\n".join(lines) + "\n"


def main() -> None:
    for path in map(Path, sys.argv[1:]):
        record = json.loads(path.read_text())
        known = {"goals": goals, "constructs": constructs}
        if name := next((name for name in known if name in record), None):
            print(known[name].markdown(record))
            continue
        for one in record.get("growth", [record]):
            print(markdown(path.stem, one))


if __name__ == "__main__":
    main()
