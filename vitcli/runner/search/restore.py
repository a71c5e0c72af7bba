"""A search that continues where its saved trials end, on a machine that has no storage of it.

A saved trial has the name of the search in the storage and its number there. An empty storage gets
the saved trials under their numbers. So a sampler knows the same scores as before, and with one
trial at a time it proposes the same points.
"""

from vitcli.runner.search.driver import Driver
from vitcli.runner.search.judge import Verdict
from vitcli.runner.search.records import SearchTrial, trial_folder


def restore(driver: Driver) -> int:
    """Fill an empty storage with the saved trials of its search; return their number."""
    if driver.store.trials():
        return 0
    known = dict(sorted(_known(driver).items()))
    for number in range(max(known, default=-1) + 1):
        if number not in known:
            driver.store.add_gap()
            continue
        verdict, trial = known[number]
        last = driver.search.base.train.epochs
        driver.store.add(
            verdict.point,
            trial_folder(trial.config_hash, trial.seed),
            curve={epoch: score for epoch, score in trial.curve if epoch < last},
        )
        driver.tell(number, trial)
    return len(known)


def _known(driver: Driver) -> dict[int, tuple[Verdict, SearchTrial]]:
    """Return number -> point and saved result, of the trials that this machine would use."""
    name = driver.search.study_name()
    found = {}
    for saved in driver.saved.values():
        if saved.storage != name or saved.number is None:
            continue
        verdict = driver.judge(dict(saved.point))
        if verdict.spec and (trial := driver.find_saved(verdict, verdict.spec)):
            found[saved.number] = (verdict, trial)
    return found
