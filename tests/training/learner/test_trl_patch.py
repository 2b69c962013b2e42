"""docs/trl_unequal_prompts.patch, which is proposed to TRL: it applies, and gives each process its own completions."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import trl.generation
from trl.generation import vllm_generation

ROOT = Path(__file__).resolve().parents[3]
PATCH = ROOT / "docs/trl_unequal_prompts.patch"
PROMPTS = [[[100], [101], [102], [103], [104]], [[200], [201], [202]]]
"""Prompts of either process."""


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """TRL's module as it would be."""
    folder = tmp_path_factory.mktemp("trl")
    file = folder / "trl/generation/vllm_generation.py"
    file.parent.mkdir(parents=True)
    shutil.copyfile(vllm_generation.__file__, file)
    subprocess.run(["git", "apply", str(PATCH)], cwd=folder, check=True, capture_output=True, timeout=60)
    spec = importlib.util.spec_from_file_location(f"{trl.generation.__name__}.patched", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def completions_of_server(module: ModuleType, rank: int, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """What a process gets; the completion of a prompt is the prompt."""
    everything = [prompt for own in PROMPTS for prompt in own]
    counts = [len(own) for own in PROMPTS]
    gathered = {1: counts, len(PROMPTS[rank]): everything}

    def gather_object(items: list[Any]) -> list[Any]:
        return [None] * len(everything) if items[0] is None else gathered[len(items)]

    def broadcast(box: list[Any], from_process: int) -> None:  # accelerate's signature
        box[0] = (everything, everything, None, None)

    monkeypatch.setattr(module, "gather_object", gather_object)
    monkeypatch.setattr(module, "broadcast_object_list", broadcast)
    generation = object.__new__(module.VLLMGeneration)
    numbers = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_completion_length")
    vars(generation).update(
        dict.fromkeys(numbers, 1),
        mode="server",
        enable_sleep_mode=False,
        accelerator=SimpleNamespace(is_main_process=False, process_index=rank),
    )
    return generation.generate(PROMPTS[rank], None, num_generations=1)[1]


@pytest.mark.parametrize("rank", [0, 1])
def test_each_process_gets_its_own_completions(patched, rank, monkeypatch):
    assert completions_of_server(patched, rank, monkeypatch) == PROMPTS[rank]


def test_without_it_a_process_gets_those_of_another(monkeypatch):
    """As long as this holds, `even_share` is needed."""
    assert completions_of_server(vllm_generation, 1, monkeypatch) == [[103], [104], [200]]
