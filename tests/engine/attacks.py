"""Every attack that is tried, by family: the files of tests/candidates, and the tests of what no single file can show.

docs/security.md shows the families.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch

from tests.engine.candidates import FOLDER, Candidate, candidates


@dataclass(frozen=True)
class Family:
    """Attacks that have one aim.

    Attributes:
        aim: Aim of the attacks.
        files: Patterns of names of candidates, without folder and suffix.
        layer: Layer that catches them.
        tests: Files of tests that try more disguises, below tests/.
    """

    aim: str
    files: tuple[str, ...]
    layer: str
    tests: tuple[str, ...] = ()


FAMILIES = (
    Family(
        "write outputs after the clock was read",
        (
            *("finishes_in_a_thread", "lazy_tensor", "reads_on_*", "looks_for_the_heap"),
            *("late_stream", "late_host_*", "late_graph", "late_peer_copy", "late_low_priority", "late_torch_stream"),
            *("late_delivery", "late_from_its_first_kernel"),
        ),
        "receipts taken at departure; every thread is stopped, and its time counts; no descriptor of the heap; filter",
        ("engine/gangs/test_gang.py",),
    ),
    Family(
        "do the work of several calls at once",
        (
            *(
                "racy/works_ahead*",
                "racy/takes_decoys*",
                "racy/puts_calls_off*",
                "replays_the_call_before",
                "leaves_a_server_running",
            ),
            *(
                "skips_its_handovers",
                "overwrites_the_got",
                "makes_two_handovers_at_once",
                "answers_its_own_handovers",
                "asks_*",
            ),
        ),
        "fresh lines of every argument and receipts of every output at each handover; outputs sampled at each request; "
        "numbers and places that vary",
    ),
    Family(
        "run while frozen",
        (
            *("wakes_itself_*", "opens_a_terminal", "ignores_signals", "stops_itself", "works_while_binding"),
            *("leaves_a_thread_*", "leaves_a_kernel_*", "leaves_processes_*", "spins_*", "second_context"),
            *("triton_leaves_a_process", "leaves_host_threads_spinning", "queues_kernels_*"),
            *("leaves_paced_connections", "leaves_timers_running"),
        ),
        "filter (signals, timers, sessions, terminals); stopped gangs; ticks, segments, idle probe beside the baseline",
        ("engine/rankside/test_confine.py", "engine/stages/test_time.py"),
    ),
    Family(
        "give an earlier answer",
        ("memoises*", "skips_equal_inputs", "replays_its_first_graph", "keeps_an_ipc_pointer"),
        "fresh inputs for every call and source, at other places; checked calls that return to addresses, values "
        "and both; every output is compared",
        ("engine/evaluators/test_local.py", "engine/compare/test_layout.py"),
    ),
    Family(
        "do less while it is timed, or less exactly",
        ("approximates_*", "half_of_it_*", "rounds_to_8_bits", "estimates_*"),
        "outputs of timed calls are compared as those of checked ones; inputs that no estimator knows",
        (
            "problems/test_counterfeits.py",
            "problems/test_narrow_links.py",
            "problems/test_lasting_state.py",
            "problems/test_unequal_ranks.py",
            "problems/test_tp_muon.py",
        ),
    ),
    Family(
        "read the reference or an expert",
        ("reads_the_answers", "reads_behind_the_heap", "reads_what_others_freed", "imports_open_descriptors"),
        "file system is an allow-list with the installation covered; list of the files that compilers opened",
        ("engine/gangs/test_visible_folders.py", "engine/compile/test_opened_files.py"),
    ),
    Family(
        "reach the machine or other processes",
        (
            *("touches_other_processes", "changes_the_machine", "kills_everyone", "uses_the_network"),
            *("writes_outside_its_folders", "leaves_a_mark", "deletes_its_scratch", "takes_leases"),
            "counts_the_machine",
        ),
        "namespaces, read-only mounts, filter, no capabilities",
        ("engine/gangs/test_sandbox.py", "engine/rankside/test_confine.py", "engine/rankside/test_landlock.py"),
    ),
    Family(
        "deceive the evaluator",
        (
            *("claims_*", "forges_*", "patches_the_judges", "breaks_the_profile", "lies_in_the_profile"),
            *("closes_all_files", "hides_its_*", "pretends_to_wait", "hides_nccl_*", "interposes_symbols"),
        ),
        "verdict and clock lie outside; reports are typed, limited and compared with the declaration",
        ("engine/wire/test_messages.py",),
    ),
    Family(
        "keep the evaluator busy, write to its user's terminal, or speak as somebody else in a chat",
        ("sends_*", "floods_*", "prints_binary", "raises_lone_surrogates", "speaks_as_another", "fills_its_replies"),
        "sizes before contents; texts are escaped in the record, markers of chat templates among them",
        (
            *("engine/records/test_source.py", "engine/stages/test_static.py", "engine/support/test_printable.py"),
            *("engine/compile/test_toolchain.py", "engine/reference/test_conductor.py"),
            *("problems/test_source_files.py", "cli/test_evaluate_folder.py", "report/test_leaderboard.py"),
        ),
    ),
    Family(
        "exhaust the machine",
        (
            *("fork_bomb", "bomb_of_threads", "runs_thousands_of_threads", "hoards_*", "pins_memory_*"),
            *("takes_all_*", "takes_descriptor_tables", "takes_kernel_memory", "leaves_a_core"),
        ),
        "resource limits, size of the pid namespace, counted threads, deadlines of blocks and between them",
        ("engine/gangs/test_candidate_gang.py", "engine/rankside/test_remove_tree.py"),
    ),
    Family(
        "break the heap",
        ("scribbles_*", "restores_its_input", "unmaps_the_heap", "resets_the_device", "writes_peers_*"),
        "sealed memory; outputs and inputs are compared with those of a gang that the candidate cannot reach",
    ),
    Family(
        "save the synchronisation",
        (
            *("racy/early_*", "racy/late_*", "racy/one_wait_is_missing", "racy/reused_scratch", "racy/stale_flag"),
            *("racy/waits_in_its_first_calls", "racy/leaves_while_peers_pull", "racy/pulls_after_a_start_kernel"),
            "racy/copies_into_scratch_that_peers_gather",
        ),
        "the call contract: poison before arrival, receipts at departure, and ranks that are delayed, held or slow",
    ),
    Family(
        "pass the baseline's collectives off as a kernel",
        ("opens_nccl",),
        "the kernel's counters of the gang's network; on GPUs NCCL's kernels in the profile",
        ("engine/evaluators/test_hidden_collectives.py", "rewards/test_presets.py"),
    ),
    Family(
        "be timed under better conditions",
        ("sandbags", "hurries_its_handovers", "hogs_memory_*", "pins_the_l2"),
        "blocks grow with the best time shown, and shorter ones are not counted; of its pairs of blocks, those that it "
        "passes off as delayed by others are left out only while they are at most half; a source has its first verdict",
        (
            *("engine/stages/test_time.py", "envs/test_episode.py", "envs/test_equal_sources.py"),
            "engine/evaluators/test_candidates.py",
        ),
    ),
    Family(
        "be judged a second time",
        ("kills_itself*",),
        "a killed rank is a failure unless the kernel has counted a process that it ended for memory",
        ("engine/gangs/test_failure_attribution.py", "engine/gangs/test_oom_kills.py"),
    ),
    Family(
        "have the host do a GPU's work",
        ("sums_*", "finds_the_emulators_*"),
        "addresses that no process can map; outputs that no kernel or copy of an emulated GPU has written",
        ("engine/emulated/test_candidate_files.py",),
    ),
    Family(
        "save the copy of results",
        ("saves_its_delivery",),
        "the interval's lower end is over a baseline without the copy",
        ("engine/stages/test_delivery.py",),
    ),
    Family(
        "disturb the timing from beside",
        (),
        "locks between evaluators; preparations and timings exclude each other; unread data in connections is limited",
        (
            *("engine/stages/test_machine_sharing.py", "engine/evaluators/test_arbiter.py"),
            "engine/gangs/test_tcp_memory.py",
        ),
    ),
)

KINDS = ("hostile", "racy", "cuda/hostile", "cuda/racy")


def attacks() -> list[Candidate]:
    """Every candidate that attacks."""
    return [candidate for kind in KINDS for candidate in candidates(kind)]


def families_of(candidate: Candidate) -> list[Family]:
    """Those that a candidate belongs to."""
    name = candidate.path.stem if candidate.kind == "hostile" else f"{candidate.kind}/{candidate.path.stem}"
    return [family for family in FAMILIES if any(fnmatch(name, pattern) for pattern in family.files)]


def members(family: Family, *, on_gpus: bool) -> list[Candidate]:
    """The candidates of a family, by device."""
    return [each for each in attacks() if each.on_gpus == on_gpus and families_of(each) == [family]]


TESTS = FOLDER.parent
