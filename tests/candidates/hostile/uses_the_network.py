# expect: runtime_error Network is unreachable
# needs: bubblewrap
# Calls home (an address that is reserved for documentation).
import socket

import torch


def solution(tensor: torch.Tensor) -> torch.Tensor:
    socket.create_connection(("192.0.2.1", 443), timeout=1).close()
    return tensor
