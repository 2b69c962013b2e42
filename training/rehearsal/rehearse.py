"""All checks of a command, in order."""

from __future__ import annotations

from collections.abc import Iterator

from pkb_gym.engine.errors import ConfigError
from pkb_gym.training.inputs.model_shape import ModelShape
from pkb_gym.training.rehearsal.checks import (
    check_batch,
    check_division,
    check_gpus,
    check_memory,
    check_versions,
    judging_gpus,
)
from pkb_gym.training.rehearsal.data_checks import (
    check_lengths,
    check_rows,
    check_template,
    longest_prompt,
    read_data,
    read_tokenizer,
)
from pkb_gym.training.rehearsal.findings import Finding, gigabytes
from pkb_gym.training.rehearsal.launch import Launch
from pkb_gym.training.rehearsal.plan import read_plan
from pkb_gym.training.rehearsal.services import check_services
from pkb_gym.training.rehearsal.target import Target


def rehearse(launch: Launch, target: Target) -> Iterator[Finding]:
    """Checks a command; takes no GPU, loads no weights and starts no process.

    Args:
        launch: Start of the recipe.
        target: Machines of the command.
    """
    try:
        plan = read_plan(launch)
    except ConfigError as error:
        yield Finding("error", "arguments", str(error))
        return
    yield from check_versions(plan, target)
    yield from check_gpus(plan, target)
    yield from check_batch(plan)
    tokenizer, found = read_tokenizer(plan)
    yield found
    if tokenizer is not None:
        yield from check_template(plan, tokenizer)
    rows, found = read_data(plan)
    yield found
    yield from check_rows(plan, rows, judging_gpus(plan, target))
    tokens, length = longest_prompt(plan, rows, tokenizer)
    if length is not None:
        yield length
    if plan.model is not None:
        try:
            shape = ModelShape.of(plan.model, plan.revision)
        except ConfigError as error:
            yield Finding("error", "model", str(error))
        else:
            known = ", by the table of public models" if shape.is_known_by_name else ""
            text = f"{shape.parameters / 1e9:.2f} billion parameters, {gigabytes(2 * shape.parameters)} in bfloat16"
            yield Finding("ok", "model", f"{text}{known}")
            yield from check_lengths(plan, shape.context, tokens)
            yield from check_division(plan, shape)
            yield from check_memory(plan, shape, target, tokens)
    yield from check_services(plan, target)
