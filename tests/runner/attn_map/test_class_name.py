"""A class that the model does not have is answered with a close name, or with the classes."""

from types import SimpleNamespace
from typing import Any

import pytest

from vitcli.core.models.vit import build_vit
from vitcli.core.spec import ExperimentSpec, VitSpec
from vitcli.runner.attn_map.explain import Explainer
from vitcli.runner.errors import ConfigError


def predictor(names: list[str]) -> Any:
    """Return what an explainer reads of a model with these classes before the first picture."""
    model = VitSpec(
        embed_dim=8, depth=1, num_heads=1, img_size=(8, 8), in_chans=3, num_classes=len(names)
    )
    return SimpleNamespace(
        model=build_vit(model),
        names=names,
        run=SimpleNamespace(name="my run", exists=True),
        classifies=True,
        spec=ExperimentSpec(model=model),
    )


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["cat", "dog", "ship"], "; my run has the classes cat, dog, ship"),
        (["cat", "goat"], "; did you mean 'goat'?"),
        ([f"class {i}" for i in range(10)], "class 8, class 9"),
        ([f"class {i}" for i in range(11)], "; my run has 11 classes: vitcli runs show 'my run'"),
    ],
)
def test_an_unknown_class_suggests_a_close_name_or_lists_the_classes(names, told):
    with pytest.raises(ConfigError) as caught:
        Explainer(predictor(names), class_name="boat")
    assert str(caught.value).startswith("--class boat: no such class; ")
    assert str(caught.value).endswith(told)


def test_a_class_of_the_model_is_taken():
    assert Explainer(predictor(["cat", "dog"]), class_name="dog").class_name == "dog"
