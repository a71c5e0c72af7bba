"""Errors that the user can act on, each with its exit code."""

from collections.abc import Iterable, Sequence
from importlib.util import find_spec


class UserError(Exception):
    """A problem that the user can solve. Its text says what happened, where, and what to type."""

    exit_code = 1


class ConfigError(UserError):
    """An error in the command line or in the configuration."""

    exit_code = 2


class OwnCodeError(ConfigError):
    """A user's own code that is not named, cannot be loaded, or fails."""


class PartlyError(UserError):
    """A part of the work is done. The output names the part that is not."""

    exit_code = 3


class InputError(UserError):
    """An input that is missing, damaged, hostile or of the wrong kind."""

    exit_code = 4


class ResourceError(UserError):
    """A lack of a device, of memory or of disk space."""

    exit_code = 5


class CheckError(UserError):
    """A requested check that failed."""

    exit_code = 6


class InUseError(UserError):
    """A run folder, or a file of answers, that another process uses."""

    exit_code = 7


class DivergedError(UserError):
    """A training whose loss, gradient or metric became infinite or NaN."""

    exit_code = 8


class StoppedError(UserError):
    """A run that a signal stopped, after a checkpoint was committed."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


def summarize_failures(failures: Sequence[UserError], total: int, what: str) -> UserError:
    """Return the final error of a command that failed for some of its ``total`` inputs.

    The exit code is 3. If all inputs failed, it is the exit code of the first failure. The text
    counts the failures; the caller has already printed each one.
    """
    problem = UserError(f"{len(failures)} of {total} {what}")
    problem.exit_code = 3 if len(failures) < total else failures[0].exit_code
    return problem


def require_packages(user: str, packages: Iterable[str], extra: str = "") -> None:
    """Refuse what needs a package that is not installed; ``extra`` is that of vitcli with it."""
    for package in packages:
        if find_spec(package) is None:
            checkout = f"in the checkout, type: pip install '.[{extra}]'"
            how = checkout if extra else f"type: pip install {package}"
            raise ConfigError(f"{user} needs the package {package}; {how}")
