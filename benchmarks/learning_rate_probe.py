r"""The learning rate of GRPO, before a run: what a few updates at each rate do to kernels that they were not made of.

    python -m benchmarks.learning_rate_probe RUN.tar.gz --model SFT --prompts RINGS/prompts.jsonl --out FOLDER

Updates are those of a run of GRPO, offline: AdamW, the clipped loss over tokens, and advantages of the rollouts that an
earlier run has sampled from the same policy (`--policy-steps`: its steps before the first update). They are judged on
first submissions of that policy on the ring `sizes`, whose prompts no update has seen, problem by problem:

    right, wrong   mean change of the log-probability of right and of wrong submissions, in nats
    kl             mean decrease of that of all submissions: an estimate of KL(before || after), in nats a reply
    correct        share correct that importance weights exp(change) predict

The rate that is proposed is the greatest at which after all updates no problem's right kernels have lost log 2, half of
their probability, and right ones have gained on wrong ones. The cosine of the gradients of two batches says how much of
an update is common to all prompts. The same command goes on with the rates that are missing.
"""

from __future__ import annotations

import json
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.common import header, make_parser, unfinished
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.records.attempt_file import read_attempts
from pkb_gym.engine.records.base import Record
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.training.inputs.chat import render
from pkb_gym.training.inputs.rows import Row, read_jsonl
from pkb_gym.training.learner.turn_credit import find_credit
from pkb_gym.training.results.attempts import row_of
from pkb_gym.training.results.policy_summary import prompt_key

NAME = "learning_rate_probe"
RING = "sizes"
RATES = (8e-5, 4e-5, 2e-5, 1e-5, 5e-6, 2.5e-6)
MOST_LOST = log(2)
"""Nats that right kernels of a problem may lose: half of their probability."""
CLIP, MAX_NORM = 0.2, 0.5
"""Range of the ratio and greatest norm of the gradient, as in `learning_run`."""


@dataclass(frozen=True)
class Reply:
    """A submission as tokens.

    Attributes:
        problem: of its prompt.
        prompt, tokens: of the prompt and of the reply.
        is_right: whether its kernel is.
        advantage: of its tokens; 0 where nothing is learnt from it.
    """

    problem: str
    prompt: Sequence[int]
    tokens: Sequence[int]
    is_right: bool
    advantage: float = 0.0


class AfterUpdate(Record):
    """The policy after an update; see the module for the figures."""

    update: int
    grad_norm: float
    right: dict[str, float]
    """By problem."""
    wrong: dict[str, float]
    kl: float
    correct: dict[str, float]


class RateFigures(Record):
    """The updates at one rate."""

    rate: float
    updates: tuple[AfterUpdate, ...]
    seconds: float

    @property
    def worst_right(self) -> float:
        """The least change of a problem's right kernels after all updates."""
        return min(self.updates[-1].right.values(), default=0.0)

    @property
    def gain(self) -> float:
        """How much more right kernels have gained than wrong ones, mean over the problems that have both."""
        last = self.updates[-1]
        common = last.right.keys() & last.wrong.keys()
        return fmean(last.right[name] - last.wrong[name] for name in sorted(common)) if common else 0.0


def propose(rates: Sequence[RateFigures]) -> float | None:
    """The greatest rate that loses no problem and teaches something; None where there is none."""
    return max((one.rate for one in rates if one.worst_right >= -MOST_LOST and one.gain > 0), default=None)


