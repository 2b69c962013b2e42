"""`pkb` as a whole: help, errors, exit statuses."""

import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import pkb_gym
from pkb_gym.cli.program import COMMANDS, main, make_parser

NAMES = (
    *("list", "show", "new", "eval", "eval-dir", "run", "export", "demo", "serve", "evaluator", "doctor"),
    *("check-problem", "report", "compare", "best", "verify", "leaderboard"),
)


@pytest.mark.parametrize("name", NAMES)
def test_help_of_each_command_shows_an_example(name, capsys):
    assert main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"example:\n  pkb {name}" in out


def test_help_lists_every_command_and_the_exit_statuses(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert len(COMMANDS) == len(NAMES)
    assert all(re.search(rf"^    {name}\s", out, re.MULTILINE) for name in NAMES)
    assert "exit status: 0 passed, 1 the candidate failed, 2 wrong usage, 3 this machine could not judge it" in out


def test_help_imports_neither_torch_nor_rich():
    code = (
        "import sys; from pkb_gym.cli import main; main(['--help']);"
        "print(sorted({'torch', 'tvm_ffi', 'numpy', 'rich'} & set(sys.modules)), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = ran.stderr.strip()
    assert "torch" not in loaded and "tvm_ffi" not in loaded and "rich" not in loaded


@pytest.mark.parametrize(
    "words", [["--version"], ["list"], ["list", "--json"], ["show", "--help"], ["check-problem", "--help"]]
)
def test_short_answers_load_no_large_library(words):
    """`pkb --version` took a second and `pkb list` two: all commands, Gymnasium and pydantic were imported for them."""
    allowed = {"show": {"pydantic", "numpy"}, "list": {"rich"}}.get(words[0], set())
    loaded, out = loaded_by(words)
    assert {"torch", "gymnasium", "numpy", "pydantic", "rich", "tvm_ffi"} & loaded <= allowed
    assert out.strip()


def test_version_and_help_of_one_command_load_no_other_command():
    others = {f"pkb_gym.cli.{module}" for name, module in COMMANDS.items() if name != "list"}
    assert not others & loaded_by(["--version"])[0]
    assert not others & loaded_by(["list", "--category", "other"])[0]


def test_the_version_is_that_of_the_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pkb-gym {pkb_gym.__version__}\n"


def loaded_by(words) -> tuple[set[str], str]:
    """Names of modules that are loaded once `pkb` has run in a fresh interpreter, and what it printed."""
    code = "import sys; from pkb_gym.cli import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    return set(ran.stderr.split()), ran.stdout


def test_no_command_is_wrong_usage(capsys):
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "COMMAND" in captured.err
    assert all(name in captured.err for name in NAMES), "who types `pkb` wants to know what there is"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--world-size", "0"], "'0' must be a whole number above 0"),
        (["--world-size", "two"], "'two' must be a whole number above 0"),
        (["--timeout", "nan"], "'nan' must be a number above 0"),
        (["--size", "M=,K=2"], "'M=' is no axis"),
        (["--size", "M=1,M=2"], "axis M is given twice"),
        (["--replay-key", "xyz"], "'xyz' is no replay key"),
        (["--until", "never"], "invalid choice: 'never'"),
    ],
)
def test_wrong_options_are_wrong_usage(pkb, argv, words):
    ran = pkb("eval", "AllReduce", "-", *argv)
    assert ran.status == 2
    assert words in ran.err
    assert ran.out == "" and not ran.evaluators


def test_an_unknown_command_suggests_the_nearest_in_one_line(capsys):
    assert main(["evla", "AllReduce", "kernel.cpp"]) == 2
    assert capsys.readouterr().err == "pkb: error: no command 'evla'. Did you mean 'eval'? `pkb --help` lists all.\n"


def test_unknown_problem_suggests_the_nearest_in_one_line(pkb):
    ran = pkb("eval", "AllGatherGem", "-")
    assert ran.status == 2
    assert ran.err.startswith("pkb: error: no problem 'AllGatherGem' among ")
    assert "Did you mean 'AllGatherGemm'?" in ran.err and ran.err.count("\n") == 1
    assert not ran.evaluators


def test_an_infrastructure_failure_is_exit_status_3(pkb):
    ran = pkb("eval", "AllReduce", "-", stdin=b"broken")
    assert (ran.status, ran.out) == (3, "")
    assert ran.err.endswith("pkb: error: the machine is on fire\n")


def test_a_question_without_sense_is_exit_status_2(pkb):
    ran = pkb("eval", "AllReduce", "-", stdin=b"usage")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.endswith("pkb: error: AllReduce: no such thing\n")


def test_ctrl_c_closes_the_evaluator_and_is_exit_status_130(pkb):
    """The fixture asserts that the evaluator was closed."""
    ran = pkb("eval", "AllReduce", "-", stdin=b"interrupt")
    assert (ran.status, ran.out) == (130, "")
    assert ran.err.endswith("pkb: interrupted\n")
    assert len(ran.evaluators) == 1


def test_ctrl_c_during_an_import_or_at_the_end_leaves_no_traceback():
    """Commands were imported before anything was caught, and exit handlers ran with Python's own Ctrl-C."""
    code = """
import atexit, signal, sys
from pkb_gym.cli import main, program
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
def interrupt(*_): signal.raise_signal(signal.SIGINT)
program.importlib.import_module = interrupt
if sys.argv.pop() == "twice":
    atexit.register(interrupt)
sys.exit(main())
"""
    for times, status in (("once", 130), ("twice", -signal.SIGINT)):
        ran = subprocess.run([sys.executable, "-c", code, "list", times], capture_output=True, text=True)
        assert (ran.returncode, ran.stderr) == (status, "pkb: interrupted\n")


@pytest.mark.parametrize("module", ["pkb_gym.envs.registration", "pkb_gym.cli.program", "argparse"])
def test_ctrl_c_before_anything_catches_it_leaves_no_traceback(tmp_path, module):
    """`pkb` had a tenth of a second in which it ended in a traceback of ours."""
    script = tmp_path / "pkb"
    script.write_text(f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
class Interrupting:
    def find_spec(self, name, *_):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from pkb_gym.cli import main
sys.exit(main())
""")
    ran = subprocess.run([sys.executable, script, "list"], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (-signal.SIGINT, "")


def test_a_reader_that_stops_reading_is_no_error():
    code = "import sys; from pkb_gym.cli import main; sys.exit(main(['list', '--json'] ))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 0


def test_commands_in_the_documentation_exist():
    text = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    commands = [line.removeprefix("$ pkb ") for line in text.splitlines() if line.startswith("$ pkb ")]
    assert len(commands) >= 5
    for command in commands:
        assert make_parser().parse_args(shlex.split(command)).run
    assert {name for name in NAMES if f"`pkb {name}`" in text} == set(NAMES)
