"""The difference of a policy to its base: small, near, and the same wherever it is restored."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training import restore_weights
from pkb_gym.training.learner import weight_difference
from pkb_gym.training.learner.weight_difference import STEP, parts_of, restore_difference, store_difference

SHAPES = {"embed.weight": (300, 64), "layer.weight": (128, 256), "norm.weight": (256,)}
SCALE = 2e-3


def write_model(folder: Path, weights: dict[str, torch.Tensor], **texts: str) -> Path:
    folder.mkdir(parents=True)
    save_file(weights, folder / "model.safetensors")
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0}}, "added_tokens": []}))
    for name, text in texts.items():
        (folder / f"{name}.json").write_text(text)
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A base, and a policy whose weights differ by normal noise; one row has not changed."""
    made = torch.Generator().manual_seed(0)
    base = {name: 0.05 * torch.randn(shape, generator=made) for name, shape in SHAPES.items()}
    policy = {name: of + SCALE * torch.randn(of.shape, generator=made) for name, of in base.items()}
    policy["layer.weight"][7] = base["layer.weight"][7]
    return write_model(tmp_path / "base", base), write_model(tmp_path / "policy", policy, trainer_state='{"a": 1}')


def restored(base: Path, parts: Path, output: Path) -> dict[str, torch.Tensor]:
    restore_difference(base, parts, "sft", output)
    return load_file(output / "model.safetensors")


def test_the_difference_is_near_and_small(folders: tuple[Path, Path], tmp_path: Path):
    base, policy = folders
    stored = store_difference(base, policy, tmp_path / "parts", "sft")
    was, learned = load_file(base / "model.safetensors"), load_file(policy / "model.safetensors")
    now = restored(base, tmp_path / "parts", tmp_path / "again")
    assert stored.relative_error == pytest.approx(STEP / math.sqrt(12), rel=0.03)
    for name in ("embed.weight", "layer.weight"):
        error = (now[name] - learned[name]).square().mean().sqrt() / SCALE
        assert error == pytest.approx(STEP / math.sqrt(12), rel=0.05)
        assert (now[name] - was[name]).flatten() @ (learned[name] - was[name]).flatten() > 0
    assert torch.equal(now["layer.weight"][7], was["layer.weight"][7])
    assert torch.allclose(now["norm.weight"], learned["norm.weight"], atol=1e-8)
    weights = sum(math.prod(shape) for shape in SHAPES.values())
    assert stored.weights == weights and stored.size < weights * 3.5 / 8 + 8192


def test_a_new_process_restores_the_same_bits(folders: tuple[Path, Path], tmp_path: Path):
    base, policy = folders
    store_difference(base, policy, tmp_path / "parts", "sft")
    restore_difference(base, tmp_path / "parts", "sft", policy)  # in place: the policy is what the parts give
    call = "from pathlib import Path; import sys; from pkb_gym.training.learner.weight_difference import *\n"
    call += "restore_difference(Path(sys.argv[1]), Path(sys.argv[2]), 'sft', Path(sys.argv[3]))"
    folders_ = [base, tmp_path / "parts", tmp_path / "elsewhere"]
    subprocess.run([sys.executable, "-c", call, *map(str, folders_)], check=True)
    judged, elsewhere = (load_file(of / "model.safetensors") for of in (policy, tmp_path / "elsewhere"))
    assert all(torch.equal(judged[name], elsewhere[name]) for name in SHAPES)
    assert (tmp_path / "elsewhere" / "trainer_state.json").read_text() == '{"a": 1}'
    assert (tmp_path / "elsewhere" / "tokenizer.json").read_text() == (base / "tokenizer.json").read_text()


def test_the_recipe_restores_a_policy_once(folders: tuple[Path, Path], tmp_path: Path):
    base, policy = folders
    store_difference(base, policy, tmp_path / "parts", "sft")
    argv = ["--base", str(base), "--parts", str(tmp_path / "parts"), "--name", "sft", "--output", str(tmp_path / "out")]
    restore_weights.main(argv)
    expected = restored(base, tmp_path / "parts", tmp_path / "again")
    assert all(
        torch.equal(of, expected[name]) for name, of in load_file(tmp_path / "out" / "model.safetensors").items()
    )
    with pytest.raises(ConfigError, match="holds a model"):
        restore_weights.main(argv)


def test_parts_are_of_bounded_size(folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    base, policy = folders
    monkeypatch.setattr(weight_difference, "PART_BYTES", 4000)
    monkeypatch.setattr(weight_difference, "PIECE", 2048)
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "sft.99.safetensors").touch()  # of an earlier store
    stored = store_difference(base, policy, tmp_path / "parts", "sft")
    assert len(stored.parts) > 3 and stored.parts == parts_of(tmp_path / "parts", "sft")
    # A piece of 2,048 weights takes less than a byte for each; names and texts are in the header.
    assert max(part.stat().st_size for part in stored.parts) < 4000 + 2048 + 4096
    now = restored(base, tmp_path / "parts", tmp_path / "again")
    monkeypatch.undo()  # pieces have the size that they were stored with
    assert all(
        torch.equal(of, now[name]) for name, of in restored(base, tmp_path / "parts", tmp_path / "other").items()
    )
    stored.parts[2].unlink()
    with pytest.raises(ConfigError, match="a part is missing"):
        restored(base, tmp_path / "parts", tmp_path / "again")
    stored.parts[0].unlink()
    with pytest.raises(ConfigError, match="the first part is missing"):
        restored(base, tmp_path / "parts", tmp_path / "again")


def test_another_base_is_refused(folders: tuple[Path, Path], tmp_path: Path):
    base, policy = folders
    store_difference(base, policy, tmp_path / "parts", "sft")
    with pytest.raises(ConfigError, match="the difference to another model"):
        restored(policy, tmp_path / "parts", tmp_path / "again")
    with pytest.raises(ConfigError, match="holds no parts of grpo"):
        restore_difference(base, tmp_path / "parts", "grpo", tmp_path / "again")
    with pytest.raises(ConfigError, match="holds no model in one file"):
        store_difference(tmp_path, policy, tmp_path / "parts", "sft")


def test_other_tensors_and_vocabularies_are_refused(folders: tuple[Path, Path], tmp_path: Path):
    base, policy = folders
    other = write_model(tmp_path / "other", {"layer.weight": torch.zeros(2, 2)})
    with pytest.raises(ConfigError, match=r"other tensors than its base: embed\.weight, layer\.weight, norm\.weight"):
        store_difference(base, other, tmp_path / "parts", "sft")
    (policy / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"b": 0}}, "added_tokens": []}))
    with pytest.raises(ConfigError, match="another vocabulary"):
        store_difference(base, policy, tmp_path / "parts", "sft")


def test_dtypes_stay(folders: tuple[Path, Path], tmp_path: Path):
    base, policy = folders
    weights = {name: of.bfloat16() for name, of in load_file(policy / "model.safetensors").items()}
    save_file(weights, policy / "model.safetensors")
    store_difference(base, policy, tmp_path / "parts", "sft")
    assert {of.dtype for of in restored(base, tmp_path / "parts", tmp_path / "again").values()} == {torch.bfloat16}
