"""The contract of every registered id; problems that are added are tested by being there."""

from __future__ import annotations

import pickle

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env, data_equivalence

from pkb_gym.engine.errors import ConfigError, ProblemNotFound, SizeError
from pkb_gym.engine.hardware import host
from pkb_gym.engine.records.feedback import Failure, Feedback
from pkb_gym.engine.records.source import MAX_SOURCE_BYTES
from pkb_gym.envs import PKBEnv
from pkb_gym.envs.evaluator_registry import add_evaluator, close_evaluators, find_evaluator
from pkb_gym.envs.registration import env_ids, register_all
from pkb_gym.envs.text.turn import STYLES
from pkb_gym.problems.catalogue import catalogue, reference_source
from pkb_gym.problems.declared_names import declared_names
from pkb_gym.rewards import Correctness
from tests.envs.fake_evaluator import FakeEvaluator
from tests.whole_tables import sampled

IDS = sorted(set(env_ids()) - {"PKB/Path-v0"})  # that one needs a path
pytestmark = pytest.mark.usefixtures("evaluator")


def make(env_id: str = "PKB/AllReduce-v0", **kwargs) -> gym.Env:
    return gym.make(env_id, evaluator="fake", device="cpu", **kwargs)


def test_every_problem_of_the_catalogue_has_an_id():
    """Names are read from the files' text at import; what the catalogue builds decides."""
    assert [names.name for names in declared_names()] == sorted(problem.name for problem in catalogue())
    assert sorted([*(problem.env_id for problem in catalogue()), "PKB/Suite-v0"]) == IDS


def test_registering_again_changes_nothing():
    before = dict(gym.registry)
    register_all()
    assert gym.registry == before


@pytest.mark.parametrize("env_id", [*sampled(IDS, 10), "PKB/Suite-v0"])
def test_check_env(env_id):
    """Any warning is an error here (see pyproject.toml); `make all` checks every id."""
    check_env(make(env_id).unwrapped)


@pytest.mark.parametrize("env_id", IDS)
def test_spec(env_id):
    spec = gym.spec(env_id)
    assert spec.nondeterministic and spec.max_episode_steps == 8
    assert isinstance(spec.entry_point, str) and isinstance(spec.vector_entry_point, str)


def test_all_arguments_survive_json():
    arguments = {
        "device": "cpu",
        "world_size": 2,
        "size": {"M": 64, "N": 32},
        "dtype": "float32",
        "language": "cpp",
        "protocol": "published",
        "until": "check",
        "timeout_s": 5.0,
        "reward": "fast_p:2.0",
        "evaluator": "fake",
        "render_mode": "ansi",
    }
    env = gym.make("PKB/AllReduce-v0", **arguments)
    again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert again.spec.kwargs == env.spec.kwargs == arguments | {"problem": "AllReduce"}
    assert again.unwrapped.config == env.unwrapped.config
    assert again.unwrapped.render_mode == "ansi"


def test_sizes_with_tuples_survive_json():
    """JSON has no tuples, and axes have no lists."""
    spec = make("PKB/KJTAllToAll-v0", world_size=2, size={"pg": ((0, 1),)}).spec
    again = gym.make(gym.envs.registration.EnvSpec.from_json(spec.to_json()))
    assert again.unwrapped.config.size == {"pg": ((0, 1),)}


def test_a_reward_object_can_be_given_and_pickled():
    env = make(reward=pickle.loads(pickle.dumps(Correctness())))
    env.reset(seed=0)
    assert env.step("speedup 0.5")[1] == 1.0


def test_reset_starts_nothing(monkeypatch):
    def start():
        raise AssertionError("an evaluator was started")

    add_evaluator("must not start", start)
    env = gym.make("PKB/AllReduce-v0", evaluator="must not start", device="cpu")
    env.reset(seed=0)
    env.reset()
    env.close()


def test_the_seed_fixes_the_inputs_of_this_episode_and_of_those_that_follow():
    def input_seeds(seed):
        env = make()
        return [env.reset(seed=seed)[1]["input_seed"], env.reset()[1]["input_seed"], env.reset()[1]["input_seed"]]

    assert input_seeds(5) == input_seeds(5) != input_seeds(6)
    assert len(set(input_seeds(5))) == 3


