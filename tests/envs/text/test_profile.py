"""The profile as an agent and a person read it."""

from __future__ import annotations

from rich.text import Text

from pkb_gym.engine.records.feedback import KernelTime, Profile, RankProfile
from pkb_gym.envs.render import card_text
from pkb_gym.envs.text.feedback import feedback_text
from pkb_gym.envs.text.profile import MAX_KERNELS, profile_text, short_name, times_table
from pkb_gym.problems.catalogue import find_problem
from tests.envs.fake_evaluator import timed

RANK = {
    "rank": 0,
    "calls": 4,
    "wall_us": 100.0,
    "compute_us": 50.0,
    "communication_us": 20.0,
    "waiting_us": 10.0,
    "host_us": 20.0,
    "put_bytes": 0,
    "got_bytes": 0,
    "link_bytes_per_s": None,
    "user_us": 1.0,
    "system_us": 1.0,
    "minor_page_faults": 1,
    "major_page_faults": 0,
    "voluntary_switches": 2,
    "involuntary_switches": 0,
}
ON_GPU = {"busy_us": 80.0, "overlap_us": 30.0, "waits": 12.0, "mean_wait_us": 2.5, "copied_bytes": 3 << 20}
LINKS = {"sent_bytes": 1 << 20, "received_bytes": 2 << 20}
KERNEL = KernelTime(name="void mine<8>(float*, int)", launches=4, mean_us=50.0, share=0.625)


def judged(**rank: object):
    profile = Profile(
        ranks=(RankProfile(**(RANK | rank)),),
        kernels=(KERNEL,) if "busy_us" in rank else (),
        mechanisms=("copy engine", "TMA") if "busy_us" in rank else (),
    )
    return timed(baseline_us=100, roofline_us=10, speedup_low=2).model_copy(update={"profile": profile})


def test_gpus_have_overlap_waits_mechanisms_and_kernels():
    feedback = judged(**ON_GPU, **LINKS)
    lines = profile_text(feedback).splitlines()
    assert lines[1] == (
        "- rank 0: 100 us = 50 % / 20 % / 10 % / 20 %; GPU busy 80 us, communication beside computing 30 us; "
        "12 waits for signals, 2.5 us each; copy engines 3 MiB"
    )
    assert lines[2] == "- transfers found: copy engine, TMA"
    assert lines[3].startswith("- NVLink's counters: up to 1 MiB sent and 2 MiB received by a rank; ")
    rows = [line.split() for line in lines[-2:]]
    assert rows == [["kernel", "launches", "mean", "share"], ["mine<8>", "4", "50", "us", "62", "%"]]
    assert profile_text(feedback) in feedback_text(feedback)


def test_without_counters_there_is_no_line_on_them():
    text = profile_text(judged(**(ON_GPU | {"waits": None, "mean_wait_us": None, "overlap_us": 0.0})))
    assert "NVLink" not in text and "waits" not in text and "beside" not in text


def test_cpu_has_none_of_it():
    assert profile_text(judged()).splitlines() == [
        "Profile, per call and rank (compute / communication / waiting / host, of the whole):",
        "- rank 0: 100 us = 50 % / 20 % / 10 % / 20 %; put 0 B, got 0 B; "
        "1 page faults and 2 context switches in 4 calls",
    ]


def test_card_shows_it_too():
    feedback = judged(**ON_GPU, **LINKS)
    card = Text.from_ansi(card_text(find_problem("AllReduce"), feedback.config, feedback, None)).plain
    head = next(line for line in card.splitlines() if "overlap" in line)
    assert head.split()[-5:-1] == ["a", "wait", "sent", "received"]
    assert "30 %" in card and "transfers found: copy engine, TMA" in card and "mine<8>" in card
    assert all(len(line) == len(head) for line in card.splitlines())


def test_many_kernels_are_cut():
    lines = times_table([KERNEL] * (MAX_KERNELS + 2))
    assert len(lines) == MAX_KERNELS + 2 and lines[-1] == "and 2 more"


def test_names_lose_their_meaningless_parts():
    assert short_name("void (anonymous namespace)::all_reduce<int>(int*)") == "all_reduce<int>"
    assert short_name("Memcpy PtoP (Device -> Device)") == "Memcpy PtoP (Device -> Device)"
    assert short_name("k" * 100) == "k" * 41 + "..."
