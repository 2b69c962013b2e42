"""GRPO learns from what it should, and from nothing else; tiny policies, evaluators that start nothing."""

from __future__ import annotations

import functools
import json
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from trl import GRPOTrainer

from pkb_gym.engine.errors import ConfigError, InfrastructureError
from pkb_gym.rewards.default import LadderThenPerformance
from pkb_gym.rewards.examples import failed, timed
from pkb_gym.training.inputs.rows import read_jsonl
from pkb_gym.training.learner.trainer import KernelGRPOTrainer
from pkb_gym.training.results.archive import Archive
from tests.envs.fake_evaluator import FakeEvaluator
from tests.training.scripted import (
    config,
    follow,
    lines,
    row,
    run,
    say,
    script_generation,
    submit,
    tokenizer_of,
    write_tiny_policy,
)

FAST = LadderThenPerformance()(timed(baseline_us=100, roofline_us=10, speedup_low=10))
SLOW = LadderThenPerformance()(timed(baseline_us=100, roofline_us=10, speedup_low=1))
BROKEN = LadderThenPerformance()(failed("compile_error"))


@pytest.fixture(scope="session")
def policy(corpus, tmp_path_factory) -> Path:
    return write_tiny_policy(corpus, tmp_path_factory.mktemp("policy"))


@pytest.fixture
def evaluator() -> FakeEvaluator:
    return FakeEvaluator()


class Watched(KernelGRPOTrainer):
    """Keeps what it learns from, and the gradient that this leaves."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.batches: list[dict] = []

    def _compute_loss(self, model, inputs):
        self.batches.append(inputs)
        return super()._compute_loss(model, inputs)


def weights(policy: Path) -> dict[str, torch.Tensor]:
    return load_file(policy / "model.safetensors")


def same_weights(one: Path, other: Path) -> bool:
    mine, theirs = weights(one), weights(other)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def log_probability(policy: Path, trainer: KernelGRPOTrainer, before: list[int], said: list[int]) -> float:
    """Of some tokens after others, by the policy as it was (None: as it is)."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(policy)
    ids = torch.tensor([before + said])
    with torch.no_grad():
        found = torch.log_softmax(model(ids).logits[0, len(before) - 1 : -1], dim=-1)
    return float(found.gather(1, torch.tensor([said]).T).sum())


def test_advantages_and_masks_of_two_turns_by_hand(monkeypatch, policy, evaluator, tmp_path):
    """Two rollouts; one improves on its second turn and closes, the other is right at once and closes.

    Improvements are (BROKEN, FAST - BROKEN, 0) and (SLOW, 0): to close is the second's second turn.
    """
    first, second, fix, bye = submit("compile_error"), submit("speedup 1"), submit("speedup 10"), say("Bye.")
    follow(monkeypatch, lines(first, second, fix, bye, bye))
    trainer = run(policy, evaluator, config(tmp_path), max_turns=3, trainer_class=Watched)
    (batch,) = trainer.batches
    tokenizer = tokenizer_of(policy)
    gap, gain = SLOW - BROKEN, FAST - BROKEN
    expected = {
        "compile_error": [(first, -gap), (None, 0.0), (fix, gain), (None, 0.0), (bye, 0.0)],
        "speedup 1": [(second, gap), (None, 0.0), (bye, -gain)],
    }
    for ids, mask, said, advantages in zip(
        batch["completion_ids"], batch["completion_mask"], batch["tool_mask"], batch["advantages"], strict=True
    ):
        ids, said, advantages = ids[mask.bool()], said[mask.bool()], advantages[mask.bool()]
        text = tokenizer.decode(ids)
        parts = expected["compile_error" if "compile_error" in text else "speedup 1"]
        at = 0
        for number, (message, advantage) in enumerate(parts):
            if message is None:
                after = tokenizer(parts[number + 1][0])["input_ids"]
                size = next(n for n in range(len(ids)) if ids[at + n : at + n + len(after)].tolist() == after)
                assert "<tool_response>" in tokenizer.decode(ids[at : at + size])
            else:
                size = len(tokenizer(message)["input_ids"])
                assert tokenizer.decode(ids[at : at + size]) == message
            assert said[at : at + size].tolist() == [int(message is not None)] * size
            assert advantages[at : at + size].tolist() == pytest.approx([advantage] * size)
            at += size
        assert at == len(ids)
    assert trainer.state.log_history[0]["reward/AllReduce"] == pytest.approx((FAST + SLOW) / 2)


