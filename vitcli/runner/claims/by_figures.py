"""Verdicts that the numbers of figures of trained models decide, or why there is none yet."""

from collections.abc import Callable, Mapping
from typing import Any

from vitcli.runner.claims.by_studies import against_resnet, of_parts, of_words
from vitcli.runner.claims.item import Finding, Word
from vitcli.runner.claims.result_files import Results, not_run


def attention_claim(*titles: str) -> Callable[[Results], Finding]:
    """Return a judge of what the attention distances of trained models show.

    Args:
        titles: Words that begin the claims in the files of ``vitcli visualize --what distance``,
            for the bundled model and for the course report's model made narrow.
    """

    def judge(results: Results) -> Finding:
        texts, words, hardware = [], list[str](), dict[str, None]()
        for name in ("cifar10-pocket", "cifar10-report-narrow"):
            doc = results.figures(name)
            if doc is None:
                return not_run(f"no numbers of {name} are recorded")
            for claim in doc["distance"]["claims"]:
                if claim["claim"].startswith(titles) and claim["verdict"] != "cannot be asked":
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
    from vitcli.runner.visualize.claims import describe_untrained

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
    doc = results.figures("cifar10-pocket")
    if doc is None:
        return not_run("no numbers of cifar10-pocket are recorded")
    from vitcli.runner.claims.computed import untrained_reach
    from vitcli.runner.evaluate.weights import DEFAULT_MODEL
    from vitcli.runner.run.folder import BUNDLED, RunDir

    spec = RunDir(BUNDLED / DEFAULT_MODEL).spec().model
    last, plain = doc["distance"]["claims"][2]["untrained"], untrained_reach(spec, "trunc_normal")
    reached = last["number"] - last["error"]
    text = (
        f"last layer of the bundled model: {last['number']:.2f} of the distance of uniform"
        f" attention (n = {doc['distance']['n']} test images); untrained {last['low']:.2f} to"
        f" {last['high']:.2f} with its initial weights, {plain:.2f} with trunc_normal"
    )
    exceeds = [reached > last["high"], reached > plain]
    word: Word = "holds" if all(exceeds) else "in part" if any(exceeds) else "refuted"
    return Finding(word, text, doc["hardware"])


def limits(results: Results) -> Finding:
    """Judge the four limits: cost and prior by computation, data by S2-41, maps by deletion."""
    doc = results.figures("cifar10-pocket")
    if doc is None:
        return not_run("no numbers of cifar10-pocket are recorded")
    from vitcli.runner.claims import computed

    scored = {method["method"]: method for method in doc["faithfulness"]["methods"]}
    maps = ", ".join(
        f"{name} {method['gap']:.2f} +- {method['gap_ci95']:.2f}" for name, method in scored.items()
    )
    only = max((scored[name] for name in ("last layer", "rollout")), key=lambda each: each["gap"])
    mixed = max((scored[name] for name in ("grad-rollout", "gradcam")), key=lambda e: e["gap"])
    explain: bool | None = None  # whether attention alone explains less than with gradients
    if only["gap"] + only["gap_ci95"] < mixed["gap"] - mixed["gap_ci95"]:
        explain = True
    elif only["gap"] - only["gap_ci95"] > mixed["gap"] + mixed["gap_ci95"]:
        explain = False
    words = {
        "data": against_resnet(results).verdict,
        "O(n^2)": of_parts([computed.attention_exponents()[0] > 1.99]),
        "no spatial prior": of_parts([computed.permutation_errors()["equivariant"] < 1e-9]),
        "explanation": of_parts([explain]),
    }
    text = (
        f"{', '.join(f'{name}: {word}' for name, word in words.items())}. Explanation is insertion"
        f" minus deletion of patches: {maps} (n = {doc['faithfulness']['n']} images)"
    )
    return Finding(of_words(words.values()), text, doc["hardware"])
