"""Which function judges each claim that needs results of trainings."""

from collections.abc import Callable

from experiments.claims.by_figures import (
    attention_claim,
    global_relations,
    limits,
    maps_explain,
)
from experiments.claims.by_stated import (
    accuracy_of_notes,
    classification,
    loss_curve,
    minutes_of_notes,
    more_epochs,
)
from experiments.claims.by_studies import (
    against_resnet,
    fewer_labels,
    heavy_augmentation,
    layer_norm,
    losses_of_report,
    near_resnet,
    of_words,
    patch_size,
    ranking,
    stabilises,
)
from experiments.claims.item import Finding
from experiments.claims.result_files import Results


def competes_and_explains(results: Results) -> Finding:
    """Combine the accuracy beside a ResNet with what maps of attention explain."""
    near, maps = near_resnet(results), maps_explain(results)
    text = f"accuracy: {near.verdict}, {near.found}. Maps: {maps.verdict}. {maps.found}"
    hardware = dict.fromkeys(part for part in (near.hardware, maps.hardware) if part)
    word = of_words([near.verdict, maps.verdict])
    return Finding(word, text, "; ".join(hardware), near.setting)


def conclusion(results: Results) -> Finding:
    """Combine the verdicts on the claims that the report's conclusion repeats."""
    from experiments.claims.by_computation import attention_cost

    parts = {
        "S2-02": competes_and_explains(results),
        "S2-09": attention_cost(),
        "S2-41": against_resnet(results),
    }
    text = ", ".join(f"{name}: {found.said}" for name, found in parts.items())
    settings = dict.fromkeys(found.setting for found in parts.values() if found.setting)
    word = of_words(found.verdict for found in parts.values())
    return Finding(word, text, "", " and ".join(settings))


Judge = Callable[[Results], Finding]
FLAGSHIP = "ablation-cifar10-full"
FROM_RESULTS: dict[str, Judge] = {
    "S0-16": stabilises(FLAGSHIP, "no-residual"),
    "S0-20": minutes_of_notes,
    "S0-22": accuracy_of_notes,
    "S0-23": more_epochs,
    "S1-02": global_relations,
    "S2-02": competes_and_explains,
    "S2-18": layer_norm,
    "S2-20": stabilises("ablation-norm", "post-layernorm"),
    "S2-37": classification("resnet-18", "cifar10-resnet18", 11.2, 94.2),
    "S2-38": classification("vit-small", "cifar10-small", 5.7, 91.8),
    "S2-39": classification("vit-base", "cifar10-base-p2", 22.1, 93.5),
    "S2-40": classification("vit-small-aug", "cifar10-small-aug", 5.7, 93.1),
    "S2-41": against_resnet,
    "S2-42": patch_size,
    "S2-43": heavy_augmentation,
    "S2-44": loss_curve,
    "S2-46": attention_claim("attends to neighbouring patches"),
    "S2-47": attention_claim("attends more broadly"),
    "S2-48": attention_claim("attends globally", "aggregates information widely"),
    "S2-50": losses_of_report,
    "S2-51": ranking,
    "S2-61": fewer_labels,
    "S2-68": limits,
    "S2-74": conclusion,
}
"""Id of a claim or a result -> the function that judges it from result files."""