def test_the_request_to_the_evaluator_agrees_with_the_task_text(evaluator):
    """A service may run on another machine, whose defaults are others."""
    env = gym.make("PKB/AllReduce-v0", evaluator="fake", device="cpu").unwrapped
    env.reset(seed=0)
    env.step("a")
    ((_, _, requested),) = evaluator.requested
    assert (requested.device, requested.world_size, requested.size, requested.dtype) == ("cpu", 4, "tiny", "bfloat16")


def test_the_evaluator_is_asked_with_seed_and_turn(evaluator):
    env = make(world_size=2, size="tiny", dtype="float32")
    seed = env.reset(seed=3)[1]["input_seed"]
    env.step("a")
    env.step("b")
    assert [(name, source) for name, source, _ in evaluator.requested] == [("AllReduce", "a"), ("AllReduce", "b")]
    assert [(config.seed, config.turn) for _, _, config in evaluator.requested] == [(seed, 0), (seed, 1)]
    assert {(config.world_size, config.size, config.dtype) for *_, config in evaluator.requested} == {
        (2, "tiny", "float32")
    }


def test_a_source_that_comes_again_gets_its_first_verdict(evaluator):
    """Eight equal submissions, each timed anew, were paid for the luckiest one."""
    env = make()
    env.reset(seed=1)
    rewards = [env.step(source)[1] for source in ("speedup 2", "speedup 3", "speedup 2")]
    assert [source for _, source, _ in evaluator.requested] == ["speedup 2", "speedup 3"]
    assert rewards[0] > 0 and rewards[2] == 0
    env.reset()
    env.step("speedup 2")
    assert len(evaluator.requested) == 3, "another episode has other inputs"


def test_a_step_returns_the_findings():
    env = make()
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step("speedup 10")
    assert (reward, terminated, truncated) == (pytest.approx(1.3, abs=1e-3), False, False)
    assert isinstance(info["feedback"], Feedback)
    assert info["reward_valid"] and info["reward_parts"] == {"ladder": 1.0, "performance": pytest.approx(0.3, abs=1e-3)}
    assert observation["is_timed"] == observation["is_placed"] == observation["is_checked"] == 1
    assert observation["times_us"].tolist() == [100, pytest.approx(10)]
    assert observation["speedup"].tolist() == [10, 10, 10]
    assert observation["utilisation"].tolist() == [pytest.approx(0.1), pytest.approx(1)]


def test_the_best_so_far_stays():
    env = make()
    env.reset(seed=0)
    for source in ("compile error", "speedup 2", "output_mismatch 0.5"):
        observation, *_ = env.step(source)
    assert observation["turn"].tolist() == [3] and observation["best_turn"].tolist() == [2]
    assert observation["best_source"] == "speedup 2" and observation["best_speedup"].tolist() == [2]
    assert observation["is_timed"] == 0 and "differ" in observation["correctness_report"]
    assert env.reset()[0]["best_turn"].tolist() == [0]


