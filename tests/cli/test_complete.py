"""Shell completion offers names, by Typer's own mechanism."""

import pytest

from vitcli.cli.main import main

TWICE = ["twice/train/seed0", "twice/train/seed1"]
OFFERS = {
    "vitcli ev": ["eval"],
    "vitcli train cifar10-tiny-": ["cifar10-tiny-fast", "cifar10-tiny-native"],
    "vitcli train ablation-l": [],
    "vitcli ablate ablation-length-1": ["ablation-length-15", "ablation-length-15-fashion"],
    "vitcli experiments show ablation-pos": ["ablation-positions"],
    "vitcli search search-g": ["search-grid"],
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
def test_what_is_offered(here, monkeypatch, capsys, line):
    for run in ("photos", "red\x1b[31m", "two words", "quickstart/train/seed0", *TWICE):
        (here / "runs" / run).mkdir(parents=True)
        (here / "runs" / run / "config.yaml").write_text("{")
    (here / "broken.yaml").write_text("{")
    words = line.split(" ")
    monkeypatch.setenv("_VITCLI_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "\n".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr()
    offered = [word for word in printed.out.splitlines() if word]
    assert (sorted(offered), printed.err) == (sorted(OFFERS[line]), "")
