"""Campaigns: pairs are trained once, whatever is killed, and the ledger says what came of them."""

import json
import shlex
import shutil
import zlib
from collections import deque
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

import vitcli as interface
from tests.cli.commands import printed, said, vitcli
from tests.here_engine import HereEngine
from tests.own_code import forget
from vitcli.core.spec import ExperimentSpec
from vitcli.plugins.decide import comparison, ledger
from vitcli.plugins.decide.comparison import Call, Comparison
from vitcli.plugins.decide.ledger import FILE, Campaign, Idea, Side, read, report
from vitcli.runner.engines.drivers import read_plan
from vitcli.runner.engines.local import Setup
from vitcli.runner.errors import UserError
from vitcli.runner.evaluate.teacher import teacher_run
from vitcli.runner.experiment.config import config_hash, load_experiment, parse_experiment
from vitcli.runner.experiment.yaml_text import Document, dump
from vitcli.runner.files import commit, commit_json, make_folder
from vitcli.runner.report.report import render
from vitcli.runner.run.folder import RunDir
from vitcli.runner.text import ignore_message
from vitcli.runner.train.events import Ended, TrialEvent

__all__ = ["forget"]

ROOT = Path("runs/night")
NIGHT = ("--campaign", "night", "--against", "quickstart", "-j", "1")
NEXT = ("--campaign", "night", "-j", "1")
STOPS = ("--campaign", "tuned", "--against", "finetune", "-j", "1")


class Killed(BaseException):
    pass


class Engine:
    """Ends each job at once; a depth of more blocks is better, and warm-up without effect."""

    behave: Callable[[ExperimentSpec], str] = staticmethod(lambda spec: "finished")
    precision = "fp32"
    weights: dict[str, str]
    """Run -> SHA-256 of its weights."""
    trained: list[str]
    left: int
    """Number of trainings after which the process is killed."""

    def __init__(self, root: Path, folders: list[str], setup: Setup) -> None:
        self.root, self.waiting, self.stopping = root, deque(folders), False
        assert setup.request["without_test"] is True

    def events(self, tick: Callable[[], None]) -> Generator[TrialEvent, None, None]:
        while self.waiting and not self.stopping:
            tick()
            if self.stopping:
                return
            folder = self.waiting.popleft()
            plan = read_plan(self.root)
            assert plan["without_test"] is True
            entry = plan["trials"][folder]
            spec = parse_experiment(entry["config"], Document("", "plan"))
            Engine.trained.append(folder)
            Engine.left -= 1
            if not Engine.left:
                raise Killed
            state = Engine.behave(spec)
            if state == "failed":
                yield TrialEvent(folder, Ended(state="failed", reason="no memory", exit=5))
                continue
            write_run(self.root / folder, entry, spec, state)
            yield TrialEvent(folder, Ended(state=state))

    def stop(self) -> None:
        self.stopping = True


def score(spec: ExperimentSpec) -> float:
    model: Any = spec.model
    noise = zlib.crc32(f"{config_hash(spec)}{spec.seed}".encode()) / 2**32
    return round(0.5 + 0.05 * (model.depth - 4) + 0.02 * noise, 4)


def write_run(folder: Path, entry: dict[str, Any], spec: ExperimentSpec, state: str) -> None:
    run = RunDir(folder)
    make_folder(folder)
    commit(folder / "config.yaml", dump(entry["config"]).encode())
    run.set_metrics([{"step": 1, "epoch": 1, "val_accuracy": score(spec)}])
    facts = {"config_hash": entry["config_hash"], "seed": spec.seed, "threads": 1}
    runs = {"init_sha256": spec.train.init or "", "teacher_sha256": teacher_run(spec)}
    facts |= {name: Engine.weights.get(run) for name, run in runs.items()}
    commit_json(folder / "meta.json", facts | {"data_hash": "d" * 64})
    if state == "finished":
        numbers = {"val_accuracy": score(spec), "precision": Engine.precision, "num_test": 0}
        commit_json(folder / "result.json", numbers | {"train_seconds": 1.0})
    run.set_status(state, 1, "as the test wants" if state == "diverged" else "")  # type: ignore[arg-type]


