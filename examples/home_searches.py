"""Saved home searches: a new listing comes in, and every user whose saved search it fits gets a mail.

Searches survive a restart: the index is saved as a snapshot and opened again.

Run: python examples/home_searches.py
"""

import random
import tempfile
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa

import hitbox

SEARCHES, LISTINGS = 50_000, 300
CITIES = ["Lyon", "Nantes", "Lille", "Toulouse", "Rennes", "Bordeaux", "Strasbourg", "Grenoble"]

rng = random.Random(5)
schema = hitbox.Schema(
    {
        "city": "string",
        "rent": "float",
        "rooms": "int",
        "m2": "float",
        "balcony": "bool",
        "free_from": "timestamp",
        "text": "string",
    }
)


def search() -> str:
    parts = [f"city = '{rng.choice(CITIES)}'", f"rent <= {rng.randrange(300, 1300, 50)}"]
    if rng.random() < 0.8:
        parts.append(f"rooms >= {rng.randint(1, 4)}")
    if rng.random() < 0.4:
        parts.append(f"m2 BETWEEN {rng.randrange(20, 60, 5)} AND {rng.randrange(60, 140, 5)}")
    if rng.random() < 0.2:
        parts.append("balcony")
    if rng.random() < 0.2:
        move = date(2026, 12, 1) + timedelta(days=rng.randrange(180))
        parts.append(f"free_from < TIMESTAMP '{move}'")
    if rng.random() < 0.1:
        parts.append(f"text LIKE '%{rng.choice(['garden', 'lift', 'quiet', 'station'])}%'")
    return " AND ".join(parts)


def listing() -> dict:
    rooms = rng.randint(1, 5)
    words = rng.sample(["garden", "lift", "quiet", "station", "sunny", "cellar"], 3)
    return {
        "city": rng.choice(CITIES),
        "rent": round(rng.uniform(250, 500) * rooms),
        "rooms": rooms,
        "m2": rng.uniform(18, 30) * rooms,
        "balcony": rng.random() < 0.4,
        "free_from": datetime(2026, 12, 1, tzinfo=UTC) + timedelta(days=rng.randrange(180)),
        "text": f"{rooms} rooms, " + ", ".join(words),
    }


def main() -> None:
    index = hitbox.Index(schema)
    index.load(pa.table({"id": [f"search-{n}" for n in range(SEARCHES)], "where": [search() for _ in range(SEARCHES)]}))
    with tempfile.TemporaryDirectory() as folder:
        version = index.save(Path(folder) / "searches")
        index = hitbox.Index.open(Path(folder) / "searches")
        print(f"{len(index):,} searches opened from version {version}")
        mails = sum(len(index.match(listing())) for _ in range(LISTINGS))
        print(f"{LISTINGS} new listings, {mails:,} mails")
        offer = listing()
        print(f"\n{offer['city']}, {offer['rooms']} rooms for {offer['rent']}: who nearly wanted it?")
        for id, why in index.explain(offer, misses=3).misses.items():
            print(f"{id}: {str(why).splitlines()[-1]}")


if __name__ == "__main__":
    main()
