"""Make the run folder of this release that later releases must still read.

    python -m tests.releases.make       # writes tests/releases/VERSION/

The pictures that it was trained on are not stored; ``write_pictures`` makes them again, by integer
arithmetic, so that they are the same everywhere.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import vitcli

FOLDER = Path(__file__).parent
EXPERIMENT = """
model: {patch_size: 4, embed_dim: 16, depth: 2, num_heads: 2, mlp_ratio: 2.0, proj_drop: 0.1}
data: {name: "imagefolder:pictures", augment: {crop_padding: 1, flip: random}}
optim: {lr: 2.0e-3, warmup_epochs: 0.5}
train: {epochs: 2, batch_size: 8, ema_decay: 0.9, precision: fp32, kernels: torch}
"""


def write_pictures(folder: Path) -> None:
    rows, columns, channels = np.indices((8, 8, 3))
    for split, count in (("train", 16), ("test", 6)):
        for name, level in (("dark", 20), ("bright", 150)):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                first = i + 100 * (split == "test")
                texture = (first * 31 + rows * (7 + i) + columns * 13 + channels * 5) % 60
                pixels = (level + texture).astype("uint8")
                Image.fromarray(pixels).save(folder / split / name / f"{i}.png")


def make() -> Path:
    target = FOLDER / vitcli.__version__
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        write_pictures(here / "pictures")
        (here / "small.yaml").write_text(EXPERIMENT)
        words = ["vitcli", "train", "./small.yaml", "--device", "cpu", "--offline", "-o", "run"]
        command = [sys.executable, "-c", "from vitcli.cli.main import main; main()", *words[1:]]
        paths = {"PYTHONPATH": str(Path(vitcli.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
        subprocess.run(command, cwd=here, env=os.environ | paths, check=True)
        (events,) = (here / "run").glob("events*")
        events.rename(
            events.with_name("events.out.tfevents.0")
        )  # its name holds that of the machine
        shutil.copytree(here / "run", target, ignore=shutil.ignore_patterns(".*"))
    return target


if __name__ == "__main__":
    print(make())  # noqa: T201
