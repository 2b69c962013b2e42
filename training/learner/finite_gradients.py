"""Updates by a gradient that is not finite are left out: one would end the run, as every weight would be NaN."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

logger = logging.getLogger(__name__)

METRIC = "updates_left_out"


class FiniteGradients(TrainerCallback):
    """Takes gradients that are not finite out of an optimizer step, on all ranks alike.

    Kernels of attention give such gradients at times, of a loss that is finite (see `processes.attention`).

    Args:
        add_metric: Function that receives `METRIC` and 1 for a step without an update, 0 for any other.
    """

    def __init__(self, add_metric: Callable[[str, float], None] = lambda _name, _value: None) -> None:
        self._add_metric = add_metric

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **of_trainer: Any,
    ) -> None:
        """Drops gradients that are not finite, after they have been clipped."""
        model: torch.nn.Module = of_trainer["model"]
        left_out = not _are_finite(model)
        if left_out:
            logger.warning("the gradient of step %d is not finite: weights stay as they are", state.global_step + 1)
            model.zero_grad(set_to_none=True)  # an optimizer passes over weights without a gradient
        self._add_metric(METRIC, float(left_out))


def _are_finite(model: torch.nn.Module) -> bool:
    """Whether all gradients of a model are, in the parts of all ranks."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    own = [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in gradients]
    device = own[0].device if own else torch.device("cpu")
    # A model of one process may lie on several GPUs.
    finite = [torch.isfinite(gradient).all().to(device) for gradient in own]
    lacking = (~torch.stack(finite).all() if finite else torch.tensor(False)).to(device, torch.int32)
    if dist.is_initialized():
        dist.all_reduce(lacking, dist.ReduceOp.MAX)
    return not bool(lacking)
