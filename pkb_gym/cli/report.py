"""`pkb report`: a page of results, with a Markdown and a JSON twin."""

from __future__ import annotations

import argparse
from pathlib import Path

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.support.atomic_write import write_atomically

from .command import Session, Status, add_json_option, add_parser, stderr
from .options import positive_int
from .results_options import add_results_argument

EXAMPLE = """pkb report runs/agent
pkb report expert=runs/expert.jsonl smollm2=runs/smollm2 --output report.html --figures figures/"""

MEGABYTE = 1_000_000


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds `pkb report`."""
    parser = add_parser(
        commands,
        "report",
        run,
        summary="Make one page of results that opens from the disk, with a Markdown and a JSON twin.",
        example=EXAMPLE,
    )
    add_results_argument(parser)
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="the page; its twins end in .md and .json (default: report.html)",
    )
    parser.add_argument("--figures", type=Path, metavar="DIR", help="write each picture there as SVG and PNG as well")
    parser.add_argument(
        "--max-megabytes",
        type=positive_int,
        default=5,
        metavar="N",
        help="size of the page; details of attempts are left out to keep it (default: 5)",
    )
    add_json_option(parser, "the figures")


def run(args: argparse.Namespace, session: Session) -> int:  # noqa: ARG001  # every command has this signature
    """Writes the page and its twins, or prints the figures.

    Raises:
        ConfigError: results cannot be read, a library is missing, or a file cannot be written.
    """
    from pkb_gym.metrics.groups import read_grouped
    from pkb_gym.report.content import report_content

    results = read_grouped(args.results)
    attempts = results.attempts
    content = report_content(attempts, args.results, results)
    if args.json:
        print(content.model_dump_json())
        return Status.PASSED
    output: Path = args.output
    if output.suffix in (".md", ".json"):
        raise ConfigError(f"--output names the page, such as {output.with_suffix('.html')}; its twins lie beside it")
    from pkb_gym.report.figures import charts, write_pictures
    from pkb_gym.report.markdown import report_markdown
    from pkb_gym.report.page import page_html

    console = stderr()
    groups = f" in {len(results.groups)} groups, which do not compare" if results.groups else ""
    console.print(f"{len(attempts)} attempts by {len(content.agents)} agents{groups}", soft_wrap=True)
    texts = {
        output: page_html(content, attempts, args.max_megabytes * MEGABYTE),
        output.with_suffix(".md"): report_markdown(content),
        output.with_suffix(".json"): content.model_dump_json(indent=1) + "\n",
    }
    try:
        for path, text in texts.items():
            write_atomically(path, text)
        written = [*texts, *(write_pictures(charts(content), args.figures) if args.figures is not None else ())]
    except OSError as error:
        raise ConfigError(f"cannot write {error.filename or output}: {error.strerror}") from None
    for path in written:
        print(path)
    return Status.PASSED