@pytest.fixture
def made(here, monkeypatch) -> None:
    monkeypatch.setattr("vitcli.runner.engines.drive.LocalEngine", Engine)
    named = "vitcli.runner.machine.device.name_precision"
    monkeypatch.setattr(named, lambda name, _: {"auto": "fp32"}.get(name, name))
    monkeypatch.setattr(Engine, "trained", [], raising=False)
    monkeypatch.setattr(Engine, "weights", {}, raising=False)
    monkeypatch.setattr(Engine, "left", 0, raising=False)
    monkeypatch.setattr(Engine, "precision", "fp32")
    monkeypatch.setattr(Engine, "behave", staticmethod(lambda spec: "finished"))


@pytest.fixture
def night(made, tmp_path_factory) -> None:
    """A campaign with one idea that won, which is made once in a process."""
    source = tmp_path_factory.getbasetemp() / "night"
    if source.exists():
        shutil.copytree(source, ROOT)
    else:
        printed("decide", "-s", "model.depth=5", *NIGHT)
        shutil.copytree(ROOT, source)


def campaign() -> Campaign:
    found = read(ROOT)
    assert found
    return found


def test_a_winner_is_adopted_gets_new_seeds_and_the_best_is_trained_once(made):
    document = json.loads(printed("decide", "-s", "model.depth=5", *NIGHT, "--adopt", "--json"))
    pairs = document["pairs"]
    assert (document["verdict"], document["against"]) == ("better", "quickstart")
    assert len(Engine.trained) == 2 * pairs
    assert len({*Engine.trained}) == 2 * pairs
    assert campaign().typed == {"data.val_split": 0.2}
    assert campaign().best.changes == {"model.depth": 5}
    assert campaign().precision == "fp32"

    Engine.trained.clear()
    assert said(6, "decide", "-s", "optim.warmup_epochs=2.0", *NEXT)
    assert said(6, "decide", "-s", "model.depth=4", *NEXT)
    idea, worse = campaign().ideas[1:]
    assert [idea.first_seed, worse.first_seed] == [16, 16]
    assert worse.verdict in ("worse", "unlikely to be better")
    of_best = {f"{campaign().best.config_hash[:12]}/seed{16 + i}" for i in range(16)}
    most = max(len(idea.scores), len(worse.scores))
    assert len(of_best & {*Engine.trained}) == most, "both ideas use the trainings of the best"
    assert len(Engine.trained) == most + len(idea.scores) + len(worse.scores)
    assert [pair[1] for pair in idea.scores][:4] == [pair[1] for pair in worse.scores][:4]
    counts = [2 * pairs, 2 * len(idea.scores), len(Engine.trained) - 2 * len(idea.scores)]
    assert [round(each.seconds) for each in campaign().ideas] == counts

    Engine.trained.clear()
    again = json.loads(vitcli("decide", "-s", "model.depth=4", *NEXT, "--json")[1])
    assert (again["verdict"], Engine.trained) == (worse.verdict, [])


def test_the_ledger_alone_is_enough_for_the_next_idea(night):
    content = (ROOT / FILE).read_bytes()
    said(0, "runs", "rm", "night", "-y")
    assert not ROOT.exists()
    ROOT.mkdir()
    (ROOT / FILE).write_bytes(content)
    Engine.trained.clear()
    printed("decide", "-s", "model.depth=6", *NEXT)
    start = campaign().start.config_hash[:12]
    assert not [folder for folder in Engine.trained if folder.startswith(start)][4:]


@pytest.mark.parametrize(
    "words",
    [("-s", "model.depth=5", "--adopt"), ("-s", "optim.warmup_epochs=2.0", "--max-seeds", "6")],
)
def test_killed_anywhere_it_goes_on_with_the_same_pairs_and_verdict(made, monkeypatch, words):
    writes = []

    def count_or_die(path: Path, content: bytes) -> None:
        commit(path, content)
        writes.append(path)
        if len(writes) == dies_after:
            raise Killed

    monkeypatch.setattr(ledger, "commit", count_or_die)
    dies_after = 0
    vitcli("decide", *words, *NIGHT)
    expected, trainings, num_writes = (ROOT / FILE).read_bytes(), len(Engine.trained), len(writes)
    of_trainings = [(n, 0) for n in range(1, trainings + 1) if "--adopt" in words]
    places = of_trainings + [(0, n) for n in range(1, num_writes)]
    for Engine.left, after in places:
        dies_after = after
        shutil.rmtree(ROOT)
        writes.clear()
        with pytest.raises(Killed):
            vitcli("decide", *words, *NIGHT)
        vitcli("decide", *words, *NIGHT)
        assert (ROOT / FILE).read_bytes() == expected


