"""Options of GRPO that change what the loss reads: groups left out, the reference policy, batches generated ahead."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path

import pytest
import torch

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.evaluation.owner import EvaluationSchedule
from pkb_gym.training.grpo import GrpoArguments, check
from pkb_gym.training.inputs.rows import read_jsonl
from pkb_gym.training.learner import ahead
from pkb_gym.training.processes.host_group import HostGroup
from pkb_gym.training.scratch_model import make_model
from tests.envs.fake_evaluator import FakeEvaluator
from tests.training.scripted import (
    FAST,
    SLOW,
    TINY,
    Watched,
    config,
    follow,
    row,
    run,
    same_weights,
    submit,
    tokenizer_of,
    weights,
)
from tests.whole_tables import sampled

LIMIT_S = 60.0


def texts(trainer: Watched, batch: dict) -> list[str]:
    """The completions of a batch."""
    return [
        trainer._tokenizer.decode(ids[used.bool()])
        for ids, used in zip(batch["completion_ids"], batch["completion_mask"], strict=True)
    ]


def test_a_group_without_spread_is_left_out_of_the_loss(monkeypatch, policy, evaluator, tmp_path):
    """Two prompts: both rollouts of one are equally fast, so that only those of the other are learnt from."""
    speeds = itertools.cycle(["speedup 1", "speedup 1"]), itertools.cycle(["speedup 1", "speedup 10"])
    follow(monkeypatch, lambda before: submit(next(speeds["Gather" in before])))
    settings = config(tmp_path, per_device_train_batch_size=4, beta=0.1)
    rows = [row("AllReduce"), row("Gather", seed=8)]
    trainer = run(policy, evaluator, settings, rows=rows, max_turns=1, trainer_class=Watched, drop_uniform_groups=True)
    (batch,) = trainer.batches
    learnt = batch["tool_mask"].sum(dim=1)
    assert sorted(learnt.bool().tolist()) == [False, False, True, True]
    assert int(batch["num_items_in_batch"]) == int(learnt.sum())
    assert sorted(float(of[0]) for of in batch["advantages"][learnt.bool()]) == pytest.approx(
        [SLOW - FAST, FAST - SLOW]
    )
    assert trainer.state.log_history[0]["groups_dropped"] == 1


def test_beta_holds_to_the_reference_that_is_named(monkeypatch, policy, evaluator, tmp_path):
    other = tmp_path / "other"
    tokenizer = tokenizer_of(policy)
    make_model(TINY, tokenizer, seed=1).save_pretrained(other)
    follow(monkeypatch, lambda _: submit("speedup 3"))
    found = run(policy, evaluator, config(tmp_path / "run", beta=0.1), max_turns=1, reference_model=str(other))
    held = {name: of.float() for name, of in found.ref_model.state_dict().items()}
    assert all(torch.equal(held[name], of) for name, of in weights(other).items())
    assert not same_weights(other, policy)
    assert found.state.log_history[0]["kl"] > 0, "the policy is another one from the first step on"


def test_a_reference_without_beta_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="give --beta too"):
        check(GrpoArguments(prompts="", reference_model="elsewhere"), config(tmp_path))


def test_a_folder_of_weights_without_a_server_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="--vllm_mode server"):
        check(GrpoArguments(prompts="", vllm_weights_folder="/dev/shm/weights"), config(tmp_path))


class Gated(FakeEvaluator):
    """Judges the sources of batch 1 only after replies of batch 2 were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.generations = [threading.Event() for _ in range(3)]

    def evaluate(self, problem, source, config, progress=None):
        if int(source.split()[1]) // 100 == 1 and not self.generations[2].wait(LIMIT_S):
            raise TimeoutError(f"{source}: nothing was generated while it was evaluated")
        return super().evaluate(problem, f"speedup {int(source.split()[1]) % 100}", config, progress)


def test_a_batch_is_evaluated_while_the_next_is_generated(monkeypatch, policy, tmp_path):
    """Sources 1 and 10 of batch 0, 101 and 110 of batch 1 ...: those after batch 0 wait for the batch after them."""
    gated, numbers = Gated(), itertools.count()

    def script(_: str) -> str:
        number = next(numbers)
        gated.generations[number // 2].set()
        return submit(f"speedup {100 * (number // 2) + (1, 10)[number % 2]}")

    follow(monkeypatch, script)
    settings = config(tmp_path, max_steps=4, save_strategy="steps", save_steps=1)
    trainer = run(policy, gated, settings, max_turns=1, trainer_class=Watched, generate_ahead=True)
    seen = [sorted(source for text in texts(trainer, batch) for source in _numbers(text)) for batch in trainer.batches]
    assert seen == [[1, 10], [1, 10], [101, 110], [201, 210]], "a step after it was generated"
    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["updates_since_generation"] for entry in history] == [0, 1, 1, 1]
    assert [entry.get("evaluations") for entry in history] == [2, None, 2, 2], "each batch is reported once"
    assert [entry["reward"] for entry in history] == pytest.approx([(FAST + SLOW) / 2] * 4)
    for batch in trainer.batches:
        assert sorted(float(of[0]) for of in batch["advantages"]) == pytest.approx([SLOW - FAST, FAST - SLOW])
    assert next(numbers) == 6, "nothing is generated that no step learns from"
    _check_old_log_probabilities(policy, tmp_path, trainer)


