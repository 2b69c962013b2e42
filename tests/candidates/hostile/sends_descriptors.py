# expect: runtime_error|integrity rank
# needs: bubblewrap
# twice: true
# Sends the evaluator, and its own mailbox, as many descriptors as it can, so that others of this user can send none.
import array
import os
import socket

import torch


def solution(tensor: torch.Tensor) -> torch.Tensor:
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [1] * 200))
    mailboxes = [number for number in range(3, 64) if os.path.exists(f"/proc/self/fd/{number}")]
    kept = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for _ in range(20):
        for number in (kept[0].fileno(), *mailboxes):
            try:
                with socket.socket(fileno=os.dup(number)) as found:
                    found.sendmsg([b"x"], [rights], socket.MSG_DONTWAIT)
            except OSError:
                continue
    raise RuntimeError("it holds what it could")