def test_a_malformed_second_call_has_an_advantage_of_its_own(monkeypatch, policy, evaluator, tmp_path):
    """Own values are (FAST, 0) and (SLOW, SLOW): the malformed call has -SLOW, not FAST - SLOW of its first turn."""
    cut = submit("speedup 20").replace("}\n</tool_call>", "")
    follow(monkeypatch, lines(submit("speedup 10"), submit("speedup 1"), cut, submit("speedup 1")))
    arguments = {"credit": "own_value", "advantages": "leave_one_out", "max_turns": 2}
    trainer = run(policy, evaluator, config(tmp_path), trainer_class=Watched, **arguments)
    (batch,) = trainer.batches
    tokenizer = tokenizer_of(policy)
    at = next(row for row, ids in enumerate(batch["completion_ids"]) if "speedup 10" in tokenizer.decode(ids))
    found = batch["advantages"][at]
    begin = len(tokenizer(submit("speedup 10"))["input_ids"])
    size = len(tokenizer(cut)["input_ids"])
    end = int(batch["completion_mask"][at].sum())
    assert tokenizer.decode(batch["completion_ids"][at][end - size : end]) == cut
    assert found[:begin].tolist() == pytest.approx([FAST - SLOW] * begin)
    assert found[end - size : end].tolist() == pytest.approx([-SLOW] * size)


def test_an_exception_in_a_tool_takes_its_rollout_out_of_the_group(monkeypatch, policy, evaluator, tmp_path):
    """Of values 1, none and FAST the mean is that of the two that are known."""
    from pkb_gym.training.rollout.episodes import RolloutEpisode

    judge = RolloutEpisode.submit

    async def fragile(self, source):
        if source == "speedup 5":
            raise KeyError("a bug of this project")
        return await judge(self, source)

    monkeypatch.setattr(RolloutEpisode, "submit", fragile)
    follow(monkeypatch, lines(*map(submit, ("speedup 1", "speedup 5", "speedup 10"))))
    settings = config(tmp_path, num_generations=3, per_device_train_batch_size=3)
    trainer = run(policy, evaluator, settings, max_turns=1, trainer_class=Watched, advantages="group_mean")
    half = (FAST - SLOW) / 2
    (batch,) = trainer.batches
    assert sorted(batch["advantages"][:, 0].tolist()) == pytest.approx([-half, 0.0, half])
    logged = trainer.state.log_history[0]
    assert logged["faults/crashed"] == 1 and logged["reward/AllReduce"] == pytest.approx((FAST + SLOW) / 2)


def test_the_environments_words_have_no_loss(monkeypatch, policy, evaluator, tmp_path):
    """Whatever log-probability its tokens have, loss and gradient are the same."""
    follow(
        monkeypatch, lines(submit("compile_error"), submit("speedup 1"), submit("speedup 10"), say("Bye."), say("Bye."))
    )

    class Probed(Watched):
        """Computes each loss twice; the second time the environment's tokens have other log-probabilities."""

        noise = 0.0

        def _get_per_token_logps_and_entropies(self, *args, **kwargs):
            logps, entropies, aux = super()._get_per_token_logps_and_entropies(*args, **kwargs)
            logps.retain_grad()
            self.logps = logps
            masked = 1 - self.batches[-1]["tool_mask"] * self.batches[-1]["completion_mask"]
            return logps + self.noise * masked, entropies, aux

        def _compute_loss(self, model, inputs):
            loss = super()._compute_loss(model, inputs)
            loss.backward()
            masked = inputs["tool_mask"] * inputs["completion_mask"] == 0
            assert not self.logps.grad[masked].any() and self.logps.grad[~masked].any()
            model.zero_grad()
            self.noise = 3.0
            inputs["old_per_token_logps"] = self.logps.detach()
            other = super()._compute_loss(model, inputs)
            assert torch.equal(loss.detach(), other.detach())
            self.noise = 0.0
            return other

    trainer = run(policy, evaluator, config(tmp_path), max_turns=3, trainer_class=Probed)
    assert trainer.batches


