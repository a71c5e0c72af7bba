"""Fixtures of all tests: the same random state, a tiny data set and a tiny experiment."""

import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# A second thread does not help tiny tensors, and slows tests down where cores are shared.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # nor where it waits by spinning
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# Variables of the machine that change what a command prints, or how it ends.
os.environ.pop("PYTHONUNBUFFERED", None)
os.environ["TERM"] = "xterm"

import numpy as np
import pytest
import torch
from PIL import Image

# For experiments/gates. It stands last, so that an installed vitcli is tested if there is one.
sys.path.append(str(Path(__file__).parents[1]))

# No test cuts the power, and to wait for the disk takes longer than most trainings here.
# tests/faults/power_loss.py models a disk that keeps only what was synced.
os.fsync = lambda fd: None
os.sync = lambda: None

CLS = {"model.pool": "cls", "model.pos_embed": "learned"}
TINY = """
model: {patch_size: 4, embed_dim: 16, depth: 2, num_heads: 2, mlp_ratio: 2.0, pool: mean,
        proj_drop: 0.1, drop_path: 0.1}
data: {name: "imagefolder:%s", augment: {crop_padding: 1, flip: random, mixup: 0.5}}
optim: {lr: 2.0e-3, warmup_epochs: 1.0}
train: {epochs: 4, batch_size: 16, ema_decay: 0.9}
"""


