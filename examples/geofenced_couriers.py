"""Geofences: couriers send their position every few seconds; zones want to know who is inside.

A zone is a rectangle of longitude and latitude, some only at certain hours or for certain vehicles.

Run: python examples/geofenced_couriers.py
"""

import random
from collections import Counter

import hitbox

ZONES, COURIERS, STEPS = 20_000, 200, 50
WEST, EAST, SOUTH, NORTH = 2.25, 2.42, 48.81, 48.91  # Paris

rng = random.Random(11)
schema = hitbox.Schema(
    {"lon": "float", "lat": "float", "vehicle": "string", "hour": "int", "kg": "float"},
)


def zone() -> str:
    lon, lat = rng.uniform(WEST, EAST), rng.uniform(SOUTH, NORTH)
    size = rng.choice([0.0005, 0.001, 0.002, 0.02])
    text = f"lon BETWEEN {lon:.5f} AND {lon + size:.5f} AND lat BETWEEN {lat:.5f} AND {lat + size:.5f}"
    if rng.random() < 0.3:
        text += f" AND vehicle = '{rng.choice(['bike', 'van', 'truck'])}'"
    if rng.random() < 0.2:
        text += " AND (hour < 7 OR hour >= 20)"  # no deliveries at night
    if rng.random() < 0.1:
        text += " AND kg > 3500"
    return text


class Courier:
    def __init__(self, number: int) -> None:
        self.name = f"courier-{number}"
        self.vehicle = rng.choice(["bike", "bike", "van", "truck"])
        self.lon, self.lat = rng.uniform(WEST, EAST), rng.uniform(SOUTH, NORTH)
        self.zones: set[str] = set()

    def step(self, hour: int) -> dict:
        self.lon += rng.gauss(0, 0.0008)
        self.lat += rng.gauss(0, 0.0005)
        kg = {"bike": 90.0, "van": 2800.0, "truck": 9000.0}[self.vehicle]
        return {"lon": self.lon, "lat": self.lat, "vehicle": self.vehicle, "hour": hour, "kg": kg}


def main() -> None:
    index = hitbox.Index(schema)
    for number in range(ZONES):
        index.subscribe(f"zone-{number}", zone(), priority=9 if number % 100 == 0 else 4)
    couriers = [Courier(n) for n in range(COURIERS)]
    seen: Counter[str] = Counter()
    for step in range(STEPS):
        positions = [courier.step(hour=6 + step // 5) for courier in couriers]
        matches = index.match_batch(positions)
        for number, courier in enumerate(couriers):
            inside = set(matches.ids[matches.offsets[number] : matches.offsets[number + 1]].to_pylist())
            seen["entered"] += len(inside - courier.zones)
            seen["left"] += len(courier.zones - inside)
            courier.zones = inside
    print(f"{COURIERS} couriers, {STEPS} steps, {ZONES:,} zones: {seen['entered']:,} entered, {seen['left']:,} left")
    busiest = Counter(z for c in couriers for z in c.zones).most_common(3)
    print("busiest zones now:", ", ".join(f"{name} ({count})" for name, count in busiest))


if __name__ == "__main__":
    main()
