"""The explorer's page with the model inside, which classifies photos without Python.

The page holds the steps and weights of one Vision Transformer and computes its forward pass in
JavaScript (templates/live). It also holds the logits of its first picture, computed here:
if the browser computes others, the page says so.
"""

import copy
from dataclasses import replace

import torch

from vitcli.core.data.augment import normalize
from vitcli.core.models.vit import VisionTransformer
from vitcli.core.spec.slots import POOLS
from vitcli.plugins.live.explore import Explorer, check_size, name_of
from vitcli.plugins.live.packing import UnknownLayerError, pack_model
from vitcli.plugins.live.page import (
    PARTS,
    make_fragment,
    pack_picture,
    to_base64,
    whole_page,
)
from vitcli.plugins.live.scene import prefix_names
from vitcli.runner.attn_map.explain import Explainer, Explanation
from vitcli.runner.errors import ConfigError

FOLDER = "live"
STYLES = ("explorer.css", f"{FOLDER}/live.css")
SCRIPTS = (
    *PARTS,
    *(f"{FOLDER}/{name}.js" for name in ("steps", "network", "photo", "scene", "answer", "live")),
)


class LiveExplorer(Explorer):
    def __init__(self, explainer: Explainer, *, all_layers: bool) -> None:
        if not isinstance(explainer.model, VisionTransformer):
            family = explainer.model.spec.family
            raise ConfigError(
                f"--live: the page cannot compute family {family!r}; leave out --live"
            )
        super().__init__(explainer, all_layers=True)
        if not all_layers:
            self.opening = replace(self.opening, layer=explainer.layers[-1] + 1)
        predictor = explainer.predictor
        if not explainer.classifies:
            raise ConfigError(
                f"--live shows classes, but {predictor.run.name} does not classify; leave out"
                " --live"
            )
        is_on_cpu = predictor.device.type == "cpu"
        self.model = explainer.model if is_on_cpu else copy.deepcopy(explainer.model).to("cpu")
        mean, std = predictor.spec.data.mean, predictor.spec.data.std
        assert mean is not None, "the configuration of a run is resolved"
        assert std is not None
        self.mean, self.std = mean, std
        try:
            packed, weights = pack_model(self.model, self.mean, self.std)
        except UnknownLayerError as error:
            raise ConfigError(
                f"--live: the page cannot compute {error} of {predictor.run.name}; leave out --live"
            ) from error
        num_bytes = sum(map(len, weights)) * 4 // 3  # in base64
        check_size("--live: the weights need", num_bytes, "leave out --live")
        self.packed = {"model": packed, "weights": [to_base64(part) for part in weights]}

    def check_attention(self) -> None:
        """Refuse a model whose attention is too large for a browser, which computes it in fp32."""
        model = self.explainer.model
        assert isinstance(model, VisionTransformer)
        tokens = model.num_prefix_tokens + model.num_patches
        maps = len(self.layers) * (model.spec.num_heads + 1)  # a rollout for each layer
        size = 4 * maps * tokens**2
        check_size("--live: the attention of one picture needs", size, "leave out --live")

    def page(self, explanation: Explanation) -> bytes:
        predictor, model = self.explainer.predictor, self.model
        name = name_of(explanation)
        pool, prefix = POOLS[model.spec.pool], prefix_names(model)
        fill = [round(255 * share) for share in self.mean]
        facts = {
            "grid": model.grid_size,
            "prefix": prefix,
            "layers": [layer + 1 for layer in self.layers],
            "heads": model.spec.num_heads,
            "readOut": 0 if pool.has_cls_token else len(prefix) + model.num_patches,
            "pool": model.spec.pool,
            "reader": pool.reads,
            "classNames": predictor.names,
            "temperature": predictor.temperature,
            "fill": fill if len(fill) == 3 else 3 * fill,
        }
        pixels = torch.from_numpy(explanation.pixels)[None]
        with torch.no_grad():
            logits = model(normalize(pixels, torch.tensor(self.mean), torch.tensor(self.std)))[0]
        picture = pack_picture(name, explanation.picture, explanation.box) | {
            "pixels": to_base64(explanation.pixels.transpose(1, 2, 0)),
            "logits": logits.tolist(),
        }
        explorer = make_fragment(
            self.packed | {"scenes": [picture], "about": facts},
            self.opening,
            keys="page",
            template="live_fragment.html",
            styles=STYLES,
            scripts=SCRIPTS,
        )
        about = f"{predictor.run.name}, {predictor.origin}. The model is inside this page."
        return whole_page(explorer, title=name, about=about)
