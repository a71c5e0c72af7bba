"""The spec of a training: length, batch size, evaluation and arithmetic."""

import re
from typing import Literal, Self

from pydantic import Field, model_validator

from vitcli.core.spec.rows import Rate, Spec

MAX_EPOCHS = 100_000


class TrainSpec(Spec):
    """Length, batch size, evaluation and arithmetic of a training."""

    epochs: int = Field(10, ge=0, le=MAX_EPOCHS)
    """Number of passes over the training images."""
    batch_size: int = Field(128, ge=1, le=65536)
    """Number of images per optimiser step. A smaller last batch of an epoch is dropped."""
    accumulate: int = Field(1, ge=1, le=4096)
    """Number of parts into which each batch is split to save memory. The gradients of the parts are
    added; 1 does not split."""
    label_smoothing: Rate = 0.0
    """Fraction of the target that is spread over all classes; 0 switches it off."""
    ema_decay: Rate | None = None
    """Decay of an exponential moving average (EMA) of the weights. The average is evaluated instead
    of the weights; unset keeps no average."""
    eval_every: int = Field(1, ge=1)
    """Number of epochs between evaluations. The last epoch is always evaluated."""
    init: str | None = None
    """Run whose weights the training starts from; unset starts from random weights. The head is
    replaced if the number or the names of the classes differ."""
    init_head: Literal["random", "probe"] = "random"
    """Initial weights of the head. ``random`` keeps the head of ``init`` if the classes are the
    same. ``probe`` fits a linear layer to the training images' features
    under the weights of ``init``; with 0 epochs, that is the whole training."""
    freeze: int | str | None = None
    """What keeps its weights: ``backbone`` is all but the head, a number is the embedding and so
    many blocks, and other texts are regular expressions that are searched in the names of the
    parameters. Batch norms still follow their batches. Unset trains everything."""
    class_balance: Literal["none", "weights", "sampling"] = "none"
    """How rare classes are made to count as much as frequent ones. ``weights`` divides the loss of
    an image by K times the share of its class, for K classes; ``sampling`` draws the images of an
    epoch with replacement, each class equally often."""
    early_stopping: int | None = Field(None, ge=1)
    """Number of evaluations without a better result on the validation split after which the
    training stops. It ends with the weights of the best evaluation; with ``init_head: probe``, the
    first is that of the probe, before any step. Unset trains to the end and keeps the last
    weights."""
    limit_batches: int | None = Field(None, ge=1)
    """Maximum number of batches per epoch and per evaluation, for a quick try; unset uses all."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """Precision of the training steps. ``auto`` uses bf16 if the device computes it in hardware,
    otherwise fp32. ``bf16`` and ``fp16`` are types of autocast. ``tf32`` keeps fp32 tensors, but
    rounds the factors of products and convolutions; it needs CUDA. Evaluation always uses fp32."""
    deterministic: bool = False
    """Use only deterministic kernels on CUDA, so that training twice gives the same bits; may be
    slower. A CPU needs no such kernels."""
    compile: bool | None = None
    """Compile the model with torch.compile; unset compiles on CUDA only."""
    graphs: bool | None = None
    """Replay each training step as one CUDA graph; unset does so on CUDA."""
    kernels: Literal["auto", "native", "torch"] = "auto"
    """Kernels that compute the model. ``native`` kernels are compiled at the first use, on Linux.
    They need fp32 on a CPU with AVX2, AVX-512 or NEON, or bf16 on a CPU with AMX or AVX512-BF16.
    ``auto`` uses native kernels if available, otherwise torch."""
    grad_checkpointing: bool = False
    """Recompute each block in the backward pass: needs less memory and gives the same gradients."""

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"accumulate {self.accumulate} does not divide batch_size {self.batch_size}"
            )
        if isinstance(self.freeze, int) and self.freeze < 0:
            raise ValueError("freeze counts blocks; it must not be negative")
        if isinstance(self.freeze, str):
            try:
                re.compile(self.freeze)
            except re.error as error:
                raise ValueError(
                    f"freeze {self.freeze!r} is no regular expression: {error}"
                ) from None
        if self.kernels == "native" and self.compile:
            raise ValueError("torch.compile does not support kernels 'native'; remove one of them")
        return self
