"""verl's own classes, without GPUs: agent loops, the worker that runs them, tools, dataset, advantages."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import math
import weakref
from dataclasses import asdict
from pathlib import Path

import hydra
import numpy as np
import pandas as pd
import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker, DictConfigWrap, ToolListWrap
from verl.experimental.agent_loop.tool_agent_loop import AgentData, ToolAgentLoop
from verl.tools.tool_registry import load_all_tools
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.trainer.ppo.reward import get_custom_reward_fn
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.workers.config import MultiTurnConfig
from verl.workers.rollout.replica import TokenOutput

from pkb_gym.adapters.settings import EpisodeSettings
from pkb_gym.adapters.verl import reward
from pkb_gym.adapters.verl.agent_loop import KernelAgentLoop
from pkb_gym.adapters.verl.dataset import AGENT, main, prompt_rows
from pkb_gym.adapters.verl.tool import SCORE
from pkb_gym.envs.session import SubmissionSession
from pkb_gym.training.scratch_model import Preset, train_tokenizer
from tests.doors import contract
from tests.doors.examples import example
from tests.training.conversations import tiny_corpus

PRESET = Preset(1024, 48, width=32, layers=2, heads=2, key_value_heads=1, feed_forward=64, context=4096)
RESPONSE_LENGTH = 40_000


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(tiny_corpus(), PRESET).save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


class Server:
    """In place of the inference server: tokens in, the tokens of the next message out."""

    def __init__(self, tokenizer, *sources: str) -> None:
        self._tokenizer, self._rest = tokenizer, list(sources)
        self.prompts: list[list[int]] = []
        self.replies: list[list[int]] = []

    async def generate(self, request_id, *, prompt_ids, sampling_params, **_: object) -> TokenOutput:
        self.prompts.append(list(prompt_ids))
        ids = self._tokenizer(self._message())["input_ids"]
        self.replies.append(ids)
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), stop_reason="completed", num_preempted=0)

    def _message(self) -> str:
        if not self._rest:
            return "That is all.<|im_end|>"
        call = json.dumps({"name": "submit", "arguments": {"source": self._rest.pop(0)}})
        return f"<tool_call>\n{call}\n</tool_call><|im_end|>"


def configuration(**multi_turn: object):
    rollout = {
        "prompt_length": 32_000,
        "response_length": RESPONSE_LENGTH,
        "full_determinism": False,
        "multi_turn": {**asdict(MultiTurnConfig()), **multi_turn},
    }
    return OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {"apply_chat_template_kwargs": {}}})


def make_loop(kind: type, tokenizer, server: Server, config=None, **arguments: object):
    config = config or configuration()
    return kind(
        trainer_config=DictConfigWrap(config=config),
        server_manager=server,
        tokenizer=tokenizer,
        processor=None,
        dataset_cls=RLHFDataset,
        data_config=DictConfigWrap(config.data),
        hf_model_type="qwen3",
        **arguments,
    )


def row_of(problem: str) -> dict:
    settings = EpisodeSettings.of({**contract.settings(), "split": [problem]})
    (row,) = prompt_rows(settings)
    row["extra_info"]["seed"] = contract.SEED
    row["extra_info"]["tools_kwargs"]["submit"]["create_kwargs"]["seed"] = contract.SEED
    tools_kwargs = row["extra_info"]["tools_kwargs"]
    return {"raw_prompt": row["prompt"], "extra_info": row["extra_info"], "tools_kwargs": tools_kwargs}


async def played(tokenizer, problem: str, *sources: str):
    server = Server(tokenizer, *sources)
    loop = make_loop(KernelAgentLoop, tokenizer, server, settings=OmegaConf.create(contract.settings()))
    output = await loop.run({}, **row_of(problem))
    return output, server, loop


async def contract_of_the_loop(tokenizer) -> dict:
    limit = asyncio.Semaphore(12)

    async def one(case: contract.Expected):
        async with limit:
            return await played(tokenizer, case.problem, case.source)

    found = await asyncio.gather(*map(one, contract.expected()))
    return dict(zip([case.id for case in contract.expected()], found, strict=True))


@pytest.fixture(scope="module")
def trajectories(tokenizer):
    """All submissions of the contract, a trajectory each, many at a time."""
    return asyncio.run(contract_of_the_loop(tokenizer))


@pytest.mark.parametrize("case", contract.expected(), ids=lambda case: case.id)
def test_contract(trajectories, tokenizer, case):
    output, server, loop = trajectories[case.id]
    assert case.task in tokenizer.decode(output.prompt_ids)
    (turn,) = loop._session.session.episode.turns
    assert (turn.source, turn.feedback.failure, turn.value) == (case.source, case.failure, case.value)
    answer = f"<tool_response>\n{case.text}\n</tool_response>"
    assert answer in tokenizer.decode(output.response_ids)
    assert output.extra_fields["reward_extra_info"]["speedup"] == case.speedup
    if case.case == "infrastructure":
        assert math.isnan(output.reward_score) and not any(output.response_mask)
        assert output.extra_fields["turn_scores"] == [] and len(server.replies) == 1
    else:
        assert output.reward_score == case.value and output.extra_fields["turn_scores"] == [case.value]


def test_tokens_and_masks_are_exact(trajectories, tokenizer):
    """The policy's own tokens, as they were sampled, are learnt from; no other, and none is encoded again."""
    output, server, _ = trajectories["AllReduce-wrong"]
    whole = output.prompt_ids + output.response_ids
    ends = []
    for prompt, reply in zip(server.prompts, server.replies, strict=True):
        assert whole[: len(prompt)] == prompt and whole[len(prompt) : len(prompt) + len(reply)] == reply
        ends.append((len(prompt) - len(output.prompt_ids), len(reply)))
    expected = [0] * len(output.response_ids)
    for begin, length in ends:
        expected[begin : begin + length] = [1] * length
    assert output.response_mask == expected and sum(expected) == sum(map(len, server.replies))
    assert [logprob for logprob, mask in zip(output.response_logprobs, expected, strict=True) if mask] == [-0.5] * sum(
        expected
    )


