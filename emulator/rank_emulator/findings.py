"""The report of the race detector: a mirror of `src/findings.h`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class Access:
    """One of the accesses of a finding.

    Attributes:
        operation: "read", "write", "atomic" or "fence".
        what: Opcode, or operation of a stream, such as "st.relaxed.gpu.global.u64" or "arrival".
        rank: Rank of the thread or stream; None where it is unknown.
        kernel: Name of the kernel; None for operations of a stream.
        block: Linear index of the block in the grid; None for operations of a stream.
        thread: Linear index of the thread in the block; None for operations of a stream.
        file: Source file; None where it is unknown.
        line: Line of `file`, from 1; None where it is unknown.
        outer_file: Source file of the outermost function that the code was inlined into; None where it was not.
        outer_line: Line of `outer_file`, from 1; None where there is none.
    """

    operation: str
    what: str
    rank: int | None
    kernel: str | None
    block: int | None
    thread: int | None
    file: str | None
    line: int | None
    outer_file: str | None = None
    outer_line: int | None = None

    @classmethod
    def parse(cls, parsed: Mapping[str, Any] | None) -> Self | None:
        """An access from parsed JSON; None for null."""
        return None if parsed is None else cls(**{name: parsed[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Finding:
    """A race, or another error that the detector finds.

    Attributes:
        kind: "race", "out_of_bounds", "uninitialised_read", "misaligned", "divergent_barrier", "mbarrier_leak",
            "bulk_copy_leak" or "ended_block".
        finding_class: Class of a race: "unsynchronised" (no flag or barrier leads from one access to the other),
            "weak_order" (a flag does, without the release, acquire, scope or proxy that PTX asks for) or "benign" (both
            store the same value); None for other findings.
        message: One line with both accesses, their source lines, and a remedy.
        exposure: Behaviour of a GPU by which the outputs would show the race; None for other findings.
        first: The earlier access; None where the finding has none.
        second: The later access; None where the finding has none.
        owner: Rank whose memory it is; None where it is unknown.
        tensor: Name of the memory; None where it has none.
        missing: Missing order of the two accesses, such as "release" or "scope"; "none" for other findings.
    """

    kind: str
    finding_class: str | None
    message: str
    exposure: str | None
    first: Access | None
    second: Access | None
    owner: int | None
    tensor: str | None
    missing: str

    @property
    def rank(self) -> int | None:
        """The rank of the later access, or of the only one; None where it is unknown."""
        access = self.second or self.first
        return None if access is None else access.rank

    @classmethod
    def parse(cls, parsed: Mapping[str, Any]) -> Self:
        """A finding from parsed JSON."""
        return cls(
            kind=parsed["kind"],
            finding_class=parsed["class"],
            message=parsed["message"],
            exposure=parsed["exposure"],
            first=Access.parse(parsed["first"]),
            second=Access.parse(parsed["second"]),
            owner=parsed["owner"],
            tensor=parsed["tensor"],
            missing=parsed["missing"],
        )


@dataclass(frozen=True)
class LinkBytes:
    """The bytes that the threads of one rank moved to and from the memory of a rank in one call.

    Attributes:
        rank: Rank of the threads.
        owner: Rank of the memory.
        call: Number of the call, as given to `World.arrive`; None outside of calls.
        read_bytes: Bytes of loads, copies and atomics.
        written_bytes: Bytes of stores, copies and atomics.
    """

    rank: int
    owner: int
    call: int | None
    read_bytes: int
    written_bytes: int


@dataclass(frozen=True)
class Findings:
    """The detector's report on all runs of a world so far.

    Attributes:
        findings: Errors, the first of each pair of source lines.
        advice: A line for each access that moves more bytes than it needs.
        links: Traffic of each pair of ranks, call by call.
    """

    findings: tuple[Finding, ...] = ()
    advice: tuple[str, ...] = ()
    links: tuple[LinkBytes, ...] = ()

    @classmethod
    def parse(cls, text: str | bytes) -> Self:
        """A report from the detector's JSON."""
        parsed = json.loads(text)
        return cls(
            findings=tuple(map(Finding.parse, parsed["findings"])),
            advice=tuple(advice["message"] for advice in parsed["advice"]),
            links=tuple(
                LinkBytes(link["rank"], link["owner"], link["call"], link["read_bytes"], link["written_bytes"])
                for link in parsed["links"]
            ),
        )
