"""A search in an empty folder, with an engine that trains nothing and a storage in memory."""

import optuna
import pytest

from tests.runner.search.made_up import Engine, write_search
from vitcli.runner.text import ignore_message


@pytest.fixture
def made(here, monkeypatch) -> str:
    """Return the file of a search; its trainings end at once, and its storage needs no disk."""
    storages: dict[str, object] = {}

    def storage(url: str) -> object:
        return storages.setdefault(url, optuna.storages.InMemoryStorage())

    monkeypatch.setattr("vitcli.runner.search.store.open_storage", storage)
    monkeypatch.setattr("vitcli.runner.search.run.engine_for", Engine)
    monkeypatch.setattr("os.fsync", ignore_message)  # no test here cuts the power
    monkeypatch.setattr(Engine, "trained", [], raising=False)
    monkeypatch.setattr(Engine, "cancelled", [], raising=False)
    monkeypatch.setattr(Engine, "behave", staticmethod(lambda spec: "finished"))
    monkeypatch.setattr(Engine, "on_job", staticmethod(ignore_message))
    return write_search()
