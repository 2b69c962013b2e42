"""Ceilings of this machine's GPUs: arithmetic, memory, links, signals, launches; beside the datasheet's peaks.

`gpu_ceilings.cu` is compiled by nvcc and measures all but matrix products, which are torch.matmul's.

python -m benchmarks.gpu_ceilings [--out FOLDER]
python -m benchmarks.gpu_ceilings --render FOLDER/gpu_ceilings.json    prints the table of a result
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, header
from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.hardware.peaks import Peaks, find_gpu
from pkb_gym.engine.hardware.tiers import MemoryTier
from pkb_gym.engine.support.atomic_write import write_atomically
from pkb_gym.engine.support.row_json import row_json

NAME = "gpu_ceilings"
SOURCE = Path(__file__).resolve().parent / "gpu_ceilings.cu"
NVCC = ("nvcc", "-std=c++17", "-O3")
COMPILE_TIMEOUT_S, RUN_TIMEOUT_S = 180.0, 120.0
MATRIX_SIZE = 8192
MATRIX_REPETITIONS = 10
L2_CAPACITY_BYTES = 60 * 2.0**20
"""The capacity for GPUs that are not in the table of datasheets."""


def main() -> None:
    """Measures and saves, or renders what was saved."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_ceilings", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result (default: %(default)s)")
    parser.add_argument("--render", type=Path, metavar="RESULT", help="print the table of a result")
    args = parser.parse_args()
    if args.render:
        print(markdown(json.loads(args.render.read_text(encoding="utf-8"))))
        return
    result = header() | run_program() | matrix_rates()
    result["peaks"] = asdict(measured_peaks(result))
    write_atomically(args.out / f"{NAME}.json", row_json(result))
    print(markdown(result))


def run_program() -> dict[str, Any]:
    """Compiles and runs `gpu_ceilings.cu`.

    Raises:
        RuntimeError: it could not be compiled, or failed; the message has the reason.
    """
    import torch

    major, minor = torch.cuda.get_device_capability()
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / NAME)
        _run([*NVCC, f"-arch=sm_{major}{minor}", str(SOURCE), "-o", program], COMPILE_TIMEOUT_S)
        printed: dict[str, Any] = json.loads(_run([program], RUN_TIMEOUT_S))
    return printed


def _run(command: list[str], timeout_s: float) -> str:
    """A command's output."""
    ran = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if ran.returncode != 0:
        raise RuntimeError(f"{command[0]} exited with {ran.returncode}: {ran.stderr.strip()[-2000:]}")
    return ran.stdout


