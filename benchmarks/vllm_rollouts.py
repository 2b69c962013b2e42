r"""Tokens a second of multi-turn GRPO on real evaluations, by way of generation.

    transformers  the default of the recipe
    continuous    continuous batching of transformers
    colocate      vLLM in the trainer's process, asleep while the policy learns
    server        `trl vllm-serve` on the same GPU, with weights sent each step through a folder

Each way trains the same model with the same prompts and seed, `--steps` steps. Kernels are judged on the CPU
meanwhile. Tokens are those of the recorded replies; the first step, in which graphs are captured and compiled, is left
out.

    python -m benchmarks.vllm_rollouts --model runs/sft --prompts data --runs runs/vllm --ways colocate server
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from transformers import AutoTokenizer

from benchmarks.common import RESULTS, make_parser, save
from pkb_gym.engine.hardware import gpus
from pkb_gym.training.inputs.rows import read_jsonl

NAME = "vllm_rollouts"
WAYS = ("transformers", "continuous", "colocate", "server")
END_S = 20.0
"""Deadline in seconds for a process to end by itself when it is interrupted."""


def recipe(args: argparse.Namespace, way: str, output: Path) -> list[str]:
    """The command that trains one way."""
    device = ["--use_cpu", "true", "--bf16", "false"] if args.cpu else ["--bf16", "true"]
    command = [sys.executable, "-m", "pkb_gym.training.grpo", "--prompts", args.prompts, "--output_dir", str(output)]
    command += ["--model_name_or_path", args.model, "--max_steps", str(args.steps), "--max_turns", str(args.turns)]
    command += ["--per_device_train_batch_size", str(args.micro_batch), "--num_generations", str(args.group)]
    command += ["--gradient_accumulation_steps", str(args.batch // args.micro_batch)]
    command += ["--max_completion_length", str(args.completion), "--temperature", "1.0", "--learning_rate", "1e-5"]
    command += ["--evaluation", "dedicated", "--evaluation_services", str(args.services), "--timing_budget_s", "0.1"]
    command += ["--kernel_timeout_s", "4", "--shuffle_dataset", "false", "--seed", "0", "--save_strategy", "no"]
    command += ["--gradient_checkpointing", "false", "--report_to", "none", "--logging_steps", "1", *device]
    command += ["--disable_tqdm", "true"]
    return [*command, *ways(args)[way], *args.more]


def ways(args: argparse.Namespace) -> dict[str, list[str]]:
    """Way -> its options."""
    folder = str(Path(args.weights) / "weights")
    vllm = ["--use_vllm", "true"]
    colocate = [*vllm, "--vllm_mode", "colocate", "--vllm_gpu_memory_utilization", str(args.memory)]
    colocate += ["--vllm_max_model_length", str(args.context), "--vllm_enable_sleep_mode", str(not args.cpu).lower()]
    server = [*vllm, "--vllm_mode", "server", "--vllm_server_base_url", f"http://127.0.0.1:{args.port}"]
    return {
        "transformers": [],
        "continuous": ["--use_transformers_continuous_batching", "true"],
        "colocate": colocate,
        "server": [*server, "--vllm_weights_folder", folder],
    }


@contextlib.contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that writes into a log, and ends with the block, together with all that it started."""
    with log.open("wb") as lines:
        process = subprocess.Popen(command, stdout=lines, stderr=lines, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.send_signal(signal.SIGINT)
            process.wait(END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def serving(args: argparse.Namespace, log: Path, end: float) -> Iterator[None]:
    """A vLLM server of the model, ready to answer.

    Args:
        args: Options of this program.
        log: File of what the server prints.
        end: Deadline for its first answer, in seconds of `time.monotonic`.

    Raises:
        RuntimeError: It ended, or did not answer in time.
    """
    command = [sys.executable, "-m", "trl.scripts.vllm_serve", "--model", args.model, "--port", str(args.port)]
    command += ["--host", "127.0.0.1", "--gpu_memory_utilization", str(args.memory)]
    command += ["--max_model_len", str(args.context), "--dtype", "float32" if args.cpu else "bfloat16"]
    with running([*command, "--max-num-seqs", str(args.batch)], log) as server:
        wait_for(f"http://127.0.0.1:{args.port}/health", server, end)
        yield


def wait_for(url: str, server: subprocess.Popen[bytes], end: float) -> None:
    """Returns when the server answers, before `end`.

    Raises:
        RuntimeError: It ended, or did not answer in time.
    """
    while time.monotonic() < end and server.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(1)
    raise RuntimeError(f"the vLLM server ended with status {server.poll()}, or did not answer in time")


def measure(args: argparse.Namespace, way: str) -> dict[str, Any]:
    """Trains one way; its figures, or how it failed."""
    folder = Path(args.runs) / way
    folder.mkdir(parents=True)
    began = time.monotonic()
    end = began + args.limit_s
    found: dict[str, Any] = {"way": way}
    try:
        with serving(args, folder / "server.log", end) if way == "server" else contextlib.nullcontext():
            found["server_ready_s"] = round(time.monotonic() - began, 1)
            with running(recipe(args, way, folder / "out"), folder / "train.log") as trainer:
                found["status"] = trainer.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        found["failure"] = f"stopped at its limit of {args.limit_s:g} s"
    except RuntimeError as error:
        found["failure"] = str(error)
    return found | figures(args, folder / "out") | {"wall_s": round(time.monotonic() - began, 1)}


def figures(args: argparse.Namespace, out: Path) -> dict[str, Any]:
    """The figures of the steps that a run has logged, without the first."""
    if not (out / "phases.jsonl").exists() or not (out / "rollouts.jsonl").exists():
        return {"steps": 0}
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    steps = [row for row in read_jsonl(out / "phases.jsonl") if row["step"] > 0]
    known = {row["step"] for row in steps}
    replies = [row for row in read_jsonl(out / "rollouts.jsonl") if row["step"] in known and row["reply"]]
    texts = [row["reply"] for row in replies]
    # A tokenizer refuses an empty list.
    tokens = sum(map(len, tokenizer(texts, add_special_tokens=False)["input_ids"])) if texts else 0
    seconds = {name: sum(row["phases_s"][name] for row in steps) for name in (steps[0]["phases_s"] if steps else ())}
    judged = [row for row in replies if row.get("reward") is not None and row["source"]]
    return {
        "steps": len(steps),
        "replies": len(replies),
        "tokens": tokens,
        "seconds": {name: round(spent_s, 2) for name, spent_s in seconds.items()},
        "tokens_per_generation_s": round(tokens / seconds["generation"]) if seconds.get("generation") else None,
        "tokens_per_s": round(tokens / sum(seconds.values())) if seconds else None,
        "step_s": round(sum(seconds.values()) / len(steps), 2) if steps else None,
        "submissions": len(judged),
        "correct": round(fmean(row["is_right"] for row in judged), 3) if judged else None,
        "turns": max((row["turn"] for row in replies), default=-1) + 1,
    }


def make_options() -> argparse.ArgumentParser:
    """Its command line."""
    parser = make_parser(NAME, __doc__)
    parser.add_argument("--model", required=True, help="folder of a policy that `sft.py` wrote")
    parser.add_argument("--prompts", required=True, help="folder of `pkb export prompts`")
    parser.add_argument("--runs", required=True, help="folder of logs, new or empty")
    parser.add_argument("--weights", default="/dev/shm", help="folder of the server's weights (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result (default: %(default)s)")
    parser.add_argument("--name", default=NAME, help="name of the result (default: %(default)s)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, metavar="WAY", help="of the four above")
    parser.add_argument("--more", nargs=argparse.REMAINDER, default=[], help="further options of grpo.py, at the end")
    parser.add_argument("--cpu", action="store_true", help="without a GPU")
    for name, number in (
        ("steps", 20),
        ("turns", 2),
        ("batch", 64),
        ("micro-batch", 8),
        ("group", 8),
        ("completion", 2560),
        ("context", 8192),
        ("services", 5),
        ("port", 8765),
    ):
        parser.add_argument(f"--{name}", type=int, default=number, help="(default: %(default)s)")
    parser.add_argument("--memory", type=float, default=0.3, help="vLLM's share of a GPU (default: %(default)s)")
    parser.add_argument("--limit-s", type=float, default=400.0, help="of each way, in seconds (default: %(default)s)")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Measures each way, and writes what there is after each."""
    args = make_options().parse_args(argv)
    rows: list[dict[str, Any]] = []
    for way in args.ways:
        rows.append(measure(args, way))
        save(args.name, {"gpus": list(gpus.names()), "model": Path(args.model).name, "rows": rows}, args.out)


if __name__ == "__main__":
    main()
