"""A spec looks names up in tables when it is validated, and every row is complete."""

from importlib import import_module
from typing import Annotated

import pytest
from pydantic import ValidationError

from vitcli.core.make import make
from vitcli.core.spec import FAMILIES, OPTIMIZERS, SCHEDULES, TASKS, Spec
from vitcli.core.spec.rows import Row, RowOf, load_target, table_of
from vitcli.core.spec.slots import POS_EMBEDS, SLOTS

TABLES = {
    **SLOTS,
    "family": FAMILIES,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "task": TASKS,
}
ROWS = [
    pytest.param(row, id=f"{table}-{name}")
    for table, rows in TABLES.items()
    for name, row in rows.items()
]
FRUIT: dict[str, Row] = {"apple": Row(about="a fruit"), "pear": Row(about="another")}


class Basket(Spec):
    fruit: Annotated[str, RowOf(FRUIT)] = "apple"


@pytest.mark.parametrize("name", ["plum", "", 1, None, ["apple"]])
def test_a_name_without_a_row_is_refused_like_a_wrong_literal(name):
    with pytest.raises(ValidationError) as caught:
        Basket(fruit=name)
    (error,) = caught.value.errors()
    assert error["type"] == "literal_error"
    assert error["loc"] == ("fruit",)
    assert error["msg"] == "Input should be 'apple' or 'pear'"
    assert error["input"] == name


def test_an_added_row_is_valid_and_in_the_schema(monkeypatch):
    monkeypatch.setitem(FRUIT, "plum", Row(about="a third"))
    assert Basket(fruit="plum").fruit == "plum"
    described = Basket.model_json_schema()["properties"]["fruit"]["oneOf"]
    assert {"const": "plum", "description": "a third"} in described
    with pytest.raises(ValidationError, match="'apple', 'pear' or 'plum'"):
        Basket(fruit="fig")


@pytest.mark.parametrize("row", ROWS)
def test_the_target_of_a_row_exists_in_the_core(row):
    targets = [row.build, getattr(row, "heads", None)]
    for target in filter(None, targets):
        assert callable(load_target(target))
        module = target.partition(":")[0]
        assert module.startswith(("vitcli.core.", "torch")), "a row must not look upward"
        assert import_module(module)


def test_only_rows_that_build_nothing_have_no_target():
    missing = {
        name
        for table, rows in TABLES.items()
        for name, row in rows.items()
        if row.build is None and table not in ("linformer_share", "pos_embed")
    }
    assert missing == {"none"}, "an FFN that is left out"
    with pytest.raises(ValueError, match="builds nothing"):
        make(SLOTS["ffn"]["none"])
    assert POS_EMBEDS["rope2d"].heads


@pytest.mark.parametrize("family", FAMILIES)
def test_every_slot_of_a_family_has_the_rows_of_its_table(family):
    fields = FAMILIES[family].spec.model_fields
    found = {name: table_of(field) for name, field in fields.items()}
    for name, table in found.items():
        assert table is SLOTS.get(name), name
        assert table is None or fields[name].default in table
