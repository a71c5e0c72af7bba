"""What the figure of a look says in words."""

from vitcli.runner.attn_map.explain import Explanation
from vitcli.runner.text import one_line


def headline(look: Explanation) -> str:
    """What the model says, and what was asked."""
    return f"{one_line(look.label)}, {100 * look.probability:.1f} %: {asked(look)}"


def asked(look: Explanation) -> str:
    """The question in a few words."""
    who = "CLS" if look.has_cls else "the pooled patches"
    if look.query is not None:
        who = "the framed patch"
    return {
        "cls": f"what {who} attends to",
        "rollout": f"attention rollout, from {who}",
        "grad-rollout": f"gradient rollout for {one_line(look.asked)}, from {who}",
        "gradcam": f"Grad-CAM for {one_line(look.asked)}",
        "head": f"attention of {who}",
        "raw": "what every token attends to",
    }[look.method]


def caption(look: Explanation, run: str) -> str:
    """Model and method, for who sees only the picture."""
    heads = f", mean of {len(look.heads)} heads"
    if look.method in ("head", "raw", "gradcam") and not look.are_heads_averaged:
        heads = ""
    rows, columns = look.grid
    tokens = f"{rows}x{columns} patches"
    if look.method == "raw" and look.num_prefix_tokens:
        tokens = f"tokens: {look.num_prefix_tokens} prefix, then {tokens}"
    return f"{one_line(run, 40)}; {depth(look)}{heads}; {tokens}"


def head_names(look: Explanation) -> list[str]:
    """What stands above each column of a grid of heads."""
    return ["mean"] if look.are_heads_averaged else [f"head {head}" for head in look.heads]


def depth(look: Explanation) -> str:
    """Which layers the map is of."""
    last = max(look.layers)
    if look.method == "grad-rollout":
        return "all layers"
    if look.method == "rollout" and last > 1:
        return f"layers 1 to {last}"
    if look.layers == (0,):
        return "embedded patches"
    layers = ", ".join(map(str, look.layers))
    return f"{'layers' if len(look.layers) > 1 else 'layer'} {layers}"
