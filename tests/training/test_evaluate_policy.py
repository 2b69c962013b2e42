"""Evaluating a policy: the GRPO trainer's tokens, one row a submission, and going on after a crash."""

from __future__ import annotations

import json

import pytest
from datasets import Dataset, DatasetDict
from transformers import AutoTokenizer

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.attempt_file import read_attempts
from pkb_gym.rewards import find_reward
from pkb_gym.training import evaluate_policy
from pkb_gym.training.evaluation.async_evaluator import AsyncEvaluator
from pkb_gym.training.evaluation.owner import EvaluationSchedule
from pkb_gym.training.inputs.chat import render
from pkb_gym.training.inputs.dialogue_options import DialogueOptions
from pkb_gym.training.inputs.rows import CORPUS_COLUMNS
from pkb_gym.training.processes.host_group import HostGroup
from pkb_gym.training.results.attempts import attempts_of, row_of
from pkb_gym.training.rollout.dialogue import Dialogue
from pkb_gym.training.rollout.player import EpisodeLimits, Player
from pkb_gym.training.rollout.rollouts import Rollouts
from tests.envs.fake_evaluator import FakeEvaluator
from tests.training.conversations import answer, submission
from tests.training.scripted import row, say, submit


class Scripted:
    """A sampler whose replies follow from its input."""

    context = 8192

    def __init__(self, tokenizer, script) -> None:
        self.tokenizer, self.script = tokenizer, script
        self.read: list[str] = []
        self.seeds: list[int] = []

    def sample(self, sequences, budgets, seed):
        self.seeds.append(seed)
        texts = [self.tokenizer.decode(sequence) for sequence in sequences]
        self.read += texts
        return [
            self.tokenizer(self.script(text))["input_ids"][:budget] for text, budget in zip(texts, budgets, strict=True)
        ]


@pytest.fixture(scope="module")
def tokenizer(scratch_model):
    return AutoTokenizer.from_pretrained(scratch_model)


def play(tokenizer, script, rows, *, max_turns=3, length=2048, context=8192, multi_turn=True, **options):
    evaluator, host = FakeEvaluator(), HostGroup()
    sampler = Scripted(tokenizer, script)
    asynchronous = AsyncEvaluator(evaluator)
    dialogue = Dialogue(tokenizer, DialogueOptions(**{"submission": "tool" if multi_turn else "code", **options}))
    rollouts = Rollouts(asynchronous, find_reward("default"), max_turns, shorten=dialogue.shortened)
    limits = EpisodeLimits(max_turns if multi_turn else 1, length, context)
    player = Player(sampler, dialogue, rollouts, EvaluationSchedule(evaluator, host), host, limits)
    episodes = player.play(rows, seed=5)
    asynchronous.close()
    return sampler, episodes


def by_turn(*replies: str):
    """A policy that gives these replies one after another, whatever it reads."""
    return lambda text: replies[text.count("<tool_response>\n")]


def test_an_episode_goes_on_until_the_policy_submits_no_more(tokenizer):
    sampler, (episode,) = play(
        tokenizer, by_turn(submit("compile_error"), submit("speedup 2.5"), say("Done.")), [row()]
    )
    assert [one.turn.source for one in episode.submissions] == ["compile_error", "speedup 2.5"]
    assert [one.message for one in episode.submissions] == [0, 1]
    assert episode.episode_value == episode.submissions[1].turn.value > 1
    assert len(sampler.read) == 3


def test_the_policy_reads_what_it_would_read_in_training(tokenizer):
    """Token by token the conversation as the chat template renders it: what `sft.py` trains on."""
    sampler, (episode,) = play(tokenizer, by_turn(submit("compile_error"), say("Done.")), [row()])
    conversation = [*row()["prompt"], submission("compile_error"), answer(episode.submissions[0].answer)]
    assert sampler.read[0] == render(tokenizer, conversation[:2], reply_next=True)
    assert sampler.read[1] == render(tokenizer, conversation, reply_next=True)


