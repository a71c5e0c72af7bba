"""How long a training takes, in which portions and in which arithmetic."""

from typing import Literal, Self

from pydantic import Field, model_validator

from vitcli.core.spec.base import Rate, Spec


class TrainSpec(Spec):
    """How long, in what portions and in which arithmetic."""

    epochs: int = Field(10, ge=0, le=100_000)
    batch_size: int = Field(128, ge=1, le=65536)
    """Images per optimiser step; the last, smaller batch of an epoch is dropped."""
    accumulate: int = Field(1, ge=1, le=4096)
    """Cut each batch into so many parts and add their gradients, to save memory."""
    label_smoothing: Rate = 0.0
    ema_decay: Rate | None = None
    """Evaluate and keep an exponential moving average of the weights."""
    eval_every: int = Field(1, ge=1)
    """Epochs between evaluations; the last epoch is always evaluated."""
    init: str | None = None
    """A run whose weights to start from; its head is replaced where the classes differ."""
    limit_batches: int | None = Field(None, ge=1)
    """Only so many batches an epoch and an evaluation; for a quick try."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Autocast type; auto is bf16 where the device computes in it, and fp32 elsewhere."""
    compile: bool | None = None
    """torch.compile; unless set, on for CUDA only."""
    kernels: Literal["auto", "native", "torch"] = "auto"
    """native: compiled on the spot, for bf16 on a CPU with AMX, where auto takes them."""
    grad_checkpointing: bool = False
    """Recompute each block in the backward pass: less memory, the same gradients."""

    @property
    def wanted_kernels(self) -> str:
        """torch.compile makes kernels of its own."""
        return "torch" if self.compile else self.kernels

    def compiles_on(self, device_type: str) -> bool:
        """Whether the model is compiled on a kind of device (cpu, cuda, mps)."""
        return device_type == "cuda" if self.compile is None else self.compile

    @model_validator(mode="after")
    def _parts_divide(self) -> Self:
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"accumulate {self.accumulate} does not divide batch_size {self.batch_size}"
            )
        if self.kernels == "native" and self.compile:
            raise ValueError("torch.compile cannot see into kernels 'native'; drop one of the two")
        return self
