"""Price alerts: 50,000 users each watch a few stocks; every quote must find the alerts that it triggers.

Run: python examples/price_alerts.py
"""

import random
import time

import pyarrow as pa

import hitbox

TICKERS = [f"{a}{b}{c}" for a in "ABCD" for b in "EIOU" for c in "KLMNRST"]
ALERTS, QUOTES = 50_000, 5_000

rng = random.Random(7)
last_price = {ticker: rng.uniform(5, 500) for ticker in TICKERS}


def alert() -> str:
    """What one user asks for, in the words that the user's app would write."""
    ticker = rng.choice(TICKERS)
    price = last_price[ticker]
    match rng.randrange(4):
        case 0:
            return f"ticker = '{ticker}' AND price <= {price * rng.uniform(0.90, 0.99):.2f}"
        case 1:
            return f"ticker = '{ticker}' AND price >= {price * rng.uniform(1.01, 1.10):.2f}"
        case 2:
            return f"ticker = '{ticker}' AND change NOT BETWEEN -{rng.uniform(1, 4):.1f} AND {rng.uniform(1, 4):.1f}"
        case _:
            return f"ticker IN ('{ticker}', '{rng.choice(TICKERS)}') AND volume > {rng.randrange(10, 90) * 10_000}"


def quote() -> dict:
    ticker = rng.choice(TICKERS)
    move = rng.gauss(0, 1.5)
    last_price[ticker] *= 1 + move / 100
    return {"ticker": ticker, "price": last_price[ticker], "change": move, "volume": int(rng.lognormvariate(12, 1))}


def main() -> None:
    index = hitbox.Index({"ticker": "string", "price": "float", "change": "float", "volume": "int"})
    start = time.perf_counter()
    texts = [alert() for _ in range(ALERTS)]
    index.load(pa.table({"id": [f"user-{i}" for i in range(ALERTS)], "where": texts}))
    print(f"{len(index):,} alerts loaded in {time.perf_counter() - start:.1f} s")

    quotes = [quote() for _ in range(QUOTES)]
    start = time.perf_counter()
    matches = index.match_batch(quotes)
    seconds = time.perf_counter() - start
    print(f"{QUOTES:,} quotes trigger {len(matches.ids):,} alerts, {seconds / QUOTES * 1e6:.0f} µs per quote")

    # A user asks: why was I not alerted?
    missed = next(id for id in index if id not in index.match(quotes[0]))
    print(f"\nWhy did {missed} not get the first quote?\n{index.explain(quotes[0], missed)}")


if __name__ == "__main__":
    main()
