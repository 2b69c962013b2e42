"""What options come to."""

import pytest

from pkb_gym.cli.options import parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("tiny", "tiny"),
        ("M=1024,K=512", {"M": 1024, "K": 512}),
        ("M = 8 , K=2", {"M": 8, "K": 2}),
        ("counts=(3,0,(1,2)),pattern=normal", {"counts": (3, 0, (1, 2)), "pattern": "normal"}),
        ("zigzag=false,root=None,scale=0.5", {"zigzag": False, "root": None, "scale": 0.5}),
    ],
)
def test_sizes_are_names_or_axes(text, size):
    assert parse_size(text) == size


def test_options_reach_the_configuration(pkb):
    machine = "--device cpu --world-size 2 --ranks-per-gpu 1 --size M=8,N=4 --dtype float32"
    argv = f"{machine} --protocol published --language cpp --seed=-3"
    ran = pkb("eval", "AllReduce", "-", *argv.split(), "--until", "check", "--timeout=2.5", stdin=b"passed")
    (_, _, config) = ran.calls[0]
    assert config.model_dump(exclude_defaults=True) == {
        "device": "cpu",
        "world_size": 2,
        "ranks_per_gpu": 1,
        "size": {"M": 8, "N": 4},
        "dtype": "float32",
        "protocol": "published",
        "language": "cpp",
        "until": "check",
        "seed": -3,
        "timeout_s": 2.5,
    }


def test_what_is_not_asked_for_is_left_open(pkb):
    ran = pkb("eval", "AllReduce", "-", stdin=b"passed")
    assert ran.calls[0][2].model_dump(exclude_defaults=True) == {}


@pytest.mark.parametrize("command", ["eval", "eval-dir"])
def test_a_seed_that_no_message_carries_is_refused(pkb, tmp_path, command):
    """It was pydantic's own error, with a traceback."""
    source = tmp_path / "AllReduce.cpp"
    source.write_text("passed")
    of = ("AllReduce", source) if command == "eval" else (tmp_path,)
    ran = pkb(command, *of, "--device", "cpu", "--seed", 2**63)
    assert ran.status == 2 and "seed=9223372036854775808: expected a whole number" in ran.err
