"""Ad targeting: which of 10,000 campaigns may bid for this visitor? The best-paying ones are wanted first.

Run: python examples/ad_targeting.py
"""

import random
import time

import hitbox

CAMPAIGNS, VISITORS = 10_000, 2_000
COUNTRIES = ["US", "DE", "FR", "IN", "BR", "JP", "GB", "NG", "MX", "ID"]
SITES = [f"site{n}.example" for n in range(300)]
INTERESTS = ["sports", "travel", "cars", "food", "fashion", "games", "finance", "music", "garden", "pets"]

rng = random.Random(3)


def campaign() -> str:
    parts = [f"country IN ({', '.join(repr(c) for c in rng.sample(COUNTRIES, rng.randint(1, 3)))})"]
    if rng.random() < 0.6:
        low = rng.choice([18, 25, 35, 45])
        parts.append(f"age BETWEEN {low} AND {low + rng.choice([9, 19, 29])}")
    if rng.random() < 0.5:
        parts.append(f"interest = '{rng.choice(INTERESTS)}'")
    if rng.random() < 0.2:
        parts.append(f"site = '{rng.choice(SITES)}'")
    if rng.random() < 0.1:
        parts.append("site NOT LIKE '%casino%'")
    if rng.random() < 0.3:
        parts.append(f"device = '{rng.choice(['phone', 'tablet', 'desktop'])}'")
    if rng.random() < 0.1:
        parts.append("age IS NOT NULL")
    return " AND ".join(parts)


def visitor() -> dict:
    found = {
        "country": rng.choice(COUNTRIES),
        "site": rng.choice(SITES),
        "device": rng.choice(["phone", "phone", "tablet", "desktop"]),
        "interest": rng.choice(INTERESTS),
    }
    if rng.random() < 0.7:  # not every visitor states an age: a condition on a missing value is never true
        found["age"] = rng.randint(16, 80)
    return found


def main() -> None:
    index = hitbox.Index(
        {"country": "string", "age": "int", "interest": "string", "site": "string", "device": "string"}
    )
    for number in range(CAMPAIGNS):
        index.subscribe(number, campaign(), priority=rng.randrange(10))
    print(f"{len(index):,} campaigns")

    visitors = [visitor() for _ in range(VISITORS)]
    start = time.perf_counter()
    top = [index.match(one, limit=5) for one in visitors]  # the five most urgent only
    print(f"top five for one visitor: {(time.perf_counter() - start) / VISITORS * 1e6:.0f} µs")
    print(f"first visitor {visitors[0]}:")
    for id in top[0]:
        print(f"  campaign {id}, priority {index.priority(id)}: {index.where(id)}")

    index.unsubscribe(top[0][0])  # its budget is spent
    assert top[0][0] not in index.match(visitors[0])
    print(f"campaign {top[0][0]} stopped; the next one takes its place: {index.match(visitors[0], limit=1)[0]}")


if __name__ == "__main__":
    main()
