"""A search in an empty folder, with an engine that trains nothing."""

import pytest

from tests.runner.search.made_up import Engine, size, write_search
from vitcli.runner.text import ignore_message


@pytest.fixture
def made(here, monkeypatch) -> str:
    """Return the file of a search whose trainings end at once."""
    monkeypatch.setattr("vitcli.runner.engines.drive.make_engine", Engine)
    monkeypatch.setattr("vitcli.runner.search.trials.model_size", size)
    monkeypatch.setattr("os.fsync", ignore_message)  # no test here cuts the power
    monkeypatch.setattr(Engine, "trained", [], raising=False)
    monkeypatch.setattr(Engine, "cancelled", [], raising=False)
    monkeypatch.setattr(Engine, "behave", staticmethod(lambda spec: "finished"))
    return write_search()
