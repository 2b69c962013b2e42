"""Runs of GRPO that resume as if they had not been interrupted, on every rank and in the middle of rollouts too.

A checkpoint of transformers holds weights, optimizer, schedule and the generators of random numbers. Two things of GRPO
are missing there: rollouts that were generated and not yet learnt from, and the order of the prompts in later epochs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer

from pkb_gym.training.processes.host_group import HostGroup
from pkb_gym.training.results.run_log import RunLog

ROLLOUT_FILES = "rollouts_{rank}.pt"
"""Files of a checkpoint; that of rank 0 is written last of all."""


class ExactResumption(TrainerCallback):
    """Keeps the rollouts of each rank in checkpoints, and restores them.

    Args:
        trainer: Trainer whose rollouts are kept.
        host: Group of all ranks.
        log: Log of the run, which has a file in checkpoints too.

    Attributes:
        checkpoint: Folder that the run resumes from; None for a new run.
    """

    def __init__(self, trainer: GRPOTrainer, host: HostGroup, log: RunLog) -> None:
        self._trainer: Any = trainer
        self._host, self._log = host, log
        self.checkpoint: Path | None = None

    def resume_from(self, checkpoint: str | bool | None) -> None:
        """Names the checkpoint that the run resumes from, if any."""
        self.checkpoint = Path(checkpoint) if isinstance(checkpoint, str) else None

    def on_train_begin(self, args: TrainingArguments, *_: Any, **__: Any) -> None:
        """Restores rollouts; called on every rank when training begins or resumes."""
        file = None if self.checkpoint is None else _rollout_file(self.checkpoint, args.process_index)
        if file is not None and file.exists():
            device = self._trainer.accelerator.device
            where = "cpu" if device.type == "cpu" else device  # files know no "cpu:0", which DeepSpeed names
            kept = torch.load(file, map_location=where, weights_only=True)
            self._trainer._step, self._trainer._buffered_inputs = kept["step"], kept["rollouts"]

    def on_save(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        """Completes a checkpoint; called on every rank after the trainer has written the rest."""
        checkpoint = Path(str(args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        self._log.save(checkpoint)
        if args.process_index == 0:
            self._host.barrier()
        kept = {"step": self._trainer._step, "rollouts": self._trainer._buffered_inputs}
        torch.save(kept, _rollout_file(checkpoint, args.process_index))
        if args.process_index:
            self._host.barrier()


def _rollout_file(checkpoint: Path, rank: int) -> Path:
    return checkpoint / ROLLOUT_FILES.format(rank=rank)


class EpochOrder(TrainerCallback):
    """Has the order of an epoch's prompts depend on seed and epoch alone, so that a run may resume in any epoch.

    Args:
        seed: Seed of the run.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def on_epoch_begin(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **of_trainer: Any,
    ) -> None:
        """Seeds the sampler of the prompts, which is asked for the epoch's order next."""
        generator = getattr(_sampler_of(of_trainer["train_dataloader"]), "generator", None)
        if generator is not None:
            generator.manual_seed(self._seed + int(state.epoch or 0))


def _sampler_of(dataloader: Any) -> object:  # noqa: ANN401  # torch's, or one of accelerate's around it
    """The sampler of rows below all samplers of batches."""
    sampler = dataloader.batch_sampler
    while (inner := getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)) is not None:
        sampler = inner
    return sampler