def test_turn_scores_add_up_and_the_last_submission_ends_a_trajectory(tokenizer):
    cases = [contract.find("Gather", name) for name in ("compile_error", "wrong", "compile_error", "wrong", "expert")]
    output, server, _ = asyncio.run(played(tokenizer, "Gather", *(case.source for case in cases)))
    scores = output.extra_fields["turn_scores"]
    first, second = cases[0].value, cases[1].value
    assert scores == pytest.approx([first, max(second - first, 0), 0, 0]) and len(server.replies) == 4
    assert output.reward_score == pytest.approx(sum(scores)) == max(first, second)


def test_an_abandoned_trajectory_ends_its_session(tokenizer):
    class Stuck(Server):
        async def generate(self, *arguments: object, **named: object):
            if self.replies:
                await asyncio.Event().wait()
            return await super().generate(*arguments, **named)

    async def abandon():
        server = Stuck(tokenizer, contract.find("Gather", "compile_error").source)
        loop = make_loop(KernelAgentLoop, tokenizer, server, settings=contract.settings())
        running = asyncio.create_task(loop.run({}, **row_of("Gather")))
        while not loop._gains:
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return loop._session.session

    session = asyncio.run(abandon())
    assert session.is_over and "has been closed" in session.submit("int main;").text


# ---- the worker and the trainer --------------------------------------------------------------------------------------


def test_advantages_leave_out_what_was_not_judged():
    rewards = torch.zeros(5, 3)
    rewards[:, -1] = torch.tensor([1.0, 3.0, float("nan"), float("nan"), 2.0])
    mask = torch.ones(5, 3)
    groups = np.array(["a", "a", "a", "b", "b"], dtype=object)
    estimate = get_adv_estimator_fn("pkb_grpo")
    config = OmegaConf.create({"norm_adv_by_std_in_grpo": False})
    advantages, returns = estimate(token_level_rewards=rewards, response_mask=mask, index=groups, config=config)
    assert advantages[:, 0].tolist() == [-1.0, 1.0, 0.0, 0.0, 2.0] and torch.equal(advantages, returns)
    nothing = torch.full((2, 3), float("nan"))
    assert not estimate(token_level_rewards=nothing, response_mask=mask[:2], index=groups[:2])[0].any()


