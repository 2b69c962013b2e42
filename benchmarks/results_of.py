"""The files that each result depends on: when one of them changes, the result is stale: measure it again or remove it.

Paths are relative to the repository, with git's wildcards. `{folder}` stands for the folder of each problem that the
result has rows of.
"""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path

from pkb_gym.problems.catalogue import find_problem

HEADERS = "pkb_gym/engine/include/pkb/*.h"
CPU_HEADERS = tuple(
    f"pkb_gym/engine/include/pkb/{name}.h" for name in ("symm", "symm_cpu", "comm", "host_comm", "bf16", "fp16")
)
CPU_KERNELS = ("problems/*/{folder}/expert.cpp", *CPU_HEADERS)
GPU_HEADERS = (
    *(f"pkb_gym/engine/include/pkb/{name}.h" for name in ("symm", "comm", "host_comm")),
    "pkb_gym/engine/include/pkb/*_cuda.h",
    "pkb_gym/engine/include/pkb/gemm_*.h",
)
GPU_KERNELS = ("problems/*/{folder}/expert.cu", *GPU_HEADERS)
REFERENCES = ("problems/*/{folder}/reference.py",)
RULES = tuple(f"pkb_gym/engine/problem/{name}.py" for name in ("rules", "row_rules", "sum_rules", "block_rules"))
TIMING = (
    *(f"pkb_gym/engine/stages/{name}.py" for name in ("time", "timing_statistics", "null_blocks", "overhead")),
    "pkb_gym/engine/ranks/baseline_blocks.py",
    "pkb_gym/engine/handover/*",
)
GANGS = ("pkb_gym/engine/ranks/gang.py", "pkb_gym/engine/ranks/zygote.py", "pkb_gym/engine/evaluators/gang_pool.py")
ALL_REDUCE = "problems/collective_primitive/all_reduce/expert"

REWRITTEN = frozenset(
    {
        *("SphericalConvolution", "GatedDeltaNetCP", "KimiDeltaAttention", "RingAttentionBackwardDP", "TPMuon"),
        *("LoadBalancingLoss", "Conv2dBoundaryExchange", "UlyssesAllToAll", "DistributedIRFFT"),
        *("BlockedFP8Quantize", "BlockedFP8Dequantize"),
    }
)
"""Problems whose references are newer than the baselines of `gpu_baselines*.json`, as `README.md` says beside them."""

