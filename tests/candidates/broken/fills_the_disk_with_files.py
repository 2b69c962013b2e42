# expect: runtime_error No space left on device
# needs: bubblewrap
# Writes 10 GB into files of 64 MB.
from pathlib import Path


def solution(tensor):
    block = bytes(64 << 20)
    for index in range(160):
        Path(f"/tmp/{index}").write_bytes(block)
