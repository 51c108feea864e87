"""docs/pytorch.md: its blocks run as they are, and train what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch  # pyright: ignore[reportMissingImports]

PAGE = (Path(__file__).parents[2] / "docs" / "pytorch.md").read_text(encoding="utf-8")


# After two rounds a model may be no better than a guess, of which the page warns.
@pytest.mark.filterwarnings("ignore::evenhand.errors.EvenhandWarning")
def test_the_page_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"<!-- test -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == PAGE.count("```python") >= 7
    runs = list[Any]()
    namespace: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, "pytorch.md", "exec"), namespace)
        runs += [namespace["run"]] if "run = " in block else []
    first = runs[0]
    assert first.summary()["mean"] > 0.8 and not first.findings
    saved = torch.load("net.pt")
    assert np.array_equal(saved["0.weight"].numpy(), first.params["0"]["weight"])
    assert all(np.isfinite(run.history["train_loss"]).all() for run in runs)