def diverging(depth: int, seed: int) -> Callable[[ExperimentSpec], str]:
    def behave(spec: ExperimentSpec) -> str:
        model: Any = spec.model
        return "diverged" if (model.depth, spec.seed) == (depth, seed) else "finished"

    return behave


def test_a_diverged_change_is_given_up_and_a_diverged_best_is_an_error(made, monkeypatch):
    monkeypatch.setattr(Engine, "behave", staticmethod(diverging(5, 2)))
    said(6, "decide", "-s", "model.depth=5", *NIGHT)
    idea = campaign().ideas[0]
    assert (idea.verdict, len(idea.scores), idea.interval) == ("diverged", 2, None)
    monkeypatch.setattr(Engine, "behave", staticmethod(diverging(4, 3)))
    assert "the best so far diverged" in said(4, "decide", "-s", "model.depth=6", *NEXT)


def test_a_failed_training_leaves_the_idea_open(made, monkeypatch):
    monkeypatch.setattr(Engine, "behave", staticmethod(lambda spec: "failed"))
    assert "no memory" in said(5, "decide", "-s", "model.depth=5", *NIGHT)
    monkeypatch.setattr(Engine, "behave", staticmethod(lambda spec: "finished"))
    printed("decide", "-s", "model.depth=5", *NIGHT)


def test_the_jobs_of_slurm_are_drivers_of_one_comparison(made):
    words = ["-s", "model.depth=5", "--campaign", "night", "--against", "quickstart"]
    code, script, _ = vitcli("decide", *words, "--engine", "slurm", "-j", "2")
    assert code == 3, "no verdict yet"
    assert "#SBATCH --array=1-2" in script.splitlines()
    words += ["-j", "1", "-o", str(ROOT.resolve())]
    assert f"vitcli decide {shlex.join(words)} &\n" in script
    assert not Engine.trained
    assert said(0, "decide", *words)
    assert "better" in printed("decide", *words, "--engine", "slurm"), "the verdict is known"


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (["-s", "model.depth=5", "--campaign", "x", *NIGHT[2:], "-s", "model.depth=4"], 2, "same"),
        (["-s", "seed=3", *NEXT], 2, "same"),
        (["-s", "train.precision=bf16", *NEXT], 2, "train.precision"),
        (["-s", "train.precision=bf16", *NEXT, "--dry-run"], 2, "train.precision"),
        (["-s", "model.depth=6", *NEXT, "--score", "accuracy"], 2, "add --csv"),
        (["-s", "data.val_split=0.5", *NEXT], 2, "val_split"),
        (["-s", "train.limit_batches=2", *NEXT], 2, "--limit-batches"),
        (["-s", "train.early_stopping=3", *NEXT], 2, "same train.early_stopping"),
        (["-s", "train.epochs=9", *STOPS], 2, "same train.epochs: early stopping"),
        (["-s", "train.eval_every=2", *STOPS], 2, "same train.eval_every"),
        (["-s", "model.depth=6", *NEXT, "--max-seeds", "24"], 2, "16"),
        (["-s", "model.depth=5", *NEXT, "--margin", "1"], 2, "--margin"),
        (["-s", "model.depth=6", *NEXT, "--against", "cifar10-tiny"], 2, "quickstart"),
        (["-s", "model.depth=6", *NEXT, "--epochs", "3"], 2, "train.epochs"),
        (["-s", "model.depth=6", *NEXT, "--csv", "x.csv"], 2, "--csv"),
        (["-s", "model.depth=6", "--campaign", "night", "--engine", "slurm"], 2, "-j"),
        (["-s", "model.depth=6", *NEXT, "--gpus", "0.5"], 2, "--engine ray"),
        (["night", "--report", "--engine", "slurm"], 2, "--engine"),
        (["-s", "model.depth=6", "--campaign", "other", "-j", "1"], 2, "--against"),
        (["-s", "model.depth=6", "--against", "quickstart", "-s", "data.folds=3"], 2, "folds"),
        (["night"], 2, "for a campaign, --campaign or --report"),
        (["none", "--report"], 4, "none"),
        (["--campaign", "night", "--adopt"], 2, "name a change"),
        (["night", "--claim"], 2, "nothing was adopted"),
        (["night", "--claim", "--report"], 2, "--report"),
        (["-s", "model.depth=6", "--campaign", "a/b", *NIGHT[2:]], 2, "type --campaign a-b"),
    ],
)
def test_what_a_campaign_cannot_do_is_one_line_and_changes_nothing(night, words, code, named):
    before, count = (ROOT / FILE).read_bytes(), len(Engine.trained)
    assert named in said(code, "decide", *words)
    assert ((ROOT / FILE).read_bytes(), len(Engine.trained)) == (before, count)


