"""A page with a model inside, and what its script computes in a browser."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.browser.chromium import Page
from tests.browser.explorer import state
from vitcli.core.data.augment import normalize
from vitcli.core.models.vit import VisionTransformer
from vitcli.runner.attn_map.explain import Explainer
from vitcli.runner.evaluate.predict import Predictor
from vitcli.runner.evaluate.weights import default_run
from vitcli.runner.visualize.explorer.live import LiveExplorer
from vitcli.runner.visualize.explorer.packing import pack_model

SHIP = Path(__file__).parents[2] / "experiments" / "results" / "ship.jpg"
MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.3)
RUN = """(() => {{
  const network = {network};
  const pixels = bytesOf("{pixels}");
  const removed = {{heads: new Set({heads}), patches: new Set({patches})}};
  const found = network.run(pixels, removed);
  if ({logits_only}) return {{logits: [...found.logits]}};
  const heads = [...Array(network.heads).keys()];
  const isKept = (layer, head) => !removed.heads.has(`${{layer}} ${{head}}`);
  const kept = network.blocks.map((_, layer) => heads.filter((head) => isKept(layer, head)));
  const through = rollouts(found.attention, network, kept);
  return {{logits: [...found.logits], lens: found.lens.map(each => [...each]),
    attention: [...found.attention], reading: [...found.reading], rollout: [...through]}};
}})()"""
INSIDE = "explorers[0].network"


def bundled() -> Predictor:
    return Predictor(default_run(), "cpu")


def live_page(predictor: Predictor, **options: Any) -> bytes:
    explainer = Explainer(predictor, by_class=False, **options)
    return LiveExplorer(explainer, all_layers=True).page(explainer.explain(str(SHIP)))


def packed(model: VisionTransformer) -> str:
    """Return the expression of a model as the script reads it."""
    channels = model.image_shape[0]
    steps, weights = pack_model(model, MEAN[:channels], STD[:channels])
    texts = [base64.b64encode(part).decode() for part in weights]
    return f"new Network({json.dumps({'model': steps, 'weights': texts})})"


def compute(
    shown: Page,
    pixels: np.ndarray,
    network: str = INSIDE,
    *,
    heads: tuple[str, ...] = (),
    patches: tuple[int, ...] = (),
    logits_only: bool = False,
) -> dict[str, np.ndarray]:
    """Run a network in the page on pixels (H, W, C); heads are named "layer head", from 0."""
    code = RUN.format(
        network=network,
        pixels=base64.b64encode(np.ascontiguousarray(pixels).tobytes()).decode(),
        heads=json.dumps(heads),
        patches=json.dumps(patches),
        logits_only=json.dumps(logits_only),
    )
    return {name: np.array(values) for name, values in shown.evaluate(code).items()}


def batch_of(pixels: np.ndarray, mean: Any = MEAN, std: Any = STD) -> torch.Tensor:
    """Return pixels (H, W, C) as the input of a model, (1, C, H, W)."""
    channels = pixels.shape[-1]
    images = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    return normalize(images, torch.tensor(mean[:channels]), torch.tensor(std[:channels]))


def logits(shown: Page) -> np.ndarray:
    return np.array(json.loads(state(shown)["logits"]))


def drop(shown: Page, name: str, content: bytes, kind: str = "image/png") -> None:
    shown.evaluate(
        f"""(async () => {{
  const data = new DataTransfer();
  data.items.add(new File([bytesOf("{base64.b64encode(content).decode()}")], {json.dumps(name)},
    {{type: "{kind}"}}));
  const options = {{dataTransfer: data, bubbles: true, cancelable: true}};
  document.querySelector(".stage").dispatchEvent(new DragEvent("drop", options));
}})()"""
    )
    named = f"{json.dumps(name)}"
    shown.wait(
        f"document.querySelector('.name').textContent === {named}"
        f" || document.querySelector('.complaint').textContent.startsWith({named})"
    )
