"""The checks of a command against a target, each a function from a plan to findings."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, version

from packaging.requirements import Requirement

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.evaluation.owner import check_owner
from pkb_gym.training.inputs.model_shape import ModelShape
from pkb_gym.training.learner.sharded_generation import refuse_sharded_generation
from pkb_gym.training.rehearsal.findings import Finding, Level, gigabytes
from pkb_gym.training.rehearsal.memory import (
    CONTEXT_BYTES,
    activation_bytes,
    cache_bytes,
    gathered_bytes,
    logit_bytes,
    states_bytes,
    vllm_room,
)
from pkb_gym.training.rehearsal.plan import Generation, Plan
from pkb_gym.training.rehearsal.target import Target

PACKAGE = "pkb-gym"


def check_gpus(plan: Plan, target: Target) -> Iterator[Finding]:
    """Whether each process, and each service, has a GPU of its own where it needs one."""
    launch = plan.launch
    visible = launch.visible if launch.visible is not None else tuple(map(str, range(target.gpus)))
    if launch.nodes > target.nodes:
        yield Finding("error", "nodes", f"{launch.nodes} nodes are started, the target has {target.nodes}")
    if absent := [entry for entry in visible if entry.isdecimal() and int(entry) >= target.gpus]:
        yield Finding("error", "GPUs", f"CUDA_VISIBLE_DEVICES names {', '.join(absent)} of {target.gpus} GPUs")
    if launch.per_node > len(visible):
        yield Finding("error", "GPUs", f"{launch.per_node} processes a node on {len(visible)} visible GPUs")
    else:
        used = ", ".join(visible[: launch.per_node])
        work = "generate and learn" if plan.generation and plan.learning else "learn" if plan.learning else "generate"
        yield Finding("ok", "GPUs", f"{launch.processes} processes ({launch.sharding}) {work} on {used} of each node")
    evaluation = plan.evaluation
    if evaluation is None:
        return
    try:
        check_owner(evaluation.mode, evaluation.gpus, evaluation.url, evaluation.services, evaluation.compilers)
    except ConfigError as error:
        yield Finding("error", "judges", str(error))
        return
    if evaluation.mode == "ray" or evaluation.url is not None:
        return
    judges = evaluation.gpus if evaluation.gpus is not None else visible
    if absent := [entry for entry in judges if entry.isdecimal() and int(entry) >= target.gpus]:
        yield Finding("error", "judges", f"evaluation_gpus names {', '.join(absent)} of {target.gpus} GPUs")
    shared = sorted(set(judges) & set(visible[: launch.per_node]))
    if evaluation.mode == "dedicated" and shared:
        yield Finding(
            "error",
            "judges",
            f"dedicated evaluation shares {', '.join(shared)} with training: timings need "
            "idle GPUs; set CUDA_VISIBLE_DEVICES to the others, or take --evaluation colocated",
        )
    elif evaluation.mode == "inline" and launch.processes > 1:
        yield Finding("error", "judges", f"evaluation inline is for one process, these are {launch.processes}")
    else:
        yield Finding("ok", "judges", f"{evaluation.mode}: {', '.join(judges)} of each node")


def judging_gpus(plan: Plan, target: Target) -> int | None:
    """Number of GPUs that a gang of a node judges on; None where another machine judges."""
    if plan.evaluation is None or plan.evaluation.mode == "ray" or plan.evaluation.url is not None:
        return None
    if plan.evaluation.gpus is not None:
        return len(plan.evaluation.gpus) // plan.evaluation.services
    return target.gpus if plan.launch.visible is None else len(plan.launch.visible)


def check_batch(plan: Plan) -> Iterator[Finding]:
    """Whether the episodes of a step are whole groups."""
    generation = plan.generation
    if generation is None or plan.learning is None:
        return
    if generation.episodes % generation.group:
        yield Finding(
            "error",
            "batch",
            f"{generation.episodes} episodes a step are no whole groups of {generation.group} (num_generations)",
        )
        return
    evaluations = generation.episodes * generation.max_turns
    text = f"{generation.episodes} episodes of {generation.episodes // generation.group} prompts a step, at most "
    text += f"{evaluations} evaluations and {generation.episodes * generation.max_tokens / 1e6:.2f} million tokens"
    if generation.steps is not None:
        every = evaluations * generation.steps
        text += f"; in {generation.steps} steps {every:,} evaluations, {every / 3600:.1f} hours at one a second"
    yield Finding("ok", "batch", text)


def check_versions(plan: Plan, target: Target) -> Iterator[Finding]:
    """Whether the packages that the command needs are installed here, in versions that pkb-gym takes."""
    wrong: list[str] = []
    for text in metadata(PACKAGE).get_all("Requires-Dist") or ():
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": "train"}):
            continue
        if requirement.name == PACKAGE:
            continue
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing, {requirement.specifier} is needed")
            continue
        if not requirement.specifier.contains(found, prereleases=True):
            wrong.append(f"{requirement.name} {found} is here, {requirement.specifier} is needed")
    absent: Level = "error" if target.is_here else "note"
    needed = ["vllm"] if plan.generation is not None and plan.generation.by == "vllm_colocate" else []
    needed += ["deepspeed"] if plan.launch.sharding in ("zero2", "zero3") else []
    for name in needed:
        try:
            yield Finding("ok", "versions", f"{name} {version(name)} is installed")
        except PackageNotFoundError:
            yield Finding(absent, "versions", f"{name} is not installed here; the machine that trains needs it")
    if wrong:
        yield Finding("error", "versions", "; ".join(wrong))
    else:
        names = ("torch", "transformers", "trl", "accelerate")
        yield Finding("ok", "versions", ", ".join(f"{name} {version(name)}" for name in names))


def check_division(plan: Plan, shape: ModelShape) -> Iterator[Finding]:
    """Whether vLLM can divide the model over its GPUs, and whether transformers can generate from its shards."""
    generation = plan.generation
    if generation is None:
        return
    try:
        refuse_sharded_generation(
            shape.parameters,
            is_fsdp2=plan.launch.sharding == "fsdp2" and plan.learning is not None,
            use_vllm=generation.by != "transformers",
        )
    except ConfigError as error:
        yield Finding("error", "generation", str(error))
    parts = generation.tensor_parallel
    if generation.by != "vllm_colocate" or parts == 1:
        return
    sizes = {"heads": shape.heads, "feed_forward": shape.feed_forward, "tokens of the vocabulary": shape.vocabulary}
    undivided = [f"{size} {name}" for name, size in sizes.items() if size % parts]
    if parts > shape.key_value_heads and parts % shape.key_value_heads:
        undivided.append(f"{shape.key_value_heads} key and value heads")
    if plan.launch.processes % parts:
        undivided.append(f"{plan.launch.processes} processes")
    if undivided:
        fitting = [n for n in (1, 2, 4, 8) if shape.heads % n == 0 and plan.launch.processes % n == 0]
        yield Finding(
            "error",
            "division",
            f"tensor_parallel {parts} does not divide {', '.join(undivided)}; "
            f"{', '.join(map(str, fitting))} divide the heads",
        )
    else:
        yield Finding(
            "ok", "division", f"{shape.heads} heads and {shape.key_value_heads} key and value heads over {parts} GPUs"
        )


def check_memory(plan: Plan, shape: ModelShape, target: Target, prompt_tokens: int) -> Iterator[Finding]:
    """Whether a GPU that learns or generates has room; see `memory` for the arithmetic.

    Args:
        plan: Settings of the command.
        shape: Shape of the model.
        target: Machines of the command.
        prompt_tokens: Length of the longest prompt.
    """
    if not target.gpus:
        yield Finding("note", "memory", "the target has no GPU; memory is not checked")
        return
    generation, learning, total = plan.generation, plan.learning, target.memory_bytes
    states = 2.0 * shape.parameters if learning is None else states_bytes(shape, plan)
    # vLLM holds the weights of a policy that does not learn; nothing else does.
    states = 0.0 if learning is None and generation is not None and generation.by == "vllm_colocate" else states
    share = generation.memory_share * total if generation is not None and generation.by == "vllm_colocate" else 0.0
    if learning is not None:
        trained = learning.max_length or (generation.max_tokens if generation else shape.context)
        whole = trained + (prompt_tokens if generation else 0)
        parts = {
            "states": states,
            "gathered": gathered_bytes(shape, plan),
            "activations": activation_bytes(shape, learning, whole),
            "logits": logit_bytes(shape, learning, trained),
            "vLLM, which does not sleep": 0.0 if generation is None or generation.sleeps else share,
            "context": CONTEXT_BYTES,
        }
        yield _sum("learning", parts, total)
    if generation is not None:
        longest = min(prompt_tokens + generation.max_tokens, generation.max_model_length or shape.context)
        if generation.by == "vllm_colocate":
            yield _sum("generation", {"states": states, "vLLM": share, "context": CONTEXT_BYTES}, total)
            yield _cache_of_vllm(shape, generation, total, longest)
        elif generation.by == "transformers":
            cache = cache_bytes(shape, generation.batch, longest)
            gathered = 2.0 * shape.parameters if plan.launch.sharding == "zero3" else gathered_bytes(shape, plan)
            parts = {"states": states, "gathered": gathered, f"cache of {generation.batch} sequences": cache}
            yield _sum("generation", parts | {"context": CONTEXT_BYTES}, total)
        else:
            yield Finding(
                "note",
                "generation",
                f"the server's GPUs hold {gigabytes(2 * shape.parameters)} of weights, "
                f"and {gigabytes(cache_bytes(shape, 1, longest))} for each sequence of {longest} tokens",
            )


def _sum(subject: str, parts: dict[str, float], total: float) -> Finding:
    needed = sum(parts.values())
    listed = " + ".join(f"{name} {gigabytes(size)}" for name, size in parts.items() if size)
    level: Level = "error" if needed > total else "note" if needed > 0.92 * total else "ok"
    remedy = "" if level != "error" else "; take more GPUs, sleep mode, a smaller micro-batch or share, or LoRA"
    return Finding(level, f"memory, {subject}", f"{gigabytes(needed)} of {gigabytes(total)} a GPU: {listed}{remedy}")


def _cache_of_vllm(shape: ModelShape, generation: Generation, total: float, longest: int) -> Finding:
    room = vllm_room(shape, generation, total)
    each = cache_bytes(shape, 1, longest) / min(generation.tensor_parallel, shape.key_value_heads)
    if room < each:
        return Finding(
            "error",
            "memory, vLLM",
            f"its share of {generation.memory_share:g} leaves "
            f"{gigabytes(max(0.0, room))} beside the weights, and a sequence of {longest} tokens takes "
            f"{gigabytes(each)}; raise vllm_gpu_memory_utilization or vllm_tensor_parallel_size",
        )
    return Finding("ok", "memory, vLLM", f"{gigabytes(room)} hold {int(room / each)} sequences of {longest} tokens")
