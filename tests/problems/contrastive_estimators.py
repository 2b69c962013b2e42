"""Solutions that estimate ContrastiveLoss."""

from __future__ import annotations

from collections.abc import Callable
from math import pi

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

from pkb_gym.problems.data_parallel.contrastive_loss.reference import block_loss
from pkb_gym.problems.data_parallel.contrastive_loss.reference import solution as contrastive_loss
from tests.problems.partial_data import all_ranks, in_8_bits


def expected_softplus(mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """E softplus(z) of normal z, by Gauss-Hermite quadrature on 32 nodes."""
    nodes, weights = (torch.tensor(a, dtype=torch.float32) for a in np.polynomial.hermite.hermgauss(32))
    z = mean[..., None] + (2 * variance.clamp(min=0)).sqrt()[..., None] * nodes
    return (F.softplus(z) * weights).sum(-1) / pi**0.5


def contrastive_from_moments(image, text, logit_scale, logit_bias=0.0, group=None, *, covariance=False):
    """Reads of other ranks' texts only their mean and variance; takes similarities for normal; matches are exact."""
    image, text = image.float(), text.float()
    spread = torch.cov(text.T, correction=0) if covariance else text.var(0, correction=0)
    means, spreads = all_ranks(text.mean(0)), all_ranks(spread)
    loss = torch.zeros(())
    for mean, spread in zip(means, spreads, strict=True):
        variance = ((image @ spread) * image).sum(1) if covariance else image.square() @ spread
        loss += expected_softplus(logit_scale * image @ mean + logit_bias, logit_scale**2 * variance).sum()
    matches = logit_scale * (image * text).sum(1) + logit_bias
    return (loss + (F.softplus(-matches) - F.softplus(matches)).mean()).bfloat16()


def contrastive_from_covariance(*args):
    return contrastive_from_moments(*args, covariance=True)


def contrastive_of_some_texts(one_in: int, left_out: bool) -> Callable[..., torch.Tensor]:
    """Of the other ranks' texts one in so many, or all but those, each counted for as many more as are left out."""

    def solution(image, text, logit_scale, logit_bias=0.0, group=None):
        read = (torch.arange(len(text)) % one_in == 0) ^ left_out
        loss = block_loss(image, text, logit_scale, logit_bias, own=True)
        for rank, other in enumerate(all_ranks(text)):
            if rank != dist.get_rank():
                found = block_loss(image, other[read], logit_scale, logit_bias, own=False)
                loss = loss + found * (len(text) / max(1, int(read.sum())))
        return loss

    return solution


def contrastive_of_all_but_one_rank(image, text, logit_scale, logit_bias=0.0, group=None):
    """The texts of one rank are not read, and those of the other ranks count for them."""
    world_size, own = dist.get_world_size(), dist.get_rank()
    loss = torch.zeros((), dtype=text.dtype)
    for rank, other in enumerate(all_ranks(text)):
        if rank not in (own, (own + 1) % world_size):
            loss = loss + block_loss(image, other, logit_scale, logit_bias, own=False)
    loss = loss * ((world_size - 1) / max(1, world_size - 2))
    return loss + block_loss(image, text, logit_scale, logit_bias, own=True)


def contrastive_of_some_channels(part: float) -> Callable[..., torch.Tensor]:
    """The largest channels, and their products made up for the others; matches are exact."""

    def solution(image, text, logit_scale, logit_bias=0.0, group=None):
        image, text = image.float(), text.float()
        size = text.square().mean(0) * image.square().mean(0)
        dist.all_reduce(size)
        size[torch.stack([image.square().mean(0), text.square().mean(0)]).argmax(1)] = 0  # the outliers
        read = size.topk(max(1, round(part * len(size)))).indices
        scale = logit_scale * size.sqrt().sum() / size[read].sqrt().sum()
        loss = torch.zeros(())
        for other in all_ranks(text[:, read].contiguous()):
            loss += F.softplus(scale * image[:, read] @ other.T + logit_bias).sum() / len(image)
        guessed = scale * (image[:, read] * text[:, read]).sum(1) + logit_bias
        matches = logit_scale * (image * text).sum(1) + logit_bias
        return (loss + (F.softplus(-matches) - F.softplus(guessed)).mean()).bfloat16()

    return solution


def contrastive_in_8_bits(image, text, *args):
    return contrastive_loss(in_8_bits(image), in_8_bits(text), *args)


def contrastive_by_projection(image, text, logit_scale, logit_bias=0.0, group=None):
    """Pairs that are near by a random half of the directions are done exactly, all others from their distribution."""
    image, text = image.float(), text.float()
    texts = torch.cat(all_ranks(text))
    own = slice(dist.get_rank() * len(text), (dist.get_rank() + 1) * len(text))
    outliers = torch.stack([image.square().mean(0), text.square().mean(0)]).argmax(1)
    rows = [tensor.index_fill(1, outliers, 0) for tensor in (image, texts)]
    directions = max(1, image.shape[1] // 2)
    projection = torch.randn(image.shape[1], directions, generator=torch.Generator().manual_seed(1)) / directions**0.5
    near = (rows[0] @ projection) @ (rows[1] @ projection).T
    is_near = near >= near.flatten().topk(max(1, near.numel() // 20)).values[-1]
    logits = logit_scale * image @ texts.T + logit_bias
    exact = F.softplus(logits)[is_near].sum()
    spread = logit_scale**2 * (rows[0].square().sum(1).mean() * rows[1].square().sum(1).mean()) / image.shape[1]
    guessed = expected_softplus(torch.tensor(logit_bias), spread) * (~is_near).sum()
    matches, counted = logits[:, own].diagonal(), is_near[:, own].diagonal()
    fix = F.softplus(-matches) - F.softplus(matches).where(counted, expected_softplus(torch.tensor(logit_bias), spread))
    return ((exact + guessed) / len(image) + fix.mean()).bfloat16()


def contrastive_by_screening(part: float, exact: float) -> Callable[..., torch.Tensor]:
    """Pairs that are nearest by a part of the channels are done exactly; of the others the rest is taken for normal.

    Args:
        part: Share of the channels that is read for all pairs.
        exact: Share of the pairs that is done exactly.
    """

    def solution(image, text, logit_scale, logit_bias=0.0, group=None):
        image, text = image.float(), text.float()
        texts = torch.cat(all_ranks(text))
        own = slice(dist.get_rank() * len(text), (dist.get_rank() + 1) * len(text))
        outliers = torch.stack([image.square().mean(0), texts.square().mean(0)]).argmax(1)
        rows = [tensor.index_fill(1, outliers, 0) for tensor in (image, texts)]
        read = round(part * image.shape[1])
        near = logit_scale * rows[0][:, :read] @ rows[1][:, :read].T
        is_near = near >= near.flatten().topk(max(1, round(exact * near.numel()))).values[-1]
        logits = logit_scale * image @ texts.T + logit_bias
        spread = logit_scale**2 * rows[0][:, read:].square() @ rows[1][:, read:].square().mean(0)
        guessed = expected_softplus(near + logit_bias, spread[:, None].expand_as(near))
        losses = F.softplus(logits).where(is_near, guessed)
        matches = logits[:, own].diagonal()
        fix = F.softplus(-matches) - losses[:, own].diagonal()
        return (losses.sum() / len(image) + fix.mean()).bfloat16()

    return solution
