"""The ranks beside rank 0: they train what rank 0 orders, and write nothing."""

import contextlib
from pathlib import Path

import torch

from vitcli.core import ranks
from vitcli.core.ranks import LostRankError
from vitcli.core.spec import ExperimentSpec
from vitcli.core.train.training import Step
from vitcli.runner.errors import ConfigError, DivergedError, ResourceError, StoppedError, UserError
from vitcli.runner.experiment import own_code
from vitcli.runner.experiment.build import filled_module
from vitcli.runner.machine.arithmetic import chosen_kernels
from vitcli.runner.machine.device import pick_device
from vitcli.runner.machine.launch import Launch
from vitcli.runner.machine.resources import SMALLER, as_resource_error, resource_errors
from vitcli.runner.run.folder import RunDir
from vitcli.runner.train.build import BuiltTraining
from vitcli.runner.train.ranks import EndedError, Facts, TorchrunProcesses, connect
from vitcli.runner.train.signals import StopFlag
from vitcli.runner.train.start import Request
from vitcli.runner.train.trainer import Trainer


class FollowingTrainer(Trainer):
    """Takes the steps of rank 0's training. It reports, measures and writes nothing."""

    def _report_start(self) -> None:
        """Say nothing."""

    def _report(self, epoch: int, step: Step, began: float, num_steps: int) -> None:
        """Say nothing."""

    def _finish_epoch(self, epoch: int, lr: float, began: float, num_steps: int) -> None:
        ranks.check_weights(self.training.module.state_dict())
        self._refuse_divergence(*self.training.take_means().values())

    def _mark_diverged(self, reason: str) -> str:
        return reason

    def _interrupt(self, number: int) -> None:
        raise StoppedError(f"stopped at step {self.step}", number)


def follow(launch: Launch, request: Request) -> int:
    """Train everything that rank 0 orders; return the exit code of rank 0."""
    with StopFlag(again=False) as stop:
        processes = TorchrunProcesses(launch, connect(launch))
        processes.stop = stop
        try:
            order = processes.receive()
            while True:
                with processes.watch(RunDir(Path(order["run"])), order["resume_command"]):
                    train_order(processes, order, request, stop)
                    order = processes.receive()
        except EndedError as ended:
            code = ended.exit_code
        except LostRankError:  # before the first order
            code = ResourceError.exit_code
        except Exception as error:
            problem = as_resource_error(error) or error
            kind = "" if isinstance(problem, UserError) else f"{type(problem).__name__}: "
            processes.leave(kind + str(problem).partition("\n")[0])
            if kind or not processes.fails_too():
                raise
            code = ConfigError.exit_code
        if code:
            processes.linger()
        return code


def train_order(
    processes: TorchrunProcesses, order: Facts, request: Request, stop: StopFlag
) -> None:
    """Train one order of rank 0 to its end, or until all ranks stop."""
    own_code.load_texts(order["code"])
    spec = ExperimentSpec.model_validate_json(order["spec"])
    device = pick_device(processes.device_name(request.device))
    with resource_errors(), chosen_kernels(device, spec.train.deterministic):
        trainer = join_training(processes, order, spec, request, device)
        # rank 0 raises the same
        with contextlib.suppress(StoppedError, DivergedError), resource_errors(SMALLER):
            for _ in trainer.train(stop, order["stop_after"]):
                pass
        processes.part()


def join_training(
    processes: TorchrunProcesses,
    order: Facts,
    spec: ExperimentSpec,
    request: Request,
    device: torch.device,
) -> Trainer:
    """Return the trainer of this rank, in the state of rank 0's."""
    data = request.reader(spec)(spec.data)
    processes.join(order, data.data_hash)
    built = BuiltTraining(
        spec, filled_module(spec, data), data.to(device), kernels=order["kernels"]
    )
    built.compile()
    trainer = FollowingTrainer(built=built, run=RunDir(Path(order["run"])), resume_command="")
    processes.compare(trainer.facts())
    processes.share(trainer.training)
    return trainer
