"""Shell completion offers names, by Typer's own mechanism."""

import pytest

from tests.cli.commands import offered

TWICE = ["twice/train/seed0", "twice/train/seed1"]
OWN = ["photos", "quickstart/train/seed0", *TWICE]
OFFERS = {
    "vitcli ev": ["eval"],
    "vitcli train cifar10-tiny-": ["cifar10-tiny-fast", "cifar10-tiny-native"],
    "vitcli ablate ablation-length-1": ["ablation-length-15", "ablation-length-15-fashion"],
    "vitcli experiments show ablation-pos": ["ablation-positions"],
    "vitcli eval tw": TWICE,
    "vitcli eval ": ["cifar10-pocket", *OWN],
    "vitcli runs rm cifar10-p": [],
    "vitcli train --resume ": OWN,
    "vitcli train --data cifar": ["cifar10", "cifar100"],
}


@pytest.mark.parametrize("line", OFFERS)
def test_what_is_offered(here, capsys, line):
    for run in ("photos", "red\x1b[31m", "two words", "quickstart/train/seed0", *TWICE):
        (here / "runs" / run).mkdir(parents=True)
        (here / "runs" / run / "config.yaml").write_text("{")
    assert offered(line, capsys) == sorted(OFFERS[line])
