"""Gradients that are not finite change nothing, and the run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Trainer, TrainingArguments

from pkb_gym.training.learner.finite_gradients import METRIC, FiniteGradients


class Roots(torch.nn.Module):
    """Its loss is sqrt(x w^2): finite where x is 0, and its gradient is NaN there."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor, **_: object) -> dict[str, torch.Tensor]:
        return {"loss": (x * self.weight.square()).sqrt().mean()}


@pytest.mark.parametrize("max_grad_norm", [0.0, 0.5])
def test_an_update_by_nan_is_left_out(tmp_path: Path, max_grad_norm: float) -> None:
    """All weights became NaN at the first one, and every later reply of the policy was of no use."""
    weights: list[float] = []
    metrics: list[tuple[str, float]] = []

    def add_metric(name: str, value: float) -> None:
        metrics.append((name, value))
        weights.append(model.weight.detach().item())

    model = Roots()
    inputs = [{"x": torch.tensor(value)} for value in (1.0, 0.0, 1.0, 4.0)]
    arguments = TrainingArguments(
        str(tmp_path),
        per_device_train_batch_size=1,
        num_train_epochs=1,
        learning_rate=0.1,
        lr_scheduler_type="constant",
        weight_decay=0.5,
        max_grad_norm=max_grad_norm,
        train_sampling_strategy="sequential",
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=inputs, callbacks=[FiniteGradients(add_metric)])
    trainer.train()
    assert metrics == [(METRIC, 0.0), (METRIC, 1.0), (METRIC, 0.0), (METRIC, 0.0)]
    before, at_nan, after, last = *weights[:3], model.weight.detach().item()
    assert before == 1.0 and at_nan < before, "the first gradient was followed"
    assert after == at_nan, "the second one was not, nor did weights decay"
    assert last < after
