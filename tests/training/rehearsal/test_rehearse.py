"""The dry run of training commands: what would stop them on machines that are described, found on this one."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.hardware import gpus
from pkb_gym.training import rehearse as script
from pkb_gym.training.inputs.model_shape import ModelShape
from pkb_gym.training.inputs.option_names import refuse_unknown_options
from pkb_gym.training.rehearsal.launch import Launch, current_launch, parse_launch
from pkb_gym.training.rehearsal.rehearse import rehearse
from pkb_gym.training.rehearsal.target import Target
from pkb_gym.training.smoke import CONFIGS
from tests.training.scripted import row
from tests.whole_tables import by_make_all

ROOT = Path(__file__).parents[3]
FILES = "training/configs/accelerate"


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture
def prompts(tmp_path):
    """Prompts for four ranks on GPUs, one of them long."""
    columns = {"device": "cuda", "language": "cuda", "world_size": 4}
    rows = [row(seed=seed, **columns) for seed in range(31)]
    rows.append(row(prompt=[{"role": "user", "content": "x" * 6000}], **columns))
    DatasetDict({"train": Dataset.from_list(rows)}).save_to_disk(tmp_path / "prompts")
    return tmp_path / "prompts"


def findings(target: str, command: str) -> dict[str, list[tuple[str, str]]]:
    """(level, text) by subject."""
    found: dict[str, list[tuple[str, str]]] = {}
    for finding in rehearse(parse_launch(shlex.split(command)), Target.parse(target)):
        found.setdefault(finding.subject, []).append((finding.level, finding.text))
    return found


def grpo(prompts, config, launch, *more):
    return f"{launch} training/grpo.py --config {CONFIGS}/{config}.yaml --prompts {prompts} {' '.join(more)}"


FOUR_OF_8 = f"CUDA_VISIBLE_DEVICES=0,1,2,3 accelerate launch --config_file {FILES}/fsdp2_8.yaml --num_processes 4"
ONE = f"accelerate launch --config_file {FILES}/one_gpu.yaml"


def test_shapes_of_public_models_are_those_of_their_names():
    sizes = {name: ModelShape.of(name) for name in ("Qwen/Qwen3-14B", "Qwen/Qwen2.5-Coder-7B-Instruct")}
    assert sizes["Qwen/Qwen3-14B"].parameters == 14_768_307_200
    coder = sizes["Qwen/Qwen2.5-Coder-7B-Instruct"]
    assert (coder.parameters, coder.heads, coder.key_value_heads) == (7_615_616_512, 28, 4)
    assert coder.cache_bytes_per_token == 2 * 28 * 4 * 128 * 2
    assert coder.layer_parameters * coder.layers + coder.outer_parameters == coder.parameters


def test_a_model_here_is_read_from_its_folder(policy):
    shape = ModelShape.of(str(policy))
    assert (shape.layers, shape.hidden, shape.context) == (2, 32, 4096) and not shape.is_known_by_name
    with pytest.raises(ConfigError, match="no configuration of the model 'nobody/nothing' here"):
        ModelShape.of("nobody/nothing")


def test_transformers_must_not_generate_from_large_shards(prompts):
    found = findings("8x80", grpo(prompts, "grpo_8_gpus", FOUR_OF_8, "--model_name_or_path Qwen/Qwen3-14B"))
    ((level, text),) = found["generation"]
    assert level == "error" and "14.8 billion parameters are too many" in text and "--use_vllm" in text
    small = findings("8x80", grpo(prompts, "grpo_8_gpus", FOUR_OF_8, "--model_name_or_path Qwen/Qwen3-0.6B"))
    assert "generation" not in small


def test_memory_is_added_up_for_learning_and_for_generation(prompts):
    command = grpo(prompts, "grpo_8_gpus", FOUR_OF_8, "--model_name_or_path Qwen/Qwen3-14B")
    ((level, text),) = findings("8x80", command)["memory, learning"]
    # 16 bytes of 14.768 billion parameters over 4 GPUs; 8 bytes of 8192 tokens of 151936.
    assert level == "error" and "states 59.1 GB" in text and "logits 10.0 GB" in text
    ((_, trimmed),) = findings("8x80", f"{command} --trim_reasoning")["memory, learning"]
    assert "logits 39.8 GB" in trimmed, "a sequence for each of four turns"
    ((level, text),) = findings("8x141", command)["memory, learning"]
    assert level == "ok" and text.startswith("8") and "of 141.0 GB a GPU" in text
    ((level, text),) = findings("8x80", command)["memory, generation"]
    assert level == "error" and "cache of 16 sequences" in text


def test_vllm_needs_its_share_unless_it_sleeps(prompts):
    command = grpo(prompts, "grpo_vllm_colocate", FOUR_OF_8, "--model_name_or_path Qwen/Qwen2.5-Coder-7B-Instruct")
    awake = findings("8x80", f"{command} --vllm_enable_sleep_mode false")
    asleep = findings("8x80", f"{command} --vllm_enable_sleep_mode true")
    assert "vLLM, which does not sleep 32.0 GB" in awake["memory, learning"][0][1]
    assert "not sleep" not in asleep["memory, learning"][0][1] and asleep["memory, vLLM"][0][0] == "ok"
    narrow = findings("8x80", f"{command} --vllm_gpu_memory_utilization 0.2")["memory, vLLM"]
    assert narrow[0][0] == "error" and "raise vllm_gpu_memory_utilization" in narrow[0][1]


def test_heads_must_divide(prompts):
    launch = f"accelerate launch --config_file {FILES}/fsdp2_8.yaml"
    command = grpo(prompts, "grpo_vllm_colocate", launch, "--model_name_or_path Qwen/Qwen2.5-Coder-7B-Instruct")
    ((level, text),) = findings("8x80", f"{command} --vllm_tensor_parallel_size 8")["division"]
    assert level == "error" and "tensor_parallel 8 does not divide 28 heads; 1, 2, 4 divide the heads" in text
    assert findings("8x80", f"{command} --vllm_tensor_parallel_size 4")["division"][0][0] == "ok"


@pytest.mark.parametrize(
    ("target", "launch", "more", "subject", "words"),
    [
        ("4x80", FOUR_OF_8, "", "judges", "evaluation_gpus names 4, 5, 6, 7 of 4 GPUs"),
        ("8x80", FOUR_OF_8.replace("4", "6"), "", "GPUs", "6 processes a node on 4 visible GPUs"),
        ("8x80", FOUR_OF_8, "--evaluation_gpus 3 4 5 6", "judges", "dedicated evaluation shares 3 with training"),
        ("8x80", FOUR_OF_8, "--evaluation_url http://a:1", "judges", "give evaluation GPUs or the url of a service"),
        ("8x80", FOUR_OF_8, "--num_generations 7", "batch", "64 episodes a step are no whole groups of 7"),
        ("8x80", FOUR_OF_8, "--evaluation_gpus 4 5", "ranks", "prompts are for 4 ranks, 2 GPUs judge"),
        ("8x80", FOUR_OF_8, "--gradient_accumulation_steps 160", "data", "32 prompts do not fill a step of 80"),
        ("8x80", FOUR_OF_8, "--learning_rat 1", "arguments", "Did you mean 'learning_rate'?"),
        ("1x80", f"accelerate launch --config_file {FILES}/fsdp2_2x8.yaml", "", "nodes", "2 nodes are started"),
    ],
)
def test_what_does_not_fit_together_is_an_error(prompts, target, launch, more, subject, words):
    command = grpo(prompts, "grpo_8_gpus", launch, "--model_name_or_path Qwen/Qwen3-0.6B", more)
    errors = [text for level, text in findings(target, command)[subject] if level == "error"]
    assert any(words in text for text in errors), errors


def test_prompts_for_fewer_ranks_than_judge_are_noted(prompts):
    command = grpo(prompts, "grpo_8_gpus", FOUR_OF_8, "--model_name_or_path Qwen/Qwen3-0.6B")
    assert findings("8x80", command)["ranks"] == [("ok", "prompts are for 4 ranks, and as many GPUs judge")]
    ((level, text),) = findings("8x80", f"{command} --evaluation colocated")["ranks"]
    assert level == "ok"
    more = (
        command.replace("CUDA_VISIBLE_DEVICES=0,1,2,3 ", "") + " --evaluation_gpus 2 3 4 5 6 7 --evaluation colocated"
    )
    ((level, text),) = findings("8x80", more)["ranks"]
    assert level == "note" and "export with --world-size 6" in text


def test_lengths_are_counted_with_a_tokenizer_and_estimated_without(prompts, policy):
    counted = findings("1x80", grpo(prompts, "grpo_one_gpu", ONE, f"--model_name_or_path {policy}"))
    assert counted["tokenizer"][0][0] == "ok" and counted["template"] == [
        ("ok", "submissions are calls of the tool `submit`")
    ]
    ((_, longest), (level, room)) = counted["lengths"]
    assert "the longest prompt has" in longest and (level, "leaves no room" in room) == ("error", True)
    guessed = findings("1x80", grpo(prompts, "grpo_one_gpu", ONE, "--model_name_or_path Qwen/Qwen3-0.6B"))
    assert guessed["tokenizer"][0][0] == "note" and "template" not in guessed
    assert ("note", "the longest has 6000 characters, estimated as 2000 tokens") in guessed["lengths"]
    variables = "--chat_template_kwargs '{\"enable_thinking\": false}' --single_turn"
    found = findings("1x80", grpo(prompts, "grpo_one_gpu", ONE, f"--model_name_or_path {policy} {variables}"))
    assert found["template"] == [("ok", "submissions are fenced blocks of code, enable_thinking=False")]


def test_services_that_do_not_answer_are_named(prompts, monkeypatch):
    monkeypatch.setattr("pkb_gym.training.rehearsal.services.PATIENCE_S", 0.2)
    command = grpo(prompts, "grpo_vllm_server", ONE, "--model_name_or_path Qwen/Qwen3-0.6B")
    command += " --vllm_server_base_url http://127.0.0.1:9 --evaluation_url http://127.0.0.1:9"
    found = findings("1x80", command)
    assert [level for level, _ in found["vLLM"]] == ["note"] and "trl vllm-serve" in found["vLLM"][0][1]
    assert ("note", True) in [(level, "does not answer" in text) for level, text in found["judges"]]
    monkeypatch.setattr(gpus, "names", lambda: ("NVIDIA H100",))
    monkeypatch.setattr(gpus, "memory_bytes", lambda: 80 * 10**9)
    assert [level for level, _ in findings("here", command)["vLLM"]] == ["error"]


def test_supervised_and_evaluating_commands_are_checked_too(policy, corpus_folder, tmp_path):
    sft = f"{ONE} training/sft.py --config {CONFIGS}/sft_one_gpu.yaml --corpus {corpus_folder}"
    found = findings("1x80", f"{sft} --model_name_or_path {policy}")
    assert found["data"] == [("ok", "6 conversations of 2 problems")] and "memory, generation" not in found
    assert "batch" not in found and found["memory, learning"][0][0] == "ok"
    lora = findings("1x80", f"{sft} --model_name_or_path Qwen/Qwen3-14B --use_peft --dtype bfloat16 --lora_r 32")
    assert "states 31." in lora["memory, learning"][0][1]
    DatasetDict({"held_out": Dataset.from_list([row()])}).save_to_disk(tmp_path / "prompts")
    evaluate = f"{ONE} training/evaluate_policy.py --prompts {tmp_path / 'prompts'} --output out"
    found = findings("1x80", f"{evaluate} --model_name_or_path {policy}")
    assert "memory, learning" not in found and found["memory, generation"][0][0] == "ok"


def test_targets_are_described_or_here(monkeypatch):
    assert (
        Target.parse("2x8x80GB") == Target(2, 8, 80e9) and str(Target.parse("2x8x141")) == "2 nodes of 8 GPUs of 141 GB"
    )
    for wrong in ("8", "0x80", "8x", "a lot"):
        with pytest.raises(ConfigError, match="describes no machine; expected GPUSxGIGABYTES such as 8x80"):
            Target.parse(wrong)
    monkeypatch.setattr(gpus, "names", lambda: ())
    monkeypatch.setattr(gpus, "memory_bytes", lambda: None)
    assert str(Target.parse("here")) == "no GPU"


def test_launches_are_read_from_commands_and_from_accelerate(monkeypatch):
    launch = parse_launch(shlex.split(f"{FOUR_OF_8} training/sft.py --corpus data"))
    assert launch == Launch("sft", ("--corpus", "data"), 4, 1, "fsdp2", True, ("0", "1", "2", "3"))
    assert parse_launch(["python", "-m", "pkb_gym.training.rft", "--keep", "2"]) == Launch("rft", ("--keep", "2"))
    for words, message in (("ls", "starts no recipe"), ("python x.py", "'x.py' is no recipe")):
        with pytest.raises(ConfigError, match=message):
            parse_launch(words.split())
    started = {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
    for name, value in {**started, "ACCELERATE_MIXED_PRECISION": "bf16"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert current_launch("training/grpo.py", ["--a"]) == Launch("grpo", ("--a",), 16, 2, "fsdp2", True)


def test_the_exit_status_tells_whether_it_would_run(policy, tmp_path, capsys):
    DatasetDict({"train": Dataset.from_list([row(seed=n) for n in range(8)])}).save_to_disk(tmp_path / "prompts")
    command = shlex.split(grpo(tmp_path / "prompts", "grpo_one_gpu", ONE, f"--model_name_or_path {policy}"))
    assert script.main(["1x80", *command]) == 0 and capsys.readouterr().out.splitlines()[-1].startswith("errors: 0")
    assert script.main(["1x80", *command, "--num_generations", "7"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].startswith("errors: 1")
    assert script.main(["nothing", *command]) == 2 and script.main([]) == 2
    assert "describes no machine" in capsys.readouterr().err


@by_make_all
def test_recipes_rehearse_themselves(prompts, policy, tmp_path):
    """As a user types it, in the first of several processes; the others say nothing."""
    words = [sys.executable, str(ROOT / "training" / "grpo.py"), "--rehearse", "1x80", "--prompts", str(prompts)]
    words += ["--model_name_or_path", str(policy), "--config", str(CONFIGS / "grpo_one_gpu.yaml")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1 and done.stdout.startswith("grpo on 1 GPUs of 80 GB"), done.stderr
    assert not list(tmp_path.glob("*output*"))


def test_other_ranks_say_nothing(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(sys, "argv", ["grpo.py", "--rehearse=8x80"])
    with pytest.raises(SystemExit) as ended:
        refuse_unknown_options(str(ROOT / "training" / "grpo.py"))
    assert ended.value.code == 0 and capsys.readouterr().out == ""
    assert script.main(["--launched", "grpo", "--prompts", "data", "--rehearse"]) == 2
    assert "--rehearse needs a target, such as 8x80" in capsys.readouterr().err


def test_the_table_of_models_is_json_with_all_that_a_shape_needs():
    known = json.loads((ROOT / "training" / "inputs" / "models.json").read_text())
    assert all(ModelShape.of(name).is_known_by_name for name in known)
