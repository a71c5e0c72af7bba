"""The texts of an explanation's figure."""

from vitcli.runner.attn_map.explain import Explanation
from vitcli.runner.text import one_line, quantity


def headline(explanation: Explanation) -> str:
    title, prediction = map_title(explanation), explanation.prediction
    return title if prediction is None else f"{prediction}: {title}"


def map_title(explanation: Explanation) -> str:
    """Return what the map shows, in a few words."""
    who, verb = ("CLS", "attends") if explanation.has_cls else ("the pooled patches", "attends")
    if explanation.second_reader is not None:
        who, verb = f"{who} and the {explanation.second_reader} token", "attend"
    if explanation.query is not None:
        who, verb = "the framed patch", "attends"
    class_name = one_line(explanation.explained_class or "", 48)
    return {
        "cls": f"what {who} {verb} to",
        "rollout": f"attention rollout, from {who}",
        "grad-rollout": f"gradient rollout for {class_name}, from {who}",
        "gradcam": f"Grad-CAM for {class_name}",
        "head": f"attention of {who}",
        "raw": "what every token attends to",
    }[explanation.method]


def caption(explanation: Explanation, run: str) -> str:
    """Return the run, layers, heads and tokens, for readers who see only the figure."""
    heads = f", mean of {quantity(len(explanation.heads), 'head')}"
    is_by_head = explanation.method in ("head", "raw", "gradcam")
    if is_by_head and not explanation.are_heads_averaged:
        heads = ""
    rows, columns = explanation.grid
    tokens = f"{rows}x{columns} patches"
    if explanation.method == "raw" and explanation.num_prefix_tokens:
        tokens = f"tokens: {explanation.num_prefix_tokens} prefix, then {tokens}"
    facts = f"{one_line(run, 40)}; {layer_names(explanation)}{heads}; {tokens}"
    return facts + why_layer(explanation)


def why_layer(explanation: Explanation) -> str:
    """Return why Grad-CAM reads the layer before the last, if it does."""
    if explanation.method != "gradcam" or explanation.layers != (explanation.depth - 1,):
        return ""
    after = f"after layer {explanation.depth}, "
    after += (
        "no patch reaches the classifier"
        if explanation.has_cls
        else "attention has mixed the class into every patch"
    )
    return f". These are the patches that the last layer reads; {after}."


def head_names(explanation: Explanation) -> list[str]:
    if explanation.are_heads_averaged:
        return ["mean"]
    return [f"head {head}" for head in explanation.heads]


def layer_names(explanation: Explanation) -> str:
    """Return which layers the map shows."""
    last, depth = max(explanation.layers), explanation.depth
    if explanation.method == "grad-rollout":
        return "all layers"
    if explanation.method == "rollout" and last > 1:
        return f"layers 1 to {last} of {depth}"
    if explanation.layers == (0,):
        return "embedded patches" if explanation.depth else "the last feature map"
    layers = ", ".join(map(str, explanation.layers))
    return f"{'layers' if len(explanation.layers) > 1 else 'layer'} {layers} of {depth}"
