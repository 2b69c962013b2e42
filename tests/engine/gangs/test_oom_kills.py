"""The kernel's count of processes that it has ended because memory was short."""

from __future__ import annotations

from pathlib import Path

import pytest

from pkb_gym.engine.gangs.oom_kills import count_oom_kills

VMSTAT = "oom_kill_allocating_task 7\nnr_free_pages 1\noom_kill 3\n"


@pytest.mark.parametrize(
    ("group", "counters", "kills"),
    [
        ("0::/a/b\n", {"a/b/memory.events": "low 0\noom 9\noom_kill 2\noom_group_kill 5\n"}, 5),
        (
            "4:cpu,memory:/a\n0::/\n",
            {"memory/a/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"},
            7,
        ),
        ("0::/gone\n", {}, 3),
    ],
)
def test_kills_of_the_machine_and_of_the_group_are_counted(
    tmp_path: Path, group: str, counters: dict[str, str], kills: int
) -> None:
    files = {"proc/vmstat": VMSTAT, "proc/self/cgroup": group}
    files |= {f"sys/fs/cgroup/{name}": text for name, text in counters.items()}
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert count_oom_kills(tmp_path) == kills


def test_a_kernel_without_counters_has_recorded_none(tmp_path: Path) -> None:
    assert count_oom_kills(tmp_path) == 0


def test_this_machines_count_only_grows() -> None:
    assert 0 <= count_oom_kills() <= count_oom_kills()
