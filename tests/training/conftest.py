"""What the tests of the recipes share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from datasets import Dataset

from pkb_gym.training.scratch_model import write_scratch_model
from tests.envs.fake_evaluator import FakeEvaluator
from tests.training.conversations import tiny_corpus


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models gain nothing from several threads, which wait for each other without end on a busy machine."""
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(usual)


@pytest.fixture(scope="session")
def corpus() -> Dataset:
    return tiny_corpus()


@pytest.fixture(scope="session")
def corpus_folder(corpus: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of `pkb export corpus`."""
    folder = tmp_path_factory.mktemp("export")
    corpus.save_to_disk(folder / "corpus")
    return folder


@pytest.fixture(scope="session")
def scratch_model(corpus: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the smallest size, untrained."""
    folder = tmp_path_factory.mktemp("scratch")
    write_scratch_model(corpus, folder, "smoke", seed=0)
    return folder


@pytest.fixture(scope="session")
def policy(corpus: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy of two layers with random weights."""
    from tests.training.scripted import write_tiny_policy

    return write_tiny_policy(corpus, tmp_path_factory.mktemp("policy"))


@pytest.fixture
def evaluator() -> FakeEvaluator:
    return FakeEvaluator()
