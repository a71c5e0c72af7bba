"""A search from its first to its last training."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from vitcli.runner.engines.drive import Drive
from vitcli.runner.engines.local import Setup
from vitcli.runner.errors import PartlyError
from vitcli.runner.search.objective import Objective
from vitcli.runner.study.plan import Options, worker_count
from vitcli.runner.text import quantity
from vitcli.runner.train.events import Ended, EpochDone, TrialEvent

MAX_FAILURES = 3
"""Number of failed trials in a row after which the search stops."""


class SearchDrive(Drive):
    """Trains the trials of a search, each of which decides what comes next, then its repeats."""

    def __init__(
        self, objective: Objective, setup: Setup, on_event: Callable[[TrialEvent], None]
    ) -> None:
        budget = objective.options.budget
        super().__init__(objective.root, setup, on_event, budget=budget, max_failures=MAX_FAILURES)
        self.objective = objective

    def end(self, found: TrialEvent) -> None:
        assert isinstance(found.event, Ended)
        self.objective.end(found.folder, found.event)

    def more(self) -> Sequence[str]:
        """Return the next trial; the repeats once the last trial has ended."""
        if folder := self.objective.next_folder():
            return [folder]
        return [] if self.objective.open else self.objective.next_repeats()

    def gives_up(self, found: TrialEvent) -> bool:
        event = found.event
        return isinstance(event, EpochDone) and self.objective.gives_up(found.folder, event)


def run_search(objective: Objective, on_event: Callable[[TrialEvent], None]) -> None:
    """Train trials until the search has enough, then its repeats."""
    from vitcli.runner.machine.device import pick_device

    search, options = objective.search, objective.options
    count = worker_count(search, options)
    objective.recover()
    objective.begin_plan()
    if taken := len(objective.plan["saved"]):
        objective.say(f"{quantity(taken, 'trial')} taken from {objective.place.journal.parent}")
    folders: list[str] = []
    while len(folders) < count and (folder := objective.next_folder()):
        folders.append(folder)
    pin = options.pin and pick_device(options.device).type == "cpu"
    setup = Setup(
        threads=search.threads,
        count=count,
        pin=pin,
        request=options.request(),
    )
    drive = SearchDrive(objective, setup, on_event)
    drive.run(folders or objective.next_repeats())
    done = f"{quantity(len(objective.results), 'trial')} of {search.num_trials} done"
    text = f"{done}. Continue: {options.command}"
    if drive.is_stopped():
        raise drive.stopped_error(text)
    if drive.has_failed:
        reason = drive.failures[-1]
        raise PartlyError(f"{MAX_FAILURES} trials failed one after the other ({reason}); {text}")
    if left := objective.wanted_repeats().keys() - objective.repeats.keys():
        number = quantity(len(left), "repeat")
        raise PartlyError(f"without a result: {number}; try again: {options.command}")


def left_over(options: Options, used: float) -> Options:
    """Return the options with what ``used`` seconds leave of the time budget."""
    if options.budget is None:
        return options
    if used >= options.budget:
        raise PartlyError(f"the budget is used up; final stage: {options.command}")
    return replace(options, budget=options.budget - used)
