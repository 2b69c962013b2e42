"""Files and identifiers that were renamed since results were measured: such a change makes no result stale."""

from __future__ import annotations

import re
from fnmatch import fnmatch

MOVED: dict[str, str] = {
    "pkb_gym/cluster/evaluation_step.py": "pkb_gym/cluster/judging.py",
    "pkb_gym/engine/evaluators/polling.py": "pkb_gym/engine/evaluators/patience.py",
    "pkb_gym/serve/evaluation_index.py": "pkb_gym/serve/known_evaluations.py",
    "pkb_gym/serve/request_resolver.py": "pkb_gym/serve/intake.py",
    "pkb_gym/serve/shutdown.py": "pkb_gym/serve/ending.py",
}
"""Path -> the path that the file had before."""

RENAMED: dict[str, dict[str, str]] = {
    "benchmarks/synthetic_results.py": {"asked": "requested"},
    "pkb_gym/agents/run/*.py": {
        "Ending": "EpisodeStatus",
        "ending": "status",
        "words": "detail",
        "_evaluators_words": "_evaluator_error",
        "MOST_WORDS_CHARS": "MAX_DETAIL_CHARS",
        "Outcome": "RunStatus",
        "Limits": "RunLimits",
        "asked": "requested",
    },
    "pkb_gym/agents/run/episode.py": {"known": "earlier", "_known": "_earlier"},
    "pkb_gym/cluster/*.py": {
        "Judge": "KeyedEvaluator",
        "OpenJudge": "OpenEvaluator",
        "judge_opener": "evaluator_opener",
        "judge": "evaluator",
        "judging": "evaluation_step",
        "LOCAL_JUDGE": "LOCAL_EVALUATOR",
        "Gang": "GangActor",
        "Reply": "PoolReply",
        "Submission": "PoolRequest",
    },
    "pkb_gym/cluster/compiling.py": {"known": "artifacts"},
    "pkb_gym/cluster/connection.py": {"quiet": "options"},
    "pkb_gym/cluster/evaluator.py": {"Patience": "Polling", "patience": "polling", "ask": "poll"},
    "pkb_gym/cluster/gang.py": {"_judges": "_evaluators", "_new_judge": "_new_evaluator", "_judge": "_idle_evaluator"},
    "pkb_gym/cluster/inspection.py": {"known": "partial"},
    "pkb_gym/cluster/placement.py": {"known": "listed"},
    "pkb_gym/cluster/pool.py": {"known": "earlier"},
    "pkb_gym/cluster/steps.py": {"known": "earlier_artifacts", "_Lost": "_WorkerLost"},
    "pkb_gym/corpus/families/sums_cuda.py": {"Sum": "SumParts"},
    "pkb_gym/engine/compare/comparison.py": {"_Judged": "_RuledOutput", "judged": "ruled", "_judged": "_ruled"},
    "pkb_gym/engine/compile/*.py": {"Limits": "CompilerLimits"},
    "pkb_gym/engine/compile/nvcc.py": {"said": "printed"},
    "pkb_gym/engine/compile/source_lines.py": {"known": "lines_of"},
    "pkb_gym/engine/emulator/src/detector.cpp": {"tell": "on_finding"},
    "pkb_gym/engine/emulator/src/detector_[!c]*.h": {"Known": "Past", "known": "past", "knows": "in_past"},
    "pkb_gym/engine/emulator/src/detector_[!ac]*.cpp": {"known": "past", "knows": "in_past", "Known": "Past"},
    "pkb_gym/engine/emulator/src/detector_async.cpp": {"known": "past", "Known": "Past"},
    "pkb_gym/engine/evaluators/*.py": {
        "Patience": "Polling",
        "patience": "polling",
        "ask": "poll",
        "_patience": "_deadline",
    },
    "pkb_gym/engine/evaluators/caching.py": {"known": "remembered"},
    "pkb_gym/engine/evaluators/polling.py": {"State": "PolledState", "judge": "evaluator"},
    "pkb_gym/engine/evaluators/remote.py": {"asked": "endpoint"},
    "pkb_gym/engine/include/pkb/*.h": {"tell_begun": "signal_begun"},
    "pkb_gym/engine/include/pkb/symm_cuda.h": {"told": "reported"},
    "pkb_gym/engine/problem/rules.py": {"says": "description"},
    "pkb_gym/engine/ranks/baseline_blocks.py": {"run_nothing": "run_null_block"},
    "pkb_gym/engine/ranks/candidate_gang.py": {
        "Message": "WireMessage",
        "ask": "exchange",
        "_ask": "_exchange",
        "ask_for_fds": "exchange_for_fds",
    },
    "pkb_gym/engine/ranks/failure_attribution.py": {"known": "named"},
    "pkb_gym/engine/ranks/gang.py": {
        "Message": "WireMessage",
        "ask": "exchange",
        "_ask": "_exchange",
        "ask_for_fds": "exchange_for_fds",
    },
    "pkb_gym/engine/ranks/reference_gang.py": {
        "known": "answered_us",
        "Message": "WireMessage",
        "ask": "exchange",
        "_ask": "_exchange",
        "ask_for_fds": "exchange_for_fds",
    },
    "pkb_gym/engine/records/*.py": {"asked": "requested", "as_asked": "as_request", "axes_asked": "size_argument"},
    "pkb_gym/engine/stages/*.py": {"as_asked": "as_request", "axes_asked": "size_argument"},
    "pkb_gym/engine/stages/check.py": {"look_closer": "debug_run"},
    "pkb_gym/engine/stages/mismatch.py": {
        "_told_apart": "_stopped_for_distinguishing",
        "_tells_calls_apart": "_distinguishes_calls",
    },
    "pkb_gym/metrics/*.py": {
        "asked": "requested",
        "P_ASKED": "P_TABLED",
        "Comparison": "AgentComparison",
        "Spent": "UsageTotals",
        "UNTOLD": "NOT_REPORTED",
        "UNTOLD_STEMS": "NAMELESS_STEMS",
        "Outcome": "AttemptOutcome",
    },
    "pkb_gym/metrics/effort.py": {"known": "present", "spent": "usage_totals"},
    "pkb_gym/metrics/fast_p.py": {"known": "present"},
    "pkb_gym/metrics/figures.py": {"known": "present"},
    "pkb_gym/metrics/shares.py": {"known": "reported"},
    "pkb_gym/report/*.py": {"asked": "requested", "Trajectory": "AttemptDetails"},
    "pkb_gym/serve/*.py": {
        "asked": "requested",
        "asked_at_s": "requested_at_s",
        "Ending": "ShutdownEvent",
        "ending": "shutdown",
        "_ending": "_shutdown",
        "Journal": "EvaluationJournal",
        "Entry": "JournalEntry",
        "KnownEvaluations": "EvaluationIndex",
        "as_asked": "as_request",
        "axes_asked": "size_argument",
        "_last_words": "_log_tail",
        "Answered": "HandledRequest",
        "_Unwanted": "_Abandoned",
        "Intake": "RequestResolver",
    },
    "pkb_gym/serve/journal.py": {"known": "record"},
    "pkb_gym/serve/server.py": {"known": "senders"},
    "pkb_gym/serve/service.py": {"_known": "_index", "known": "found", "_intake": "_resolver"},
    "problems/*/*/expert.cu": {"tell_begun": "signal_begun"},
    "problems/*/*/problem.py": {"says": "description"},
    "training/evaluation/owner.py": {
        "Gate": "Pausable",
        "gate": "pausable",
        "_gate": "_pausable",
        "opens_gate": "pauses",
        "_opens_gate": "_pauses",
        "_open": "_resume",
        "_shut": "_pause",
        "_is_open": "_is_resumed",
    },
    "training/rollout/decoding.py": {"known": "own_index"},
}
"""Paths, with wildcards -> old -> new identifiers in these files."""


def renamed_in(path: str) -> dict[str, str]:
    """Old -> new identifiers in a file, by its present path.

    Raises:
        ValueError: two patterns give an identifier different names.
    """
    found: dict[str, str] = {}
    for pattern, names in RENAMED.items():
        if fnmatch(path, pattern):
            clash = [old for old in found.keys() & names.keys() if found[old] != names[old]]
            if clash:
                raise ValueError(f"{path}: several new names for {', '.join(sorted(clash))}")
            found |= names
    return found


def with_present_names(operation: str) -> str:
    """An operation of a kernel or its headers, as a result names it, with the identifiers of today."""
    names = renamed_in("pkb_gym/engine/include/pkb/*.h")
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), operation)
