"""A job market: companies choose people as people choose companies, and both sides wait for each other.

Run: python examples/job_market.py
"""

import random

import hitbox

PEOPLE, JOBS = 3_000, 300
CITIES = ["Berlin", "Munich", "Hamburg", "Cologne"]
SKILLS = ["python", "java", "go", "design", "sales"]

rng = random.Random(2)


def person() -> tuple[str, dict]:
    """What one person asks of a job, and says about themselves."""
    wants = f"salary >= {rng.randrange(35, 90) * 1000} AND skill = '{rng.choice(SKILLS)}'"
    if rng.random() < 0.6:
        wants += f" AND (remote OR city = '{rng.choice(CITIES)}')"
    years = rng.randint(0, 25)
    notice = (rng.randint(0, 4), rng.randint(4, 12))  # "between two and eight weeks"
    return wants, {"years": years, "degree": rng.random() < 0.5, "notice_weeks": notice}


def job() -> tuple[dict, str]:
    """What one job offers, and what the company asks of people."""
    low = rng.randrange(35, 80) * 1000
    offer = {
        "salary": (low, low + rng.randrange(5, 25) * 1000),  # a range: it fits who asks for any part of it
        "skill": rng.choice(SKILLS),
        "city": rng.choice(CITIES),
        "remote": rng.random() < 0.3,
    }
    asks = f"years >= {rng.randint(0, 12)} AND notice_weeks <= {rng.randint(2, 10)}"
    return offer, asks + (" AND degree" if rng.random() < 0.3 else "")


def main() -> None:
    about = {"years": "int", "degree": "bool", "notice_weeks": "int"}
    schema = {"salary": "int", "skill": "string", "city": "string", "remote": "bool"}
    schema |= {name: hitbox.Attribute(kind, role="information") for name, kind in about.items()}
    market = hitbox.Exchange(schema, max_events=1_000)

    early = late = 0
    for number in range(PEOPLE):
        wants, says = person()
        early += len(market.subscribe(f"person-{number}", wants, about=says))  # jobs that waited already
        if number % (PEOPLE // JOBS) == 0:
            offer, asks = job()
            late += len(market.publish(f"job-{number}", offer, where=asks))  # people that waited already
    print(f"{PEOPLE:,} people, {JOBS} jobs: {late:,} pairs found by a new job, {early:,} by a new person")

    offer, asks = job()
    found = market.publish("job-new", offer, where=asks)
    print(f"\na new job {offer}\nasks for {asks}: {len(found)} suit each other")
    other = next(id for id in market.subscriptions if id not in found)
    print(f"\n{other} does not, because\n{market.explain('job-new', other)}")


if __name__ == "__main__":
    main()