def test_only_a_winner_is_adopted(made):
    said(6, "decide", "-s", "model.depth=3", *NIGHT, "--adopt")
    assert campaign().best == campaign().start
    printed("decide", "-s", "model.depth=5", *NEXT)
    assert "adopted: model.depth=6" in said(0, "decide", "-s", "model.depth=6", *NEXT, "--adopt")
    assert [idea.adopted for idea in campaign().ideas] == [False, False, True]


def test_the_idea_that_was_typed_is_adopted_once_and_late_it_gets_new_seeds(made):
    printed("decide", "-s", "model.depth=6", *NIGHT)
    printed("decide", "-s", "model.depth=5", *NIGHT)
    printed("decide", "-s", "model.depth=6", *NEXT, "--adopt")
    assert campaign().best.changes == {"model.depth": 6}
    before = (ROOT / FILE).read_bytes()
    out = printed("decide", "-s", "model.depth=6", *NEXT, "--adopt", "--json")
    assert (json.loads(out)["against"], (ROOT / FILE).read_bytes()) == ("quickstart", before)
    printed("decide", "-s", "model.depth=7", *NEXT)
    assert [idea.first_seed for idea in campaign().ideas] == [0, 0, 16]
    Path("deep.yaml").write_text("base: quickstart\nmodel: {depth: 9}\ndata: {val_split: 0.2}\n")
    printed("decide", "deep.yaml", *NEXT, "--adopt")
    assert campaign().best.experiment == "deep.yaml"
    assert campaign().name_of(campaign().best) == "quickstart + model.depth=6 + deep"


def test_only_the_command_that_was_adopted_gets_its_verdict_again(made):
    deep = "base: quickstart\nmodel: {depth: %d}\ndata: {val_split: 0.2}\n"
    for folder, depth in (("one", 6), ("other", 4)):
        Path(folder).mkdir()
        Path(folder, "idea.yaml").write_text(deep % depth)
    printed("decide", "one/idea.yaml", *NIGHT, "--adopt")
    (adopted,) = campaign().ideas
    for words in (("--margin", "5"), ("--epochs", "7"), ("--max-seeds", "9")):
        assert "leave" in said(2, "decide", "one/idea.yaml", *NEXT, *words)
    assert vitcli("decide", "other/idea.yaml", *NEXT)[0] == 6
    assert campaign().ideas[1].side.experiment == "other/idea.yaml"
    assert campaign().ideas[1].verdict != adopted.verdict
    Path("one/idea.yaml").write_text(deep % 3)
    assert "edited" in said(4, "decide", "one/idea.yaml", *NEXT)


def test_early_stopping_may_differ_where_test_images_decide(here):
    pairs = Call(against="finetune").compare(None, {"train.early_stopping": None})
    assert pairs.specs[1].train.early_stopping
    assert pairs.root.name.endswith(pairs.idea.side.config_hash[:8]), "so no two changes share it"


@pytest.mark.parametrize(
    ("start", "run"),
    [
        ("train: {init: first}", "first"),
        pytest.param(
            'task: {name: distil, teacher: "t{seed}"}', "t3", marks=pytest.mark.plugin("distil")
        ),
    ],
)
def test_weights_that_were_trained_again_are_refused(made, monkeypatch, start, run):
    weights = Engine.weights
    weights[run] = "1" * 64
    monkeypatch.setattr("vitcli.runner.evaluate.teacher.weights_at_hand", weights.get)
    monkeypatch.setattr(comparison, "with_teacher", lambda spec, **_: spec)
    Path("start.yaml").write_text(f"base: quickstart\n{start}\n")
    printed("decide", "-s", "model.depth=5", *NIGHT[:2], "--against", "start.yaml", "-j", "1")
    before, count = (ROOT / FILE).read_bytes(), len(Engine.trained)
    weights[run] = "2" * 64
    for words in (["-s", "model.depth=6"], ["-s", "model.depth=5"]):
        assert f"{run}: 1111" in said(4, "decide", *words, *NEXT)
    assert ((ROOT / FILE).read_bytes(), len(Engine.trained)) == (before, count)
    weights[run] = "1" * 64
    printed("decide", "-s", "model.depth=6", *NEXT)