def _numbers(text: str) -> list[int]:
    return [int(text.split("speedup ")[1].split('"')[0])]


def _check_old_log_probabilities(policy: Path, folder: Path, trainer: Watched) -> None:
    """Ratios are to the policy that generated: step 1 to that of the beginning, step 2 to that after one update."""
    from transformers import AutoModelForCausalLM

    for step, generated_by in ((1, policy), (2, folder / "checkpoint-1"), (3, folder / "checkpoint-2")):
        batch = trainer.batches[step]
        model = AutoModelForCausalLM.from_pretrained(generated_by)
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        used = batch["completion_mask"].bool()
        with torch.no_grad():
            mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
            logits = model(ids, attention_mask=mask).logits[:, -used.shape[1] - 1 : -1]
        expected = torch.log_softmax(logits, dim=-1).gather(2, batch["completion_ids"].unsqueeze(2)).squeeze(2)
        assert torch.allclose(batch["old_per_token_logps"][used], expected[used], atol=1e-4)


@pytest.mark.parametrize("single_turn", sampled([False, True], 2))
def test_a_run_ahead_resumes_without_the_batch_that_was_not_learnt_from(
    monkeypatch, policy, evaluator, tmp_path, single_turn
):
    numbers = itertools.count(1)

    def script(_: str) -> str:
        source = f"speedup {next(numbers)}"
        return f"```cpp\n{source}\n```<|im_end|>" if single_turn else submit(source)

    follow(monkeypatch, script)
    changes = {"max_steps": 3, "save_strategy": "steps", "save_steps": 100}
    arguments = {"generate_ahead": True, "single_turn": single_turn} | ({} if single_turn else {"max_turns": 1})
    run(policy, evaluator, config(tmp_path, **changes), max_minutes=1e-9, **arguments)
    judged = [(record["step"], record["source"].strip()) for record in read_jsonl(tmp_path / "rollouts.jsonl")]
    assert judged == [(0, "speedup 1"), (0, "speedup 2")], "the first batch is the one that the next step has"
    rest = run(policy, evaluator, config(tmp_path, resume_from_checkpoint="last", **changes), **arguments)
    assert rest.state.global_step == 3
    judged = [(record["step"], record["source"].strip()) for record in read_jsonl(tmp_path / "rollouts.jsonl")]
    assert judged[2:] == [(1, "speedup 3"), (1, "speedup 4")]


def test_ahead_is_refused_where_evaluations_take_turns_with_training(policy, evaluator, tmp_path):
    schedule = EvaluationSchedule(evaluator, HostGroup(), pausable=_Pausable())
    with pytest.raises(ConfigError, match="dedicated or ray"):
        run(policy, evaluator, config(tmp_path), schedule=schedule, generate_ahead=True)
    with pytest.raises(ConfigError, match="log_completions"):
        run(policy, evaluator, config(tmp_path, log_completions=True), generate_ahead=True)


class _Pausable:
    def pause(self, timeout_s: float) -> None:
        pass

    def resume(self) -> None:
        pass


def test_the_weights_after_the_best_steps_are_kept(monkeypatch, policy, evaluator, tmp_path):
    """Both rollouts of a step have speedups 1 and 1, 1 and 10, 10 and 2, 1 and 1: steps 2 and 3 are the best two."""
    speeds = iter([1, 1, 1, 10, 10, 2, 1, 1, 9, 9])
    follow(monkeypatch, lambda _: submit(f"speedup {next(speeds)}"))
    changes = {"save_strategy": "steps", "save_steps": 1, "max_steps": 4}
    run(policy, evaluator, config(tmp_path, **changes), max_turns=1, best_window=2)
    record = json.loads((tmp_path / "best.json").read_text())
    assert (record["step"], record["steps"]) == (3, 2)
    assert same_weights(tmp_path / "best", tmp_path / "checkpoint-3")
    assert not same_weights(tmp_path / "best", tmp_path / "checkpoint-2")
    kept = {path.name for path in (tmp_path / "best").iterdir()}
    assert {"config.json", "tokenizer.json", "trainer_state.json"} <= kept and "optimizer.pt" not in kept
    resumed = config(tmp_path, resume_from_checkpoint="last", **changes | {"max_steps": 5})
    run(policy, evaluator, resumed, max_turns=1, best_window=2)
    assert json.loads((tmp_path / "best.json").read_text()) == record, "1, 1 and 9, 9 are no better"


def test_a_window_without_checkpoints_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="best_window is a number of steps"):
        check(GrpoArguments(prompts="", best_window=2), config(tmp_path))


def test_reward_figures_by_hand():
    """Of 0, 1, 0.5 and 0.5 and one that was not judged: variance (0.25 + 0.25) / 3; one of three groups differs."""
    found = ahead.reward_figures([0.0, 1.0, 0.5, 0.5, None, None], group=2)
    assert found == {
        "reward": pytest.approx(0.5),
        "reward_std": pytest.approx((0.5 / 3) ** 0.5),
        "frac_reward_zero_std": pytest.approx(2 / 3),
    }
    assert ahead.reward_figures([None], group=1) == {}
