"""Verdicts that a computation decides. Each function could return another verdict."""

from collections.abc import Callable, Sequence
from typing import Any

from experiments.claims import computed
from experiments.claims.by_studies import of_parts
from experiments.claims.item import Finding, Word
from vitcli.plugins.explain import random_tensors
from vitcli.runner.study.significance import ALPHA, MeanError


def holds_if(condition: bool, found: str, otherwise: Word = "refuted") -> Finding:
    """Return the verdict "holds" if the condition is true, and ``otherwise`` if it is not."""
    return Finding("holds" if condition else otherwise, found)


def span(values: Sequence[float], digits: int = 2) -> str:
    """Return the smallest and the largest number: ``0.98 to 1.01``, or ``0.98`` if they agree."""
    low, high = (f"{end(values):.{digits}f}" for end in (min, max))
    return low if low == high else f"{low} to {high}"


def dot_product() -> Finding:
    plain, equal = computed.misordered_share(), computed.misordered_share(equal_norms=True)
    found = (
        f"the key with the higher dot product has the lower cosine in {equal:.1%} of pairs of equal"
        f" length, and in {plain:.1%} of pairs of normal keys of width 64 (n = 20,000 pairs)"
    )
    return Finding("refuted" if equal else "in part" if plain else "holds", found)


def scaling() -> Finding:
    pairs = [random_tensors.score_variance(width) for width in (16, 64, 256)]
    before = ", ".join(f"{raw**0.5:.0f}" for raw, _ in pairs)
    found = (
        f"standard deviation of scores for widths 16, 64, 256: {before} unscaled,"
        f" {span([scaled**0.5 for _, scaled in pairs])} scaled (queries and keys of variance 1)"
    )
    return holds_if(all(abs(scaled - 1) < 0.1 for _, scaled in pairs), found)


def softmax_sums() -> Finding:
    error, smallest = computed.softmax_extremes()
    found = f"row sums differ from 1 by at most {error:.0e}, the smallest weight is {smallest:.0f}"
    return holds_if(error < 1e-5 and smallest >= 0, f"{found} (fp32, scores up to 40,000)")


def any_distance() -> Finding:
    reach, errors = random_tensors.reach_of_attention(), random_tensors.permutation_errors()
    found = (
        f"{reach:.0%} of the pairs of 64 tokens have a gradient in one layer; moving the tokens"
        f" changes no output (largest difference {errors['equivariant']:.0e})"
    )
    return holds_if(reach == 1 and errors["equivariant"] < 1e-9, found)


def gradient_flow() -> Finding:
    cases = {}
    for norm in ("none", "layer_norm"):
        cases[norm] = [computed.gradient_shares(residual, norm) for residual in ("add", "none")]
    (kept, lost), (normed, normed_lost) = cases.values()
    found = (
        f"gradient at the input of 5 blocks, divided by that at their output: {span(kept)} with"
        f" residual connections, {span(lost)} without (block of the training notes). With"
        f" LayerNorm: {span(normed)} with residual connections, {span(normed_lost)} without"
        f" (untrained, weights trunc_normal, n = {len(kept)} seeds)"
    )
    helps = [min(with_it) > max(without) for with_it, without in cases.values()]
    return Finding("holds" if all(helps) else "in part" if any(helps) else "refuted", found)


def features_kept() -> Finding:
    kept, lost = (computed.readable_shares(residual) for residual in ("add", "none"))
    low, high = MeanError.of_seeds([a - b for a, b in zip(kept, lost, strict=True)]).interval(ALPHA)
    found = (
        f"a linear map reads the patches from the last of 6 layers with R^2 {span(kept)} with"
        f" residuals and {span(lost)} without; difference [{low:.2f}, {high:.2f}]"
        f" (untrained, weights trunc_normal, n = {len(kept)} seeds)"
    )
    return holds_if(low > 0, found, "undecided" if high > 0 else "refuted")


def convolution() -> Finding:
    share, most, shared = random_tensors.reach_of_convolution()
    found = (
        f"an output of a 3x3 convolution depends on at most {most} of 64 pixels,"
        f" {share:.0%} on average; outputs at least 3 pixels apart have {shared} pixels in common"
    )
    return holds_if(most == 9 and shared == 0, found)


def variances() -> Finding:
    raw, scaled = random_tensors.score_variance(64)
    _, wide = random_tensors.score_variance(64, variance=4)
    found = (
        f"width 64: variance {raw:.0f} unscaled; scaled {scaled:.2f} for Var(Q) = Var(K) = 1, but"
        f" {wide:.1f} for Var(Q) = Var(K) = 4: it is their product"
    )
    if abs(scaled - 1) > 0.1 or abs(raw / 64 - 1) > 0.1:
        return Finding("refuted", found)
    return Finding("in part" if abs(wide - 4) > 1 else "holds", found)


def batch_norm() -> Finding:
    batch = random_tensors.norm_errors(random_tensors.batch_norm)
    layer = random_tensors.norm_errors(random_tensors.layer_norm)
    names = {"alone": "a batch of 1", "padded": "padding", "divided": "half of the batch"}
    parts = ", ".join(f"{batch[name]:.2f} with {text}" for name, text in names.items())
    found = (
        f"RMS change of the output, which has variance 1. Batch norm: {parts}. Layer norm:"
        f" {max(layer.values()):.0f}. A batch norm over ranks needs their sums in every layer"
    )
    return holds_if(min(batch.values()) > 0.01 and max(layer.values()) == 0, found)