def test_answers_add_the_tokens_that_the_template_adds(tokenizer):
    talk = [*row()["prompt"], submission("x")]
    before = tokenizer(render(tokenizer, talk).removesuffix("\n"))["input_ids"]
    whole = tokenizer(render(tokenizer, [*talk, answer("passed")], reply_next=True))["input_ids"]
    assert before + Dialogue(tokenizer).answer_ids([answer("passed")]) == whole


def test_turns_and_tokens_are_limited(tokenizer):
    _, (episode,) = play(tokenizer, lambda _: submit("compile_error"), [row()], max_turns=2)
    assert len(episode.submissions) == 2
    first = len(tokenizer(submit("compile_error"))["input_ids"])
    sampler, (episode,) = play(tokenizer, lambda _: submit("compile_error"), [row()], length=first + 5)
    assert len(episode.submissions) == 1 and len(sampler.read) == 1
    with pytest.raises(ConfigError, match=r"AllReduce: a prompt of \d+ tokens leaves no room for a reply"):
        play(tokenizer, lambda _: "", [row()], context=20)


def test_a_call_that_cannot_be_made_is_answered_as_in_training(tokenizer):
    wrong = submit("x").replace('"source"', '"text"')
    sampler, (episode,) = play(tokenizer, by_turn(wrong, say("Done.")), [row()])
    assert episode.submissions == []
    assert "{'error': \"submit: missing a required argument: 'source'\"}" in sampler.read[1]


def test_replies_are_kept_whether_or_not_they_submit(tokenizer):
    """What a policy wrote instead of a submission was lost, and with it the reason why it failed."""
    _, (episode,) = play(tokenizer, by_turn(submit("compile_error"), say("I give up.")), [row()])
    assert [reply.text for reply in episode.replies][1].endswith("I give up.") and episode.unread_replies == [1]
    assert [one.reply for one in episode.submissions] == [0]
    assert episode.replies[1].prompt_tokens > episode.replies[0].prompt_tokens > 0
    _, (episode,) = play(tokenizer, lambda _: "no block of code<|im_end|>", [row()], multi_turn=False)
    assert (episode.submissions, episode.replies[0].text) == ([], "no block of code")
    attempts = attempts_of(0, episode, "default")
    assert [(one.source, one.reply, one.verdict) for one in attempts] == [(None, "no block of code", "no_submission")]


def test_a_single_turn_policy_submits_a_block_of_code_and_sees_no_tool(tokenizer):
    sampler, (episode,) = play(tokenizer, lambda _: "```cpp\nspeedup 2.0\n```\n<|im_end|>", [row()], multi_turn=False)
    assert [one.turn.source for one in episode.submissions] == ["speedup 2.0\n"]
    assert "<tools>" not in sampler.read[0] and len(sampler.read) == 1


def by_answer(*replies: str):
    """A policy that gives these replies one after another, by the answers that it has read."""
    return lambda text: replies[text.count("Turn ")]


def test_a_policy_that_calls_no_tools_submits_code_over_several_turns(tokenizer):
    first, second = "```cpp\ncompile_error\n```<|im_end|>", "<think>\nWhy?\n</think>\n\n```\nspeedup 2.5\n```<|im_end|>"
    script = by_answer(first, second, say("Done."))
    sampler, (episode,) = play(tokenizer, script, [row()], submission="code")
    assert [one.turn.source for one in episode.submissions] == ["compile_error\n", "speedup 2.5\n"]
    assert [one.message for one in episode.submissions] == [0, 1] and episode.episode_value > 1
    assert len(sampler.read) == 3 and "<tool" not in sampler.read[2] and "Why?" in sampler.read[2]


def test_earlier_reasoning_is_not_read_where_it_is_trimmed(tokenizer):
    script = by_answer("<think>\nREASON\n</think>\n\n```\ncompile_error\n```<|im_end|>", say("Done."))
    sampler, (episode,) = play(tokenizer, script, [row()], submission="code", trim_reasoning=True)
    assert "REASON" not in sampler.read[1] and sampler.read[1].count("```\ncompile_error\n```") == 1
    assert episode.replies[1].prompt_tokens == len(tokenizer(sampler.read[1])["input_ids"])