def pytest_configure() -> None:
    """Let the signals that stop a training reach this process and those that it starts.

    A shell that starts the tests in the background lets them ignore SIGINT, and nohup SIGHUP.
    """
    handlers = dict.fromkeys((signal.SIGHUP, signal.SIGTERM), signal.SIG_DFL)
    for number, handler in (handlers | {signal.SIGINT: signal.default_int_handler}).items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    from tests.plugin_rows import FILES, has

    plugin = FILES.get(collection_path.relative_to(Path(__file__).parent).as_posix())
    return True if plugin and not has(plugin) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests without their plugins, and begin with those that take long."""
    from tests.plugin_rows import has

    items.sort(key=lambda item: item.get_closest_marker("ci") is None)
    for item in items:
        needed = [name for mark in item.iter_markers("plugin") for name in mark.args]
        for name in (name for name in needed if not has(name)):
            item.add_marker(pytest.mark.skip(reason=f"needs the plugin {name}"))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _save_after_every_epoch(request, monkeypatch) -> None:
    """Save a checkpoint after every epoch, as a training with longer epochs does.

    A test marked ``shipped_save_policy`` saves as often as a user's training.
    """
    from vitcli.runner.train import trainer as training

    if not request.node.get_closest_marker("shipped_save_policy"):
        monkeypatch.setattr(training, "SAVE_SHARE", float("inf"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Any]:
    """A browser for the tests of one module."""
    from tests.browser.chromium import chromium

    with chromium(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(autouse=True)
def _close_pages(request) -> Iterator[None]:
    """Close the pages that a test opened in the browser, but not those that its module shares."""
    if not request.node.get_closest_marker("browser"):
        yield
        return
    browser = request.getfixturevalue("browser")
    shared = len(browser.pages)
    yield
    browser.close(shared)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


def pytest_terminal_summary(terminalreporter) -> None:
    """Print a line for each judge that is not here; ``-rs`` prints why tests were skipped."""
    passed = terminalreporter.stats.get("passed", [])
    noted = (each for report in passed for each in {*report.user_properties})
    absent = Counter(value for name, value in noted if name == "not installed")
    for name, count in absent.items():
        terminalreporter.write_line(
            f"not tested here: {name} is not installed; its stored answers stood in ({count} tests)"
        )


@pytest.fixture(scope="session")
def its_cache(tmp_path_factory) -> Path:
    """The cache of the tests of this process. All processes share the compiled kernels.

    ``VITCLI_TEST_KERNELS`` names a folder that keeps them for the next session.
    """
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    kernels = Path(os.environ.get("VITCLI_TEST_KERNELS", shared / "kernels"))
    kernels.mkdir(exist_ok=True)
    (own / "cache").mkdir()
    (own / "cache" / "kernels").symlink_to(kernels.absolute())
    return own / "cache"


@pytest.fixture
def here(tmp_path, its_cache, request, monkeypatch) -> Path:
    """Change into an empty folder where only the embedded data set is available, and return it.

    Figures are drawn with a quarter of the dots per inch, which takes half as long, unless a
    browser shows them.
    """
    from vitcli.runner.figure_style import STYLE

    if not request.node.get_closest_marker("browser"):
        monkeypatch.setitem(STYLE, "savefig.dpi", 50)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITCLI_CACHE", str(its_cache))
    monkeypatch.setenv("VITCLI_OFFLINE", "1")
    monkeypatch.delenv("VITCLI_DATA", raising=False)
    return tmp_path


@pytest.fixture
def native_machine(here, tmp_path_factory, monkeypatch) -> None:
    """A machine with the native backend: a CPU with AMX, or one on which AMX is emulated."""
    from tests.core.ops import emulation
    from vitcli.runner.machine.device import this_processor

    if this_processor().amx:
        return
    if reason := emulation.why_not():
        pytest.skip(f"the native backend: no AMX, and no emulation ({reason})")
    compiler = emulation.write_compiler(tmp_path_factory.getbasetemp())
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True, raising=False)


def draw_pictures(place: Path, train: int = 40, test: int = 12) -> Path:
    """Draw 8x8 pictures of two classes, dark and bright: so many of each to train and test on."""
    rng = np.random.default_rng(0)
    for split, count in (("train", train), ("test", test)):
        for name, level in (("dark", 60), ("bright", 190)):
            folder = place / "pictures" / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = rng.normal(level, 40, (8, 8, 3)).clip(0, 255).astype("uint8")
                Image.fromarray(pixels).save(folder / f"{i}.png")
    return place / "pictures"


@pytest.fixture
def pictures(here) -> Path:
    return draw_pictures(here)


@pytest.fixture
def copied(pictures) -> Path:
    """Change the training pictures: 9 of each class, which say nothing of it, and their copies."""
    rng = np.random.default_rng(3)
    for folder in sorted((pictures / "train").iterdir()):
        for path in folder.iterdir():
            path.unlink()
        for i in range(9):
            pixels = rng.normal(128, 40, (8, 8, 3)).clip(0, 250).astype("uint8")
            Image.fromarray(pixels).save(folder / f"{i}.png")
            Image.fromarray(pixels + 2).save(folder / f"{i} again.png")
    return pictures


@pytest.fixture
def tiny(pictures, here) -> Path:
    """Return an experiment on those pictures with dropout, mixing and EMA: 4 epochs of 5 steps."""
    path = here / "tiny.yaml"
    path.write_text(TINY % pictures)
    return path


@pytest.fixture(scope="session")
def workshop(tmp_path_factory) -> Path:
    """Return a folder per worker with pictures and ``tiny.yaml``, for shared trainings."""
    place = tmp_path_factory.mktemp("workshop")
    (place / "tiny.yaml").write_text(TINY % draw_pictures(place))
    return place


@pytest.fixture
def copy_of_run(here, workshop) -> Callable[..., Path]:
    """Return a function that copies a finished run of ``tiny``, with some fields changed.

    The run is trained once per worker, on pictures like those of ``pictures`` in another folder.
    """

    def copy(target: Path, changes: dict[str, Any] | None = None) -> Path:
        from vitcli.runner.experiment.config import load_experiment
        from vitcli.runner.train.prepare import Request
        from vitcli.runner.train.train import train

        name = f"run-{sorted((changes or {}).items())}".replace("/", "_")
        if not (workshop / name / "result.json").exists():
            torch.manual_seed(0)
            experiment = load_experiment(str(workshop / "tiny.yaml"), changes)
            train(experiment, Request(output=workshop / name, rerun=True))
        return Path(shutil.copytree(workshop / name, target))

    return copy


@pytest.fixture
def without_workers(monkeypatch) -> None:
    """Train the trials of studies and searches in this process: a worker takes seconds to start."""
    from tests.here_engine import HereEngine

    monkeypatch.setattr("vitcli.runner.engines.drive.LocalEngine", HereEngine)


@pytest.fixture
def sketched(monkeypatch) -> None:
    """Let each file of a figure hold its form: to draw it takes longer than the rest of a test."""
    monkeypatch.setattr("vitcli.runner.figure_style.encode", lambda draw, form, **_: form.encode())


@pytest.fixture
def environment(here) -> dict[str, str]:
    return dict(os.environ) | {"PYTHONPATH": str(Path(__file__).parents[1])}


@pytest.fixture
def mapped_run(copy_of_run, here) -> Path:
    """A model with a CLS token on 8x8 pictures of two classes: a grid of 2x2, 2 layers, 2 heads."""
    return copy_of_run(here / "runs" / "mapped", CLS | {"train.epochs": 1})


@pytest.fixture
def run(copy_of_run) -> str:
    return str(copy_of_run(Path("run"), {"train.epochs": 1}))


@pytest.fixture
def half_are_flipped(monkeypatch) -> None:
    """Give half of the test images of two classes the other label: no model is always right."""
    from vitcli.runner.evaluate import trained_run

    load = trained_run.load_data

    def flipped(*words, **options):
        data = load(*words, **options)
        data.test.labels[::2] = 1 - data.test.labels[::2]
        return data

    monkeypatch.setattr(trained_run, "load_data", flipped)
