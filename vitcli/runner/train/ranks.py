"""Several processes (ranks) of torchrun: each runs the same training, and rank 0 writes.

torchrun starts them, ends all of them when one has failed, and says which one that was.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pydantic import ValidationError

from vitcli.core import ranks
from vitcli.core.ranks import LostRankError, exchange
from vitcli.core.spec import ExperimentSpec
from vitcli.runner.errors import ConfigError, ResourceError
from vitcli.runner.machine.launch import Launch, read_launch

TIMEOUT_VARIABLE = "VITCLI_RANK_TIMEOUT"
TIMEOUT = 1800.0
"""Seconds after which a rank that does not answer is given up. Rank 0 evaluates meanwhile."""


@contextlib.contextmanager
def joined(launch: Launch | None) -> Iterator[None]:
    """Connect this process with the other ranks in the block, if torchrun started it."""
    if launch is None:
        yield
        return
    if launch.local_size == launch.size and Path("/sys/class/net/lo").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # no port on a network
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    timeout = timedelta(seconds=read_timeout())
    try:
        with exchange():
            store, rank, size = next(dist.rendezvous("env://", timeout=timeout))
            # torchrun --max-restarts keeps its store, with the addresses of the ranks before.
            store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
            dist.init_process_group(
                backend, store=store, rank=rank, world_size=size, timeout=timeout
            )
        with ranks.together():
            yield
    except (LostRankError, dist.DistError) as error:
        raise ResourceError(str(error).partition("\n")[0]) from error
    # After an error, the end of the process disconnects it: first it has to say why.
    dist.destroy_process_group()


def device_of_rank(name: str) -> str:
    launch = read_launch()
    if ranks.size() == 1 or launch is None:
        return name
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"--device {name}: on several ranks write auto, cpu or cuda")
    if name == "cpu" or not torch.cuda.is_available():
        return name
    if launch.local_rank >= torch.cuda.device_count():
        raise ResourceError(
            f"rank {launch.rank} needs a GPU of its own, but this machine has"
            f" {torch.cuda.device_count()}; lower --nproc-per-node, or add --device cpu"
        )
    return f"cuda:{launch.local_rank}"


def refuse_other_ranks(facts: Mapping[str, Any]) -> None:
    """Refuse ranks that would compute something else, and wait until all are here."""
    all_facts: list[Any] = [None] * ranks.size()
    with exchange():
        dist.all_gather_object(all_facts, dict(facts))
    for rank, others in enumerate(all_facts):
        for name, value in facts.items():
            if others[name] != value:
                raise ConfigError(
                    f"rank {rank} has {name} {others[name]}, rank {ranks.own_rank()} has {value};"
                    " all ranks must compute in the same way"
                )


def read_timeout() -> float:
    text = os.environ.get(TIMEOUT_VARIABLE) or str(TIMEOUT)
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(text)) < float("inf"):
            return seconds
    raise ConfigError(f"{TIMEOUT_VARIABLE} takes a number of seconds above 0, not {text!r}")


def refuse_parts(spec: ExperimentSpec, size: int) -> None:
    """Refuse a batch whose rows cannot be divided among the ranks."""
    train = spec.train
    parts = size * train.accumulate
    if train.batch_size % parts:
        fewer = train.batch_size // parts * parts or parts
        among = f"{size} ranks" + (f" x {train.accumulate} parts" if train.accumulate > 1 else "")
        raise ConfigError(
            f"train.batch_size: {train.batch_size} images cannot be divided among {among};"
            f" type -s train.batch_size={fewer}, or start another number of ranks"
        )
    try:
        spec.replace(train=train.replace(batch_size=train.batch_size // size))
    except ValidationError as error:
        problem = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
        raise ConfigError(f"{problem}; that is the share of each of {size} ranks") from error


def describe_parts(spec: ExperimentSpec, size: int) -> str:
    count = spec.train.batch_size
    return f"{size} ranks, each with {count // size} of the {count} images of a step"
