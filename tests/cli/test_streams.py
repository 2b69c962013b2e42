"""The standard streams of `pkb` as a shell, a service manager or a full disk may have left them."""

import json
import os
import subprocess
import sys

import pytest

FULL = "/dev/full"
PKB = "import sys; from pkb_gym.cli import main; sys.exit(main())"


def run(*words, code=PKB, closed=(), env=(), **streams):
    """Runs a program with some descriptors closed; its status, output and errors."""

    def close() -> None:
        for fd in closed:
            os.close(fd)

    given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    return subprocess.run(
        [sys.executable, "-c", code, *words], preexec_fn=close, env=os.environ | dict(env), text=True, **given
    )


@pytest.mark.parametrize("words", [["--version"], ["list"], ["list", "--json"]])
def test_results_that_cannot_be_written_are_no_failure_of_a_candidate(words):
    """A traceback and status 1, or 120 where the text was still in a buffer."""
    with open(FULL, "w") as full:
        ran = run(*words, stdout=full)
    assert (ran.returncode, ran.stderr) == (3, "pkb: error: cannot write standard output: No space left on device\n")


def test_a_closed_output_is_an_error_and_a_closed_input_too():
    ran = run("list", closed=[1])
    assert (ran.returncode, ran.stderr) == (3, "pkb: error: cannot write standard output: Bad file descriptor\n")
    ran = run("eval", "AllReduce", "-", "--device", "cpu", closed=[0])
    assert (ran.returncode, ran.stderr) == (2, "pkb: error: cannot read standard input: Bad file descriptor\n")


def test_no_file_gets_the_number_of_a_closed_stream():
    code = """
import sys
from pkb_gym.cli.streams import prepare_streams
prepare_streams()
with open(sys.argv[1], "w") as file:
    print(file.fileno() > 2)
    print("lost", file=sys.stderr)
"""
    ran = run(os.devnull, code=code, closed=[0, 2])
    assert (ran.returncode, ran.stdout) == (0, "True\n")


@pytest.mark.parametrize("closed", [[], [2]])
def test_what_cannot_be_written_to_standard_error_decides_nothing(closed):
    """The background evaluator ended at its first line where the disk of its log was full."""
    code = """
import sys
from pkb_gym.cli.command import stderr
from pkb_gym.cli.streams import prepare_streams
prepare_streams()
stderr().print("serving at ...")
print("0.0 s  AllReduce: static", file=sys.stderr, flush=True)
print("judged")
"""
    with open(FULL, "w") as full:
        ran = run(code=code, closed=closed, stderr=full)
    assert (ran.returncode, ran.stdout) == (0, "judged\n")


def test_characters_that_an_encoding_lacks_are_the_escapes_of_json():
    code = """
import json
from pkb_gym.cli.streams import prepare_streams
prepare_streams()
print(json.dumps("\\u2713 \\U0001f600 \\udcff", ensure_ascii=False))
"""
    ran = run(code=code, env={"PYTHONIOENCODING": "ascii"})
    assert ran.stdout == '"\\u2713 \\ud83d\\ude00 \\udcff"\n', ran.stderr
    assert json.loads(ran.stdout) == "\u2713 \U0001f600 \udcff"
    ran = run("list", env={"PYTHONIOENCODING": "ascii"})
    assert ran.returncode == 0 and "AllReduce" in ran.stdout, ran.stderr


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("OSError(28, 'No space left on device', '/x')", "pkb: error: [Errno 28] No space left on device: '/x'\n"),
        ("ZeroDivisionError('of ours')", "ZeroDivisionError: of ours\n"),
        ("SystemExit(0)", "pkb: error: the command was ended by sys.exit(0) before it was done\n"),
    ],
)
def test_an_unexpected_error_does_not_have_the_status_of_a_failed_candidate(error, words):
    code = f"""
import sys
from pkb_gym.cli import list_problems, main
def fail(*_):
    raise {error}
list_problems.run = fail
sys.exit(main())
"""
    ran = run("list", code=code)
    assert ran.returncode == 3 and ran.stderr.endswith(words)
    assert ("Traceback" in ran.stderr) == ("ZeroDivision" in error)


def test_a_working_folder_that_was_removed_is_named(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    code = f"import os; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); {PKB}"
    ran = run("list", code=code)
    assert ran.returncode == 2 and "the working folder cannot be found" in ran.stderr
