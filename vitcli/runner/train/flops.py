"""The operations of a training step."""

from torch import Tensor, nn

from vitcli.core.inspect.cost import step_flops
from vitcli.core.spec import ExperimentSpec
from vitcli.core.tasks.build import task_class
from vitcli.runner.experiment.build import abstract_module, encoder_of
from vitcli.runner.train.rehearsal import random_data, with_statistics


def count_step_flops(spec: ExperimentSpec, batch: dict[str, Tensor]) -> int:
    """Return the floating-point operations of a step on a batch, forward and backward.

    With gradient checkpointing, the recomputed operations are counted again.
    """
    module = abstract_module(spec).train()
    encoder_of(spec, module).grad_checkpointing = spec.train.grad_checkpointing
    parts = spec.train.accumulate
    part = {name: value.chunk(parts)[0] for name, value in batch.items()}
    return parts * step_flops(task_class(spec)(spec, module).losses, part)


def random_batch(spec: ExperimentSpec, module: nn.Module) -> dict[str, Tensor]:
    """Return a training batch of random images for a module, on its device."""
    spec, device = with_statistics(spec), next(module.parameters()).device
    data = random_data(spec, spec.train.batch_size, device)
    return next(task_class(spec)(spec, module).batches(data, 0))
