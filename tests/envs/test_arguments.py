"""Bad arguments of environments end in a `ConfigError` of one line that names the argument and what it takes."""

from __future__ import annotations

import gymnasium as gym
import pytest

from pkb_gym.engine.errors import ConfigError, ProblemNotFound, SizeError
from pkb_gym.engine.problem.axes import AxisValue
from pkb_gym.engine.records import config_request
from pkb_gym.engine.records.config import EvalConfig
from pkb_gym.envs.registration import env_ids
from pkb_gym.problems.catalogue import catalogue, find_problem
from pkb_gym.problems.declared_names import declared_names
from tests.envs.fake_evaluator import FakeEvaluator
from tests.whole_tables import sampled

pytestmark = pytest.mark.usefixtures("evaluator")

WRONG = [
    ({"device": "gpu"}, r"device='gpu': expected 'auto', 'cpu', 'cuda' or 'emulated'. Did you mean 'cuda'\?"),
    ({"device": None}, "device=None: expected 'auto', 'cpu', 'cuda' or 'emulated'"),
    ({"world_size": 0}, "world_size=0: expected a whole number of ranks, at least 1"),
    ({"world_size": True}, "world_size=True: expected a whole number of ranks"),
    ({"world_size": "2"}, "world_size='2': expected a whole number of ranks"),
    ({"world_size": 2.0}, r"world_size=2\.0: expected a whole number of ranks"),
    ({"ranks_per_gpu": 0}, "ranks_per_gpu=0: expected a whole number of ranks, at least 1"),
    ({"ranks_per_gpu": True}, "ranks_per_gpu=True: expected a whole number of ranks"),
    ({"ranks_per_gpu": 2}, "AllReduce: ranks_per_gpu=2 is for device 'cuda'; on device 'cpu' leave it out"),
    ({"language": "c++"}, r"language='c\+\+': expected .* or 'python'. Did you mean 'cpp'\?"),
    ({"protocol": "publishd"}, r"protocol='publishd': .* Did you mean 'published'\?"),
    ({"until": "checks"}, r"until='checks': expected .* Did you mean 'check'\?"),
    ({"timeout_s": 0.0}, "timeout_s=0.0: expected a number of seconds above 0"),
    ({"size": "tinny"}, r"AllReduce: no size 'tinny'; there are .* Did you mean 'tiny'\?"),
    ({"size": ""}, "AllReduce: no size ''"),
    ({"size": 5}, "size=5: expected the name of a size, or axes by name"),
    ({"size": {"M": "x"}}, "AllReduce: axis M='x' must be a whole number"),
    ({"size": {"M": True}}, "AllReduce: axis M=True must be a whole number"),
    ({"size": {"M": 2.5}}, r"AllReduce: axis M=2\.5 must be a whole number"),
    ({"size": {"M": -3}}, "expected numbers >= 0"),
    ({"size": {"M": float("nan")}}, r"size=\{'M': nan\}: expected"),
    ({"size": {"M": ...}}, r"size=\{'M': Ellipsis\}: expected"),
    ({"size": {"MM": 4}}, r"AllReduce: no axis MM; there are M, N. Did you mean 'M'\?"),
    ({"dtype": "fp16"}, r"dtype must be one of .*, got 'fp16'. Did you mean 'float16'\?"),
    ({"dtype": ""}, "dtype must be one of .*, got ''"),
    ({"dtype": 16}, "dtype=16: expected the name of a dtype"),
    ({"evaluator": "lokal"}, r"no evaluator 'lokal'; .* Did you mean 'local'\?"),
    ({"evaluator": 5}, "an evaluator is a name, a url or an object with evaluate and close, got 5"),
    ({"evaluator": FakeEvaluator}, r"an evaluator is an object; make one: FakeEvaluator\(...\)"),
    ({"devise": "cpu"}, r"PKBEnv: no argument 'devise'; there are .* Did you mean 'device'\?"),
    ({"device": "gpu", "world_size": 0}, "device='gpu': .*; world_size=0: "),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[repr(arguments) for arguments, _ in WRONG])
def test_a_wrong_argument_is_named_with_its_choices(arguments, message):
    with pytest.raises(ConfigError, match=message) as raised:
        gym.make("PKB/AllReduce-v0", **{"device": "cpu", "evaluator": "fake"} | arguments)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "trian"}, r"no split 'trian'; .* Did you mean 'train'\?"),
        ({"split": 5}, "a split is a name or a list of problems, got 5"),
        ({"split": [5]}, "a problem is found by its name, a text such as 'AllReduce'; got 5"),
        ({"split": ["AllReduc"]}, "Did you mean 'AllReduce'"),
        ({"split": {"AllReduce": 1}}, "a split is a name or a list of problems"),
        ({"sampler": {"name": []}}, r"no sampler \[\]"),
        ({"problem": "AllReduce"}, r"SuiteEnv: problem='AllReduce' is for one reset, env.reset\(options=.*; split=\["),
        ({"problems": ["AllReduce"]}, r"SuiteEnv: no argument 'problems'; there are split, sampler, device, "),
        ({"splitt": "train"}, r"SuiteEnv: no argument 'splitt'; there are split, sampler, .* Did you mean 'split'\?"),
    ],
)
def test_a_wrong_argument_of_the_suite_is_named(arguments, message):
    with pytest.raises(ConfigError, match=message):
        gym.make("PKB/Suite-v0", **{"device": "cpu", "evaluator": "fake"} | arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (5, "options are a mapping of names, got 5"),
        ("problem", "options are a mapping of names, got 'problem'"),
        ({"probem": "AllReduce"}, r"no option probem; known: problem. Did you mean 'problem'\?"),
        ({5: 1}, "no option 5; known: problem"),
        ({"problem": 5}, "a problem is found by its name"),
        ({"problem": "AllReduc"}, "Did you mean 'AllReduce'"),
    ],
)
def test_wrong_options_of_a_reset_are_named(options, message):
    env = gym.make("PKB/Suite-v0", split=["AllReduce"], device="cpu", evaluator="fake")
    with pytest.raises(ConfigError, match=message):
        env.reset(options=options)
    env.reset()
    assert env.step("speedup 2")[-1]["feedback"].passed, "Gymnasium's checker has a TypeError after a failed reset"