def matrix_rates() -> dict[str, Any]:
    """flop/s of one large product of random matrices, by dtype; float32 with TF32 and without."""
    import torch

    rates = {}
    for name, dtype, tf32 in (
        ("bfloat16", torch.bfloat16, False),
        ("float16", torch.float16, False),
        ("tf32", torch.float32, True),
        ("float32", torch.float32, False),
        ("float64", torch.float64, False),
    ):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a, b = (torch.randn(MATRIX_SIZE, MATRIX_SIZE, device="cuda").to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        times_ms = []
        for _ in range(MATRIX_REPETITIONS + 1):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            torch.matmul(a, b, out=out)
            end.record()
            end.synchronize()
            times_ms.append(begin.elapsed_time(end))
        rates[name] = 2 * MATRIX_SIZE**3 / (min(times_ms[1:]) * 1e-3)  # the first one warms up
    return {"device": torch.cuda.get_device_name(), "matrix_flops_per_s": rates}


def measured_peaks(result: dict[str, Any]) -> Peaks:
    """A result as peaks, for `HardwareSpec.measured`; float32 products count as TF32, as in the datasheets' table.

    Raises:
        ConfigError: it was measured on one GPU, which has no link to measure.
    """
    if "link_bytes_per_s" not in result:
        raise ConfigError("peaks need a measured link; measure on at least 2 GPUs")
    matrix, memory = result["matrix_flops_per_s"], result["memory_bytes_per_s"]
    return Peaks(
        matrix_flops_per_s={
            "bfloat16": matrix["bfloat16"],
            "float16": matrix["float16"],
            "float32": max(matrix["tf32"], matrix["float32"]),
            "float64": matrix["float64"],
        },
        vector_flops_per_s=result["vector_flops_per_s"],
        memory=(
            MemoryTier("L2", _l2_bytes(result["device"]), memory["read_l2"]),
            MemoryTier("HBM", None, max(memory["copy_kernel"], memory["copy_library"], memory["read"])),
        ),
        link_bytes_per_s=max(
            rate for way in _ways(result).values() for rate in (*_pair_rates(way), way["all_to_all_per_gpu"])
        ),
        link_latency_s=min(pair["one_way"] for pair in result["signal_latency_s"]),
        source=f"measured {result['date']}, torch {result['torch']}, benchmarks/gpu_ceilings.py",
    )


def _l2_bytes(device: str) -> float:
    datasheet = _datasheet(device)
    return (datasheet and datasheet.memory[0].capacity_bytes) or L2_CAPACITY_BYTES


def _datasheet(device: str) -> Peaks | None:
    try:
        return find_gpu(device).peaks
    except ConfigError:
        return None


def _ways(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The measurements of each mechanism of transfer."""
    ways: dict[str, dict[str, Any]] = result["link_bytes_per_s"]
    return ways


def _pair_rates(way: dict[str, Any]) -> list[float]:
    return [pair["rate"] for pair in way["pairs"]]


def markdown(result: dict[str, Any]) -> str:
    """A heading line and a table, with the datasheet's peaks where they are known."""
    datasheet = _datasheet(result["device"])
    lines = [["what", "measured", "datasheet"], ["---"] * 3]
    for name, rate in result["matrix_flops_per_s"].items():
        # Without TF32, float32 products run on the vector units.
        peak = None
        if datasheet is not None:
            peaks = datasheet.vector_flops_per_s if name == "float32" else datasheet.matrix_flops_per_s
            peak = peaks.get("float32" if name == "tf32" else name)
        lines.append([f"matrix product, {name}", *_cells(rate, peak, 1e12, "Tflop/s")])
    for name, rate in result["vector_flops_per_s"].items():
        peak = None if datasheet is None else datasheet.vector_flops_per_s.get(name)
        lines.append([f"multiply-add, {name}", *_cells(rate, peak, 1e12, "Tflop/s")])
    for name, rate in result["memory_bytes_per_s"].items():
        peak = None if datasheet is None else datasheet.memory[0 if name == "read_l2" else -1].bytes_per_s
        lines.append([f"memory, {name.replace('_', ' ')}", *_cells(rate, peak, 1e12, "TB/s")])
    link = None if datasheet is None else datasheet.link_bytes_per_s
    for name, way in _ways(result).items() if "link_bytes_per_s" in result else ():
        rates = _pair_rates(way)
        label = name.replace("_", " ")
        lines.append([f"link, one pair, {label}, slowest", *_cells(min(rates), None, 1e9, "GB/s")])
        lines.append([f"link, one pair, {label}, fastest", *_cells(max(rates), link, 1e9, "GB/s")])
        lines.append([f"link, all to all, {label}", *_cells(way["all_to_all_per_gpu"], link, 1e9, "GB/s")])
        for blocks, rate in way.get("by_blocks", {}).items():
            lines.append([f"link, one pair, {label}, {blocks} blocks", *_cells(rate, None, 1e9, "GB/s")])
    if "signal_latency_s" in result:
        latencies = [pair["one_way"] for pair in result["signal_latency_s"]]
        lines.append(["signal, one way, best pair", *_cells(min(latencies), None, 1e-6, "us")])
        lines.append(["signal, one way, worst pair", *_cells(max(latencies), None, 1e-6, "us")])
        lines.append(["barrier of all GPUs", *_cells(result["barrier_s"], None, 1e-6, "us")])
    for name, seconds in result["launch_s"].items():
        lines.append([f"kernel launch, {name.replace('_', ' ')}", *_cells(seconds, None, 1e-6, "us")])
    about = f"{result['gpus']} x {result['device']}, torch {result['torch']}, {result['date']}."
    return about + "\n\n" + "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def _cells(measured: float, peak: float | None, unit: float, name: str) -> list[str]:
    """The measured value, and the peak with what share of it was reached."""
    shown = f"{measured / unit:.3g} {name}"
    return [shown, "-" if peak is None else f"{peak / unit:.4g} ({measured / peak:.0%})"]


if __name__ == "__main__":
    main()
