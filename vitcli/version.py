"""The version of vitcli, and the folder that holds the package."""

from pathlib import Path

__version__ = "0.8.0"

PACKAGE = Path(__file__).resolve().parent