def test_another_process_loses_nothing_and_takes_no_seeds_twice(night, monkeypatch):
    save = Comparison.save

    def save_late(self: Comparison, idea: Idea) -> None:
        monkeypatch.setattr(Comparison, "save", save)
        vitcli("decide", *other, *NEXT, "--adopt")
        save(self, idea)

    other = ("-s", "model.depth=5")
    monkeypatch.setattr(Comparison, "save", save_late)
    assert "type the command again" in said(2, "decide", "-s", "model.depth=6", *NEXT)
    assert campaign().best.changes == {"model.depth": 5}
    other = ("-s", "optim.warmup_epochs=3.0")
    monkeypatch.setattr(Comparison, "save", save_late)
    printed("decide", "-s", "model.depth=6", *NEXT)
    assert [idea.first_seed for idea in campaign().ideas] == [0, 16, 16]
    assert all(idea.is_final for idea in campaign().ideas)

    stale = campaign().ideas[0].replace(adopted=False, verdict="more pairs", scores=())
    specs = [load_experiment("quickstart").spec] * 2
    late = Comparison(root=ROOT, campaign=campaign(), idea=stale, specs=specs)
    late.save(stale)
    assert campaign().best.changes == {"model.depth": 5}, "an older state undoes no adoption"


def test_a_stale_training_is_moved_and_trained_again(made):
    said(3, "decide", "-s", "model.depth=5", *NIGHT, "--budget", "0.001s")
    printed("decide", "-s", "model.depth=5", *NIGHT)
    trained = [*ROOT.glob("*/seed1/meta.json")]
    (ROOT / FILE).unlink()
    for path in trained:
        path.unlink()
    (ROOT / "plan.json").unlink()
    assert "something else" in said(2, "decide", "-s", "model.depth=5", *NIGHT)
    begun = one(start=quickstart(), typed={"data.val_split": 0.2})
    ledger.update(ROOT, begun, lambda _: begun)
    talk = said(0, "decide", "-s", "model.depth=5", *NEXT)
    assert "kept as seed1.stale1" in talk
    assert len([*ROOT.glob("*/seed1.stale1")]) == 2


def test_an_edited_ledger_another_precision_and_an_edited_experiment_are_refused(made, monkeypatch):
    Path("start.yaml").write_text("base: quickstart\n")
    own = ("--campaign", "night", "--against", "start.yaml", "-j", "1")
    printed("decide", "-s", "model.depth=5", *own)
    Path("start.yaml").write_text("base: quickstart\nmodel: {depth: 3}\n")
    assert "edited" in said(4, "decide", "-s", "model.depth=6", *NEXT)
    Path("start.yaml").write_text("base: quickstart\n")
    printed("decide", "-s", "train.precision=fp32", "-s", "model.depth=6", *NEXT)  # as auto is here
    with monkeypatch.context() as patch:
        patch.setattr("vitcli.runner.machine.device.name_precision", lambda *_: "bf16")
        assert "bf16" in said(4, "decide", "-s", "model.depth=6", *NEXT)
    content = (ROOT / FILE).read_text()
    (ROOT / FILE).write_text(content.replace('"better"', '"worse"'))
    assert "edited" in said(4, "decide", "night", "--report")
    (ROOT / FILE).write_text("{}")
    assert "no hash" in said(4, "decide", "night", "--report")


def test_a_result_in_another_precision_or_of_other_images_is_refused(night, monkeypatch):
    monkeypatch.setattr(Engine, "precision", "bf16")
    assert "bf16" in said(4, "decide", "-s", "model.depth=6", *NEXT)
    monkeypatch.setattr(Engine, "precision", "fp32")
    changed = campaign().model_copy(update={"data_hash": "e" * 64})
    ledger.update(ROOT, changed, lambda _: changed)
    for run in ROOT.glob("*/seed*"):
        if not run.parent.name.startswith(campaign().start.config_hash[:12]):
            said(0, "runs", "rm", str(run), "-y")
    assert "images: eeeeeeeeeeee" in said(4, "decide", "-s", "model.depth=7", *NEXT)