@pytest.mark.parametrize(
    ("credit", "advantages"), [("improvement_only", "leave_one_out"), ("outcome", "group_relative")]
)
def test_with_a_constant_reward_the_policy_does_not_drift(monkeypatch, policy, evaluator, tmp_path, credit, advantages):
    follow(monkeypatch, lambda before: submit("speedup 3"))
    arguments = {"credit": credit, "advantages": advantages, "max_turns": 2}
    # Of three equal values the mean is not always exactly the same number.
    settings = config(tmp_path, max_steps=2, num_generations=3, per_device_train_batch_size=3)
    trainer = run(policy, evaluator, settings, **arguments)
    assert trainer.state.global_step == 2 and trainer.state.log_history[0]["reward"] > 1
    assert same_weights(policy, tmp_path)


def test_a_better_kernel_of_the_group_becomes_more_likely(monkeypatch, policy, evaluator, tmp_path):
    said = lines(submit("speedup 1"), submit("speedup 10"), submit("compile_error"), submit("speedup 1"))
    follow(monkeypatch, said)
    settings = config(tmp_path, num_generations=4, per_device_train_batch_size=4)
    trainer = run(policy, evaluator, settings, max_turns=1, trainer_class=Watched)
    tokenizer = tokenizer_of(policy)
    batch = trainer.batches[0]
    before = batch["prompt_ids"][0][batch["prompt_mask"][0].bool()].tolist()
    gains = {
        source: log_probability(tmp_path, trainer, before, ids) - log_probability(policy, trainer, before, ids)
        for source in ("speedup 10", "compile_error")
        for ids in [tokenizer(submit(source))["input_ids"]]
    }
    assert gains["speedup 10"] > 0.1 and gains["speedup 10"] > gains["compile_error"]
    best, *_ = Archive.read(tmp_path / "archive.jsonl").kernels("AllReduce")
    assert (best.source, best.speedup, best.step) == ("speedup 10", 10, 0)


class Fragile(FakeEvaluator):
    """Falls whenever it is to judge a certain source."""

    def evaluate(self, problem, source, config, progress=None):
        if source == "speedup 5":
            raise InfrastructureError("the service was killed")
        return super().evaluate(problem, source, config, progress)


def test_an_evaluator_that_falls_in_a_step_neither_stops_nor_poisons_it(monkeypatch, policy, tmp_path):
    """Of three rollouts that are judged, one is better; the fourth, which is not, moves nothing and nobody's mean."""
    said = [submit("speedup 1"), submit("speedup 5"), submit("speedup 10"), submit("speedup 1")]
    follow(monkeypatch, lines(*said))
    settings = config(tmp_path, num_generations=4, per_device_train_batch_size=4)
    trainer = run(policy, Fragile(), settings, max_turns=1, trainer_class=Watched, advantages="group_mean")
    found = {
        ("1", "5", "10")[1 if "speedup 5" in text else 2 if "speedup 10" in text else 0]: advantages[0].item()
        for text, advantages in (
            (trainer._tokenizer.decode(ids), advantages)
            for ids, advantages in zip(
                trainer.batches[0]["completion_ids"], trainer.batches[0]["advantages"], strict=True
            )
        )
    }
    mean = (2 * SLOW + FAST) / 3
    assert found == {"1": pytest.approx(SLOW - mean), "5": 0.0, "10": pytest.approx(FAST - mean)}
    logged = trainer.state.log_history[0]
    assert (logged["faults/crashed"], logged["submissions"], logged["reward/AllReduce"]) == (1, 4, pytest.approx(mean))
    assert all(parameter.isfinite().all() for parameter in trainer.model.parameters())
    assert trainer.state.global_step == 1
    records = {record["source"]: record for record in read_jsonl(tmp_path / "rollouts.jsonl")}
    assert records["speedup 5"]["reward"] is None and records["speedup 5"]["fault"] == "crashed"