def test_the_worker_makes_a_batch_of_outputs(trajectories, tokenizer):
    """`AgentLoopWorker` as far as it needs no server: padding, scores at the last token, extra fields."""
    worker = AgentLoopWorker.__new__(AgentLoopWorker)
    worker.rollout_config = OmegaConf.create({"prompt_length": 32_000, "response_length": RESPONSE_LENGTH})
    worker.tokenizer, worker.processor, worker.reward_loop_worker_handles = tokenizer, None, None
    worker.distillation_enabled = False

    async def padded():
        raw = {"raw_prompt": "x"}
        outputs = [trajectories[name][0] for name in ("AllReduce-expert", "AllReduce-infrastructure")]
        return [await worker._agent_loop_postprocess(output, False, **raw) for output in outputs]

    batch = worker._postprocess(asyncio.run(padded()))
    scores = batch.batch["rm_scores"].sum(dim=-1)
    assert scores[0].item() == pytest.approx(contract.find("AllReduce", "expert").value) and scores[1].isnan()
    assert batch.batch["response_mask"].sum(dim=-1)[1] == 0
    assert batch.non_tensor_batch["judged"].tolist() == [1.0, 0.0]
    assert batch.non_tensor_batch["turn_scores"][0] == [contract.find("AllReduce", "expert").value]


def test_parquet_is_read_by_the_dataset(tokenizer, tmp_path):
    path = tmp_path / "train.parquet"
    settings = json.dumps(contract.SETTINGS)
    main([str(path), "--split", "collective_primitive", "--seeds", "2", "--settings", settings])
    table = pd.read_parquet(path)
    assert set(table.agent_name) == {AGENT} and len(table) == 2 * table.extra_info.str["problem"].nunique() > 10
    config = OmegaConf.create(
        {"max_prompt_length": 32_000, "cache_dir": str(tmp_path), "filter_overlong_prompts": False}
    )
    row = RLHFDataset(str(path), tokenizer, config)[1]
    problem = row["extra_info"]["problem"]
    assert row["raw_prompt"][1]["content"].startswith(f"# {problem}\n") and row["extra_info"]["seed"] == 1
    assert row["tools_kwargs"]["submit"]["create_kwargs"] == {"problem": problem, "seed": 1}


# ---- the tool of verl's own loop -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tool(tmp_path_factory):
    path = tmp_path_factory.mktemp("tools") / "tools.yaml"
    config = {"type": "native", "settings": contract.settings()}
    entry = {"class_name": "pkb_gym.adapters.verl.tool.SubmitTool", "config": config}
    OmegaConf.save(OmegaConf.create({"tools": [entry]}), path)
    (found,) = load_all_tools(str(path), None)
    return found


def with_tool(tokenizer, tool, problem: str, *sources: str, **multi_turn: object):
    async def trajectory():
        server = Server(tokenizer, *sources)
        loop = make_loop(ToolAgentLoop, tokenizer, server, configuration(**multi_turn), tools=ToolListWrap([tool]))
        return await loop.run({}, **row_of(problem))

    return asyncio.run(trajectory())


def score(output) -> float:
    """Calls the reward function like verl's reward loop: with the extra fields of a trajectory."""
    config = OmegaConf.create(
        {"reward": {"custom_reward_function": {"path": reward.__file__, "name": "compute_score"}}}
    )
    compute = get_custom_reward_fn(config)
    return compute(data_source="pkb", solution_str="", ground_truth="", extra_info=dict(output.extra_fields))


@pytest.mark.parametrize(
    "case", [each for each in contract.expected() if each.problem == "Gather"], ids=lambda c: c.case
)
def test_contract_of_the_tool(tokenizer, tool, case):
    output = with_tool(tokenizer, tool, case.problem, case.source, max_tool_response_length=100_000)
    assert case.text in tokenizer.decode(output.response_ids)
    if case.case == "infrastructure":
        assert math.isnan(score(output)) and output.extra_fields["turn_scores"] == []
        assert output.extra_fields["tool_rewards"] == [], "None: verl would have made 0.0 of an exception"
    else:
        assert score(output) == output.extra_fields[SCORE] == case.value
        assert output.extra_fields["turn_scores"] == output.extra_fields["tool_rewards"] == [case.value]


