"""Which function judges each claim that needs results of trainings."""

from collections.abc import Callable

from vitcli.runner.claims.by_figures import attention_claim, global_relations, limits
from vitcli.runner.claims.by_studies import (
    against_resnet,
    competitive,
    fewer_labels,
    heavy_augmentation,
    layer_norm,
    losses_of_report,
    of_words,
    patch_size,
    ranking,
    stabilises,
    stated_accuracy,
    stated_minutes,
)
from vitcli.runner.claims.item import Finding
from vitcli.runner.claims.result_files import NOT_RUN, Results

NO_GPU = NOT_RUN.format("the training needs a GPU")


def size_and(name: str, stated: float) -> Callable[[Results], Finding]:
    """Return a judge of a row of the classification table: its size is computed, the rest waits."""

    def judge(results: Results) -> Finding:
        from vitcli.runner.claims.by_computation import parameters

        count = parameters(name)
        agrees = "as stated" if abs(count / 1e6 - stated) < 0.05 else "not as stated (S2-33)"
        return Finding("no verdict", f"{count:,} parameters, {agrees}; accuracy {NO_GPU}", "")

    return judge


def waits(reason: str) -> Callable[[Results], Finding]:
    return lambda results: Finding("no verdict", reason, "")


def conclusion(results: Results) -> Finding:
    """Combine the verdicts on the claims that the report's conclusion repeats."""
    from vitcli.runner.claims.by_computation import attention_cost

    parts = {
        "S2-02": competitive(results),
        "S2-09": attention_cost(),
        "S2-41": against_resnet(results),
        "S2-68": limits(results),
    }
    text = ", ".join(f"{name}: {found.verdict}" for name, found in parts.items())
    return Finding(of_words(found.verdict for found in parts.values()), text, "")


Judge = Callable[[Results], Finding]
TINY = "ablation-cifar10-tiny"
FROM_RESULTS: dict[str, Judge] = {
    "S0-16": stabilises(TINY, "no-residual"),
    "S0-20": stated_minutes,
    "S0-22": stated_accuracy,
    "S0-23": waits(NOT_RUN.format("100 epochs of three seeds take three hours of a CPU")),
    "S1-02": global_relations,
    "S2-02": competitive,
    "S2-18": layer_norm,
    "S2-20": stabilises("ablation-norm", "post-layernorm"),
    "S2-37": size_and("cifar10-resnet18", 11.2),
    "S2-38": size_and("cifar10-small", 5.7),
    "S2-39": size_and("cifar10-base-p2", 22.1),
    "S2-40": size_and("cifar10-small-aug", 5.7),
    "S2-41": against_resnet,
    "S2-42": patch_size,
    "S2-43": heavy_augmentation,
    "S2-44": waits(NO_GPU),
    "S2-46": attention_claim("Layer 1"),
    "S2-47": attention_claim("Layer 2", "Layer 3"),
    "S2-48": attention_claim("Layer 4", "Layer 6", "CLS"),
    "S2-50": losses_of_report,
    "S2-51": ranking,
    "S2-61": fewer_labels,
    "S2-68": limits,
    "S2-74": conclusion,
}
"""Id of a claim or a result -> the function that judges it from result files."""
