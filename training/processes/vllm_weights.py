"""Weights for a vLLM server by way of a folder that it shares with the trainer, where NCCL cannot carry them.

NCCL takes GPUs alone, and one process for each: a server on a CPU, or on the GPU of a trainer, has no other way. A
folder in memory, such as `/dev/shm`, is quickest on one node.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from trl.generation import vllm_generation
from trl.generation.vllm_client import VLLMClient

from pkb_gym.engine.errors import ConfigError

FILE = "model.safetensors"


class FolderClient(VLLMClient):
    """TRL's client of a vLLM server, which has the server read weights from a folder.

    Args:
        folder: Folder that the server reads by the same path; made where it does not exist.
        **kwargs: Arguments of `VLLMClient`.
    """

    def __init__(self, folder: Path, **kwargs: Any) -> None:
        self._folder = folder
        super().__init__(**kwargs)

    def init_communicator(self, device: torch.device | str | int = 0) -> None:  # noqa: ARG002  # TRL's signature
        """Makes the folder; there is no communicator."""
        self._folder.mkdir(parents=True, exist_ok=True)

    def update_named_params(
        self,
        metadata: list[tuple[str, str, list[int]]],  # noqa: ARG002  # TRL's signature
        named_params: Iterator[tuple[str, torch.Tensor]],
    ) -> None:
        """Writes all weights, and returns when the server has read them.

        Args:
            metadata: Names, dtypes and shapes, which the file has too.
            named_params: Names and whole weights.
        """
        weights = {name: weight.detach().cpu().contiguous() for name, weight in named_params}
        written = self._folder / f".{FILE}"
        save_file(weights, str(written), metadata={"format": "pt"})
        written.replace(self._folder / FILE)
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(self._folder)}}
        self._post(f"{self.base_url}/collective_rpc", json=reload)


@contextmanager
def weights_by_folder(folder: str | None) -> Iterator[None]:
    """Has TRL's trainers made inside send weights through a folder; None leaves them NCCL.

    Raises:
        ConfigError: the folder cannot be written.
    """
    if folder is None:
        yield
        return
    path = Path(folder).absolute()
    if path.exists() and not os.access(path, os.W_OK):
        raise ConfigError(f"{path}, for vLLM's weights, cannot be written")
    usual = vllm_generation.VLLMClient
    vllm_generation.VLLMClient = partial(FolderClient, path)  # type: ignore[assignment, misc]  # called with keywords alone
    try:
        yield
    finally:
        vllm_generation.VLLMClient = usual  # type: ignore[misc]
