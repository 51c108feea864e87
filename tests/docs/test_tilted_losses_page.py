"""docs/tilted-losses.md: its commands run on the tables that its own blocks write, and its numbers are right."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from shown import absent, outputs

import evenhand as eh
from evenhand.cli import main

PAGE = (Path(__file__).parents[2] / "docs" / "tilted-losses.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"<!-- test -->\n```python\n(.*?)```", PAGE, re.DOTALL)


def commands() -> list[list[str]]:
    """The arguments of each call of ``evenhand`` in the page's shell blocks."""
    blocks = "".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)).replace("\\\n", " ")
    return [shlex.split(line)[1:] for line in blocks.splitlines()]


def test_each_command_runs_on_the_table_of_its_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first study as it stands, whose table the page shows; others with one round and one seed, to save time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("evenhand.cli._run.write_report", lambda path, views: path.write_text("page"))
    namespace: dict[str, Any] = {}
    for block in (block for block in BLOCKS if ".csv" in block):
        exec(block, namespace)
    for name in ("noisy", "rare"):
        head = "".join(f"{line}\n" for line in Path(f"{name}.csv").read_text().splitlines()[:2])
        assert head in PAGE
    noisy, fit, predict, rare = commands()
    monkeypatch.setenv("COLUMNS", "80")
    for words, shorter in ((noisy, []), (rare, ["--rounds", "1", "--seeds", "1", "--quiet"])):
        assert words[0] == "study" and words[words.index("--seeds") + 1] == "5"
        assert len([word for word in words if word.startswith("fit(")]) == 5
        assert main([*words, *shorter]) == 0
        study = eh.load_study(words[words.index("--out") + 1])
        assert {outcome.status for outcome in study.outcomes} == {"done"}
        assert len(study.table()) == 5
    (table,) = (block for block in outputs(PAGE) if "weighted" in block)
    assert absent(table, capsys.readouterr().out) == []
    assert main([*fit, "--rounds", "1"]) == 0
    assert main(predict) == 0
    assert len(Path("predictions.csv").read_text().splitlines()) == 801
    assert json.loads(Path("runs/robust/summary.json").read_text())
    capsys.readouterr()


def test_the_results_are_those_that_the_page_states() -> None:
    namespace: dict[str, Any] = {}
    for block in (block for block in BLOCKS if ".csv" not in block):
        exec(block, namespace)
    assert float(namespace["mean"].params["kernel"][0, 0]) == pytest.approx(-1.2, abs=0.3)
    assert float(namespace["robust"].params["kernel"][0, 0]) == pytest.approx(2.0, abs=0.01)
    even, uneven = namespace["losses"][20.0], namespace["losses"][0.0]
    assert even["rare"] < uneven["rare"] and even["common"] > uneven["common"]
    assert namespace["far"] == pytest.approx([10.3, 0.0], abs=0.1)
    assert namespace["many"] == pytest.approx([0.0, 4.9], abs=0.1)
    symmetric = {t: accuracy.mean() for t, accuracy in namespace["symmetric"].items()}
    assert symmetric == pytest.approx({0.0: 0.749, -1.0: 0.741, -2.0: 0.747}, abs=0.002)