def test_the_report_counts_and_writes_nothing(made):
    printed("decide", "-s", "model.depth=5", *NIGHT, "--adopt")
    said(6, "decide", "-s", "model.depth=3", *NEXT)
    before = {*ROOT.iterdir()}
    document = json.loads(printed("decide", "night", "--report", "--json"))
    assert (document["tried"], document["adopted"]) == (2, 1)
    assert document["false_adoptions"] == pytest.approx(0.05)
    assert document["ideas"][0]["verdict"] == "better"
    assert "model.depth=5</td>" in printed("decide", "night", "--report", "--format", "html")
    assert {*ROOT.iterdir()} == before


def test_a_dry_run_writes_nothing_and_refuses_what_the_run_refuses(made, tiny):
    words = ("--campaign", "night", "--against", "tiny.yaml", "-j", "1", "--dry-run")
    cost = json.loads(printed("decide", "-s", "model.depth=3", *words, "--json"))
    assert (cost["split"], cost["pairs"], ROOT.exists()) == ("val", 0, False)
    assert cost["seconds"] > 0
    assert said(2, "decide", "-s", "model.depth=2", *words)


IDEA = {"name": "x", "first_seed": 0, "verdict": "better"}


def side(name: str) -> Side:
    return Side(experiment="quickstart", config_hash=name)


def quickstart() -> Side:
    spec = load_experiment("quickstart", {"data.val_split": 0.2}).spec
    return Side(experiment="quickstart", config_hash=config_hash(spec))


def one(**fields: Any) -> Campaign:
    stated: dict[str, Any] = {"start": side("a"), "split": "val", "max_seeds": 16}
    number = {"label": "accuracy", "unit": "%", "digits": 2, "higher_is_better": True}
    return Campaign(**(stated | number | fields))


def test_a_claim_has_unused_seeds_and_each_further_one_half_the_alpha():
    won = Idea(side=side("b"), against=side("a"), adopted=True, **IDEA)
    found = one(ideas=(won,))
    claim = found.claim("")
    assert (claim.first_seed, claim.alpha) == (16, 0.05)
    assert (claim.against, claim.side) == (side("a"), side("b"))
    found = found.with_idea(claim.replace(verdict="better"), is_claim=True)
    assert found.claim("").is_final, "a claim is made once"
    after = found.with_idea(Idea(side=side("d"), against=side("b"), adopted=True, **IDEA))
    assert after.idea("e", side("e"), None, "").first_seed == 32, "no seed of a claim is used again"
    second = Idea(side=side("c"), against=side("b"), adopted=True, **(IDEA | {"first_seed": 16}))
    found = found.with_idea(second)
    again = found.claim("")
    assert (again.first_seed, again.alpha, again.side) == (32, 0.025, side("c"))
    assert found.idea("d", side("d"), None, "").first_seed == 32, "no seed of a claim is used again"
    scores = [(1.0, 0.0), (1.1, 0.0), (0.9, 0.0), (1.0, 0.1), (1.2, 0.0)]
    decided = [found.decide(each, scores, ignore_message) for each in (claim, again)]
    assert [each.verdict for each in decided] == ["better", "better"]
    widths = [each.interval[1] - each.interval[0] for each in decided if each.interval]
    assert widths[0] < widths[1]


def test_earlier_comparisons_give_a_floor_and_lower_scores_may_be_better():
    found = one(higher_is_better=False)
    scores = [(1.0, 2.0), (1.2, 2.0), (0.8, 2.0), (1.1, 2.0), (0.9, 2.0), (1.0, 2.0)]
    for name in "bcdefg":
        idea = found.idea(name, side(name), None, "")
        assert (idea.floor is None) == (name != "g")
        idea = found.decide(idea, scores, ignore_message)
        assert (idea.verdict, idea.mean) == ("better", pytest.approx(0.975))
        found = found.with_idea(idea)
    assert "above 0 is better" in render(report("night", found), "json")


OWN = ["-s", "model.depth=3", "--against", "tiny.yaml", "--max-seeds", 5, "-j", 1, "--epochs", 1]


@pytest.fixture
def decided(here, workshop, without_workers) -> tuple[int, str]:
    """A comparison of its own, which is trained once in a process; its exit code and document."""
    source = workshop / "decided"
    shutil.copy(workshop / "tiny.yaml", "tiny.yaml")
    if not source.exists():
        Path("answer.json").write_text(json.dumps(vitcli("decide", *OWN, "--json")[:2]))
        shutil.copytree(Path(), source)
    shutil.copytree(source / "runs", "runs", dirs_exist_ok=True)
    code, out = json.loads((source / "answer.json").read_text())
    return code, out