class Texts:
    """Makes tokens of prompts and replies.

    Args:
        tokenizer: of the policy.
        prompts: rows of `ring_prompts.py`.
    """

    def __init__(self, tokenizer: Any, prompts: Sequence[Row]) -> None:  # noqa: ANN401  # of transformers
        self._tokenizer = tokenizer
        self._prompts = {prompt_key(row): row for row in prompts}

    def reply(self, key: str, text: str, *, is_right: bool, advantage: float = 0.0) -> Reply | None:
        """A submission on a prompt; None where the prompt is not known."""
        if (row := self._prompts.get(key)) is None:
            return None
        prompt = render(self._tokenizer, row["prompt"], reply_next=True, with_tools=True)
        tokens = [*self._ids(text), self._tokenizer.eos_token_id]
        return Reply(row["problem"], self._ids(prompt), tokens, is_right, advantage)

    def _ids(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return found

    def ring_of(self, key: str) -> str | None:
        """The ring of a prompt; None for one that is trained on."""
        row = self._prompts.get(key)
        return None if row is None else row.get("ring")


def rollout_batches(rollouts: Sequence[Row], texts: Texts, steps: int, negative_weight: float) -> list[list[Reply]]:
    """The first submissions of the first steps, step by step, with the advantages that `grpo.py` gives them."""
    credit = find_credit(negative_weight=negative_weight)
    batches = []
    for step in range(steps):
        groups: dict[str, list[Row]] = {}
        for row in rollouts:
            if row["step"] == step and row["turn"] == 0 and row["reward"] is not None:
                groups.setdefault(prompt_key(row), []).append(row)
        batch = []
        for key, rows in groups.items():
            for row, (advantage,) in zip(rows, credit.of_group([[row["reward"]] for row in rows]), strict=True):
                made = texts.reply(key, row["reply"], is_right=bool(row["is_right"]), advantage=advantage)
                if made is not None and advantage:
                    batch.append(made)
        batches.append(batch)
    if not all(batches):
        raise ConfigError(
            "a step of the run has no rollout with an advantage on these prompts; give fewer --policy-steps"
        )
    return batches


def ring_replies(results: Path, texts: Texts) -> list[Reply]:
    """First submissions of `evaluate_policy.py` on the ring.

    Raises:
        ConfigError: there are none.
    """
    found = []
    for attempt in read_attempts(results):
        row = row_of(attempt)
        key = prompt_key(row)
        if attempt.turn == 0 and attempt.reply is not None and texts.ring_of(key) == RING:
            found.append(texts.reply(key, attempt.reply, is_right=bool(row["is_right"])))
    if not found:
        raise ConfigError(f"{results} has no submission on a prompt of ring {RING}")
    return [reply for reply in found if reply is not None]


class Policy:
    """A policy whose weights are moved, and put back.

    Args:
        model: its folder.
        device: where it computes.
        pad: a token to fill up with.
        micro_batch: sequences of a forward pass.
    """

    def __init__(self, model: Path, device: str, pad: int, micro_batch: int) -> None:
        loaded: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self.model = loaded.to(device).eval()  # no dropout
        self._device, self._pad, self._size = device, pad, micro_batch
        self._begin = {name: of.detach().clone() for name, of in self.model.named_parameters()}

    def restore(self) -> None:
        """Puts the weights back that it began with."""
        with torch.no_grad():
            for name, of in self.model.named_parameters():
                of.copy_(self._begin[name])

    def _logps(self, replies: Sequence[Reply]) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities of the tokens of replies, (B, T), and their mask."""
        before, after = (max(len(getattr(one, part)) for one in replies) for part in ("prompt", "tokens"))
        ids = torch.full((len(replies), before + after), self._pad)
        mask = torch.zeros_like(ids)
        for row, one in enumerate(replies):
            begin, end = before - len(one.prompt), before + len(one.tokens)
            ids[row, begin:end] = torch.tensor([*one.prompt, *one.tokens])
            mask[row, begin:end] = 1
        ids, mask = ids.to(self._device), mask.to(self._device)
        with torch.autocast(self._device, torch.bfloat16, enabled=self._device != "cpu"):
            logits = self.model(input_ids=ids, attention_mask=mask, logits_to_keep=after + 1).logits[:, :-1]
        found = torch.log_softmax(logits.float(), dim=-1).gather(2, ids[:, before:, None]).squeeze(2)
        return found, mask[:, before:]

    def _parts(self, replies: Sequence[Reply]) -> Iterator[tuple[int, Sequence[Reply]]]:
        for begin in range(0, len(replies), self._size):
            yield begin, replies[begin : begin + self._size]

    def log_probabilities(self, replies: Sequence[Reply]) -> list[torch.Tensor]:
        """Of the tokens of each reply."""
        found = []
        with torch.no_grad():
            for _, part in self._parts(replies):
                logps, _ = self._logps(part)
                found += [of[: len(one.tokens)].clone() for of, one in zip(logps, part, strict=True)]
        return found

    def set_gradient(self, replies: Sequence[Reply], before: Sequence[torch.Tensor], beta: float) -> None:
        """The gradient of the clipped loss over tokens, with the distance to the policy before all updates."""
        self.model.zero_grad()
        total = sum(len(one.tokens) for one in replies)
        for begin, part in self._parts(replies):
            logps, mask = self._logps(part)
            old = torch.nn.utils.rnn.pad_sequence(list(before[begin : begin + len(part)]), batch_first=True)
            advantage = torch.tensor([[one.advantage] for one in part], device=logps.device)
            ratio = torch.exp(logps - old)
            gains = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
            distance = ratio * (torch.exp(old - logps) - (old - logps) - 1)
            (((beta * distance - gains) * mask).sum() / total).backward()


def changes(
    replies: Sequence[Reply], before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]
) -> tuple[dict[str, float], dict[str, float], float, dict[str, float]]:
    """Right, wrong, kl and correct, see the module; from log-probabilities of the tokens of each reply."""
    nats = [float((now - was).sum()) for was, now in zip(before, after, strict=True)]

    def means(of: Callable[[Reply], bool]) -> dict[str, float]:
        by_problem: dict[str, list[float]] = {}
        for reply, change in zip(replies, nats, strict=True):
            if of(reply):
                by_problem.setdefault(reply.problem, []).append(change)
        return {name: round(fmean(values), 4) for name, values in sorted(by_problem.items())}

    correct = {}
    for name in sorted({reply.problem for reply in replies}):
        own = [(reply.is_right, change) for reply, change in zip(replies, nats, strict=True) if reply.problem == name]
        greatest = max(change for _, change in own)
        weights = [(right, exp(change - greatest)) for right, change in own]
        correct[name] = round(sum(w for right, w in weights if right) / sum(w for _, w in weights), 4)
    right, wrong = means(lambda reply: reply.is_right), means(lambda reply: not reply.is_right)
    return right, wrong, round(-fmean(nats), 4), correct


def probe_rate(
    policy: Policy, rate: float, batches: Sequence[Sequence[Reply]], judged: Sequence[Reply], updates: int, beta: float
) -> RateFigures:
    """Makes the updates, batch after batch and again from the first, and puts the weights back."""
    began = time.monotonic()
    policy.restore()
    old = [policy.log_probabilities(batch) for batch in batches]
    before = policy.log_probabilities(judged)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=rate, weight_decay=0.0)
    found = []
    for update in range(updates):
        at = update % len(batches)
        policy.set_gradient(batches[at], old[at], beta)
        norm = float(torch.nn.utils.clip_grad_norm_(policy.model.parameters(), MAX_NORM))
        optimizer.step()
        right, wrong, kl, correct = changes(judged, before, policy.log_probabilities(judged))
        found.append(
            AfterUpdate(update=update + 1, grad_norm=round(norm, 5), right=right, wrong=wrong, kl=kl, correct=correct)
        )
    policy.restore()
    return RateFigures(rate=rate, updates=tuple(found), seconds=round(time.monotonic() - began, 1))


def gradient_cosine(policy: Policy, batches: Sequence[Sequence[Reply]]) -> float | None:
    """Of the gradients of the first two batches; None where there is one."""
    if len(batches) < 2:
        return None
    gradients = []
    for batch in batches[:2]:
        policy.set_gradient(batch, policy.log_probabilities(batch), beta=0.0)
        gradients.append([p.grad.detach().clone() for p in policy.model.parameters() if p.grad is not None])
    dot, one, other = (
        float(sum((a * b).sum() for a, b in zip(left, right, strict=True)))
        for left, right in ((gradients[0], gradients[1]), (gradients[0],) * 2, (gradients[1],) * 2)
    )
    return round(dot / (one * other) ** 0.5, 4) if one and other else None


def markdown(rates: Sequence[RateFigures]) -> str:
    """The table: after the first update and after all."""
    lines = [
        "| rate | updates | right, worst problem | right | wrong | kl | correct, worst problem | correct |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in rates:
        for after in (*one.updates[:1], *one.updates[1:][-1:]):
            worst, share = min(after.right.values(), default=0.0), after.correct.values()
            means = [fmean(of.values()) if of else 0.0 for of in (after.right, after.wrong)]
            lines.append(
                f"| {one.rate:g} | {after.update} | {worst:+.2f} | {means[0]:+.2f} | {means[1]:+.2f} | {after.kl:.3f} "
                f"| {min(share):.0%} | {fmean(share):.0%} |"
            )
    return "\n".join(lines)


def _inputs(
    run: Path,
    prompts: Path,
    tokenizer: Any,  # noqa: ANN401  # of transformers
    steps: int,
    weight: float,
) -> tuple[list[list[Reply]], list[Reply]]:
    texts = Texts(tokenizer, read_jsonl(prompts))
    with tempfile.TemporaryDirectory() as folder, tarfile.open(run) as archive:
        wanted = ("grpo/rollouts.jsonl", "rings_sft/results.jsonl")
        archive.extractall(folder, [archive.getmember(name) for name in wanted], filter="data")
        rollouts, results = (Path(folder) / name for name in wanted)
        return rollout_batches(read_jsonl(rollouts), texts, steps, weight), ring_replies(results, texts)


def main(argv: Sequence[str] | None = None) -> None:
    """Probes the rates that are missing, one after another, and proposes one."""
    parser = make_parser(NAME, __doc__)
    parser.add_argument(
        "run", type=Path, metavar="RUN", help="run.tar.gz of a `learning_run` that began with the model"
    )
    parser.add_argument("--model", type=Path, required=True, help="folder of the policy, see restore_weights.py")
    parser.add_argument("--prompts", type=Path, required=True, metavar="FILE", help="of `ring_prompts.py`")
    parser.add_argument("--out", type=Path, required=True, help="folder of the result")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES)
    parser.add_argument("--updates", type=int, default=4, help="at each rate (default: %(default)s)")
    parser.add_argument(
        "--policy-steps", type=int, default=2, help="steps before the first update (default: %(default)s)"
    )
    parser.add_argument("--beta", type=float, default=0.0, help="weight of the distance (default: %(default)s)")
    parser.add_argument("--negative-weight", type=float, default=1.0, help="of advantages (default: %(default)s)")
    parser.add_argument("--micro-batch", type=int, default=8, help="(default: %(default)s)")
    parser.add_argument("--limit-s", type=float, default=120.0, help="no rate begins after it (default: %(default)s)")
    args = parser.parse_args(argv)
    began = time.monotonic()
    settings: Mapping[str, Any] = {
        name: getattr(args, name) for name in ("updates", "policy_steps", "beta", "negative_weight")
    }
    path = args.out / f"{NAME}.json"
    result: dict[str, Any] = header() | {"settings": settings, "rates": []}
    if (before := unfinished(path)) is not None and before["settings"] == settings:
        result = before
    found = [RateFigures.model_validate(one) for one in result["rates"]]
    if missing := [rate for rate in args.rates if rate not in {one.rate for one in found}]:
        tokenizer = AutoTokenizer.from_pretrained(args.model)
        batches, judged = _inputs(args.run, args.prompts, tokenizer, args.policy_steps, args.negative_weight)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        policy = Policy(args.model, device, tokenizer.eos_token_id, args.micro_batch)
        result |= {"replies": [len(batch) for batch in batches], "judged": len(judged), "device": device}
        if "cosine" not in result:
            result["cosine"] = gradient_cosine(policy, batches)
        for rate in missing:
            if time.monotonic() - began > args.limit_s:
                break
            found.append(probe_rate(policy, rate, batches, judged, args.updates, args.beta))
            found.sort(key=lambda one: -one.rate)
            result["rates"] = [one.model_dump(mode="json") for one in found]
            result["proposed"] = propose(found)
            write_atomically(path, json.dumps(result, indent=1) + "\n")
    print(markdown(found))
    print(f"cosine of two batches' gradients: {result.get('cosine')}")
    print(f"proposed rate: {propose(found)}")


if __name__ == "__main__":
    main()
