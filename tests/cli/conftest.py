"""What tests of several commands share."""

import pytest


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips the page, which takes as long as the training; other tests are about it."""
    monkeypatch.setattr("evenhand.cli._record.write_report", lambda path, views: path.write_text("page"))