DEPENDENCIES: dict[str, tuple[str, ...]] = {
    "experts": (*CPU_KERNELS, *REFERENCES, *TIMING),
    "gpu_experts*": (*GPU_KERNELS, *REFERENCES, *TIMING),
    "mutants": CPU_KERNELS,
    "wrong_solutions": ("problems/*/{folder}/problem.py", *REFERENCES),
    "mutants_*_gpus*": GPU_KERNELS,
    "latency": (f"{ALL_REDUCE}.cpp", *TIMING, *GANGS),
    "command_times": (
        "pkb_gym/serve/background.py",
        *(f"pkb_gym/engine/compile/{name}.py" for name in ("gxx", "precompiled", "sandboxed_compiler")),
    ),
    "agent_runs": (*(f"pkb_gym/agents/run/{name}.py" for name in ("episode", "runner", "results")), *GANGS),
    "steady": (*TIMING, *GANGS),
    "repeatability": (f"{ALL_REDUCE}.cpp", *TIMING),
    "colocated*": TIMING,
    "gpu_colocated*": (*GPU_HEADERS, *TIMING),
    "gpu_evaluator*": (f"{ALL_REDUCE}.cu", *GPU_HEADERS, *TIMING, *GANGS),
    "gpu_corpus*": ("pkb_gym/corpus/families/*", *TIMING),
    "fault_drill*": (
        *(f"pkb_gym/engine/{room}/*.py" for room in ("evaluators", "compile")),
        *(f"pkb_gym/engine/ranks/{name}.py" for name in ("gang", "zygote", "failure_attribution", "reference_gang")),
        *(f"pkb_gym/engine/support/{name}.py" for name in ("atomic_write", "ownership")),
    ),
    # The programs. The digests of the emulator are in benchmarks/data, which a test runs.
    "emulated_random": tuple(f"benchmarks/random_ptx/{name}.py" for name in ("program", "form*", "operands")),
    "emulated_random_causes": tuple(
        f"benchmarks/random_ptx/{name}.py" for name in ("program", "form*", "operands", "attribution")
    ),
    "emulated_mutants_*_gpus*": GPU_KERNELS,
    "emulated_mutants": (*GPU_KERNELS, "pkb_gym/engine/emulator/src/detector*"),
    "emulated_experts": (*GPU_KERNELS, "pkb_gym/engine/emulator/src/*"),
    "service_load": ("pkb_gym/serve/*.py", "pkb_gym/engine/evaluators/*.py", *GANGS),
    "learning": ("pkb_gym/corpus/families/*", *TIMING),
    "evaluation_rate": ("training/evaluation/*.py", "pkb_gym/engine/stages/machine_sharing.py", *TIMING, *GANGS),
    "learning_rate_probe": ("training/learner/turn_credit.py", "rewards/advantages.py", "rewards/returns.py"),
    "attention_gradients": ("training/processes/attention.py",),
    "learning_run": ("pkb_gym/corpus/families/*", "rewards/default.py", "rewards/ladder.py", *TIMING),
    "learning_run_cuda*": (
        *("pkb_gym/corpus/families/*", "rewards/default.py", "rewards/ladder.py"),
        *(*GPU_HEADERS, *TIMING),
    ),
    "reward_study": (*(f"rewards/{name}.py" for name in ("presets", "default", "ladder", "milestones")), *TIMING),
    "catalogue": ("problems/catalogue.py",),
    "starters": (
        "pkb_gym/starters/*.py",
        "problems/*/*/naive.cpp",
        "pkb_gym/corpus/families/*",
        *REFERENCES,
        *CPU_HEADERS,
    ),
    "report_size": (
        *("pkb_gym/metrics/*.py", "pkb_gym/report/*.py", "pkb_gym/report/figures/*.py", "pkb_gym/report/page/*"),
        "benchmarks/synthetic_results.py",
    ),
    "rollout_speed": tuple(
        f"training/rollout/{name}.py" for name in ("graph_decoder", "grouped_attention", "fused_norms", "decoding")
    ),
    "ray_overhead": ("pkb_gym/cluster/*.py", *GANGS),
    "ray_gangs": ("pkb_gym/cluster/*.py", *GANGS),
    "ray_scale": ("pkb_gym/cluster/*.py", "benchmarks/ray_sleeper.py"),
    "ray_bytes": (*(f"pkb_gym/cluster/{name}.py" for name in ("records", "artifacts")), "pkb_gym/engine/records/*.py"),
    "ray_faults": ("pkb_gym/cluster/*.py", *GANGS),
    # Plain loops of references, without an evaluation.
    "gpu_baselines*": REFERENCES,
    # Rules and inputs of every problem, and the references that are compared.
    "false_alarms*": (*REFERENCES, "problems/*/{folder}/problem.py", *RULES),
    "honest_evaluations*": (
        *("problems/*/{folder}/problem.py", "problems/*/{folder}/expert.c*", *REFERENCES, HEADERS, *TIMING),
        *(*RULES, "pkb_gym/engine/compare/*"),
        *(f"pkb_gym/engine/stages/{name}.py" for name in ("check", "block_staging", "integrity", "mismatch")),
    ),
    "handover_requests": (
        *(f"pkb_gym/engine/ranks/{name}" for name in ("output_sampler*", "gpu_pulses.py", "candidate_block.py")),
        *TIMING,
    ),
    # The hardware and its driver: only the program that measures can make them stale.
    "gpu_ceilings": ("benchmarks/gpu_ceilings.cu", "benchmarks/gpu_ceilings.cuh"),
    "gpu_contexts*": (),
    # How far rewards go wrong by the scatter of block times, whatever was timed.
    "reward_noise": ("benchmarks/reward_noise.py",),
    "reward_noise_samples": (),
    "side_estimates": ("benchmarks/side_estimates.py",),
}
"""Paths by the name of a result, which may hold wildcards."""