def test_a_single_submission_is_a_block_of_code(monkeypatch, policy, evaluator, tmp_path):
    follow(monkeypatch, lines(say("```cpp\nspeedup 10\n```"), say("I cannot."), *[say("```\nspeedup 1\n```")] * 2))
    settings = config(tmp_path, num_generations=4, per_device_train_batch_size=4)
    trainer = run(policy, evaluator, settings, single_turn=True, trainer_class=Watched)
    logged = trainer.state.log_history[0]
    ten, one = (LadderThenPerformance()(FakeEvaluator._found(f"speedup {number}\n").model_copy()) for number in (10, 1))
    assert logged["reward/AllReduce"] == pytest.approx((ten + 2 * one) / 4)
    assert (logged["submissions"], logged["evaluations"], logged["duplicates"]) == (3, 2, 1)
    assert len(evaluator.asked) == 2 and logged["episodes_without_submission"] == 1
    assert trainer.batches[0]["advantages"].shape == trainer.batches[0]["completion_ids"].shape


def test_the_last_submission_that_is_allowed_ends_a_rollout(monkeypatch, policy, evaluator, tmp_path):
    asked = []

    def script(before: str) -> str:
        asked.append(before)
        return submit(f"speedup {len(asked)}")

    follow(monkeypatch, script)
    trainer = run(policy, evaluator, config(tmp_path, max_completion_length=2000), max_turns=2, trainer_class=Watched)
    assert len(asked) == 4 and len(evaluator.asked) == 4
    ends = [
        ids[mask.bool()][-1]
        for ids, mask in zip(trainer.batches[0]["completion_ids"], trainer.batches[0]["completion_mask"], strict=True)
    ]
    assert all(end == trainer._tokenizer.eos_token_id for end in ends)
    assert trainer.state.log_history[0]["completions/clipped_ratio"] == 0


def test_a_call_that_cannot_be_carried_out_is_answered_and_earns_nothing(monkeypatch, policy, evaluator, tmp_path):
    bad = submit("speedup 10").replace('"source"', '"text"')
    follow(monkeypatch, lines(bad, bad, submit("speedup 10"), say("I give up.")))
    arguments = {"credit": "own_value", "advantages": "group_mean", "over": "group"}
    trainer = run(policy, evaluator, config(tmp_path), max_turns=2, trainer_class=Watched, **arguments)
    logged = trainer.state.log_history[0]
    assert logged["tools/failure_frequency"] == pytest.approx(2 / 3) and logged["submissions"] == 1
    assert logged["reward/AllReduce"] == pytest.approx(FAST / 2)
    (batch,) = trainer.batches
    said = (batch["completion_mask"] * batch["tool_mask"]).bool()
    found = sorted(sorted(set(own[mask].tolist())) for own, mask in zip(batch["advantages"], said, strict=True))
    # Own values are (0, FAST) and, with the reply that gives up, (0, 0); their mean is FAST / 4.
    assert found == [[pytest.approx(-FAST / 4)], [pytest.approx(-FAST / 4), pytest.approx(3 * FAST / 4)]]


def test_rollouts_without_room_for_more_end(monkeypatch, policy, evaluator, tmp_path):
    """Their last submission counts; what was answered to it is left out."""
    follow(monkeypatch, lambda before: submit("speedup 10"))
    size = len(tokenizer_of(policy)(submit("speedup 10"))["input_ids"])
    trainer = run(
        policy, evaluator, config(tmp_path, max_completion_length=size + 3), max_turns=4, trainer_class=Watched
    )
    assert trainer.batches[0]["completion_ids"].shape[1] == size and trainer.batches[0]["tool_mask"].all()
    assert trainer.state.log_history[0]["submissions"] == 2


