"""Shell completion offers names, by Typer's own mechanism."""

import pytest

from tests.cli.commands import offered

TWICE = ["twice/train/seed0", "twice/train/seed1"]
OFFERS = {
    "vitcli ev": ["eval"],
    "vitcli train cifar10-tiny-": ["cifar10-tiny-fast", "cifar10-tiny-native"],
    "vitcli train ablation-l": [],
    "vitcli ablate ablation-length-1": ["ablation-length-15", "ablation-length-15-fashion"],
    "vitcli experiments show ablation-pos": ["ablation-positions"],
    "vitcli eval tw": TWICE,
    "vitcli eval ": ["cifar10-pocket", "photos", "quickstart", *TWICE],
    "vitcli eval quickstart/": ["quickstart/train/seed0"],
    "vitcli runs rm cifar10-p": [],
    "vitcli train --resume ": ["photos", "quickstart", *TWICE],
    "vitcli train --data cifar": ["cifar10", "cifar100"],
    "vitcli train -s model.de": ["model.depth="],
    "vitcli train cifar10-swin -s model.de": ["model.depths="],
    "vitcli train broken.yaml -s model.dep": ["model.depth="],
    "vitcli train -s nonsense": [],
}


@pytest.mark.parametrize("line", OFFERS)
def test_what_is_offered(here, capsys, line):
    for run in ("photos", "red\x1b[31m", "two words", "quickstart/train/seed0", *TWICE):
        (here / "runs" / run).mkdir(parents=True)
        (here / "runs" / run / "config.yaml").write_text("{")
    (here / "broken.yaml").write_text("{")
    assert offered(line, capsys) == sorted(OFFERS[line])