FIGURES_KEPT: dict[tuple[str, str], str] = {
    # Flags lead on from fences.sc of system scope, which no expert, header or text of a family has; one more candidate
    # that has them is right. wmma, which none of them has either.
    **{
        (result, f"pkb_gym/engine/emulator/src/{name}"): "e2b970a5"
        for result in ("emulated_experts", "emulated_mutants")
        for name in ("detector_flags.cpp", "detector_flags.h", "detector_sequential.cpp", "detector_state.h")
    },
    **{
        ("emulated_experts", f"pkb_gym/engine/emulator/src/{name}"): "e2b970a5"
        for name in ("executor.h", "executor_wmma.cpp", "prepare_function.cpp")
    },
    # Directives without blanks between them, which no measured kernel has: it would have ended there.
    ("emulated_experts", "pkb_gym/engine/emulator/src/ptx_lexer.cpp"): "713b19a0",
    # An option of g++ for sources with parallel regions of OpenMP, which none of these figures' has.
    **{(result, "pkb_gym/engine/compile/gxx.py"): "0e77265b" for result in ("command_times", "fault_drill")},
    # Words of what a wrong call was called with.
    ("honest_evaluations", "pkb_gym/engine/compare/call_words.py"): "7ac97ece",
    # Precompiled headers of other users, of which the measured machines had none, and of processes that begin together,
    # of which a command is alone.
    **{(result, "pkb_gym/engine/compile/precompiled.py"): "9f54dcd1" for result in ("command_times", "fault_drill")},
    # Deadlines allow for the delays of their own calls alone, and keep 10 s beside them. Longer delays where a GPU is
    # slow to answer: the evaluations were on the CPU, whose delays are the same.
    **{("honest_evaluations", f"pkb_gym/engine/stages/{name}.py"): "9ba5bb4f" for name in ("check", "block_staging")},
    # The emulator, which the drill does not use.
    ("fault_drill", "pkb_gym/engine/compile/emulator.py"): "b7fd02eade5d",
    # NaN, literals and saturation of the ALU. The 15 experts on 1, 2, 4 and 8 ranks had the same verdicts, findings and
    # counts of instructions before and after.
    **{
        ("emulated_experts", f"pkb_gym/engine/emulator/src/{name}"): "1e49ba58e906"
        for name in (
            "alu_approximation.cpp",
            "alu_convert.cpp",
            "alu_float.cpp",
            "alu_half.cpp",
            "executor_atomic.cpp",
            "lanes.h",
            "ptx_flow.cpp",
            "ptx_module.h",
            "ptx_parser.cpp",
        )
    },
    # And `set` of pairs of halves, and comparisons of float16 that flush, which no expert and no header has.
    **{
        ("emulated_experts", f"pkb_gym/engine/emulator/src/{name}.cpp"): "982fcc45c01f"
        for name in ("alu_compare", "executor_misc")
    },
    # Fences of other threads order more accesses, and so take findings away: what had none has none. grid.sync needs
    # registers that no kernel reads whose rows are older; candidates that a finding refused are measured since.
    **{
        ("emulated_experts", f"pkb_gym/engine/emulator/src/{name}"): "e24bc9386a1e"
        for name in (
            "detector_barriers.cpp",
            "engine_blocks.cpp",
            "prepare_operands.cpp",
            "program.h",
            "runtime_launch.cpp",
            "state.h",
        )
    },
    # A further finding, of bulk copies that nobody waits for. With it the experts on 2 ranks, those with bulk copies on
    # 1, 4 and 8, and a text of each family have none; the mutant that it finds is measured since.
    **{
        (result, f"pkb_gym/engine/emulator/src/{name}"): "21d2b37d4a61"
        for result in ("emulated_experts", "emulated_mutants")
        for name in ("detector_async.cpp", "detector_async.h", "detector_observer.cpp")
    },
    **{
        ("emulated_experts", f"pkb_gym/engine/emulator/src/{name}"): "21d2b37d4a61"
        for name in ("findings.cpp", "findings.h")
    },
    # The same entries are dropped from clocks, found in one pass over them.
    **{
        (result, f"pkb_gym/engine/emulator/src/detector_clock.{suffix}"): "154b57c7c1a6"
        for result in ("emulated_experts", "emulated_mutants")
        for suffix in ("cpp", "h")
    },
    # Names alone, of which one is still that of something else.
    **{
        (result, "pkb_gym/engine/emulator/src/detector_agents.cpp"): "41044f03298f"
        for result in ("emulated_experts", "emulated_mutants")
    },
    # A look at a gang's connections a few times a second, a call that sets an option of each socket, an option of the
    # interpreter, and limits of a request that take microseconds: below what these figures resolve. Folders are removed
    # in another way, those of gangs where there is no sandbox.
    **{
        (result, "pkb_gym/engine/ranks/zygote.py"): "c6d8a815c156"
        for result in (
            *("agent_runs", "fault_drill", "service_load"),
            *("ray_faults", "ray_gangs", "ray_overhead"),
        )
    },
    ("fault_drill", "pkb_gym/engine/support/ownership.py"): "c6d8a815c156",
    # Further limits of a gang (core dumps, descriptors of builds, time at the gate): numbers in the same requests. A
    # look for deadlocks five times a second, which acts where all ranks wait for good: none of these figures' do. Stops
    # of a rank begin elsewhere in blocks that decide no time.
    # A failed gang is listened to for longer where a rank's end is not reported yet: none of these figures' is.
    **{
        (result, "pkb_gym/engine/ranks/gang.py"): "1516d437"
        for result in (
            *("agent_runs", "fault_drill", "fault_drill_gpus", "service_load"),
            "gpu_evaluator_1_ranks",
            *("ray_faults", "ray_gangs", "ray_overhead"),
        )
    },
    # Words of messages, too, and a state of evaluations on emulated GPUs, of which these results have none.
    ("fault_drill", "pkb_gym/engine/ranks/failure_attribution.py"): "cbde9154",
    # Gangs that stand by on GPUs are begun at other moments. The drill counts verdicts, and the load is on the CPU.
    **{
        (result, f"pkb_gym/engine/evaluators/{name}.py"): as_of
        for result in ("fault_drill", "fault_drill_gpus", "service_load")
        for name, as_of in (("arbiter", "9f9dce87"), ("standby", "6a36cf38"))
    },
    # A wait for another evaluator is reported; the waits are the same.
    **{(result, "pkb_gym/engine/evaluators/local.py"): "0863ba6d6d1f" for result in ("fault_drill", "service_load")},
    **{("service_load", f"pkb_gym/serve/{name}.py"): "cbde9154" for name in ("evaluation", "token")},
    # What kernels and host code print has the rank in front, where it was dropped or had none, and words of messages.
    # Of the candidates one prints in its kernel: its row was taken out.
    **{
        ("emulated_experts", f"pkb_gym/engine/emulator/src/{name}"): "cbde9154"
        for name in (
            *("driver.cpp", "driver.h", "executor_control.cpp", "executor_print.cpp"),
            *("memory.cpp", "printing.cpp", "printing.h", "runtime_world.cpp"),
        )
    },
    # Candidates whose whole interval lies below half of the baseline's speed are timed in fewer blocks: those of these
    # figures were timed in more, or are faster. The statistics of a block are the same.
    **{
        (result, f"pkb_gym/engine/stages/{name}.py"): as_of
        for result in ("handover_requests", "honest_evaluations", "reward_study")
        for name, as_of in (("time", "bf7e1fb3"), ("timing_statistics", "3435599ae"))
    },
    # Inputs that show a wrong kernel, or that a right one could not miss. With them 120 further evaluations, 20 of each
    # kernel of SAM3IoUSuppression, DDP, ZeRO1, ZeRO2 and FSDPStep, were all right.
    ("honest_evaluations", "problems/data_parallel/ddp/problem.py"): "bf7e1fb3",
    ("fault_drill", "pkb_gym/engine/compile/python.py"): "031ee00cc661",
    # Memory of samples is taken before the candidate runs, and each is compared by itself: the same copies. Large sets
    # are staged by slices of the heap: the same bytes.
    **{
        ("handover_requests", f"pkb_gym/engine/ranks/{name}.py"): as_of
        for name, as_of in (("candidate_block", "08695f81"), ("output_sampler", "3437b049"))
    },
    # Ranks with several processors of the CPU meet their servers on one of them: those of these figures have one each,
    # or GPUs. A reference rank is sent one descriptor more.
    **{
        (result, "pkb_gym/engine/handover/server.cpp"): "a7e6d158"
        for result in ("handover_requests", "honest_evaluations", "reward_study")
    },
    # And it is stopped while nothing is evaluated: the drill kills ranks, and counts verdicts.
    ("fault_drill", "pkb_gym/engine/ranks/reference_gang.py"): "bf7e1fb3",
    # Outputs are sampled on GPUs alone, by a library that the drill, on the CPU, does not compile.
    ("fault_drill", "pkb_gym/engine/compile/handover.py"): "f26a8538",
    # Another way to the same answer about a library.
    ("fault_drill", "pkb_gym/engine/compile/toolchain.py"): "43852499cb8a",
    ("service_load", "pkb_gym/serve/limits.py"): "f9034cf161cd",
    # A service at an address has the limits that it had; one on a socket, which is not measured, has none.
    **{
        ("service_load", f"pkb_gym/serve/{name}.py"): "99b99fee"
        for name in ("deadlines", "request_resolver", "service")
    },
    # Locks of the cache are bytes of one file, and end with their process as locks of files did. What is read is copied
    # once.
    ("fault_drill", "pkb_gym/engine/compile/cache.py"): "54f029c8caf6",
    # Names, texts of messages, comments in kernels, and types: the same work.
    **{
        (result, "pkb_gym/cluster/evaluation_step.py"): "eba7c4fcf9b4"
        for result in ("ray_faults", "ray_gangs", "ray_overhead", "ray_scale")
    },
    **{
        (result, "pkb_gym/engine/evaluators/evaluator.py"): "eba7c4fcf9b4" for result in ("fault_drill", "service_load")
    },
    **{
        ("starters", f"pkb_gym/{name}.py"): "eba7c4fcf9b4"
        for name in ("corpus/families/loss", "corpus/families/meetings", "corpus/families/ragged", "starters/starter")
    },
    # The plainest text of a family is found among fewer: every starter is the same to the byte.
    ("starters", "pkb_gym/starters/native.py"): "4900f183",
    **{
        ("report_size", f"pkb_gym/{name}.py"): "eba7c4fcf9b4"
        for name in ("metrics/figures", "metrics/outcomes", "metrics/shares", "report/figures/charts")
    },
    # Bounds of whole numbers that no measured request comes near; what failures at a client's own sizes count for. A
    # default has another number, of as many digits.
    **{
        ("ray_bytes", f"pkb_gym/engine/records/{name}.py"): as_of
        for name, as_of in (("config", "2059cd60"), ("config_request", "83fc42ac4647"))
    },
    ("service_load", "pkb_gym/serve/current_evaluator.py"): "83fc42ac4647",
    # Names of agents without control characters; those of the measured results have none.
    ("report_size", "pkb_gym/metrics/sources.py"): "b05a74d137cc",
    ("ray_bytes", "pkb_gym/engine/records/attempt.py"): "eba7c4fcf9b4",
    # How a copy is made of the client, and when the server's thread is: the same requests.
    **{
        (result, "pkb_gym/cluster/evaluator.py"): "19ca35909d22"
        for result in ("ray_faults", "ray_gangs", "ray_overhead", "ray_scale")
    },
    ("service_load", "pkb_gym/serve/server.py"): "19ca35909d22",
    # The place of the worst element is found by NumPy and its text has what tells it apart, places of tensors are
    # tuples, elements that were left are counted and named, and a byte is declared elsewhere: the same verdicts. An
    # error about axes of a user's own has another name. A page lies between scratch and the first tensors.
    # Partitions of groups can be had without a block: the same ones. Outputs that are wrong while timed are looked at
    # more often, of which right kernels have none. Right calls share one verdict.
    **{
        ("honest_evaluations", f"pkb_gym/engine/{name}.py"): as_of
        for name, as_of in (
            *(("compare/mismatches", "25ff8f0c"), ("compare/comparison", "1599cab9"), ("compare/poison", "0f7b1b0e")),
            *(("compare/layout", "c7eb0e31"), ("stages/mismatch", "2380348e8197")),
        )
    },
    # A count and words in each mismatch, of which right kernels have none.
    ("ray_bytes", "pkb_gym/engine/records/check_report.py"): "7ac97ece",
    # A path is taken out of what a compiler says.
    **{
        (result, "pkb_gym/engine/compile/sandboxed_compiler.py"): "84ee49b6"
        for result in ("command_times", "fault_drill")
    },
    # A slot, rank or group that there is none of is an error, found by a comparison of whole numbers at each operation
    # of the host. What runs on GPUs is the same: the kernels of experts compile to the same bytes as before.
    **{
        (result, f"pkb_gym/engine/include/pkb/{name}.h"): "0e38a9b2"
        for results, names in (
            (("mutants", "starters"), ("host_comm", "symm_cpu")),
            (("honest_evaluations",), ("host_comm", "symm_cpu", "symm_cuda")),
            (("emulated_experts", "emulated_mutants", "mutants_2_gpus"), ("host_comm", "symm_cuda")),
            (("emulated_mutants_1_gpus_of_2_ranks",), ("host_comm", "symm_cuda")),
        )
        for result in results
        for name in names
    },
    # A tolerance of float16 is wider next to 0; no false alarm was looked for in float16, and what passed passes. Rules
    # have words for the dtype at hand, and mark the same elements.
    **{
        (result, f"pkb_gym/engine/problem/{name}.py"): "7ac97ece"
        for result in ("false_alarms", "honest_evaluations")
        for name in ("block_rules", "row_rules", "rules", "sum_rules")
    },
    # Sums are held to the norm of their errors too, their elements differ in size, and some heads keep their state for
    # longer. With all that, 64 further evaluations of these problems were right; `false_alarms` finds 5e-13 at most.
    **{
        ("honest_evaluations", path): "5e97c508f247"
        for path in (
            *(
                f"problems/collective_primitive/{name}/problem.py"
                for name in ("all_reduce", "reduce", "reduce_scatter")
            ),
            *(f"problems/tensor_parallel/{name}/problem.py" for name in ("gemm_all_reduce", "gemm_reduce_scatter")),
            "problems/expert_parallel/moe_lora_group_gemm_backward/problem.py",
        )
    },
    # Losses of which no part stands for the whole: other inputs, and other rules. With them, and with those of filters
    # and neighbours, 88 further evaluations were right; `false_alarms` finds 8e-7 at most.
    **{
        ("honest_evaluations", f"problems/{folder}/problem.py"): "bbd5aa3c0529"
        for folder in (
            "data_parallel/contrastive_loss",
            "expert_parallel/load_balancing_loss",
        )
    },
    # Norms are held to what right kernels come to, transforms and coordinates to less than 16 bits on the link leave,
    # and in checks some ranks hold as much as in timing. With that 460 further evaluations were right, some of
    # them of other problems; `false_alarms` finds 3e-12 at most.
    **{
        ("honest_evaluations", path): "7aea9d39"
        for path in (
            *(
                f"problems/context_parallel/{name}/problem.py"
                for name in ("ring_attention", "ring_attention_backward_dp")
            ),
            *(f"problems/data_parallel/{name}/problem.py" for name in ("distributed_knn", "kalman_filter_optimizer")),
            *(
                f"problems/geometric_spatial/{name}/problem.py"
                for name in ("distributed_irfft", "distributed_rfft", "gaussian_splatting")
            ),
            "problems/graph_parallel/gnn_negative_scoring/problem.py",
            "problems/other/sample_sort/problem.py",
            "problems/tensor_parallel/gemm_all_gather/problem.py",
        )
    },
    # Other ratios in some checks. With them 24 further evaluations were right; `false_alarms` finds the same.
    ("honest_evaluations", "problems/data_parallel/importance_sampling_loss/problem.py"): "7d6084ee",
    # Other shapes in some checks. With each 24 further evaluations were right; `false_alarms` finds no chance.
    ("honest_evaluations", "problems/geometric_spatial/spherical_convolution/problem.py"): "17261f78",
    ("honest_evaluations", "problems/geometric_spatial/tile_parallel_vae_decode/problem.py"): "500271ce",
    # Other ranges of keys in a check at larger sizes, and larger ids. With these 24 further evaluations were right.
    **{
        ("honest_evaluations", f"problems/{folder}/problem.py"): "65535fb5"
        for folder in ("context_parallel/cso_attention", "other/kjt_all_to_all")
    },
    # Other matrices in some checks. With them 24 further evaluations were right; `false_alarms` finds no chance.
    ("honest_evaluations", "problems/tensor_parallel/tp_muon/problem.py"): "f33572b4",
    # Trials reach rules that kernels could leave out, constants and shares differ, a tolerance grows with the ranks.
    # With that 96 further evaluations of these problems were right; `false_alarms` finds 9e-8 at most.
    **{
        ("honest_evaluations", f"problems/{folder}/problem.py"): "77fb93ab"
        for folder in (
            *(f"context_parallel/{name}" for name in ("gated_delta_net_cp", "kimi_delta_attention")),
            *(f"data_parallel/{name}" for name in ("grad_acc_loss", "quantized_grad_all_reduce")),
            "expert_parallel/moe_all_to_all",
            *(f"fsdp_zero/{name}" for name in ("clip_grad_norm", "clip_grad_norm_ep", "fp8_all_gather_params")),
            *(f"fsdp_zero/{name}" for name in ("fp8_reduce_scatter_grads", "fsdp_step", "fused_adam_all_gather")),
            "geometric_spatial/sam3_iou_suppression",
            *(f"graph_parallel/{name}" for name in ("gnn_feature_exchange", "gnn_feature_exchange_backward")),
            *(f"graph_parallel/{name}" for name in ("gnn_sparse_embedding", "neighbor_sampling")),
            "vocab_parallel/vocab_parallel_cross_entropy",
        )
    },
    # Whole paths are looked at in what a compiler says, and numbers have few digits there; texts that are too long are
    # cut before they are sent. What was measured has neither, and is not sent in the drill.
    **{
        ("fault_drill", f"pkb_gym/engine/{name}.py"): "66fb103f9c42"
        for name in ("compile/opened_files", "compile/ptxas", "compile/source_lines", "evaluators/remote")
    },
    ("service_load", "pkb_gym/engine/evaluators/remote.py"): "66fb103f9c42",
    ("ray_bytes", "pkb_gym/engine/records/source.py"): "66fb103f9c42",
    # Titles of columns are escaped as cells are, and numbers of a picture have few digits before the point.
    **{("report_size", f"pkb_gym/report/{name}.py"): "66fb103f9c42" for name in ("markdown", "figures/svg")},
    # Arrivals that wait for plain copies are known, which neither experts nor variants of the corpus have.
    **{
        (result, f"pkb_gym/engine/emulator/src/{name}"): "47fafcd45672"
        for result in ("emulated_experts", "emulated_mutants")
        for name in (
            *(f"detector_{part}.{suffix}" for part in ("async", "observer") for suffix in ("cpp", "h")),
            *("events.h", "executor_copy.cpp", "executor_mbarrier.cpp"),
        )
    },
    # Rows of this kernel name the commit that they are of.
    **{
        (result, "problems/geometric_spatial/sam3_iou_suppression/expert.cu"): "cb4935ef35ef"
        for result in ("emulated_experts", "emulated_mutants", "mutants_2_gpus")
    },
    # Its kernels are C++.
    ("honest_evaluations", "problems/geometric_spatial/sam3_iou_suppression/expert.cu"): "cb4935ef35ef",
    # Rows of mutants that the kernel has no more were taken out.
    ("emulated_mutants_1_gpus_of_2_ranks", "problems/geometric_spatial/sam3_iou_suppression/expert.cu"): "cb4935ef35ef",
    **{
        (result, f"pkb_gym/engine/stages/{name}.py"): "3be163d96f8f"
        for result in (
            # Blocks on GPUs have fewer calls, and more of one may be overhead. It counts requests, and compares times
            # of a run.
            "handover_requests",
            # Blocks on the CPU hold fewer calls, as collectives of gloo take less time. Evaluations are as right or
            # wrong as they were, and figures of learning compare policies whose kernels were timed alike, with gloo as
            # it was then (docs/training.md).
            *("honest_evaluations", "learning_run", "reward_study"),
        )
        for name in ("time", "timing_statistics")
    },
    # Evaluations of the drills are as right or wrong as they were.
    **{(result, "pkb_gym/engine/ranks/zygote.py"): "9305ab242da4" for result in ("fault_drill", "ray_faults")},
    # What a service or a pool adds to evaluations, and its share of an evaluator's throughput: evaluations of both
    # sides take less time.
    **{
        (result, "pkb_gym/engine/ranks/zygote.py"): "9305ab242da4"
        for result in ("service_load", "ray_overhead", "ray_gangs")
    },
    # The same, and the first exception of a rank is reported in less time: no measured kernel ends by one, and in the
    # drills verdicts are counted. Where gangs stand by, as many do.
    **{
        (result, "pkb_gym/engine/evaluators/gang_pool.py"): "6a36cf38"
        for result in (
            *("agent_runs", "fault_drill", "fault_drill_gpus", "service_load"),
            "gpu_evaluator_1_ranks",
            *("ray_faults", "ray_gangs", "ray_overhead"),
        )
    },
    # Handovers of a block are drawn once for both sides, before its clock starts.
    **{
        (result, "pkb_gym/engine/ranks/baseline_blocks.py"): "0bd95172"
        for result in (
            *("gpu_evaluator_1_ranks", "gpu_experts_2_ranks", "handover_requests", "honest_evaluations"),
            *("learning_run", "learning_run_cuda", "reward_study"),
        )
    },
    # A side's time is another statistic over its blocks, at the same level (`side_estimates`): to 0.2 % on GPUs, and to
    # a tenth of what gangs differ by on the CPU. Coefficients of variation of the evaluator were higher by the former.
    # Evaluations are as right or wrong as they were, and policies are compared whose kernels were timed alike.
    **{
        (result, "pkb_gym/engine/stages/timing_statistics.py"): "84d86fd4f33e"
        for result in (
            *("gpu_experts_2_ranks", "handover_requests", "honest_evaluations", "reward_study"),
            *("gpu_evaluator_1_ranks", "gpu_evaluator_2_ranks"),
            *("learning_run", "learning_run_cuda", "learning_run_cuda_seed_1", "learning_run_cuda_seed_2"),
        )
    },
    # Before the baseline's blocks on the CPU memory is copied, and connections between ranks send without a pace: not
    # on GPUs. Drills count verdicts, loads of services and pools are shares of an evaluator's throughput, and
    # evaluations are as right or wrong as they were. Policies are compared whose kernels were timed alike.
    **{
        (result, "pkb_gym/engine/stages/time.py"): "63b259210008"
        for result in (
            *("gpu_evaluator_1_ranks", "gpu_evaluator_2_ranks"),
            *("gpu_evaluator_2_ranks_other_machine", "gpu_evaluator_2_ranks_repeated"),
            *("gpu_experts_2_ranks", "handover_requests", "honest_evaluations", "reward_study"),
            *("learning_run", "learning_run_cuda", "learning_run_cuda_seed_1", "learning_run_cuda_seed_2"),
        )
    },
    ("honest_evaluations", "pkb_gym/engine/compare/layout.py"): "63b259210008",
    # The same function, which others use too.
    ("handover_requests", "pkb_gym/engine/ranks/output_sampler.py"): "9e74e518a9c0",
    **{
        (result, "pkb_gym/engine/ranks/reference_gang.py"): "63b259210008"
        for result in ("fault_drill", "fault_drill_gpus")
    },
    **{
        (result, "pkb_gym/engine/evaluators/gang_pool.py"): "ec218875e628"
        for result in (
            *("agent_runs", "fault_drill", "fault_drill_gpus", "service_load"),
            *("gpu_evaluator_1_ranks", "gpu_evaluator_2_ranks"),
            *("gpu_evaluator_2_ranks_other_machine", "gpu_evaluator_2_ranks_repeated"),
            *("ray_faults", "ray_gangs", "ray_overhead"),
        )
    },
    # Libraries of our own are compiled by one function, with the same commands as before; one more is.
    **{("fault_drill", f"pkb_gym/engine/compile/{name}.py"): "9305ab242da4" for name in ("handover", "stack_trace")},
    ("fault_drill", "pkb_gym/engine/compile/own_library.py"): "b1b07df59611",
    # The drill compiles C++ alone, and makes no debug builds.
    **{("fault_drill", f"pkb_gym/engine/compile/{name}.py"): "32ffb903" for name in ("library_headers", "nvcc")},
    ("fault_drill", "pkb_gym/engine/compile/debug_build.py"): "0e77265b",
}
"""(Result, file) -> a commit whose version of the file gives the same figures as today's, for a reason beside it."""


def paths_of(result: Path) -> list[str]:
    """The paths that a result file depends on.

    Raises:
        LookupError: nothing is listed for it.
    """
    for pattern, paths in DEPENDENCIES.items():
        if fnmatch(result.stem, pattern):
            return list(dict.fromkeys(expanded for path in paths for expanded in _expanded(path, result)))
    raise LookupError(f"{result.name}: list in benchmarks/results_of.py which files it depends on")


def _expanded(path: str, result: Path) -> list[str]:
    if "{folder}" not in path:
        return [path]
    names = {row["problem"] for row in json.loads(result.read_text(encoding="utf-8"))["rows"]}
    if fnmatch(result.stem, "gpu_baselines*"):
        names -= REWRITTEN
    return [path.format(folder=find_problem(name).folder) for name in sorted(names)]