def test_a_comparison_of_its_own_reads_the_test_images_and_a_claim_does(decided):
    words, (code, out) = OWN, decided
    assert (code in (0, 6), json.loads(out)["pairs"]) == (True, 4) or json.loads(out)["pairs"] == 5
    root = next(Path("runs").glob("decide-tiny-*"))
    found = read(root)
    assert found
    assert (found.split, found.typed) == ("test", {"train.epochs": 1})
    runs = [path.parent for path in root.glob("*/seed*/result.json")]
    assert len(runs) == 2 * len(found.ideas[0].scores)
    assert all("test_accuracy" in json.loads((run / "result.json").read_text()) for run in runs)
    assert vitcli("decide", *words, "--json")[:2] == (code, out), "nothing is left to train"
    another = ("decide", "-s", "model.depth=1", "-j", 1)
    assert "--campaign" in said(2, *another, *words[2:4], "-o", root, "--max-seeds", 5)
    assert "--campaign" in said(2, *another, "--campaign", root.name)
    call = Call(against="tiny.yaml", typed={"train.epochs": 1})
    assert call.compare(None, {"model.depth": 3}).contrast(4), "test images tell of new ones"
    won = found.with_idea(found.ideas[0].replace(verdict="better", adopted=True))
    ledger.update(root, won, lambda _: won)
    document = json.loads(vitcli("decide", *words, "--adopt", "--json")[1])
    assert (document["verdict"], read(root)) == ("better", won), "what was adopted has a verdict"


LOSS = """
from torch import nn
from vitcli.parts import objective
@objective
def mine(logits, targets):
    return nn.functional.cross_entropy(logits, targets)
"""


def test_the_test_images_of_an_own_loss_count_as_those_of_the_built_in_one(decided):
    Path("loss.py").write_text(LOSS)
    own = ("-s", "task.name=mine", "--code", "loss.py")
    for out in (decided[1], vitcli("decide", *OWN, *own, "--json")[1]):
        assert json.loads(out)["notes"] == []
    call = Call(against="tiny.yaml", typed={"train.epochs": 1})
    built_in, mine = (
        call.compare(None, {"model.depth": 3} | fields).contrast(4)
        for fields in ({}, {"task.name": "mine"})
    )
    assert mine == built_in
    assert mine


def test_a_claim_trains_on_the_test_images(made, tiny, monkeypatch):
    tiny.write_text(tiny.read_text().replace("train: {", "train: {precision: fp32, "))
    words = ["-s", "model.depth=3", "--against", "tiny.yaml", "--epochs", 1, "--max-seeds", 5]
    said(0, "decide", *words, "--campaign", "night", "-j", 1, "--adopt")
    ledger.update(ROOT, campaign(), lambda found: found.model_copy(update={"data_hash": ""}))
    monkeypatch.setattr("vitcli.runner.engines.drive.LocalEngine", HereEngine)
    for words in (["--epochs", 2], ["--max-seeds", 6]):
        assert "fixed before" in said(2, "decide", "night", "--claim", *words)
    code, out, _ = vitcli("decide", "night", "--claim", "-j", 1, "--json")
    claim = campaign().claims[0]
    assert (json.loads(out)["against"], claim.first_seed) == ("the start", 5)
    assert (code in (0, 6), claim.is_final) == (True, True)
    runs = [path.parent for path in ROOT.glob("*/seed[5-9]/result.json")]
    assert len(runs) == 2 * len(claim.scores)
    assert all((run / "predictions.npz").exists() for run in runs)
    for run in runs:
        shutil.rmtree(run)
    assert vitcli("decide", "night", "--claim", "--json")[1] == out, "the ledger alone is enough"


def test_python_decides_on_numbers_and_fields(made):
    quiet = {"campaign": "night", "on_message": ignore_message, "jobs": 1}
    found = interface.decide({"model.depth": 5}, "quickstart", **quiet)
    assert (found.verdict, campaign().ideas[0].verdict) == ("better", "better")
    printed("decide", "-s", "model.depth=5", *NEXT, "--adopt")
    again = interface.decide({"model.depth": 5}, **quiet)
    assert (again.adopted, again.scores) == (True, found.scores), "what was adopted has a verdict"
    with pytest.raises(UserError):
        interface.decide("none", campaign="night")
