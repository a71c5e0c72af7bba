"""Topic ``norms``: LayerNorm against BatchNorm. Axes: B batch, N tokens, D embed_dim."""

import torch
from torch import Tensor, nn

from vitcli.core.inspect.random_tensors import batch_norm, layer_norm, norm_errors
from vitcli.core.nn.norm import TokenBatchNorm
from vitcli.core.spec.slots import NORMS
from vitcli.runner.explain.drawings import bars
from vitcli.runner.explain.lesson import Shown
from vitcli.runner.explain.subject import Subject


def token_spread(tokens: Tensor) -> dict[str, float]:
    """Return the ranges over tokens of mean and standard deviation of each token: (1, N, D)."""
    means, deviations = tokens.mean(-1), tokens.std(-1, correction=0)
    return {
        "min_mean": means.min().item(),
        "max_mean": means.max().item(),
        "min_deviation": deviations.min().item(),
        "max_deviation": deviations.max().item(),
    }


def norm_parameters(model: nn.Module) -> tuple[int, int]:
    kinds = (nn.LayerNorm, TokenBatchNorm, nn.RMSNorm)
    found = [part for part in model.modules() if isinstance(part, kinds)]
    return len(found), sum(p.numel() for norm in found for p in norm.parameters())


@torch.no_grad()
def explain(subject: Subject) -> Shown:
    width, tokens, norm = subject.sizes()["width"], subject.last_tokens, subject.model.spec.norm
    norms = {
        "stored_by_layer_norm": nn.LayerNorm(width),
        "stored_by_batch_norm": nn.BatchNorm1d(width),
    }
    count, parameters = norm_parameters(subject.model)
    after = token_spread(layer_norm(tokens))
    errors = {"layer": norm_errors(layer_norm), "batch": norm_errors(batch_norm)}
    rows = [
        (f"{short}, {name}", errors[name][case], f"{errors[name][case]:.2f}")
        for case, short in (("alone", "alone"), ("padded", "padded"), ("divided", "half"))
        for name in ("layer", "batch")
    ]
    return Shown(
        numbers={
            **errors,
            "before": token_spread(tokens),
            "after": after,
            **{
                name: {part: list(tensor.shape) for part, tensor in layer.state_dict().items()}
                for name, layer in norms.items()
            },
            "num_norms": count,
            "parameters": parameters,
        },
        words={
            "largest_mean": max(after["max_mean"], -after["min_mean"]),
            "num_stored": 2 * width,
            "norm": norm,
            "about_norm": NORMS[norm].about,
        },
        drawings=[bars(rows)],
    )
