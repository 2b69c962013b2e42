"""Settings of the trainer beside TRL's."""

from __future__ import annotations

from dataclasses import dataclass

from pkb_gym.training.evaluation.owner import EvaluationSchedule
from pkb_gym.training.learner.turn_credit import Credit
from pkb_gym.training.processes.host_group import HostGroup
from pkb_gym.training.processes.offload import Offload
from pkb_gym.training.results.run_log import RunLog
from pkb_gym.training.rollout.decoding import DecodingWay
from pkb_gym.training.rollout.rollout_environment import Rollouts


@dataclass(frozen=True)
class TrainerSettings:
    """The arguments of `KernelGRPOTrainer` beside those of `GRPOTrainer`.

    Attributes:
        rollouts: begins episodes.
        credit: from values of turns to advantages.
        schedule: when evaluations may run.
        host: all ranks.
        log: of the run.
        multi_turn: whether the policy submits with a tool, several times; else once, by a block of code.
        generation_chunk: sequences that are generated at once; None for all of a batch.
        decoding: how transformers generates.
        offload: what leaves the GPU in a reward phase.
        max_minutes: the run is saved and ended after so many; None for no limit.
        max_submissions: likewise, after the step in which it has so many, repeated ones included; None for no limit.
        generate_ahead: whether a batch is generated a step before it is learnt from, see `ahead`.
        drop_uniform_groups: whether groups whose advantages are all 0 are left out of the loss.
    """

    rollouts: Rollouts
    credit: Credit
    schedule: EvaluationSchedule
    host: HostGroup
    log: RunLog
    multi_turn: bool = True
    generation_chunk: int | None = None
    decoding: DecodingWay = "auto"
    offload: Offload = "cache"
    max_minutes: float | None = None
    max_submissions: int | None = None
    generate_ahead: bool = False
    drop_uniform_groups: bool = False