def test_a_full_context_ends_an_episode_with_its_best_turn(tokenizer):
    """What is left would be a reply without a beginning, or a request that a server refuses."""
    script = by_answer(*[submit("speedup 2.5")] * 2, *[submit("compile_error")] * 9)
    sampler, (whole,) = play(tokenizer, script, [row()], max_turns=9, length=10**6, context=10**6)
    lengths = [len(tokenizer(text)["input_ids"]) for text in sampler.read]
    assert len(whole.submissions) == 9
    sampler, (cut,) = play(tokenizer, script, [row()], max_turns=9, length=10**6, context=lengths[3])
    assert len(sampler.read) == len(cut.submissions) == 3
    assert cut.episode_value == whole.episode_value and cut.submissions[1].turn.value == cut.episode_value


def test_replies_and_answers_have_budgets_of_tokens(tokenizer):
    long = submit("compile_error" + " " * 3000)
    sampler, (episode,) = play(tokenizer, lambda _: long, [row()], max_turn_tokens=40)
    assert [reply.tokens for reply in episode.replies] == [40] and episode.submissions == []
    script = by_answer(submit("compile_error"), say("Done."))
    sampler, (episode,) = play(tokenizer, script, [row()], max_feedback_tokens=32)
    (submission,) = episode.submissions
    assert len(tokenizer(submission.answer)["input_ids"]) <= 32
    assert "FAILED: compile_error" in submission.answer and submission.answer in sampler.read[1]


# ---- the recipe ----


@pytest.fixture
def prompts(tmp_path):
    rows = [row("AllReduce"), row("AllReduce", seed=8), row("AllGather"), row("Broadcast", size='{"N": 64}')]
    DatasetDict({"held_out": Dataset.from_list(rows)}).save_to_disk(tmp_path / "prompts")
    return tmp_path / "prompts"


@pytest.fixture
def evaluate(monkeypatch, prompts, scratch_model, tmp_path):
    """The recipe with a policy that follows a script, and an evaluator that starts nothing."""

    def run(script, *options: str, output: str = "out"):
        sampler = None

        def open_sampler(backend, model, tokenizer, config):
            nonlocal sampler
            sampler = Scripted(tokenizer, script)
            return sampler

        monkeypatch.setattr(evaluate_policy, "open_sampler", open_sampler)
        monkeypatch.setattr(
            evaluate_policy, "start_evaluation", lambda mode, host, **_: EvaluationSchedule(FakeEvaluator(), host)
        )
        argv = [
            "--model_name_or_path",
            str(scratch_model),
            "--prompts",
            str(prompts),
            "--output",
            str(tmp_path / output),
        ]
        summary = evaluate_policy.main([*argv, "--samples", "2", "--max_turns", "2", *options])
        return summary, sampler

    return run


