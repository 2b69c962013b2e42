"""An evaluator that sleeps as long as measured evaluations took; named by the pools of `benchmarks.ray_scale`."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass
from functools import cache

from benchmarks.common import RESULTS
from pkb_gym.engine.compile.cache import CompileCache
from pkb_gym.engine.problem import Problem
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.engine.records.feedback import Feedback, Stage
from pkb_gym.engine.stages.progress import Progress
from pkb_gym.rewards.examples import failed, timed

MEASURED = "command_times"
COMPILE_STAGES = ("static", "compile")
CHECK_STAGES = ("preparing ranks", "check", "ending ranks")


@dataclass(frozen=True)
class Durations:
    """The durations of the steps of one evaluation in seconds."""

    compile_s: float
    check_s: float
    exclusive_s: float
    fails_check: bool


@cache
def measured() -> tuple[dict[str, float], ...]:
    """Durations by stage of the evaluations in `results/command_times.json`."""
    result = json.loads((RESULTS / f"{MEASURED}.json").read_text(encoding="utf-8"))
    return tuple(run["durations_s"] for run in result["eval"].values())


def durations_of(number: int, scale: float, failing_share: float) -> Durations:
    """The durations of an evaluation, drawn from the measured ones: the same for the same number.

    Args:
        number: of the evaluation.
        scale: factor of all durations.
        failing_share: of evaluations, that fail their check.
    """
    draw = random.Random(number)
    compiled, checked, timed_ = (draw.choice(measured()) for _ in range(3))
    check_s = sum(checked.get(stage, 0.0) for stage in CHECK_STAGES)
    rest_s = sum(timed_.get(stage, 0.0) for stage in (*CHECK_STAGES, "time", "profile"))
    return Durations(
        compile_s=scale * sum(compiled.get(stage, 0.0) for stage in COMPILE_STAGES),
        check_s=scale * check_s,
        exclusive_s=scale * rest_s,
        fails_check=draw.random() < failing_share,
    )


def source_of(number: int, scale: float, failing_share: float) -> str:
    """The source by which a sleeper knows an evaluation."""
    return json.dumps([number, scale, failing_share])


class Sleeper:
    """Sleeps; see the module.

    Args:
        key, cache: as for every evaluator; without use here.
    """

    def __init__(self, *, key: bytes, cache: CompileCache) -> None:
        del key, cache

    def evaluate(
        self,
        problem: Problem,
        source: str,
        config: EvalConfig,
        progress: Progress | None = None,
        *,
        replay_key: bytes | None = None,
    ) -> Feedback:
        """See `Evaluator.evaluate`."""
        del problem, progress, replay_key
        durations = durations_of(*json.loads(source))
        if config.until == "compile":
            time.sleep(durations.compile_s)
            return _until(Stage.COMPILE)
        if config.until == "check":
            time.sleep(durations.check_s)
            return failed("output_mismatch", 0.5) if durations.fails_check else _until(Stage.CHECK)
        time.sleep(durations.exclusive_s)
        return timed(baseline_us=100, roofline_us=10, speedup_low=2)

    def close(self) -> None:
        """Nothing was started."""


def _until(stage: Stage) -> Feedback:
    whole = timed(baseline_us=100, roofline_us=10, speedup_low=2)
    return whole.model_copy(update={"stage": stage, "timing": None, "roofline": None, "profile": None})
