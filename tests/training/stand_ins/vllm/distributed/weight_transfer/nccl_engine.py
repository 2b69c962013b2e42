"""The trainer's end of the group that weights are broadcast in: a socket in the place of NCCL."""

from __future__ import annotations

import io
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from tests.waiting import PATIENCE_S


@dataclass
class NCCLTrainerSendWeightsArgs:
    """The arguments, as they are."""

    group: Any
    packed: bool


class NCCLWeightTransferEngine:
    """Rank 0 waits for the server's worker, and sends it weights."""

    @staticmethod
    def trainer_init(init_info: dict[str, Any]) -> SimpleNamespace:
        assert init_info["world_size"] == 2 and init_info["rank_offset"] == 1
        with socket.create_server((init_info["master_address"], init_info["master_port"])) as listening:
            listening.settimeout(PATIENCE_S)
            connection, _ = listening.accept()
        return SimpleNamespace(connection=connection, group=SimpleNamespace())

    @staticmethod
    def trainer_send_weights(
        iterator: Iterator[tuple[str, torch.Tensor]], trainer_args: NCCLTrainerSendWeightsArgs
    ) -> None:
        for name, tensor in iterator:
            content = io.BytesIO()
            torch.save((name, tensor.detach().cpu().contiguous().clone()), content)
            body = content.getvalue()
            trainer_args.group.connection.sendall(struct.pack("!Q", len(body)) + body)
