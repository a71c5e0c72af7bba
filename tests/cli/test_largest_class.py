"""What train and eval say of a model that is no better than always answering the largest class."""

import json
import re

from tests.cli.test_train_eval_predict import vitcli


def test_a_model_that_is_no_better_than_the_largest_class_is_told_so(tiny, pictures):
    """The names of the test folders are exchanged, and one class is three times the other."""
    for path in [*(pictures / "test" / "dark").glob("?.png")][:8]:
        path.unlink()
    for old, new in (("dark", "x"), ("bright", "dark"), ("x", "bright")):
        (pictures / "test" / old).rename(pictures / "test" / new)
    code, out, talk = vitcli("train", tiny, "-o", "run")
    assert code == 0
    assert "largest class  dark, 75.00 % of the images" in out
    assert re.search(r"^balanced       \d", out, re.M)
    assert "no better than always answering dark, which would be right for 75.00 %" in talk
    for form in ("text", "md", "json"):
        code, out, talk = vitcli("eval", "run", "--format", form)
        assert code == 0
        assert "warning: accuracy" in talk
        assert "alanced" in out
    found = json.loads(out)
    assert found["balanced_accuracy"] == sum(found["per_class_accuracy"]) / 2
    assert (found["largest_class"], found["largest_class_share"]) == ("dark", 0.75)
