"""A night of ideas: 30 small changes of a tiny ViT, each judged by `vitcli decide`.

Usage: python -m experiments.night.campaign [-o FOLDER]   (in the root folder of the clone)
Each idea is one call; a winner is adopted, and the next ideas are compared with it. Nine are
planted: five parts of own code compute the same as built-in ones, two changes are known to help and
two to hurt. The last call claims the best against the start. Killed, it goes on where it was.
The trainings are in runs/night, and the ledger in FOLDER, by default experiments/results/night.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from vitcli.plugins.decide.ledger import read

HERE = Path("experiments/night")
RESULT = Path("experiments/results/night")
TRAININGS = Path("runs/night")
LEDGER = "campaign.json"
CODE = ("same.py", "same_norm.py")
IDEAS = (
    "optim.name=muon",
    "optim.lr=0.004",
    "model.ffn=gelu_renamed",
    "model.pos_embed=none",
    "train.label_smoothing=0.1",
    "model.norm=rms_norm",
    "optim.lr=0.001",
    "model.attention=softmax_by_hand",
    "model.ffn=gelu_inside",
    "model.norm=rms_norm_by_hand",
    "model.num_heads=6",
    "optim.muon_lr=0.04",
    "optim.muon_lr=0.01",
    "train.batch_size=32",
    "model.patch_embed=linear_renamed",
    "model.ffn=swiglu",
    "model.depth=4",
    "data.augment.crop_padding=0",
    "model.pool=cls",
    "optim.schedule=linear",
    "model.mlp_ratio=4.0",
    "optim.warmup_epochs=0.25",
    "model.residual=none",
    "data.augment.erasing=0.25",
    "model.drop_path=0.1",
    "optim.weight_decay=0.2",
    "model.init=trunc_normal",
    "train.ema_decay=0.95",
    "model.embed_dim=60",
    "optim.max_grad_norm=null",
    "train.epochs=6",
)
SAME = (2, 7, 8, 9, 14)
HELP = (0, 30)
HURT = (3, 22)
"""Places of the planted ideas."""


def decide(*words: str) -> int:
    files = (word for name in CODE for word in ("--code", str(HERE / name)))
    command = [sys.executable, "-m", "vitcli", "decide", *words, *files]
    return subprocess.run(command, check=False).returncode


def tried() -> set[str]:
    """Return the ideas with a verdict: a new best is no reason to try them again."""
    campaign = read(TRAININGS)
    return {idea.name for idea in campaign.ideas if idea.is_final} if campaign else set()


def main(result: Path) -> None:
    if (result / LEDGER).exists() and not TRAININGS.exists():
        TRAININGS.mkdir(parents=True)
        shutil.copy(result / LEDGER, TRAININGS)
    result.mkdir(parents=True, exist_ok=True)
    campaign = ["--campaign", TRAININGS.name, "--against", str(HERE / "start.yaml"), "--adopt"]
    for idea in IDEAS:
        if idea in tried():
            continue
        code = decide("-s", idea, *campaign)
        shutil.copy(TRAININGS / LEDGER, result)
        if code not in (0, 6):
            sys.exit(code)
    decide(TRAININGS.name, "--claim")
    decide(TRAININGS.name, "--report")
    shutil.copy(TRAININGS / LEDGER, result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    main(parser.parse_args().output)
