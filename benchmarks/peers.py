"""vitcli's training speed beside that of other libraries, on the same model.

Usage: python benchmarks/peers.py [--data DIR] [--device cpu|cuda] [--models tiny,small]
                                  [--rounds 5] [--seconds 2] [--compile] [--allocator] [-o FILE]
Needs: pip install '.[bench]'. DIR holds CIFAR-10's class folders; without it ``shapes`` is taken.

Every contender is a process of its own, so that none runs in another's memory allocator. They take
turns, A B C ... A B C ..., while the others wait; each turn ends with the same number of steps.
Speeds are medians over the turns. A peer takes part in fp32 and under bf16 autocast, and its faster
mode counts. ``--compile`` and ``--allocator`` give the peers torch.compile and vitcli's allocator
settings; vitcli itself always runs as ``vitcli train`` does.

step        forward, loss, backward, clipping, AdamW, on one batch that stays in memory
end_to_end  the same with each one's usual data path: torchvision's transforms in a DataLoader with
            as many workers as cores; vitcli's batched augmentation. Crop and flip for both.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitcli.cli.app import SPIN_COUNT

MODELS = {
    "tiny": {"embed_dim": 64, "depth": 5, "num_heads": 4, "mlp_dim": 64, "batch_size": 256},
    "small": {"embed_dim": 400, "depth": 6, "num_heads": 8, "mlp_dim": 512, "batch_size": 64},
}
PEERS = {
    "timm": "timm",
    "torchvision": "torchvision",
    "transformers": "transformers",
    "vit-pytorch": "vit-pytorch",
}
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
CLIP = 1.0
Job = dict[str, Any]


# A contender's process


def peer_model(name: str, m: Job) -> Any:
    """The peer's ViT: 4x4 patches of 32x32 images, CLS token, learned positions, ten classes."""
    width, depth, heads, hidden = m["embed_dim"], m["depth"], m["num_heads"], m["mlp_dim"]
    if name == "timm":
        from timm.models.vision_transformer import VisionTransformer

        return VisionTransformer(
            img_size=32,
            patch_size=4,
            num_classes=10,
            embed_dim=width,
            depth=depth,
            num_heads=heads,
            mlp_ratio=hidden / width,
        )
    if name == "torchvision":
        import torchvision

        return torchvision.models.VisionTransformer(
            image_size=32,
            patch_size=4,
            num_layers=depth,
            num_heads=heads,
            hidden_dim=width,
            mlp_dim=hidden,
            num_classes=10,
        )
    if name == "transformers":
        from transformers import ViTConfig, ViTForImageClassification

        config = ViTConfig(
            image_size=32,
            patch_size=4,
            hidden_size=width,
            num_hidden_layers=depth,
            num_attention_heads=heads,
            intermediate_size=hidden,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        config.num_labels = 10
        return ViTForImageClassification(config)
    from vit_pytorch import ViT

    return ViT(
        image_size=32,
        patch_size=4,
        num_classes=10,
        dim=width,
        depth=depth,
        heads=heads,
        dim_head=width // heads,
        mlp_dim=hidden,
    )


def load_images(job: Job) -> Any:
    """The training images of CIFAR-10 where it is given, of ``shapes`` otherwise."""
    from vitcli.core.spec import DataSpec
    from vitcli.runner.datasets import load_data

    spec = DataSpec(name="cifar10" if job["data"] else "shapes")
    folder = Path(job["data"]) if job["data"] else None
    data: Any = load_data(spec, data_dir=folder, offline=True, on_message=lambda text: None)
    return data.train


def peer_batches(job: Job) -> Iterator[Any]:
    """Forever: batches of a DataLoader, as the peers' own training scripts make them."""
    import torch
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset
    from torchvision import transforms

    images = load_images(job)
    pixels, labels = images.pixels.permute(0, 2, 3, 1).numpy(), images.labels.tolist()
    augment = transforms.Compose(
        [
            transforms.RandomCrop(32, padding=4),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )

    class InMemory(Dataset):
        """Like torchvision.datasets.CIFAR10: an array in memory, one PIL image at a time."""

        def __len__(self) -> int:
            return len(labels)

        def __getitem__(self, index: int) -> tuple[Any, int]:
            return augment(Image.fromarray(pixels[index])), labels[index]

    loader = DataLoader(
        InMemory(),
        batch_size=job["batch_size"],
        shuffle=True,
        drop_last=True,
        num_workers=os.cpu_count() or 1,
        pin_memory=job["device"] != "cpu",
        persistent_workers=True,
    )
    device = torch.device(job["device"])
    while True:
        for x, y in loader:
            yield x.to(device, non_blocking=True), y.to(device, non_blocking=True)


def fixed_batches(job: Job) -> Iterator[Any]:
    import torch

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(job["batch_size"], 3, 32, 32, generator=generator).to(job["device"])
    y = torch.randint(10, (job["batch_size"],), generator=generator).to(job["device"])
    while True:
        yield x, y


def peer_steps(job: Job) -> Iterator[None]:
    import torch
    from torch.nn.functional import cross_entropy

    device = torch.device(job["device"])
    model = peer_model(job["name"], job).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05, fused=True)
    network = torch.compile(model) if job["compile"] else model
    dtype = torch.bfloat16 if job["precision"] == "bf16" else None
    batches = peer_batches(job) if job["part"] == "end_to_end" else fixed_batches(job)
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype, enabled=dtype is not None):
            out: Any = network(x)
            loss = cross_entropy(getattr(out, "logits", out).float(), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        yield


def our_steps(job: Job) -> Iterator[None]:
    """What ``vitcli train`` does, without files."""
    import torch

    from vitcli.core.data.batches import train_batches
    from vitcli.core.models.build import build_model
    from vitcli.core.spec import AugmentSpec, ModelSpec, OptimSpec
    from vitcli.core.tasks.classify import Classify
    from vitcli.core.train.loop import fit
    from vitcli.core.train.optim import build_optimizers
    from vitcli.runner.device import compile_model, pick_precision
    from vitcli.runner.kernels import choose_kernels

    device = torch.device(job["device"])
    sizes = {key: job[key] for key in ("embed_dim", "depth", "num_heads", "mlp_dim")}
    spec = ModelSpec(img_size=(32, 32), in_chans=3, num_classes=10, patch_size=4, **sizes)
    model = build_model(spec).to(device).train()
    dtype = pick_precision(job["precision"], device)
    choose_kernels(model, device, dtype)
    network: torch.nn.Module = model
    if device.type == "cuda":
        network = compile_model(model, next(fixed_batches(job))[0], dtype, print)

    def end_to_end() -> Iterator[dict[str, Any]]:
        images, epoch = load_images(job), 0
        images = type(images)(images.pixels.to(device), images.labels.to(device))
        augment = AugmentSpec(crop_padding=4, flip="random")
        while True:
            yield from train_batches(
                images,
                augment,
                mean=MEAN,
                std=STD,
                num_classes=10,
                batch_size=job["batch_size"],
                seed=0,
                epoch=epoch,
            )
            epoch += 1

    def fixed() -> Iterator[dict[str, Any]]:
        for x, y in fixed_batches(job):
            yield {"images": x, "targets": y}

    batches = end_to_end() if job["part"] == "end_to_end" else fixed()
    optimizers = build_optimizers(model, OptimSpec())
    steps = fit(
        Classify(network), batches, optimizers, lambda step: 1.0, max_grad_norm=CLIP, autocast=dtype
    )
    for _ in steps:
        yield


def contend(job: Job) -> None:
    """Answer each number on stdin by the seconds that so many steps took; at the end, by memory."""
    import resource

    import torch

    from vitcli.runner.allocator import keep_freed_memory

    if job["name"] == "vitcli" or job["allocator"]:
        keep_freed_memory()
    steps = our_steps(job) if job["name"] == "vitcli" else peer_steps(job)
    is_gpu = job["device"] != "cpu"

    def wait() -> float:
        if is_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    answers = sys.stdout
    sys.stdout = sys.stderr
    for line in sys.stdin:
        next(steps)  # what had been fetched in advance while others ran
        began = wait()
        for _ in range(int(line)):
            next(steps)
        print(wait() - began, file=answers, flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    answer = {"memory": torch.cuda.max_memory_allocated() if is_gpu else peak}
    print(json.dumps(answer), file=answers, flush=True)
    answers.flush()
    os._exit(0)  # a DataLoader's workers are not worth waiting for


# The referee


class Contender:
    """A process that trains when it is told to."""

    def __init__(self, job: Job) -> None:
        self.job, self.speeds = job, list[float]()
        ours = {"GOMP_SPINCOUNT": SPIN_COUNT} if job["name"] == "vitcli" else {}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--contend", json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | ours,
            text=True,
        )

    def run(self, steps: int) -> float:
        """Seconds for so many steps."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        if not (line := self.process.stdout.readline()):
            raise SystemExit(f"{self.job['name']} ({self.job['precision']}) stopped; run it alone")
        return float(line)

    def stop(self) -> int:
        """Its peak memory in bytes."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        memory: int = json.loads(self.process.stdout.readline())["memory"]
        self.process.wait()
        return memory


def race(jobs: list[Job], rounds: int, seconds: float) -> list[Job]:
    """Images per second of every job, in turns of about so many seconds."""
    contenders = [Contender(job) for job in jobs]
    lengths = []
    for contender in contenders:
        contender.run(3)  # compiles, fills caches
        lengths.append(max(2, round(seconds / (contender.run(3) / 3))))
    for _ in range(rounds):
        for contender, steps in zip(contenders, lengths, strict=True):
            speed = steps * contender.job["batch_size"] / contender.run(steps)
            contender.speeds.append(speed)
    return [
        {
            "name": c.job["name"],
            "precision": c.job["precision"],
            "images_per_second": round(statistics.median(c.speeds), 1),
            "turns": [round(speed, 1) for speed in c.speeds],
            "memory": c.stop(),
        }
        for c in contenders
    ]


def versions() -> dict[str, str]:
    names = ["torch", *PEERS.values()]
    return {name: importlib.metadata.version(name) for name in dict.fromkeys(names)}


def compare(model: str, part: str, options: argparse.Namespace) -> Job:
    common = {**MODELS[model], "part": part, "device": options.device, "data": options.data}
    quiet = common | {"compile": False, "allocator": False}
    loud = common | {"compile": options.compile, "allocator": options.allocator}
    jobs = [quiet | {"name": "vitcli", "precision": "auto"}]
    jobs += [loud | {"name": n, "precision": p} for n in PEERS for p in ("fp32", "bf16")]
    found = race(jobs, options.rounds, options.seconds)
    ours, *peers = found
    best = {n: max((f for f in peers if f["name"] == n), key=speed) for n in PEERS}
    fastest = max(best.values(), key=speed)
    return {
        "model": model,
        "part": part,
        "ours": ours["images_per_second"],
        "fastest_peer": fastest["images_per_second"],
        "peer": f"{fastest['name']} {fastest['precision']}",
        "ratio": round(ours["images_per_second"] / fastest["images_per_second"], 3),
        "ratios": {n: round(speed(ours) / speed(row), 3) for n, row in best.items()},
        "repetitions": options.rounds,
        "peers_compiled": options.compile,
        "peers_allocator": options.allocator,
        "memory": {
            "ours": ours["memory"],
            "leanest_peer": min(row["memory"] for row in best.values()),
        },
        "contenders": found,
    }


def speed(row: Job) -> float:
    value: float = row["images_per_second"]
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description="vitcli's training speed beside its peers'")
    parser.add_argument("--contend", help=argparse.SUPPRESS)
    parser.add_argument("--data")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", default="tiny,small")
    parser.add_argument("--parts", default="step,end_to_end")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--allocator", action="store_true")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.contend:
        contend(json.loads(options.contend))
        return

    from vitcli.runner.device import hardware, pick_device, source_commit

    facts = {
        "data": "cifar10" if options.data else "shapes",
        "hardware": hardware(pick_device(options.device)),
        "versions": versions(),
        "commit": source_commit()[0],
        "date": datetime.date.today().isoformat(),
    }
    rows = []
    for model in options.models.split(","):
        for part in options.parts.split(","):
            row = compare(model, part, options)
            rows.append(row | facts)
            print(  # noqa: T201
                f"{model} {part}: vitcli {row['ours']:,.0f} images/s, {row['ratio']:.2f} times"
                f" {row['peer']} ({row['fastest_peer']:,.0f})",
                flush=True,
            )
            if options.output:
                options.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
