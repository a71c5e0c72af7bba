"""A search from its first to its last training."""

from collections import Counter
from collections.abc import Callable, Sequence

from vitcli.runner.engines.drive import Drive
from vitcli.runner.engines.drivers import join_drivers, other_drivers
from vitcli.runner.engines.local import Setup
from vitcli.runner.errors import ConfigError, PartlyError
from vitcli.runner.run.folder import RunDir
from vitcli.runner.run.listing import is_in_use
from vitcli.runner.search.trials import RULE, Trials
from vitcli.runner.study.plan import worker_count
from vitcli.runner.text import quantity
from vitcli.runner.train.events import Ended, EpochDone, TrialEvent

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
        pending = self.trials.pending()
        if other_drivers(self.root, own=driver):
            pending = [folder for folder in pending if not is_in_use(RunDir(self.root / folder))]
        folders = [folder for folder in pending if not self.trials.settle(folder)]
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
        event, folder = found.event, found.folder
        assert isinstance(event, Ended)
        trial = self.trials.asked().get(folder)
        if trial is None or trial.state.is_finished():  # another driver has told its end
            return
        if event.state == "failed":
            self.trials.fail(folder, event.reason)
        elif not self.trials.settle(folder) and folder in self._pruned:
            self.trials.prune(folder, self._pruned[folder])

    def gives_up(self, found: TrialEvent) -> bool:
        event, folder = found.event, found.folder
        search = self.trials.search
        if search.fields.pruning == "none" or not isinstance(event, EpochDone):
            return False
        score = event.record.get(f"val_{search.base.task.row.headline.name}")
        epoch = event.record["epoch"]
        if score is not None and self.trials.report(folder, epoch, score):
            self._pruned[folder] = epoch
        return folder in self._pruned


def run_search(trials: Trials, on_event: Callable[[TrialEvent], None]) -> None:
    """Train trials until the search has enough."""
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
    asked = trials.asked()
    text = f"{len(asked) - len(trials.pending())} of {quantity(search.num_trials, 'trial')} done"
    text = f"{text}. Continue: {options.command}"
    if drive.is_stopped():
        raise drive.stopped_error(text)
    if drive.has_failed:
        reason = drive.failures[-1]
        raise PartlyError(f"{MAX_FAILURES} trials failed one after the other ({reason}); {text}")
    if not asked:
        rules = skipped(trials)
        reasons = "; ".join(f"{rule} ({count:,})" for rule, count in rules.items())
        where = search.places.where(("search", "space"))
        raise ConfigError(f"{where}: search.space: no valid point was found: {reasons}")


def skipped(trials: Trials) -> dict[str, int]:
    """Return rule -> number of points that broke it, so that they were not trained."""
    every = trials.study.get_trials(deepcopy=False)
    rules = Counter(trial.user_attrs[RULE] for trial in every if RULE in trial.user_attrs)
    return dict(sorted(rules.items()))
