"""What can go wrong that is not a bug: each error knows the exit code that it becomes."""

from collections.abc import Sequence


class UserError(Exception):
    """A problem the user can act on; its text says what, where and what to type."""

    exit_code = 1


class ConfigError(UserError):
    """The command line or the configuration is wrong."""

    exit_code = 2


class PartlyError(UserError):
    """Some of what was asked for is done, and the output says which part is not."""

    exit_code = 3


class InputError(UserError):
    """An input is missing, damaged, hostile or of the wrong kind."""

    exit_code = 4


class ResourceError(UserError):
    """A device, memory or disk space is not there."""

    exit_code = 5


class CheckError(UserError):
    """A check that was asked for did not hold."""

    exit_code = 6


class InUseError(UserError):
    """Another process holds the run folder."""

    exit_code = 7


class DivergedError(UserError):
    """The loss or a gradient became infinite or NaN."""

    exit_code = 8


class StoppedError(UserError):
    """A signal stopped the run after a checkpoint was committed."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


def partly(failures: Sequence[UserError], total: int, what: str) -> UserError:
    """What a call over ``total`` inputs ends with when some failed: 3, or the code of the first
    where nothing was done. Each failure has been told by then.
    """
    problem = UserError(f"{len(failures)} of {total} {what}")
    problem.exit_code = 3 if len(failures) < total else failures[0].exit_code
    return problem
