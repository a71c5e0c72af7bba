"""Verdicts that the numbers of figures of trained models decide, or why there is none yet."""

from collections.abc import Callable

from vitcli.runner.claims.by_studies import against_resnet
from vitcli.runner.claims.item import Finding, Word
from vitcli.runner.claims.result_files import Results, not_run


def attention_claim(*titles: str) -> Callable[[Results], Finding]:
    """Return a judge of what the attention distances of trained models show.

    Args:
        titles: Words that begin the claims in the files of ``vitcli visualize --what distance``,
            for the bundled model and for the course report's model made narrow.
    """

    def judge(results: Results) -> Finding:
        texts, verdicts, hardware = [], set[str](), ""
        for name in ("cifar10-pocket", "cifar10-report-narrow"):
            doc = results.figures(name)
            if doc is None:
                return not_run(f"no numbers of {name} are recorded")
            for claim in doc["distance"]["claims"]:
                if claim["claim"].startswith(titles) and claim["verdict"] != "cannot be asked":
                    untrained = claim.get("against_untrained", "")
                    texts.append(f"{name}: {claim['measured']}, {untrained or claim['verdict']}")
                    verdicts.add("does not hold" if untrained else claim["verdict"])
            hardware = doc["hardware"]
        if not texts:
            return not_run("no such number is recorded")
        return Finding(_of_claims(verdicts), "; ".join(texts), hardware)

    return judge


def _of_claims(verdicts: set[str]) -> Word:
    if verdicts == {"holds"}:
        return "holds"
    return "refuted" if verdicts == {"does not hold"} else "in part"


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
    data = against_resnet(results).verdict
    parts = [
        computed.attention_exponents()[0] > 1.99,
        computed.permutation_errors()["equivariant"] < 1e-9,
        data == "holds",
        only["gap"] + only["gap_ci95"] < mixed["gap"] - mixed["gap_ci95"],
    ]
    text = (
        f"N^2 and no prior: computed, as S2-09 and S2-21; data: S2-41, {data}. Explanation:"
        f" insertion minus deletion of patches, {maps} (n = {doc['faithfulness']['n']} images)"
    )
    word: Word = "holds" if all(parts) else "in part" if any(parts) else "refuted"
    return Finding(word, text, doc["hardware"])