def test_submissions_are_judged_while_others_are_generated(policy, tmp_path, monkeypatch):
    """The first sequence ends long before the second; by the time that the second does, the first is being judged."""
    begun = threading.Event()
    seen = []

    class Noticing(FakeEvaluator):
        def evaluate(self, problem, source, config, progress=None):
            begun.set()
            return super().evaluate(problem, source, config, progress)

    tokenizer = tokenizer_of(policy)
    words = [tokenizer(submit("speedup 2"))["input_ids"], tokenizer(say("word " * 40))["input_ids"]]

    from transformers import GenerationMixin

    def slowly(self, input_ids, stopping_criteria, **_: object):
        """As `generate` does it: token by token for all sequences, those that ended padded."""
        for at in range(max(map(len, words))):
            column = [[ids[at] if at < len(ids) else tokenizer.pad_token_id] for ids in words]
            input_ids = torch.cat([input_ids, torch.tensor(column)], dim=1)
            assert not stopping_criteria(input_ids, None).any()
            if at == len(words[0]) + 1:
                seen.append(begun.wait(5))
        return input_ids

    monkeypatch.setattr(GenerationMixin, "generate", slowly)
    trainer = run(policy, Noticing(), config(tmp_path), max_turns=1)
    assert seen == [True] and trainer.state.log_history[0]["submissions"] == 1


def test_a_batch_is_generated_in_chunks(monkeypatch, policy, evaluator, tmp_path):
    sizes = []
    generate = script_generation(lambda _: submit("speedup 3"))

    @functools.wraps(generate)
    def noting(self, prompt_ids, *rest, **named):
        sizes.append(len(prompt_ids))
        return generate(self, prompt_ids, *rest, **named)

    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", noting)
    settings = config(tmp_path, num_generations=3, per_device_train_batch_size=3)
    trainer = run(policy, evaluator, settings, max_turns=1, generation_chunk=2)
    assert sizes == [2, 1] and trainer.state.log_history[0]["submissions"] == 3


def test_buffered_rollouts_keep_their_advantages(monkeypatch, policy, evaluator, tmp_path):
    """One generation for two batches, each used twice: shuffled and split, tokens and advantages stay together."""
    sources = ["speedup 1", "speedup 10", "compile_error", "speedup 4"]
    follow(monkeypatch, lines(*map(submit, sources)))
    settings = config(tmp_path, steps_per_generation=2, num_iterations=2, max_steps=4, num_generations=4)
    trainer = run(policy, evaluator, settings, max_turns=1, trainer_class=Watched)
    values = [SLOW, FAST, BROKEN, LadderThenPerformance()(timed(baseline_us=100, roofline_us=10, speedup_low=4))]
    assert len(trainer.batches) == 4 and len(evaluator.asked) == 4
    for batch in trainer.batches:
        for ids, said, advantages in zip(
            batch["completion_ids"], batch["completion_mask"], batch["advantages"], strict=True
        ):
            text = trainer._tokenizer.decode(ids)
            own = next(value for source, value in zip(sources, values, strict=True) if f'"{source}"' in text)
            expected = own - (sum(values) - own) / 3
            assert advantages.tolist() == pytest.approx([expected if one else 0.0 for one in said.tolist()])