@pytest.mark.parametrize("count", [0, True, "2", 2.0])
def test_a_wrong_number_of_copies_is_refused(count):
    with pytest.raises(ConfigError, match=f"num_envs must be a whole number, at least 1, got {count!r}"):
        gym.make_vec("PKB/AllReduce-v0", num_envs=count, device="cpu", evaluator="fake")


def test_wrong_actions_of_a_vector_environment_are_refused():
    envs = gym.make_vec("PKB/AllReduce-v0", num_envs=2, device="cpu", evaluator="fake")
    envs.reset(seed=0)
    with pytest.raises(ConfigError, match="expected a sequence of 2 sources"):
        envs.step(5)
    envs.close()


KINDS: tuple[AxisValue, ...] = ("x", 2.5, True, None, (), (1,), ((0,),), ("a",), -1, 0, 1, 3)


@pytest.mark.parametrize("problem", sampled(catalogue(), 4), ids=lambda problem: problem.name)
def test_axes_of_any_kind_fit_or_are_refused(problem):
    """Declarations compute with axes as they please, and failed with whatever Python raised."""
    for axis in problem.sizes["tiny"]:
        for value in KINDS:
            try:
                problem.check_axes({axis: value}, 4, problem.dtypes[0], "robust")
            except SizeError as error:
                assert str(error).startswith(f"{problem.name}: ")


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("ClipGradNorm", {"norm_type": 0}),
        ("ClipGradNormEP", {"norm_type": 16384}),
        ("GNNFeatureExchange", {"row": ()}),
        ("GNNSparseFeatureFetch", {"O": 7, "T": 3}),
        ("KalmanFilterOptimizer", {"blocks": ()}),
        ("RingAttentionBackwardDP", {"d": 0}),
    ],
)
def test_axes_that_no_trial_can_be_drawn_from_are_refused(name, size):
    """Only the axes as they were named were tried; the first draw failed within the evaluation."""
    with pytest.raises(ConfigError, match=rf"^{name}: axes .* do not fit together: "):
        gym.make(f"PKB/{name}-v0", size=size, world_size=4, device="cpu", evaluator="fake")


def test_no_axes_at_all_are_those_of_the_published_size():
    """An empty mapping was taken for no choice, and became the tiny size."""
    env = gym.make("PKB/AllReduce-v0", size={}, device="cpu", evaluator="fake")
    assert env.unwrapped.config.size == {}


@pytest.mark.parametrize("problem", [find_problem("HyenaCP"), find_problem("AllReduce"), find_problem("TPMuon")])
def test_other_spellings_say_which_id_is_meant(problem):
    """Gymnasium's own search finds no 'HyenaCP' near 'hyena_cp' or '72_hyena_forward_cp'."""
    spellings = [problem.name, problem.folder, problem.upstream, f"PKB/{problem.folder}", f"PKB/{problem.upstream}"]
    for spelling in [*spellings, f"PKB/{problem.name.lower()}"]:
        for make in (gym.make, gym.make_vec):
            with pytest.raises(ConfigError, match=rf"Did you mean gym.make\('{problem.env_id}'\)\?"):
                make(f"{spelling}-v0", device="cpu", evaluator="fake")


def test_other_spellings_are_those_of_the_catalogue():
    found = {(names.name, names.folder, names.upstream) for names in declared_names()}
    assert found == {(problem.name, problem.folder, problem.upstream) for problem in catalogue()}


def test_ids_of_environments_leave_out_other_spellings():
    assert sorted(env_ids()) == sorted([*(problem.env_id for problem in catalogue()), "PKB/Path-v0", "PKB/Suite-v0"])
    assert "PKB/all_reduce-v0" in gym.registry


def test_every_field_of_a_configuration_has_words():
    for name in EvalConfig.model_fields:
        assert config_request.choices_of(name) or config_request.EXPECTED[name]


def test_errors_of_arguments_are_config_errors():
    """Whoever catches ConfigError around `gym.make` catches sizes and problems that do not exist, too."""
    assert issubclass(SizeError, ConfigError) and issubclass(ProblemNotFound, ConfigError)
