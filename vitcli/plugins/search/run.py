"""A search from its first to its last training."""

from collections.abc import Callable, Sequence

from vitcli.plugins.search.document import PRUNED
from vitcli.plugins.search.trials import Trials
from vitcli.runner.engines.drive import Drive
from vitcli.runner.engines.drivers import join_drivers, other_drivers
from vitcli.runner.engines.local import Setup
from vitcli.runner.run.folder import RunDir
from vitcli.runner.study.plan import worker_count
from vitcli.runner.text import quantity
from vitcli.runner.train.events import EpochDone, TrialEvent

MAX_FAILURES = 3
"""Number of failed trials in a row after which the search stops."""


class SearchDrive(Drive):
    """Trains the trials of a search, each of which decides what comes next."""

    def __init__(
        self, trials: Trials, setup: Setup, on_event: Callable[[TrialEvent], None]
    ) -> None:
        budget = trials.options.budget
        super().__init__(trials.root, setup, on_event, budget=budget, max_failures=MAX_FAILURES)
        self.trials = trials
        self._begun: set[str] = set()
        """Run folders of the trials that this driver trains or waits for."""
        self._pruned: dict[str, int] = {}
        """Run folder -> epoch after which this driver stops the trial."""

    def first(self, driver: int) -> list[str]:
        """Return the trials to begin with: those of killed drivers, and new ones."""
        folders = [folder for folder in self.trials.pending() if not self.trials.settle(folder)]
        if other_drivers(self.root, own=driver):
            folders = [folder for folder in folders if not RunDir(self.root / folder).is_in_use()]
        # Trials that failed in an earlier call come last, so that they stop no search for good.
        folders = [folder for folder in folders if self.trials.record(folder).state != "failed"]
        self._begun.update(folders)
        while len(folders) < (self.setup.count or 1) and (more := self.more()):
            folders.extend(more)
        return folders

    def more(self) -> Sequence[str]:
        """Return the next trial; once there is none, those that other drivers still train."""
        folder = self.trials.next_folder()
        others = [other for other in self.trials.pending() if other not in self._begun]
        folders = [folder] if folder else others
        self._begun.update(folders)
        return folders

    def end(self, found: TrialEvent) -> None:
        folder = found.folder
        if not self.trials.settle(folder) and folder in self._pruned:
            run = RunDir(self.root / folder)
            reason = f"{PRUNED} after epoch {self._pruned[folder]}"
            run.set_status("interrupted", run.last_step(), reason)
            self.trials.settle(folder)

    def gives_up(self, found: TrialEvent) -> bool:
        event, folder = found.event, found.folder
        search = self.trials.search
        if search.fields.pruning == "none" or not isinstance(event, EpochDone):
            return False
        score = event.record.get(f"val_{search.base.task.row.headline.name}")
        epoch = event.record["epoch"]
        if score is not None and self.trials.is_hopeless(folder, epoch, score):
            self._pruned[folder] = epoch
        return folder in self._pruned


def run_search(trials: Trials, on_event: Callable[[TrialEvent], None]) -> None:
    from vitcli.runner.machine.device import pick_device

    search, options = trials.search, trials.options
    with join_drivers(trials.root) as driver:
        setup = Setup(
            threads=search.threads,
            count=worker_count(search.threads, options),
            pin=options.pin and pick_device(options.device).type == "cpu",
            request=options.request(),
            driver=driver,
        )
        drive = SearchDrive(trials, setup, on_event)
        drive.run(drive.first(driver))
    if drive.is_stopped():
        done = len(trials.asked()) - len(trials.pending())
        total = quantity(search.num_trials, "trial")
        raise drive.stopped_error(f"{done} of {total} done. Continue: {options.command}")