def results(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def knows_all_reduce(text: str) -> str:
    """Right at the second attempt on AllReduce, silent on all else."""
    if "AllReduce." not in text:
        return say("I do not know.")
    return submit("speedup 2.0" if "<tool_response>\n" in text else "compile_error")


def test_prompts_with_rings_are_summed_up_by_ring(evaluate, tmp_path, capsys):
    rows = [row(ring="sizes", part="held_out"), row("AllGather", ring="test", part="held_out")]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    evaluate(knows_all_reduce, "--prompts", str(tmp_path / "prompts.jsonl"))
    rings = json.loads((tmp_path / "out" / "rings.json").read_text())
    assert [turn["correct"]["mean"] for turn in rings["sizes"]["turns"]] == [0.0, 1.0]
    assert rings["sizes"]["solved_problems"] == ["AllReduce"] and rings["test"]["solved_problems"] == []
    assert "faster, captured" in capsys.readouterr().out


@pytest.mark.parametrize(("read", "original"), [("speedup 2.0", []), ("a kernel of another kind", ["AllReduce"])])
def test_near_copies_of_the_corpus_are_counted_apart(evaluate, tmp_path, read, original):
    (tmp_path / "prompts.jsonl").write_text(json.dumps(row(ring="sizes", part="held_out")) + "\n")
    conversation = {name: [] for name in CORPUS_COLUMNS} | {"messages": [submission(read)]}
    (tmp_path / "corpus.jsonl").write_text(json.dumps(conversation) + "\n")
    files = ["--prompts", str(tmp_path / "prompts.jsonl"), "--corpus", str(tmp_path / "corpus.jsonl")]
    evaluate(knows_all_reduce, *files)
    sizes = json.loads((tmp_path / "out" / "rings.json").read_text())["sizes"]
    assert sizes["solved_problems"] == ["AllReduce"] and sizes["solved_originally"] == original
    assert sizes["correct_original"]["mean"] == float(bool(original))


def test_an_agent_without_a_model_is_a_control(prompts, tmp_path, monkeypatch):
    monkeypatch.setattr(
        evaluate_policy, "start_evaluation", lambda mode, host, **_: EvaluationSchedule(FakeEvaluator(), host)
    )
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    for name, source in (("AllReduce.a", "speedup 2.0"), ("AllReduce.b", "compile_error")):
        (kernels / f"{name}.cpp").write_text(source)
    argv = ["--prompts", str(prompts), "--output", str(tmp_path / "out"), "--samples", "2"]
    summary = evaluate_policy.main([*argv, "--agent", f"replay:{kernels}"])
    assert summary.problems["AllReduce"].correct.mean == 0.5
    others = [figures for name, figures in summary.problems.items() if name != "AllReduce"]
    assert others and all(figures.correct.mean == 0.0 for figures in others), "nothing was submitted for them"
    attempts = read_attempts(tmp_path / "out" / "results.jsonl")
    assert {one.agent for one in attempts} == {"replay:kernels"}
    with pytest.raises(ConfigError, match=r"--agent takes one of evolve, .*, got 'openai'"):
        evaluate_policy.main([*argv, "--output", str(tmp_path / "other"), "--agent", "openai:some"])
    with pytest.raises(ConfigError, match="give --model_name_or_path for a policy, or --agent"):
        evaluate_policy.main(argv)


def test_a_row_for_each_submission_and_a_summary(evaluate, tmp_path, capsys):
    summary, _ = evaluate(knows_all_reduce, "--limit", "3")
    attempts = read_attempts(tmp_path / "out" / "results.jsonl")
    rows = [row_of(one) for one in attempts]
    assert [(one["problem"], one["seed"], one["sample"], one["turn"]) for one in rows] == [
        *(("AllReduce", seed, sample, turn) for seed in (7, 8) for sample in (0, 1) for turn in (0, 1)),
        ("AllGather", 7, 0, 0),
        ("AllGather", 7, 1, 0),
    ]
    contract = {"problem", "language", "size", "dtype", "world_size", "seed", "sample", "turn", "source", "stage"}
    contract |= {"failure", "reward", "speedup", "source_hash", "is_right"}
    assert all(contract <= one.keys() for one in rows)
    assert [one["failure"] for one in rows[:2]] == ["compile_error", None] and rows[1]["speedup"] > 1
    assert rows[-1]["failure"] == "no_submission" and rows[-1]["reward"] == 0.0 and rows[-1]["source"] is None
    assert "I do not know." in attempts[-1].reply and "compile_error" in attempts[0].reply
    assert all(one.tokens.prompt > 0 and one.tokens.completion > 0 for one in attempts)
    assert attempts[0].request_key != attempts[1].request_key == attempts[3].request_key
    assert attempts[1].config.world_size == 2 and attempts[1].reward_name == "default"
    assert summary.problems["AllReduce"].correct.mean == 1.0 and summary.problems["AllGather"].correct.mean == 0.0
    written = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert written == json.loads(summary.model_dump_json())
    assert "AllReduce" in capsys.readouterr().out


@pytest.mark.parametrize("stage", ["check", "time"])
def test_evaluations_end_with_the_stage_that_was_asked_for(evaluate, tmp_path, stage):
    """Emulated GPUs time nothing, and refuse to."""
    evaluate(knows_all_reduce, "--limit", "1", "--until", stage)
    attempts = read_attempts(tmp_path / "out" / "results.jsonl")
    assert {one.requested.until for one in attempts} == {stage}


def test_it_goes_on_where_it_was_interrupted(evaluate, tmp_path):
    """A line that was being written when the process died is written again, and what was complete is kept."""
    whole, _ = evaluate(knows_all_reduce, "--batch_size", "2", output="whole")

    def dies(text: str) -> str:
        if "AllGather." in text:
            raise KeyboardInterrupt
        return knows_all_reduce(text)

    with pytest.raises(KeyboardInterrupt):
        evaluate(dies, "--batch_size", "2")
    part = tmp_path / "out" / "parts" / "0.jsonl"
    assert len(part.read_text().splitlines()) == 4
    with part.open("a") as file:
        file.write('{"prompt": 2, "sample": 0, "ro')
    resumed, sampler = evaluate(knows_all_reduce, "--batch_size", "2")
    assert resumed == whole and not any("AllReduce." in text for text in sampler.read)
    timeless = [
        {name: one[name] for name in ("problem", "sample", "turn", "source")} for one in results(tmp_path / "out")
    ]
    assert timeless == [{name: one[name] for name in timeless[0]} for one in results(tmp_path / "whole")]


def test_a_folder_holds_the_answer_to_one_question(evaluate, tmp_path):
    evaluate(knows_all_reduce, "--limit", "1")
    with pytest.raises(
        ConfigError,
        match=r"results under another configuration: (?=.*limit was)(?=.*prompts was)(?=.*temperature was 1.0, is)",
    ):
        evaluate(knows_all_reduce, "--temperature", "0.5", "--limit", "2")


def test_a_budget_ends_it_between_batches_and_the_same_command_goes_on(evaluate, tmp_path, capsys):
    """Submissions of earlier calls count; a larger budget is no other configuration."""
    whole, _ = evaluate(knows_all_reduce, "--batch_size", "2", output="whole")
    capsys.readouterr()
    stopped, sampler = evaluate(knows_all_reduce, "--batch_size", "2", "--max_evaluations", "4")
    assert stopped.total.samples == 2 and not any("AllGather." in text for text in sampler.read)
    assert "stopped, 6 episodes open: the budget of 4 evaluations is used up" in capsys.readouterr().err
    nothing, sampler = evaluate(knows_all_reduce, "--batch_size", "2", "--max_evaluations", "4")
    assert nothing == stopped and sampler.read == []
    tokens = sum(one.tokens.prompt + one.tokens.completion for one in read_attempts(tmp_path / "out" / "results.jsonl"))
    assert evaluate(knows_all_reduce, "--batch_size", "2", "--max_tokens", str(tokens))[0] == stopped
    assert evaluate(knows_all_reduce, "--batch_size", "2", "--max_hours", "1")[0] == whole


def test_seeds_and_batches_share_no_randomness(evaluate):
    seeds = [evaluate(knows_all_reduce, "--batch_size", "4", "--seed", s, output=s)[1].seeds for s in ("0", "1")]
    assert len({*seeds[0], *seeds[1]}) == len(seeds[0]) + len(seeds[1])


def test_it_compares_with_an_earlier_policy(evaluate, tmp_path):
    evaluate(lambda _: say("I do not know."), output="before")
    summary, _ = evaluate(knows_all_reduce, "--compare", str(tmp_path / "before" / "results.jsonl"))
    assert summary.gain.mean == summary.total.reward.mean > 0


def test_ranks_play_as_many_batches_and_share_the_work():
    waiting = [(prompt, 0) for prompt in range(7)]
    of_ranks = [list(evaluate_policy._batches(waiting, 2, rank, 3)) for rank in range(3)]
    assert [len(batches) for batches in of_ranks] == [2, 2, 2]
    assert sorted(one for batches in of_ranks for batch in batches for one in batch) == waiting
    assert max(len(batch) for batches in of_ranks for batch in batches) == 2
