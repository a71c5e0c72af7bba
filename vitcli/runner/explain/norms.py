"""Topic ``norms``: LayerNorm against BatchNorm. Axes: B batch, N tokens, D embed_dim."""
# ruff: noqa: RUF001  (Greek letters of formulas)

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcli.core.nn.norm import TokenBatchNorm
from vitcli.core.spec.slots import NORMS
from vitcli.runner.explain.drawings import bars
from vitcli.runner.explain.lesson import Drawing, Lesson, LiveTable, error, shape
from vitcli.runner.explain.random_tensors import batch_norm, layer_norm, norm_errors
from vitcli.runner.explain.subject import Subject

CASES = {
    "alone": "batch of 1 instead of 32",
    "padded": "padded with zeros to twice the length",
    "divided": "half of the batch",
}


def token_spread(tokens: Tensor) -> dict[str, float]:
    """Return the ranges over tokens of mean and standard deviation of each token: (1, N, D)."""
    means, deviations = tokens.mean(-1), tokens.std(-1, correction=0)
    ends = {"mean": means, "deviation": deviations}
    return {
        f"{side}_{name}": getattr(values, side)().item()
        for name, values in ends.items()
        for side in ("min", "max")
    }


def stored(norm: nn.Module) -> dict[str, list[int]]:
    """Return the tensors that a norm layer stores, with their shapes."""
    return {name: list(tensor.shape) for name, tensor in norm.state_dict().items()}


def norm_parameters(model: nn.Module) -> tuple[int, int]:
    """Return the number of norm layers of a model, and of their parameters."""
    kinds = (nn.LayerNorm, TokenBatchNorm, nn.RMSNorm)
    found = [part for part in model.modules() if isinstance(part, kinds)]
    return len(found), sum(p.numel() for norm in found for p in norm.parameters())


@torch.no_grad()
def explain(subject: Subject) -> Lesson:
    width, tokens = subject.width, subject.last_tokens
    count, parameters = norm_parameters(subject.model)
    numbers = {
        "layer": norm_errors(layer_norm),
        "batch": norm_errors(batch_norm),
        "before": token_spread(tokens),
        "after": token_spread(F.layer_norm(tokens, (width,))),
        "stored_by_layer_norm": stored(nn.LayerNorm(width)),
        "stored_by_batch_norm": stored(nn.BatchNorm1d(width)),
        "num_norms": count,
        "parameters": parameters,
    }
    return Lesson(
        title="Norms: LayerNorm against BatchNorm",
        idea=(
            "A norm shifts and scales numbers to mean 0 and variance 1. LayerNorm takes the"
            " statistics of each token alone. BatchNorm takes them over the whole batch, so the"
            " output for a picture depends on the other pictures and on padding."
        ),
        formula=(
            "y = γ (x - μ) / √(σ^{2} + ε) + β\n"
            "LayerNorm: μ_{bn}, σ_{bn} over the D features of one token\n"
            "BatchNorm: μ_{d}, σ_{d} over all B · N tokens of one feature"
        ),
        tables=_tables(subject, numbers),
        findings=_findings(subject, numbers),
        tries=[
            ("vitcli train quickstart -s model.norm=batch_norm", "a ViT with BatchNorm"),
            ("vitcli train quickstart -s model.norm=none", "a ViT without norms"),
        ],
        numbers=numbers,
        drawings=_drawings(numbers),
    )


def _findings(subject: Subject, numbers: dict[str, Any]) -> list[str]:
    before, after, width = numbers["before"], numbers["after"], subject.width
    norm = subject.model.spec.norm
    largest = max(after["max_mean"], -after["min_mean"])
    return [
        f"After the last layer, the {subject.num_tokens} tokens have means from"
        f" {before['min_mean']:.3f} to {before['max_mean']:.3f} and standard deviations from"
        f" {before['min_deviation']:.2f} to {before['max_deviation']:.2f}. LayerNorm without γ and"
        f" β gives every token mean 0 (largest {error(largest)}) and standard deviation"
        f" {after['min_deviation']:.3f} to {after['max_deviation']:.3f}.",
        f"LayerNorm stores γ and β only: {2 * width} numbers for width {width}, and no mean or"
        " variance. BatchNorm also stores running statistics, because one picture alone has no"
        " batch.",
        f"This model has norm {norm!r} ({NORMS[norm].about}): {numbers['num_norms']} norm layers"
        f" with {numbers['parameters']:,} parameters.",
    ]


def _tables(subject: Subject, numbers: dict[str, Any]) -> list[LiveTable]:
    width, tokens = subject.width, subject.num_tokens
    kinds = (("nn.LayerNorm", "layer"), ("nn.BatchNorm1d", "batch"))
    return [
        LiveTable(
            caption="How much the output for one picture changes with what else is in the batch:"
            " RMS difference of outputs of variance 1, random tokens of shape (32, 16, 8).",
            header=("change", "LayerNorm", "BatchNorm"),
            rows=tuple(
                (text, f"{numbers['layer'][name]:.2f}", f"{numbers['batch'][name]:.2f}")
                for name, text in CASES.items()
            ),
        ),
        LiveTable(
            caption=f"Tokens of shape (B, {tokens}, {width}): statistics and stored tensors.",
            header=("norm", "shape of μ and σ", "each over", "stored by torch"),
            rows=tuple(
                (
                    f"{name}({width})",
                    f"(B, {tokens}, 1)" if kind == "layer" else f"(1, 1, {width})",
                    f"{width} features" if kind == "layer" else f"B x {tokens} tokens",
                    ", ".join(
                        f"{part} {shape(sizes)}"
                        for part, sizes in numbers[f"stored_by_{kind}_norm"].items()
                    ),
                )
                for name, kind in kinds
            ),
            num_texts=4,
        ),
    ]


def _drawings(numbers: dict[str, Any]) -> list[Drawing]:
    rows = [
        (f"{short}, {name}", numbers[name][case], f"{numbers[name][case]:.2f}")
        for case, short in (("alone", "alone"), ("padded", "padded"), ("divided", "half"))
        for name in ("layer", "batch")
    ]
    label = "Change of the output for one picture, RMS: LayerNorm (layer) and BatchNorm (batch)."
    return [Drawing(html=bars(rows, label), caption=label)]