def test_a_run_that_resumes_is_the_run_that_went_on(policy, evaluator, tmp_path):
    """Checkpoint 3 lies in the middle of a generation's rollouts and behind the first epoch; text is really sampled."""
    rows = [row("AllReduce"), row("Gather", seed=8), row("AllGather", seed=9), row("Broadcast", seed=10)]
    changes = {
        "max_steps": 7,
        "save_strategy": "steps",
        "save_steps": 1,
        "max_completion_length": 24,
        "steps_per_generation": 2,
        "temperature": 1.5,
    }
    scripted = {"rows": rows, "max_turns": 2, "trainer_class": Sampling}
    whole = run(policy, evaluator, config(tmp_path / "whole", **changes), **scripted)
    for step in (3, 4):
        checkpoint = tmp_path / "whole" / f"checkpoint-{step}"
        folder = tmp_path / f"resumed-{step}"
        rest = run(policy, evaluator, config(folder, resume_from_checkpoint=str(checkpoint), **changes), **scripted)
        assert same_weights(tmp_path / "whole", folder)
        assert losses(rest) == losses(whole)
        assert (folder / "archive.jsonl").read_bytes() == (tmp_path / "whole" / "archive.jsonl").read_bytes()
        mine, theirs = submitted(folder), submitted(tmp_path / "whole")
        assert mine and mine == [record for record in theirs if record[0] >= step]
    assert not same_weights(policy, tmp_path / "whole")


class Sampling(KernelGRPOTrainer):
    """Samples text, and submits the fourth token's number as a speedup: random sources that can be judged."""

    def _parse(self, ids, prefix):
        source = "compile_error" if ids[3] % 3 == 0 else f"speedup {ids[3] % 7 + 1}"
        call = {"type": "function", "function": {"name": "submit", "arguments": {"source": source}}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}

    def _generate(self, prompts):
        from trl.trainer import grpo_trainer

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(grpo_trainer, "parse_response", lambda _, ids, prefix, tools: self._parse(ids, prefix))
            return super()._generate(prompts)


def losses(trainer: KernelGRPOTrainer) -> list[tuple]:
    keys = ("step", "loss", "grad_norm", "learning_rate", "reward", "entropy")
    return [tuple(entry.get(key) for key in keys) for entry in trainer.state.log_history if "loss" in entry]


def submitted(folder: Path) -> list[tuple]:
    keys = ("step", "sample", "turn", "problem", "source", "reward")
    return [tuple(record[key] for key in keys) for record in read_jsonl(folder / "rollouts.jsonl")]


def test_a_run_ends_when_its_time_is_up_and_can_go_on(monkeypatch, policy, evaluator, tmp_path):
    follow(monkeypatch, lambda before: submit("speedup 3"))
    changes = {"max_steps": 3, "save_strategy": "steps", "save_steps": 100}
    run(policy, evaluator, config(tmp_path, **changes), max_turns=1, max_minutes=1e-9)
    assert json.loads((tmp_path / "checkpoint-1" / "trainer_state.json").read_text())["global_step"] == 1
    rest = run(policy, evaluator, config(tmp_path, resume_from_checkpoint="last", **changes), max_turns=1)
    assert rest.state.global_step == 3
    assert [record["step"] for record in read_jsonl(tmp_path / "phases.jsonl")] == [0, 1, 2]


def test_the_time_of_a_step_is_logged_by_phase(monkeypatch, policy, evaluator, tmp_path):
    follow(monkeypatch, lambda before: submit("speedup 3"))
    trainer = run(policy, evaluator, config(tmp_path), max_turns=1)
    logged = trainer.state.log_history[0]
    shares = {name: share for name, share in logged.items() if name.startswith("phase/")}
    assert set(shares) == {
        f"phase/{name}" for name in ("generation", "evaluation", "offload", "ranks", "learning", "other")
    }
    assert sum(shares.values()) == pytest.approx(1) and shares["phase/learning"] > 0
    (record,) = read_jsonl(tmp_path / "phases.jsonl")
    assert (record["step"], record["evaluations"]) == (0, 1) and record["evaluations_per_minute"] > 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps_per_generation": 2}, "1 prompts do not fill a batch: 4 rollouts, 2 of each prompt, take 2"),
        ({"resume_from_checkpoint": "nowhere"}, "nowhere holds no whole checkpoint"),
    ],
)
def test_what_cannot_be_trained_is_refused(policy, evaluator, tmp_path, changes, words):
    with pytest.raises(ConfigError, match=words):
        run(policy, evaluator, config(tmp_path, **changes))
