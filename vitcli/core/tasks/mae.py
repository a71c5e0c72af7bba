"""Masked autoencoder: pre-training by reconstruction. Axes: B batch, N images, P patches."""

from torch import Tensor, nn

from vitcli.core.data.batches import Batch
from vitcli.core.data.source import Images
from vitcli.core.models.masked import MaskedAutoencoder
from vitcli.core.spec import ExperimentSpec
from vitcli.core.tasks.masked import NOISE, MaskedTask, mean_errors
from vitcli.core.tasks.task import Outputs


class Mae(MaskedTask):
    """The mean squared error of masked patches that are predicted from the visible patches.

    He et al. 2022, https://arxiv.org/abs/2111.06377
    """

    @classmethod
    def make_module(cls, spec: ExperimentSpec) -> MaskedAutoencoder:
        return MaskedAutoencoder(spec)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return {"loss": self.network(batch["images"], batch[NOISE]).mean()}

    def outputs(self, module: nn.Module, images: Images, *, flip: bool = False) -> Outputs:
        """Return ``masked_mse`` and the errors of the baselines, each (N,) in fp32."""
        return self.reconstruction_errors(module, images, flip=flip)

    def measure(self, outputs: Outputs) -> dict[str, float]:
        """Return the mean errors, and ``mse_ratio`` to the best baseline."""
        return mean_errors(outputs)
