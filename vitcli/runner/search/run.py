"""A search from its first to its last training: the driver asks, an engine trains."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from vitcli.runner.engines.drive import error_of
from vitcli.runner.engines.engine import Cancels, Engine, Job, Setup
from vitcli.runner.engines.make import make_engine
from vitcli.runner.errors import ConfigError, PartlyError, StoppedError
from vitcli.runner.files import make_output_folder, require_utf8
from vitcli.runner.run.folder import hold_folder
from vitcli.runner.search.definition import Search
from vitcli.runner.search.driver import MAX_FAILURES, Driver
from vitcli.runner.search.history import write_history
from vitcli.runner.search.repeats import repeat_jobs
from vitcli.runner.study.plan import Options, worker_count
from vitcli.runner.study.run import wait_for_orphans
from vitcli.runner.text import quantity
from vitcli.runner.train.events import Ended, Started, Stopping, TrialEvent
from vitcli.runner.train.signals import StopFlag


def check_cluster(search: Search, options: Options) -> None:
    """Refuse what only worker processes on this machine can do.

    Raises:
        ConfigError: The search prunes trials, or nobody says how many of them run at once.
    """
    name = options.cluster.engine
    if name == "local":
        return
    if search.fields.pruning != "none":
        raise ConfigError(
            f"search.pruning: --engine {name} cannot stop a single trial; leave out --engine or"
            " add -s search.pruning=none"
        )
    if not options.jobs:
        raise ConfigError(
            f"--engine {name}: say with -j how many trials run at once; with fewer at once, each"
            " point is chosen with more results"
        )


def run_search(driver: Driver) -> None:
    """Train trials until the search has enough, then its repeats.

    Raises:
        InUseError: Another process runs this search.
        StoppedError: A signal stopped the search; every trial can be continued.
        PartlyError: The time budget was used up, trials failed one after the other, or a repeat
            failed.
    """
    count = worker_count(driver.search, driver.options)
    jobs = driver.recover()
    wait_for_orphans([driver.root / folder for folder in driver.verdicts])
    driver.begin_plan()
    while len(jobs) < count and (job := driver.next_job()):
        jobs.append(job)
    write_history(driver)
    deadline = time.monotonic() + driver.options.budget if driver.options.budget else None
    if jobs:
        train_jobs(driver, jobs, count, deadline, more=driver.next_job)
    if repeats := repeat_jobs(driver):
        train_jobs(driver, repeats, count, deadline)
        if left := repeat_jobs(driver):
            number = quantity(len(left), "repeat")
            raise PartlyError(f"without a result: {number}; try again: {driver.options.command}")


@contextlib.contextmanager
def hold_search(root: Path) -> Iterator[None]:
    """Lock the folder of a search, so that only one driver asks for points at a time.

    Raises:
        InUseError: Another process runs this search.
    """
    require_utf8(root)
    make_output_folder(root)
    with hold_folder(root, "another process is running this search"):
        yield


def left_over(options: Options, used: float) -> Options:
    """Return the options with what ``used`` seconds leave of the time budget.

    Raises:
        PartlyError: Nothing is left.
    """
    if options.budget is None:
        return options
    if used >= options.budget:
        raise PartlyError(f"the budget is used up; final stage: {options.command}")
    return replace(options, budget=options.budget - used)


def engine_for(driver: Driver, jobs: list[Job], count: int) -> Engine:
    """Return the engine that trains the jobs."""
    from vitcli.runner.machine.device import pick_device

    options = driver.options
    pin = options.pin and pick_device(options.device).type == "cpu"
    threads, cluster = driver.search.threads, options.cluster
    setup = Setup(threads=threads, count=count, pin=pin, cluster=cluster)
    return make_engine(cluster.engine, driver.root, jobs, setup)


def train_jobs(
    driver: Driver,
    jobs: list[Job],
    count: int,
    deadline: float | None,
    more: Callable[[], Job | None] = lambda: None,
) -> None:
    """Train jobs; after each one that ended, add the job that ``more`` returns."""
    engine = engine_for(driver, jobs, count)
    is_late = has_begun = False
    with StopFlag() as stop, contextlib.ExitStack() as closing:

        def tick() -> None:
            nonlocal is_late
            is_late = is_late or (deadline is not None and time.monotonic() > deadline)
            if (is_late or stop.number) and not engine.stopping:
                driver.on_event(TrialEvent("", Stopping()))
                engine.stop()

        events = engine.events(tick)
        closing.callback(events.close)
        for found in events:
            has_begun = has_begun or isinstance(found.event, Started)
            driver.handle(found)
            driver.on_event(found)
            if driver.should_prune(found):
                assert isinstance(engine, Cancels), "check_cluster lets no other engine prune"
                engine.cancel(found.folder)
            if isinstance(found.event, Ended):
                if found.event.stage == "data" and not has_begun:
                    raise error_of(found.event)
                if len(driver.failures) >= MAX_FAILURES:
                    engine.stop()
                if not engine.stopping and (job := more()):
                    engine.add(job)
                write_history(driver)
    _raise_unless_done(driver, stop.number, is_late=is_late)


def _raise_unless_done(driver: Driver, number: int | None, *, is_late: bool) -> None:
    """Raise an error that says how to continue, if something stopped the search."""
    done = quantity(len(driver.results), "trial")
    text = f"{done} of {driver.search.num_trials} done. Continue: {driver.options.command}"
    if number:
        raise StoppedError(f"stopped; {text}", number)
    if len(driver.failures) >= MAX_FAILURES:
        last = driver.failures[-1]
        raise PartlyError(f"{MAX_FAILURES} trials failed one after the other ({last}); {text}")
    if is_late:
        raise PartlyError(f"the budget is used up; {text}")
