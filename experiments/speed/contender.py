"""One contender of experiments/speed/peers.py: a process that trains on request.

Usage: python experiments/speed/contender.py JOB
JOB is a JSON object; peers.py starts this script. Each line on stdin is a number of steps. The
answer is a JSON object: the seconds they took, the peak memory so far, precision and backend.
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
CLIP = 1.0
Job = dict[str, Any]


def peer_model(name: str, m: Job) -> Any:
    """Build the peer's ViT for 32x32 images, with CLS, learned positions and ten classes."""
    width, depth, heads, hidden = m["embed_dim"], m["depth"], m["num_heads"], m["mlp_dim"]
    patch = m["patch_size"]
    if name == "timm":
        from timm.models.vision_transformer import VisionTransformer

        return VisionTransformer(
            img_size=32,
            patch_size=patch,
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
            patch_size=patch,
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
            patch_size=patch,
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
        patch_size=patch,
        num_classes=10,
        dim=width,
        depth=depth,
        heads=heads,
        dim_head=width // heads,
        mlp_dim=hidden,
    )


def load_set(job: Job) -> Any:
    """Return CIFAR-10 if the job has its folder, else ``shapes``."""
    from vitcli.core.spec import DataSpec
    from vitcli.runner.data.load import load_data

    spec = DataSpec(name="cifar10" if job["data"] else "shapes")
    folder = Path(job["data"]) if job["data"] else None
    return load_data(spec, data_dir=folder, offline=True, on_message=lambda text: None)


def peer_batches(job: Job) -> Iterator[Any]:
    """Yield batches of a DataLoader without end, as in the peers' own training scripts."""
    import torch
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset
    from torchvision import transforms

    images = load_set(job).train
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
        """Data set like torchvision.datasets.CIFAR10: an array in memory, read as PIL images."""

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
    network = torch.compile(model, mode=job["compile"]) if job["compile"] else model
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
    """Take the steps of ``vitcli train``, without writing files."""
    import torch

    from vitcli.core.models.image_model import build_model
    from vitcli.core.spec import AugmentSpec, DataSpec, ExperimentSpec, TrainSpec, VitSpec
    from vitcli.runner.train.build import build_training, compile_training, settings

    keys = ("embed_dim", "depth", "num_heads", "mlp_dim", "patch_size")
    sizes = {key: job[key] for key in keys}
    spec = ExperimentSpec(
        model=VitSpec(img_size=(32, 32), in_chans=3, num_classes=10, **sizes),
        data=DataSpec(mean=MEAN, std=STD, augment=AugmentSpec(crop_padding=4, flip="random")),
        train=TrainSpec(batch_size=job["batch_size"], precision=job["precision"]),
    )
    data, model = load_set(job).to(torch.device(job["device"])), build_model(spec.model)
    training = build_training(spec, model, data, warn)
    compile_training(training, warn)
    job["precision"], job["kernels"] = training.precision, training.kernels
    if job["part"] == "step":
        x, y = next(fixed_batches(job))
        batch = {"images": x, "targets": y}
        # A CUDA graph must read this batch, too, and not make one from rows.
        vars(training.task).update(batches=lambda *_: itertools.repeat(batch), has_rows=False)
    training.module.train()
    for epoch in itertools.count():
        with settings(training):
            for _ in training.run_epoch(epoch):
                yield


def warn(text: str) -> None:
    """Write to stderr: stdout is for answers."""
    sys.stderr.write(f"{text}\n")


def answer_requests(job: Job) -> None:
    """Take the requested number of steps for each line of stdin, and print their seconds."""
    if job["compile"]:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = job["compile_cache"]
    import torch

    from vitcli.runner.machine.device import keep_freed_memory

    if job["allocator"]:
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
        next(steps)  # caches are cold after a pause
        began = wait()
        for _ in range(int(line)):
            next(steps)
        answer = {"seconds": wait() - began, "memory": peak_memory(is_gpu)}
        answer |= {key: job[key] for key in ("precision", "kernels") if key in job}
        print(json.dumps(answer), file=answers, flush=True)
    os._exit(0)  # do not wait for the DataLoader's workers


def peak_memory(is_gpu: bool) -> int:
    """Return the largest number of bytes that this process has used so far."""
    import resource

    import torch

    if is_gpu:
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    answer_requests(json.loads(sys.argv[1]))
