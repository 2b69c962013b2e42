"""The difference of a policy to the model that it was trained from, in files small enough to move.

Each row of a matrix is divided by `STEP` times the root mean square of its own differences, rounded to whole numbers,
and coded by Huffman's method: about 2.5 bits a weight where differences are normally distributed, whose entropy is
log2(4.13 / STEP). The rounding is a fifth of the difference (STEP / sqrt(12)). Vectors are kept as they are. The same
base and parts give the same weights to the last bit, on any machine.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from pkb_gym.engine.errors import ConfigError

STEP = 0.75
"""Width of a rounding interval, in root mean squares of a row's differences."""
PART_BYTES = 15 * 2**20
"""Size at which a part is closed; a tensor's last piece may go beyond it by `PIECE` bytes at most."""
PIECE = 2**20
"""Weights that are coded together, as whole rows."""
MAX_CODE = 127
WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer.json"
TEXTS = ("config.json", "generation_config.json", "tokenizer_config.json", "chat_template.jinja", "trainer_state.json")
"""Small files of a model's folder that the first part holds."""

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class StoredDifference:
    """The files of a difference.

    Attributes:
        parts: Names of the parts, in order.
        weights: Number of weights.
        relative_error: Root mean square of the rounding errors, relative to that of the differences.
    """

    parts: Sequence[Path]
    weights: int
    relative_error: float

    @property
    def size(self) -> int:
        """The size of all parts, in bytes."""
        return sum(part.stat().st_size for part in self.parts)


def store_difference(base: Path, model: Path, output: Path, name: str) -> StoredDifference:
    """Writes `NAME.0.safetensors`, `NAME.1.safetensors` ..., after removing others of this name.

    Args:
        base: Folder of the model that training began with.
        model: Folder of the trained model; its tokenizer is that of the base.
        output: Folder for the parts.
        name: Name of the policy.

    Raises:
        ConfigError: a folder has no weights, or tensors or vocabularies differ.
    """
    _refuse_other_vocabulary(base, model)
    with _opened(base) as before, _opened(model) as after:
        names = _names_of_both(before, after)
        for old in parts_of(output, name):
            old.unlink()
        output.mkdir(parents=True, exist_ok=True)
        about = {
            "base": _digest(before, names),
            "piece": PIECE,
            "texts": {text: (model / text).read_text() for text in TEXTS if (model / text).exists()},
            "dtypes": {tensor: str(after.get_tensor(tensor).dtype) for tensor in names},
        }
        sums, parts = [0.0, 0.0], []
        for number, tensors in enumerate(_in_parts(_pieces(before, after, names, sums))):
            parts.append(output / f"{name}.{number}.safetensors")
            unfinished = parts[-1].with_suffix(".unfinished")
            save_file(tensors, unfinished, {"about": json.dumps(about)} if number == 0 else {})
            unfinished.replace(parts[-1])
        weights = sum(after.get_tensor(tensor).numel() for tensor in names)
    return StoredDifference(parts, weights, (sums[1] / sums[0]) ** 0.5 if sums[0] else 0.0)


def restore_difference(base: Path, difference: Path, name: str, output: Path) -> None:
    """Writes the model that a difference is of; its weights are replaced where the folder has some.

    Args:
        base: Folder of the model that training began with.
        difference: Folder of the parts.
        name: Name of the policy.
        output: Folder for the model.

    Raises:
        ConfigError: there are no parts or not all, or they are of another base.
    """
    parts = parts_of(difference, name)
    if not parts:
        raise ConfigError(f"{difference} holds no parts of {name}: expected {name}.0.safetensors, {name}.1.safetensors")
    with _opened(base) as before:
        pieces, about = _read_parts(parts)
        names = sorted(about["dtypes"])
        if names != sorted(before.keys()) or _digest(before, names) != about["base"]:
            raise ConfigError(f"{parts[0]} is the difference to another model than {base}; give the one it was made of")
        with ThreadPoolExecutor() as threads:
            found = threads.map(
                lambda tensor: _restored(before.get_tensor(tensor), pieces, tensor, int(about["piece"]), parts), names
            )
            weights = {
                tensor: of.to(getattr(torch, about["dtypes"][tensor].removeprefix("torch.")))
                for tensor, of in zip(names, found, strict=True)
            }
    output.mkdir(parents=True, exist_ok=True)
    for text, content in about["texts"].items():
        (output / text).write_text(content)
    if not (output / TOKENIZER).exists() and (base / TOKENIZER).exists():
        shutil.copy(base / TOKENIZER, output / TOKENIZER)
    unfinished = output / f"{WEIGHTS}.unfinished"
    save_file(weights, unfinished, {"format": "pt"})
    unfinished.replace(output / WEIGHTS)


def parts_of(folder: Path, name: str) -> list[Path]:
    """The parts of a policy, in order."""
    return sorted(folder.glob(f"{name}.*.safetensors"), key=lambda path: int(path.name.split(".")[-2]))