def test_an_episode_ends_after_its_turns():
    env = make(max_episode_steps=3)
    env.reset(seed=0)
    assert [env.step("speedup 1")[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]
    assert gym.make("PKB/AllReduce-v0", evaluator="fake", device="cpu").spec.max_episode_steps == 8


def test_a_fault_of_ours_ends_the_episode_without_reward():
    env = make()
    env.reset(seed=0)
    env.step("speedup 2")
    observation, reward, terminated, truncated, info = env.step("infrastructure")
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["reward_valid"] is False and "value" not in info
    assert observation["best_turn"].tolist() == [1]


NO_SOURCES = ["", "  ", "a\0b", "x" * (MAX_SOURCE_BYTES + 1), "\ud800"]


@pytest.mark.parametrize("source", NO_SOURCES, ids=["empty", "blank", "NUL", "over-long", "lone surrogate"])
def test_what_is_no_source_is_data(source):
    env = make()
    env.reset(seed=0)
    observation, reward, _, truncated, info = env.step(source)
    assert info["feedback"].failure is Failure.REJECTED and reward == 0.0 and not truncated
    assert observation in env.observation_space


def test_an_action_that_is_no_text_is_wrong_usage():
    env = make()
    env.reset(seed=0)
    with pytest.raises(gym.error.InvalidAction, match=r"an action is source text \(str\), got bytes"):
        env.step(b"void solution() {}")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"world_size": 3}, SizeError, "AllReduce: world size must be one of"),
        ({"size": "huge"}, SizeError, "AllReduce: no size 'huge'"),
        ({"size": {"Q": 1}}, SizeError, "AllReduce: no axis Q"),
        ({"dtype": "int8"}, SizeError, "AllReduce: dtype must be one of"),
        ({"language": "cuda"}, ConfigError, "does not run on device 'cpu'"),
        ({"reward": "defualt"}, ConfigError, "Did you mean 'default'"),
        ({"evaluator": "tcp://node:8000"}, ConfigError, "is no url of an evaluation service"),
        ({"evaluator": "lokal"}, ConfigError, "no evaluator 'lokal'; there are local"),
        ({"problem": "AllRedcue"}, ProblemNotFound, "Did you mean 'AllReduce'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_at_once(arguments, error, message):
    with pytest.raises(error, match=message):
        PKBEnv(**{"problem": "AllReduce", "device": "cpu", "evaluator": "fake"} | arguments)


def test_an_unknown_option_is_refused():
    with pytest.raises(ConfigError, match=r"PKBEnv.reset: no option problem; known: none"):
        make().reset(options={"problem": "Gather"})


def test_the_evaluator_is_shared_and_closed_once_at_the_end():
    made = []

    def start():
        made.append(FakeEvaluator())
        return made[-1]

    add_evaluator("counted", start)
    for _ in range(2):
        env = gym.make("PKB/AllReduce-v0", evaluator="counted", device="cpu")
        env.reset(seed=0)
        env.step("speedup 1")
        env.close()
    assert len(made) == 1 and not made[0].closed
    with pytest.raises(ConfigError, match="'counted' is already at work"):
        add_evaluator("counted", start)
    close_evaluators()
    assert made[0].closed
    assert find_evaluator("counted") is made[1]


def test_observations_of_equal_seeds_are_equal():
    first, second = (make().reset(seed=1)[0] for _ in range(2))
    assert data_equivalence(first, second, exact=True)
    assert isinstance(first["stage"], np.int64)


@pytest.mark.parametrize("problem", sampled(catalogue(), 4, 2), ids=lambda problem: problem.name)
def test_the_task_text_holds_all_that_an_author_needs(problem):
    task = make(problem.env_id, world_size=2, style="full").reset(seed=0)[0]["task"]
    assert problem.summary in task and reference_source(problem).rstrip() in task
    assert "TVM_FFI_DLL_EXPORT_TYPED_FUNC(solution, solution)" in task and "pkb::Comm comm" in task
    for named in (*problem.args, *problem.outputs):
        assert f"- `{named.name}`" in task
    for out in problem.outputs:
        assert f"- `{out.name}`: {out.check.describe(problem.dtypes[0])}" in task
    assert "2 ranks" in task and "Peaks" in task


def test_the_task_text_shows_the_dialects_asked_for():
    assert "pkb::Comm" not in make(language="python").reset(seed=0)[0]["task"]
    native = make(language="cpp").reset(seed=0)[0]["task"]
    assert "pkb::Comm" in native and "Python module" not in native


def test_the_style_is_the_length_of_the_task_text():
    lengths = {style: len(make(style=style).reset(seed=0)[0]["task"]) for style in STYLES}
    assert lengths["full"] > lengths["standard"] > lengths["brief"]
    assert len(make().reset(seed=0)[0]["task"]) == lengths["standard"]
    with pytest.raises(ConfigError, match="style must be one of full, standard, brief, got 'short'"):
        make(style="short")


def test_the_class_has_all_headings():
    headings = (
        "Description",
        "Action Space",
        "Observation Space",
        "Rewards",
        "Starting State",
        "Episode End",
        "Arguments",
    )
    for env in (PKBEnv, type(make("PKB/Suite-v0").unwrapped)):
        assert all(f"## {heading}" in env.__doc__ for heading in (*headings, "Version History"))
    for key in make().observation_space:
        assert f"`{key}`" in PKBEnv.__doc__, f"the class does not explain observation entry {key}"


def test_a_size_that_does_not_fit_this_machine_is_refused_at_make(monkeypatch):
    """It ended in an infrastructure failure, episode after episode."""
    monkeypatch.setattr(host, "memory_total_bytes", lambda: 16 << 30)
    requested = {"device": "cpu", "world_size": 2, "size": "published"}
    with pytest.raises(ConfigError, match=r"GNNSparseFeatureFetch: .* needs 1\d\d\.\d GiB .* has 16\.0 GiB"):
        gym.make("PKB/GNNSparseFeatureFetch-v0", evaluator="local", **requested)
    gym.make("PKB/GNNSparseFeatureFetch-v0", evaluator="http://127.0.0.1:1", **requested)  # it has a memory of its own
