"""Repeats: some configurations of a search are trained again with other seeds, to see the noise."""

from vitcli.core.spec import ExperimentSpec
from vitcli.runner.engines.engine import Job
from vitcli.runner.search.definition import Search
from vitcli.runner.search.driver import Driver
from vitcli.runner.search.judge import Verdict
from vitcli.runner.search.records import SearchTrial, read_trial, trial_folder


def repeat_jobs(driver: Driver) -> list[Job]:
    """Return the trainings with further seeds that have no result yet; they join the plan."""
    jobs = []
    for verdict in repeated(driver):
        for spec in repeat_specs(driver.search, verdict):
            folder = trial_folder(verdict.config_hash, spec.seed)
            if found := read_repeat(driver, verdict, spec):
                driver.save_new(found)
            else:
                driver.repeats[folder] = spec, verdict
                driver.add_to_plan(folder, spec, verdict.point)
                jobs.append(Job(folder))
    if jobs:
        driver.write_plan()
    return jobs


def repeat_specs(search: Search, verdict: Verdict) -> list[ExperimentSpec]:
    """Return a configuration with each seed of the repeats."""
    assert verdict.spec is not None
    assert search.fields.repeats is not None
    return [verdict.spec.replace(seed=seed) for seed in search.fields.repeats.seeds]


def read_repeat(driver: Driver, verdict: Verdict, spec: ExperimentSpec) -> SearchTrial | None:
    """Return the result of a repeat, from its run folder or from a saved file."""
    found = read_trial(driver.root, verdict.point, spec, verdict.sizes)
    return found or driver.find_saved(verdict, spec)


def repeated(driver: Driver) -> list[Verdict]:
    """Return the configurations to repeat, spread evenly over the scores of the finished ones."""
    repeats = driver.search.fields.repeats
    if repeats is None:
        return []
    done = [
        (result.score, result.config_hash, folder)
        for folder, result in driver.results.items()
        if result.state == "finished" and result.score is not None
    ]
    done.sort()
    count = min(repeats.configurations, len(done))
    chosen = [done[i * (len(done) - 1) // max(1, count - 1)] for i in range(count)]
    return [driver.verdicts[folder][1] for _, _, folder in chosen]
