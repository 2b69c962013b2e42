"""The kernels that attention is computed by while a policy learns."""

from __future__ import annotations

import torch


def use_sound_attention() -> None:
    """Keeps torch from cuDNN's kernels of attention, in this process.

    Their backward pass gave NaN for some batches whose loss is finite (torch 2.11 with cuDNN 9.19 on an H100);
    docs/studies.md has a search for such batches.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
