"""Every test starts from the same random state; some share a tiny data set and experiment."""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

# Tiny tensors gain nothing from a second thread, and lose much where cores are shared.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch
from PIL import Image

REAL_PLACES = {name: os.environ.get(name) for name in ("VITCLI_DATA", "VITCLI_CACHE")}
"""Where CIFAR-10 may be, before any test moves them."""
TINY = """
model: {patch_size: 4, embed_dim: 16, depth: 2, num_heads: 2, mlp_ratio: 2.0, pool: mean,
        proj_drop: 0.1, drop_path: 0.1}
data: {name: "imagefolder:%s", augment: {crop_padding: 1, flip: random, mixup: 0.5}}
optim: {lr: 2.0e-3, warmup_epochs: 1.0}
train: {epochs: 4, batch_size: 16, ema_decay: 0.9}
"""


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _save_after_every_epoch(request, monkeypatch) -> None:
    """However short the epochs of these tests are; as a training does whose epochs are longer.

    A test marked ``shipped_save_policy`` saves as often as a user's training.
    """
    from vitcli.runner.train import trainer as training

    if not request.node.get_closest_marker("shipped_save_policy"):
        monkeypatch.setattr(training, "SAVE_SHARE", float("inf"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Workers take over what others have left, so that none is idle while a long test waits."""
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


def pytest_terminal_summary(terminalreporter) -> None:
    """Say in a line for each reason what was not tested on this machine."""
    for line in skipped_by_reason(terminalreporter.stats.get("skipped", [])):
        terminalreporter.write_line(line)


def skipped_by_reason(reports: Iterable[Any]) -> list[str]:
    """Such as ``not tested here: 57 tests (the CPU has no AMX)``, most tests first.

    Args:
        reports: Skipped tests, whose ``longrepr`` is (file, line, reason).
    """
    texts = (report.longrepr[2].partition("\n")[0] for report in reports)
    reasons = Counter(text.removeprefix("Skipped: ") for text in texts)
    return [
        f"not tested here: {count} {'test' if count == 1 else 'tests'} ({reason})"
        for reason, count in reasons.most_common()
    ]


@pytest.fixture
def here(tmp_path, tmp_path_factory, monkeypatch) -> Path:
    """An empty working folder; no data set but the embedded one, cached once for all tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITCLI_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("VITCLI_OFFLINE", "1")
    monkeypatch.delenv("VITCLI_DATA", raising=False)
    return tmp_path


@pytest.fixture
def native_machine(here, tmp_path_factory, monkeypatch) -> None:
    """A machine with the native backend: a CPU with AMX, or one on which AMX is emulated."""
    from tests.core.ops import emulation
    from vitcli.runner.machine.kernels import has_amx

    if has_amx():
        return
    if reason := emulation.why_not():
        pytest.skip(f"the native backend: no AMX, and no emulation ({reason})")
    compiler = emulation.write_compiler(tmp_path_factory.getbasetemp())
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True, raising=False)


@pytest.fixture
def real_places(monkeypatch) -> None:
    """For tests marked ``data``: data sets are searched where this machine has them."""
    for name, value in REAL_PLACES.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)


def draw_pictures(place: Path) -> Path:
    """Two classes of 8x8 pictures, dark and bright: 2 x 40 for training, 2 x 12 for testing."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 40), ("test", 12)):
        for name, level in (("dark", 60), ("bright", 190)):
            folder = place / "pictures" / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = rng.normal(level, 40, (8, 8, 3)).clip(0, 255).astype("uint8")
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return place / "pictures"


@pytest.fixture
def pictures(here) -> Path:
    """The folder that ``draw_pictures`` makes."""
    return draw_pictures(here)


@pytest.fixture
def tiny(pictures, here) -> Path:
    """An experiment on those pictures, with dropout, mixing and EMA: 4 epochs of 5 steps."""
    path = here / "tiny.yaml"
    path.write_text(TINY % pictures)
    return path


@pytest.fixture(scope="session")
def workshop(tmp_path_factory) -> Path:
    """A folder of this worker with pictures and ``tiny.yaml``, for trainings that are shared."""
    place = tmp_path_factory.mktemp("workshop")
    (place / "tiny.yaml").write_text(TINY % draw_pictures(place))
    return place


@pytest.fixture
def copy_of_run(here, workshop) -> Callable[..., Path]:
    """Put a finished run of ``tiny``, with some fields changed, into a folder.

    It is trained once a worker, on pictures like those of ``pictures``, but in another place.
    """

    def copy(target: Path, changes: dict[str, Any] | None = None) -> Path:
        from vitcli.runner.experiment.config import load_experiment
        from vitcli.runner.train.start import Request, start

        name = f"run-{sorted((changes or {}).items())}".replace("/", "_")
        if not (workshop / name / "result.json").exists():
            torch.manual_seed(0)
            experiment = load_experiment(str(workshop / "tiny.yaml"), changes)
            start(experiment, Request(output=workshop / name, rerun=True))
        return Path(shutil.copytree(workshop / name, target))

    return copy


@pytest.fixture
def environment(here) -> dict[str, str]:
    """For subprocesses: this environment, importing this checkout."""
    return dict(os.environ) | {"PYTHONPATH": str(Path(__file__).parents[1])}
