"""Compare the training speed with that of a ViT of torch's own layers, and with earlier ratios.

Usage: python experiments/speed/ratios.py [--save] [--device auto] [--rounds 5] [--seconds 1]
Seconds vary between machines and between hours. Ratios vary little, because the two models take
turns on the same machine. Each kind of CPU has committed ratios of its own in ratios.json, which
--save replaces by those measured. The exit code is 6 if a ratio is too far below the committed one,
and 4 if there is none for this kind of CPU.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from vitcli.core.data.augment import normalize
from vitcli.core.nn.patch_embed import patchify
from vitcli.core.spec import AugmentSpec, DataSpec, ExperimentSpec, TrainSpec, VitSpec
from vitcli.plugins.bench.training import Workload, make_workload, turns
from vitcli.runner.errors import CheckError, InputError, UserError
from vitcli.runner.experiment.config import Experiment
from vitcli.runner.files import commit_json
from vitcli.runner.machine.device import cpu_kind, hardware, pick_device
from vitcli.runner.text import ignore_message
from vitcli.runner.train.build import compile_training

COMMITTED = Path(__file__).with_name("ratios.json")
THREADS = 2
"""CPU threads of every measurement, because the ratios depend on their number."""
TOLERANCE = 0.8
"""A ratio counts as lost if it is below this share of the committed ratio."""
SIZES: dict[str, tuple[int, dict[str, Any]]] = {
    "tiny": (256, {"embed_dim": 64, "depth": 5, "num_heads": 4, "mlp_dim": 64}),
    "small": (64, {"embed_dim": 400, "depth": 6, "num_heads": 8, "mlp_dim": 512}),
}
AUGMENT = AugmentSpec(crop_padding=4, flip="random")


class StockViT(nn.Module):
    """Pre-norm ViT of torch's encoder layers, the baseline of the ratios."""

    def __init__(self, spec: VitSpec) -> None:
        super().__init__()
        width = spec.embed_dim
        self.patches = nn.Linear(3 * spec.patch_size**2, width)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 65, width))
        layer = nn.TransformerEncoderLayer(
            width,
            spec.num_heads,
            spec.hidden_dim,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.blocks = nn.TransformerEncoder(layer, spec.depth, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(patchify(images, 4))
        tokens = torch.cat([self.cls.expand(len(tokens), -1, -1), tokens], 1) + self.positions
        return self.head(self.norm(self.blocks(tokens))[:, 0])


def stock_training(work: Workload) -> Iterator[None]:
    """Train the stock ViT without end, as a plain script does: normalise, step, AdamW, in fp32."""
    assert isinstance(work.spec.model, VitSpec)
    model = StockViT(work.spec.model).to(work.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    images, batch = work.training.data.train, work.spec.train.batch_size
    half = torch.full((3,), 0.5, device=work.device)
    while True:
        for i in range(0, len(images) - batch + 1, batch):
            optimizer.zero_grad()
            x = normalize(images.pixels[i : i + batch], half, half)
            nn.functional.cross_entropy(model(x), images.labels[i : i + batch]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            yield


def machine_kind(device_name: str) -> str:
    """Return the kind of machine whose ratios are committed, such as ``avx2`` or ``cuda``."""
    device = pick_device(device_name)
    return cpu_kind() if device.type == "cpu" else device.type


@contextlib.contextmanager
def fixed_threads() -> Iterator[None]:
    """Let torch use ``THREADS`` threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@fixed_threads()
def measure_ratios(
    device_name: str, *, rounds: int, seconds: float, on_message: Callable[[str], None]
) -> dict[str, Any]:
    """Return the kind of machine, its setting and the ratios: seconds of a stock step by vitcli's.

    Vitcli's training step and its input pipeline are both compared with the stock step, so that a
    change of one does not change the other's ratio.
    """
    ratios: dict[str, float] = {}
    setting = ""
    for name, (batch, sizes) in SIZES.items():
        spec = ExperimentSpec(
            model=VitSpec(patch_size=4, **sizes),
            data=DataSpec(augment=AUGMENT),
            train=TrainSpec(batch_size=batch),
        )
        work = make_workload(Experiment(name, spec, Path(name)), device_name, on_message)
        setting = describe_setting(work)
        compile_training(work.training, ignore_message)
        works = {
            "ours": partial(next, work.steps()),
            "stock": partial(next, stock_training(work)),
            "data": partial(next, work.batches()),
        }
        found = turns(works, work.device, rounds=rounds, seconds=seconds)
        ours, stock, data = (median(found[key]) for key in ("ours", "stock", "data"))
        ratios[f"{name}: training step, beside torch's encoder in fp32"] = stock / ours
        ratios[f"{name}: input pipeline, beside the same"] = stock / data
    return {"kind": machine_kind(device_name), "setting": setting, "ratios": ratios}


def describe_setting(work: Workload) -> str:
    """Return text such as ``bf16, native kernels, AMD EPYC, 2 threads``."""
    parts = [work.training.precision, f"{work.training.kernels} kernels", hardware(work.device)]
    return ", ".join(parts)


def committed_ratios() -> dict[str, dict[str, Any]]:
    """Return the committed ratios and their setting, by kind of machine."""
    found: dict[str, dict[str, Any]] = json.loads(COMMITTED.read_text())
    return found


def require_committed(kind: str) -> dict[str, Any]:
    """Return the committed ratios of a kind of machine and their setting.

    Raises:
        InputError: There are none.
    """
    committed = committed_ratios()
    if kind not in committed:
        raise InputError(
            f"no ratios are committed for {kind}, only for {', '.join(committed)};"
            " to measure and save them, add --save"
        )
    return committed[kind]


def save_ratios(measured: dict[str, Any]) -> Path:
    """Save the measured ratios as the committed ones and return the path of their file."""
    ratios = {name: round(value, 2) for name, value in measured["ratios"].items()}
    entry = {"setting": measured["setting"], "ratios": ratios}
    entries = committed_ratios() | {measured["kind"]: entry}
    commit_json(COMMITTED, dict(sorted(entries.items())))
    return COMMITTED


def compare(device: str, rounds: int, seconds: float, *, save: bool) -> None:
    """Measure the ratios, and save them or compare them with the committed ones.

    Raises:
        InputError: No ratios are committed for this kind of machine.
        CheckError: A ratio is too far below the committed one.
    """
    kind = machine_kind(device)
    committed = committed_ratios().get(kind, {}) if save else require_committed(kind)
    measured = measure_ratios(device, rounds=rounds, seconds=seconds, on_message=print)
    known = committed.get("ratios", {})
    print(f"{measured['kind']}: {measured['setting']}")  # noqa: T201
    for name, value in measured["ratios"].items():
        print(f"{value:8.2f} here  {known.get(name, float('nan')):8.2f} committed  {name}")  # noqa: T201
    if save:
        print(f"saved to {save_ratios(measured)}")  # noqa: T201
    else:
        refuse_lost(measured, committed)


def refuse_lost(measured: dict[str, Any], committed: dict[str, Any]) -> None:
    """Raise CheckError if a ratio is too far below the committed one."""
    here, there = measured["ratios"], committed["ratios"]
    lost = sorted(n for n in here.keys() & there.keys() if here[n] < TOLERANCE * there[n])
    if lost:
        raise CheckError(
            f"slower than committed: {'; '.join(lost)} (committed: {committed['setting']})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--save", action="store_true", help="replace the committed ratios")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    given = parser.parse_args()
    try:
        compare(given.device, given.rounds, given.seconds, save=given.save)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