def test_the_verdict_survives_the_default_limit(tokenizer, tool):
    text = tokenizer.decode(with_tool(tokenizer, tool, "Gather", contract.find("Gather", "wrong").source).response_ids)
    answer = text.split("<tool_response>\n", 1)[1].split("\n</tool_response>", 1)[0]
    assert "...(truncated)..." in answer and len(answer) < 300 and answer.startswith("failed after")
    assert "output_mismatch" in answer


def test_an_episode_outlives_the_calls_of_its_trajectory_and_no_longer(tokenizer, tool):
    sources = [f"{contract.find('Gather', 'compile_error').source}# {number}\n" for number in range(5)]
    output = with_tool(tokenizer, tool, "Gather", *sources, max_tool_response_length=100_000)
    text = tokenizer.decode(output.response_ids)
    assert "Turn 4" in text and "All 4 submissions of this episode are spent" in text
    gc.collect()
    assert not tool._sessions and not tool._tasks


def test_concurrent_trajectories_share_the_tool(tokenizer, tool):
    cases = [case for case in contract.expected() if case.case == "compile_error"]

    async def all_at_once():
        config = configuration(max_tool_response_length=100_000)
        loops = [
            make_loop(ToolAgentLoop, tokenizer, Server(tokenizer, case.source), config, tools=ToolListWrap([tool]))
            for case in cases
        ]
        runs = [loop.run({}, **row_of(case.problem)) for loop, case in zip(loops, cases, strict=True)]
        return await asyncio.gather(*runs)

    for case, output in zip(cases, asyncio.run(all_at_once()), strict=True):
        assert case.text in tokenizer.decode(output.response_ids) and score(output) == case.value


def test_an_error_of_the_settings_is_not_a_reward_of_zero(tokenizer, tool):
    trajectory = AgentData([], None, None, None, None, {}, "r", {})

    async def call():
        instance, _ = await tool.create(create_kwargs={"problem": "NoSuchProblem"})
        return await tool.execute(instance, {"source": "int main;"}, agent_data=trajectory)

    response, gain, _ = asyncio.run(call())
    assert gain is None and "no problem 'NoSuchProblem'" in response.text and math.isnan(trajectory.extra_fields[SCORE])


def test_an_exception_of_ours_is_not_a_reward_of_zero(tokenizer, tool, monkeypatch):
    def submit(*_: object) -> None:
        raise ZeroDivisionError("a mistake of ours")

    monkeypatch.setattr(SubmissionSession, "submit", submit)
    trajectory = AgentData([], None, None, None, None, {}, "r", {})

    async def call():
        instance, _ = await tool.create(create_kwargs={"problem": "Gather"})
        return await tool.execute(instance, {"source": "int main;"}, agent_data=trajectory)

    response, gain, _ = asyncio.run(call())
    assert gain is None and "a mistake of ours" in response.text and math.isnan(trajectory.extra_fields[SCORE])


def test_verl_still_has_what_is_relied_on():
    """Private names and defaults: were one changed, trajectories would go on after their last submission."""
    assert inspect.iscoroutinefunction(ToolAgentLoop._handle_processing_tools_state)
    assert {"agent_data"} <= set(inspect.signature(ToolAgentLoop._handle_processing_tools_state).parameters)
    assert weakref.ref(AgentData([], None, None, None, None, {}, "r", {})) and Path(reward.__file__).exists()
    assert MultiTurnConfig().max_tool_response_length == 256


def test_the_configuration_of_the_page_makes_an_agent_loop(tokenizer):
    """The file is loaded like by `AgentLoopWorker`."""
    (entry,) = OmegaConf.create(example("verl"))
    assert entry.name == AGENT
    config = configuration()

    async def make():
        return hydra.utils.instantiate(
            config=entry,
            trainer_config=DictConfigWrap(config=config),
            server_manager=Server(tokenizer),
            tokenizer=tokenizer,
            processor=None,
            dataset_cls=RLHFDataset,
            data_config=DictConfigWrap(config.data),
            hf_model_type="qwen3",
            tools=ToolListWrap([]),
        )

    loop = asyncio.run(make())
    assert type(loop) is KernelAgentLoop and list(loop.tools) == ["submit"]
    assert loop.max_assistant_turns == 5, "calls with wrong arguments would go on for ever"
    assert loop._settings == EpisodeSettings(evaluator=contract.url(), device="cpu", world_size=2, max_turns=4)
