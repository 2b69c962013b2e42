"""Settings of the trainer beside TRL's."""

from __future__ import annotations

from dataclasses import dataclass, field

from pkb_gym.training.evaluation.owner import EvaluationSchedule
from pkb_gym.training.inputs.dialogue_options import DialogueOptions
from pkb_gym.training.learner.turn_credit import Credit
from pkb_gym.training.processes.host_group import HostGroup
from pkb_gym.training.processes.offload import Offload
from pkb_gym.training.results.run_log import RunLog
from pkb_gym.training.rollout.rollouts import Rollouts


@dataclass(frozen=True)
class TrainerSettings:
    """The arguments of `KernelGRPOTrainer` beside those of `GRPOTrainer`.

    Attributes:
        rollouts: Environment that begins episodes.
        credit: Function from values of turns to advantages.
        schedule: Schedule of evaluations.
        host: Group of all ranks.
        log: Log of the run.
        dialogue: Options of the dialogue between policy and environment.
        generation_chunk: Number of sequences that are generated at once; None for all of a batch.
        offload: Contents that leave the GPU in a reward phase.
        max_minutes: Time limit in minutes, after which the run is saved and ended; None for no limit.
        max_submissions: Maximum number of submissions, repeated ones included; the run ends after the step that reaches
            it. None for no limit.
        generate_ahead: Whether a batch is generated a step before it is learnt from, see `ahead`.
        drop_uniform_groups: Whether groups whose advantages are all 0 are left out of the loss.
    """

    rollouts: Rollouts
    credit: Credit
    schedule: EvaluationSchedule
    host: HostGroup
    log: RunLog
    dialogue: DialogueOptions = field(default_factory=DialogueOptions)
    generation_chunk: int | None = None
    offload: Offload = "cache"
    max_minutes: float | None = None
    max_submissions: int | None = None
    generate_ahead: bool = False
    drop_uniform_groups: bool = False
