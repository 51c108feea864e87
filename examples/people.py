"""Writes people.csv: made-up people who asked for a loan, for docs/tables.md.

The file is committed beside this script; the script makes it again, the same on every machine.
"""

import csv
import random
from math import exp

REGIONS = {
    "north": 420,
    "south": 300,
    "east": 160,
    "west": 90,
}  # rows in group A; group B has a third of them
WORK = ("employed", "self-employed", "student", "retired")


def person(chance: random.Random, region: str, group: str) -> dict[str, object]:
    """One row: who repays depends on income and score in group A, and hardly on the score in group B."""
    work = chance.choices(WORK, [6, 2, 1, 2])[0]
    income = max(9_000, round(chance.gauss(46_000 if region in ("north", "south") else 35_000, 13_000), -2))
    score = min(850, max(300, round(chance.gauss(640, 90))))
    rich, good = (income - 40_000) / 13_000, (score - 640) / 90
    logit = 0.9 * rich + 1.8 * good if group == "A" else 1.9 * rich - 0.9 * good - 0.6
    logit += {"employed": 0.5, "self-employed": -0.4, "student": -0.9, "retired": 0.2}[work]
    repaid = "yes" if chance.random() < 1 / (1 + exp(-1.5 * logit)) else "no"
    return {
        "region": region,
        "group": group,
        "work": work,
        "income": int(income),
        "score": score,
        "repaid": repaid,
    }


def main() -> None:
    """Writes the file into the current folder."""
    chance = random.Random(2026)
    people = [
        person(chance, region, group)
        for region, rows in REGIONS.items()
        for group, share in (("A", 1.0), ("B", 1 / 3))
        for _ in range(round(rows * share))
    ]
    chance.shuffle(people)
    with open("people.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(people[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(people)
    print(f"people.csv: {len(people)} people")
    for group in ("A", "B"):
        own = [row["repaid"] == "yes" for row in people if row["group"] == group]
        print(f"group {group}: {len(own)}, of whom {100 * sum(own) / len(own):.0f} % repaid")


if __name__ == "__main__":
    main()
