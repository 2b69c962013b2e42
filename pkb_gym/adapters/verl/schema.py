"""The schema of the tool `submit`, and its answers."""

from __future__ import annotations

import inspect

from verl.tools.schemas import OpenAIFunctionToolSchema

from pkb_gym.envs import KernelTool
from pkb_gym.envs.episode import Episode

SUBMIT = "submit"


def submit_schema() -> OpenAIFunctionToolSchema:
    """Made of the docstring of `KernelTool.submit`, so that all frameworks describe one tool."""
    text = inspect.getdoc(KernelTool.submit) or ""
    source = text.split("source: ", 1)[1].splitlines()[0]
    parameters = {
        "type": "object",
        "properties": {"source": {"type": "string", "description": source}},
        "required": ["source"],
    }
    function = {"name": SUBMIT, "description": text.splitlines()[0], "parameters": parameters}
    return OpenAIFunctionToolSchema.model_validate({"type": "function", "function": function})


def score_of(episode: Episode) -> float:
    """The value of the best submission; NaN where one was not judged, which `pkb_grpo` leaves out."""
    value = episode.episode_value
    return float("nan") if value is None else value
