"""The features that a probe learns from, kept in the cache.

Each training from the same weights on the same pictures needs them again, such as the trials of a
study. Axes: N images, F features.
"""

import contextlib
import hashlib

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from vitcli.core.data.source import Images
from vitcli.core.objectives.objective import task_class
from vitcli.core.spec import ExperimentSpec
from vitcli.runner.data.find import cache_root
from vitcli.runner.errors import ResourceError
from vitcli.runner.experiment.build import encoder_of
from vitcli.runner.files import commit, make_folder, read_bounded, sha256
from vitcli.runner.train.exactness import numerical_environment

MAX_BYTES = 2**28
"""Largest size of all features in the cache. Above it, the oldest are removed."""
DIGEST = 64
"""Length of the hash at the start of a file."""


def probe_features(spec: ExperimentSpec, module: nn.Module, images: Images) -> Tensor:
    """Return the features (N, F) of images on the CPU, from the cache if they are there.

    A damaged file is ignored. Without a cache that can be written, they are computed each time.
    """
    path = cache_root() / "features" / f"{_key(spec, module, images)}.safetensors"
    with contextlib.suppress(OSError, ValueError, LookupError, SafetensorError):
        content = read_bounded(path, MAX_BYTES)
        if content[:DIGEST] == sha256(content[DIGEST:]).encode():
            return safetensors.torch.load(content[DIGEST:])["features"]
    features = task_class(spec)(spec, module).features(module, images)
    content = safetensors.torch.save({"features": features})
    with contextlib.suppress(OSError, ResourceError):
        make_folder(path.parent)
        commit(path, sha256(content).encode() + content)
        left = MAX_BYTES
        for file in sorted(path.parent.iterdir(), key=lambda file: -file.stat().st_mtime_ns):
            left -= file.stat().st_size
            if left < 0:
                file.unlink()
    return features


def _key(spec: ExperimentSpec, module: nn.Module, images: Images) -> str:
    """Return a hash of all that the features depend on, the rounding included."""
    rounding = numerical_environment(torch.device("cpu"), compiled=False)
    facts = spec.model, spec.data.mean, spec.data.std, tuple(images.pixels.shape), rounding
    digest = hashlib.sha256(repr(facts).encode())
    for name, tensor in encoder_of(spec, module).state_dict().items():
        if not name.startswith("head."):  # a new head has other weights for each seed
            digest.update(tensor.contiguous().numpy().data)
    digest.update(images.pixels.contiguous().numpy().data)
    return digest.hexdigest()[:32]