def _opened(folder: Path) -> Any:  # noqa: ANN401  # safetensors leaves it untyped
    path = folder / WEIGHTS
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{folder} holds no model in one file {WEIGHTS}: {error}") from error


def _names_of_both(before: Any, after: Any) -> list[str]:  # noqa: ANN401
    names: list[str] = sorted(after.keys())
    shapes = [{name: tuple(of.get_slice(name).get_shape()) for name in of.keys()} for of in (before, after)]  # noqa: SIM118
    if shapes[0] != shapes[1]:
        differing = sorted(
            name for name in set(shapes[0]) | set(shapes[1]) if shapes[0].get(name) != shapes[1].get(name)
        )
        raise ConfigError(f"the trained model has other tensors than its base: {', '.join(differing[:5])}")
    return names


def _refuse_other_vocabulary(base: Path, model: Path) -> None:
    found = [json.loads((folder / TOKENIZER).read_bytes()) for folder in (base, model) if (folder / TOKENIZER).exists()]
    if len(found) == 2 and any(found[0].get(key) != found[1].get(key) for key in ("model", "added_tokens")):
        raise ConfigError(f"{model} has another vocabulary than {base}; a difference holds weights alone")


def _digest(opened: Any, names: Iterable[str]) -> str:  # noqa: ANN401
    def of(name: str) -> bytes:
        return hashlib.sha256(opened.get_tensor(name).contiguous().view(torch.uint8).numpy()).digest()

    with ThreadPoolExecutor() as threads:
        return hashlib.sha256(b"".join(threads.map(of, names))).hexdigest()


def _pieces(before: Any, after: Any, names: Sequence[str], sums: list[float]) -> Iterator[Tensors]:  # noqa: ANN401
    """The coded pieces of all tensors in order; adds squares of differences and of their rounding to `sums`."""

    def coded(name: str) -> tuple[list[Tensors], float, float]:
        was, now = before.get_tensor(name).float(), after.get_tensor(name).float()
        difference = now - was
        total = float(difference.double().square().sum())
        if difference.ndim != 2:
            return [{f"{name}:whole": difference}], total, 0.0
        rows = max(1, PIECE // difference.shape[1])
        made, rounding = [], 0.0
        for number, piece in enumerate(torch.split(difference, rows)):
            steps = STEP * piece.square().mean(dim=1).sqrt()
            codes = (piece / steps.clamp(min=torch.finfo(steps.dtype).tiny)[:, None]).round()
            codes = codes.clamp(-MAX_CODE, MAX_CODE)
            rounding += float((piece - codes * steps[:, None]).double().square().sum())
            packer = zlib.compressobj(strategy=zlib.Z_HUFFMAN_ONLY)
            packed = packer.compress(codes.to(torch.int8).numpy().tobytes()) + packer.flush()
            as_tensor = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
            made.append({f"{name}:{number}:codes": as_tensor, f"{name}:{number}:steps": steps})
        return made, total, rounding

    with ThreadPoolExecutor() as threads:
        for made, total, rounding in threads.map(coded, names):
            sums[0] += total
            sums[1] += rounding
            yield from made


def _in_parts(pieces: Iterable[Tensors]) -> Iterator[Tensors]:
    part: Tensors = {}
    size = 0
    for piece in pieces:
        part |= piece
        size += sum(tensor.numel() * tensor.element_size() for tensor in piece.values())
        if size >= PART_BYTES:
            yield part
            part, size = {}, 0
    if part:
        yield part


def _read_parts(parts: Sequence[Path]) -> tuple[Tensors, dict[str, Any]]:
    pieces: Tensors = {}
    about = None
    for part in parts:
        with safe_open(part, framework="pt") as opened:
            pieces |= {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            about = json.loads((opened.metadata() or {}).get("about", "null")) or about
    if about is None:
        raise ConfigError(f"the first part is missing beside {parts[0]}")
    return pieces, about


def _restored(base: torch.Tensor, pieces: Tensors, name: str, piece: int, parts: Sequence[Path]) -> torch.Tensor:
    now = base.float().clone()
    if now.ndim != 2:
        if f"{name}:whole" not in pieces:
            raise ConfigError(f"no difference of {name} beside {parts[0]}: a part is missing")
        return now + pieces[f"{name}:whole"]
    rows = max(1, piece // now.shape[1])
    for number, of in enumerate(torch.split(now, rows)):
        codes = pieces.get(f"{name}:{number}:codes")
        if codes is None:
            raise ConfigError(f"no difference of {name} beside {parts[0]}: a part is missing")
        plain = bytearray(zlib.decompress(codes.numpy().tobytes()))
        difference = torch.frombuffer(plain, dtype=torch.int8).view(of.shape).float()
        of += difference * pieces[f"{name}:{number}:steps"][:, None]
    return now
