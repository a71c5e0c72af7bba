"""vitcli: train, ablate and look inside small Vision Transformers."""

__version__ = "0.1.0"