def attention_cost() -> Finding:
    tokens, width = computed.attention_exponents()
    found = f"counted operations grow with N^{tokens:.2f} and d^{width:.2f}"
    return holds_if(abs(tokens - 2) < 0.01 and abs(width - 1) < 0.01, found)


def subspaces() -> Finding:
    from vitcli.core.inspect.heads import attention_of
    from vitcli.runner.evaluate.weights import DEFAULT_MODEL, load_model
    from vitcli.runner.run.folder import BUNDLED, RunDir

    model: Any = load_model(RunDir(BUNDLED / DEFAULT_MODEL))
    layers = [attention_of(block) for block in model.blocks]
    heads = layers[0].num_heads
    keys = [layer.qkv.weight.detach().chunk(3)[1] for layer in layers]
    overlaps = computed.head_overlaps(keys, heads)
    low, high = MeanError.of_seeds(overlaps).interval(ALPHA)
    random = computed.random_overlaps(len(keys), keys[0].shape[1], heads)
    found = (
        f"bundled model: overlap of the key subspaces of two heads [{low:.3f}, {high:.3f}]; equal"
        f" subspaces have 1, random ones {span(random, 3)} (n = {len(overlaps)} pairs)"
    )
    middle = (1 + sum(random) / len(random)) / 2
    if high >= middle:
        return Finding("refuted" if low > middle else "undecided", found)
    if low > min(random):  # training did not move them apart
        return Finding("in part", f"{found}. So heads differ, but no more than random ones")
    return Finding("holds", found)


def permutation() -> Finding:
    errors = random_tensors.permutation_errors()
    found = (
        f"permuted tokens change the output by {errors['output']:.1f} and permute it exactly"
        f" ({errors['equivariant']:.0e}): attention is equivariant. The mean over tokens is"
        f" invariant ({errors['pooled']:.0e}), and with positions it is not"
        f" ({errors['positions']:.2f})"
    )
    if errors["output"] < 1e-6:
        return Finding("holds", found)
    return Finding("in part" if errors["pooled"] < 1e-9 else "refuted", found)


def patches() -> Finding:
    spec = _spec("cifar10-small")
    count = (spec.img_size[0] // spec.patch_size) ** 2
    return holds_if(count == 64, f"({spec.img_size[0]} / {spec.patch_size})^2 = {count}")


def shape_of_notes() -> Finding:
    facts = [(spec.depth, spec.embed_dim, parameters(name)) for name, spec in _tiny().items()]
    found = "; ".join(
        f"{name}: {depth} layers of width {width}, {count:,} parameters"
        for name, (depth, width, count) in zip(TINY, facts, strict=True)
    )
    return holds_if((5, 64, STATED_SIZE) in facts, found)


def size_of_notes() -> Finding:
    counts = [parameters(name) for name in TINY]
    found = ", ".join(f"{name} {n:,}" for name, n in zip(TINY, counts, strict=True))
    found += (
        " parameters; their parts were chosen to give this number, because the notes state neither"
        " biases, norms nor image size"
    )
    return holds_if(STATED_SIZE in counts, found)


def size_of_report() -> Finding:
    count = parameters("cifar10-small")
    found = f"the stated configuration has {count:,} parameters"
    return holds_if(abs(count / 1e6 - 5.7) < 0.05, found)


def schedule() -> Finding:
    last, passed, peak = computed.rate_of_report()
    found = (
        f"the rate of the stated code falls below 0.001 in epoch {passed} and ends at {last:.0e}"
    )
    found = f"{found}; its warm-up of 5 % ends at epoch {peak}"
    return Finding(of_parts([peak == 15, abs(last / 0.001 - 1) < 0.5]), found)


def parameters(name: str) -> int:
    """Return the number of parameters of an experiment's model."""
    import torch

    from vitcli.core.inspect.cost import count_parameters
    from vitcli.core.models.image_model import build_model

    with torch.device("meta"):
        return count_parameters(build_model(_spec(name)))


def _spec(name: str) -> Any:
    from vitcli.runner.experiment.resolve import resolve_by_name

    return resolve_by_name(name).spec.model


def _tiny() -> dict[str, Any]:
    return {name: _spec(name) for name in TINY}


STATED_SIZE = 140618
"""Number of parameters in the training notes."""
TINY = ("cifar10-tiny", "cifar10-tiny-native")
"""The two experiments that interpret the training notes."""

COMPUTATIONS: dict[str, Callable[[], Finding]] = {
    "S0-07": dot_product,
    "S0-08": scaling,
    "S0-09": softmax_sums,
    "S0-11": any_distance,
    "S0-17": gradient_flow,
    "S0-18": features_kept,
    "S0-19": shape_of_notes,
    "S0-21": size_of_notes,
    "S1-01": convolution,
    "S1-09": variances,
    "S1-21": batch_norm,
    "S2-09": attention_cost,
    "S2-12": subspaces,
    "S2-21": permutation,
    "S2-27": patches,
    "S2-33": size_of_report,
    "S2-45": schedule,
}
"""Id of a claim or a result -> the function that computes its verdict."""
