"""In the place of vLLM, which needs a GPU: an engine that answers by a script, as far as TRL's trainer uses it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

__version__ = "0.26.0"


class SamplingParams(SimpleNamespace):
    """The arguments, as they are."""


class RequestOutput(SimpleNamespace):
    """The answer to one prompt."""


class LLM:
    """The colocated engine of one rank.

    Attributes:
        requests: Prompts and parameters of each call; those of one group with tensor parallelism have to agree.
        weights: Shapes of the weights that were loaded, by name.
        notes: Names of the calls, in order.
    """

    def __init__(self, model: str, max_model_len: int | None = None, enable_sleep_mode: bool = False, **_: Any) -> None:
        from tests.training.numbered_tasks import NumberedTasks  # it imports trl, which looks for this package

        self._tasks = NumberedTasks(Path(model))
        self._asleep: set[str] = set()
        self.weights: dict[str, list[int]] = {}
        self.requests: list[tuple[list[list[int]], dict[str, Any]]] = []
        self.notes: list[str] = []
        runner = SimpleNamespace(model=SimpleNamespace(load_weights=self._load_weights))
        executor = SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))
        self.llm_engine = SimpleNamespace(
            model_executor=executor, model_config=SimpleNamespace(max_model_len=max_model_len or 4096)
        )

    def _load_weights(self, weights: list[tuple[str, Any]]) -> None:
        assert "weights" not in self._asleep
        self.weights |= {name: list(tensor.shape) for name, tensor in weights}

    def reset_prefix_cache(self) -> None:
        self.notes.append("reset_prefix_cache")

    def sleep(self, level: int) -> None:
        self.notes.append(f"sleep {level}")
        self._asleep = {"weights", "kv_cache"}
        self.weights = {}

    def wake_up(self, tags: list[str]) -> None:
        self.notes.append(f"wake_up {','.join(tags)}")
        self._asleep -= set(tags)

    def generate(self, prompts: list[dict[str, list[int]]], sampling_params: SamplingParams, use_tqdm: bool) -> Any:
        assert not self._asleep, "it sleeps"
        assert self.weights, "it has no weights"
        ids = [prompt["prompt_token_ids"] for prompt in prompts]
        self.requests.append((ids, vars(sampling_params)))
        self.notes.append("generate")
        return [
            RequestOutput(
                prompt_token_ids=prompt, outputs=[_output(*self._tasks.answer(prompt, sampling_params.max_tokens))]
            )
            for prompt in ids
        ]


def _output(ids: list[int], logprob: float) -> SimpleNamespace:
    logprobs = [{token: SimpleNamespace(rank=1, logprob=logprob)} for token in ids]
    return SimpleNamespace(token_ids=ids, logprobs=logprobs)
