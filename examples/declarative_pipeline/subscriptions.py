"""What the pipeline needs: a snapshot of subscriptions, and a folder of quotes."""

import json
from pathlib import Path

import hitbox

HERE = Path(__file__).resolve().parent

wanted = hitbox.Index({"symbol": "string", "price": "float"})
wanted.subscribe("ann", "symbol = 'ACME' AND price < 90")
wanted.subscribe("bob", "price > 100")
wanted.save(HERE / "snapshot")

rows = [
    {"quote": 1, "symbol": "ACME", "price": 85.0},
    {"quote": 2, "symbol": "ACME", "price": 95.0},
    {"quote": 3, "symbol": "UMBR", "price": 120.0},
]
(HERE / "quotes").mkdir(exist_ok=True)
(HERE / "quotes" / "monday.json").write_text("\n".join(map(json.dumps, rows)) + "\n")
