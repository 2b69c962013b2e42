"""TRL's `GRPOTrainer`, resuming as if it had not been interrupted.

A checkpoint of transformers holds weights, optimizer, schedule and the generators of random numbers. Two things of GRPO
are missing there: rollouts that were generated and not yet learnt from, and the order of the prompts in later epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Sampler
from transformers.trainer_utils import TrainOutput
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import RepeatSampler


class EpochSampler(Sampler[int]):
    """TRL's sampler, whose order of an epoch depends on seed and epoch alone: a run may resume in any epoch.

    Args:
        repeated: Sampler of TRL.
        seed: Seed of the run.
        epoch: Function that returns the current epoch.
    """

    def __init__(self, repeated: RepeatSampler, seed: int, epoch: Callable[[], int]) -> None:
        self._repeated, self._seed, self._epoch = repeated, seed, epoch

    def __iter__(self) -> Iterator[int]:
        """The rows of the current epoch."""
        if self._repeated.shuffle:
            self._repeated.generator.manual_seed(self._seed + self._epoch())
        return iter(self._repeated)

    def __len__(self) -> int:
        """The length of an epoch."""
        return len(self._repeated)


class ResumableGRPOTrainer(GRPOTrainer):
    """A run of GRPO whose checkpoints hold all that it needs to go on, on every rank and in the middle of rollouts too.

    Attributes:
        checkpoint: Folder that the run resumed from; None for a new run.
    """

    args: GRPOConfig
    checkpoint: Path | None = None

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Trains, from a checkpoint if its folder is given."""
        self.checkpoint = Path(resume_from_checkpoint) if isinstance(resume_from_checkpoint, str) else None
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _get_train_sampler(self, dataset: Any = None) -> Sampler[int]:  # noqa: ANN401  # of `datasets`, untyped
        repeated: Any = super()._get_train_sampler(dataset)
        return EpochSampler(repeated, self.args.seed, lambda: int(self.state.epoch or 0))

    def _save_rng_state(self, output_dir: str) -> None:
        """Called on every rank for each checkpoint."""
        super()._save_rng_state(output_dir)
        torch.save({"step": self._step, "rollouts": self._buffered_inputs}, self._rollouts_file(output_dir))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Called on every rank when a run resumes, after it has found its place in the data."""
        super()._load_rng_state(checkpoint)
        if checkpoint is not None and (file := self._rollouts_file(checkpoint)).exists():
            device = self.accelerator.device
            where = "cpu" if device.type == "cpu" else device  # files know no "cpu:0", which DeepSpeed names
            kept = torch.load(file, map_location=where, weights_only=True)
            self._step, self._buffered_inputs = kept["step"], kept["rollouts"]

    def _rollouts_file(self, checkpoint: str) -> Path:
        return Path(checkpoint) / f"rollouts_{self.args.process_index}.pt"
