"""Verdicts that the numbers of figures of trained models decide, or why there is none yet."""

from collections.abc import Callable, Mapping
from typing import Any

from experiments.claims import computed
from experiments.claims.by_studies import against_resnet, of_parts, of_words
from experiments.claims.item import Finding, Word
from experiments.claims.result_files import Results, not_run
from vitcli.plugins.explain import random_tensors


def attention_claim(*titles: str) -> Callable[[Results], Finding]:
    """Return a judge of what the attention distances of trained models show.

    Args:
        titles: Words that end the claims in the files of ``vitcli visualize --what distance``,
            for the bundled model and for the course report's model made narrow.
    """

    def judge(results: Results) -> Finding:
        texts, words, hardware = [], list[str](), dict[str, None]()
        for name in ("cifar10-pocket", "cifar10-report-narrow"):
            doc = results.figures(name, "distance")
            if doc is None:
                return not_run(f"no distance numbers of {name} are recorded")
            for claim in doc["distance"]["claims"]:
                if claim["claim"].endswith(titles) and claim["verdict"] != "cannot be asked":
                    word, against = judge_one(claim)
                    texts.append(f"{name}: {claim['measured']}, {word} ({against})")
                    words.append(word)
            hardware |= {doc["hardware"]: None}
        if not texts:
            return not_run("no such number is recorded")
        return Finding(of_words(words), "; ".join(texts), "; ".join(hardware))

    return judge


def judge_one(claim: Mapping[str, Any]) -> tuple[Word, str]:
    """Return the verdict on one model's number, and how it compares with untrained models.

    A claim that holds counts in part if untrained models are not known to differ: it can be a
    result of the architecture or of the initial weights.
    """
    from vitcli.plugins.distance.claims import describe_untrained

    words: dict[str, Word] = {"does not hold": "refuted"}
    word = words.get(claim["verdict"], claim["verdict"])
    against = claim.get("against_untrained", "")
    if word == "holds" and (against or not claim.get("untrained")):
        word = "in part"
    if not claim.get("untrained"):
        return word, "not compared with untrained models"
    return word, against or f"untrained: {describe_untrained(claim)}"


def global_relations(results: Results) -> Finding:
    """Judge whether training makes attention reach farther than that of untrained models."""
    doc = results.figures("cifar10-pocket", "distance")
    if doc is None:
        return not_run("no distance numbers of cifar10-pocket are recorded")
    from vitcli.runner.evaluate.weights import DEFAULT_MODEL
    from vitcli.runner.run.folder import BUNDLED, RunDir

    spec = RunDir(BUNDLED / DEFAULT_MODEL).spec().model
    last = doc["distance"]["claims"][2]["untrained"]
    plain = computed.untrained_reach(spec, "trunc_normal")
    reached = last["number"] - last["error"]
    text = (
        f"last layer of the bundled model: {last['number']:.2f} of the distance of uniform"
        f" attention (n = {doc['distance']['n']} test images); untrained {last['low']:.2f} to"
        f" {last['high']:.2f} with its initial weights, {plain:.2f} with trunc_normal"
    )
    exceeds = [reached > last["high"], reached > plain]
    word: Word = "holds" if all(exceeds) else "in part" if any(exceeds) else "refuted"
    return Finding(word, text, doc["hardware"])


Span = tuple[float, float]
"""The ends of a 95 % interval."""


def limits(results: Results) -> Finding:
    """Judge the four limits: cost and prior by computation, data by S2-41, maps by deletion."""
    doc = results.figures("cifar10-pocket", "faithfulness")
    if doc is None:
        return not_run("no faithfulness numbers of cifar10-pocket are recorded")
    found = gaps(doc)
    alone, with_gradients = best(found, *ALONE), best(found, "grad-rollout", "gradcam")
    data = against_resnet(results)
    words = {
        "data": data.verdict,
        "O(n^2)": of_parts([computed.attention_exponents()[0] > 1.99]),
        "no spatial prior": of_parts([random_tensors.permutation_errors()["equivariant"] < 1e-9]),
        "explanation": of_parts([is_above(found[with_gradients], found[alone])]),
    }
    text = (
        f"{', '.join(f'{name}: {word}' for name, word in words.items())}. {gaps_text(doc, *found)}"
    )
    return Finding(of_words(words.values()), text, doc["hardware"], data.setting)


ALONE = ("last layer", "rollout")
"""Maps of attention without gradients."""


def maps_explain(results: Results) -> Finding:
    """Judge whether maps of attention alone find the deciding patches.

    They must be better than random maps and than a map of the centre of the picture.
    """
    doc = results.figures("cifar10-pocket", "faithfulness")
    if doc is None:
        return not_run("no faithfulness numbers of cifar10-pocket are recorded")
    found = gaps(doc)
    alone, blind = best(found, *ALONE), best(found, "random", "centre")
    word = of_parts([is_above(found[alone], found[blind])])
    return Finding(word, gaps_text(doc, *ALONE, "random", "centre"), doc["hardware"])


def gaps(doc: Mapping[str, Any]) -> dict[str, Span]:
    """Return the interval of insertion minus deletion of patches, by the kind of map."""
    methods = doc["faithfulness"]["methods"]
    return {m["method"]: (m["gap"] - m["gap_ci95"], m["gap"] + m["gap_ci95"]) for m in methods}


def gaps_text(doc: Mapping[str, Any], *names: str) -> str:
    known = {method["method"]: method for method in doc["faithfulness"]["methods"]}
    numbers = (f"{known[n]['gap']:.2f} +- {known[n]['gap_ci95']:.2f}" for n in names)
    maps = ", ".join(f"{name} {number}" for name, number in zip(names, numbers, strict=True))
    return (
        f"Explanation is insertion minus deletion of patches: {maps}"
        f" (n = {doc['faithfulness']['n']} images)"
    )


def best(found: Mapping[str, Span], *names: str) -> str:
    """Return the map with the largest difference of these."""
    return max(names, key=lambda name: sum(found[name]))


def is_above(first: Span, second: Span) -> bool | None:
    """Return whether the first interval lies above the second; None if they overlap."""
    return True if first[0] > second[1] else False if first[1] < second[0] else None
