"""Findings of `pkb doctor` on header libraries for CUDA kernels."""

from __future__ import annotations

from pkb_gym.engine.compile.library_headers import header_libraries
from pkb_gym.engine.compile.nvcc import find_toolkit, nvcc_available
from pkb_gym.engine.errors import InfrastructureError
from pkb_gym.engine.support.header_libraries import KNOWN, FoundLibrary, Library, why_not_found, wrong_variable

from .diagnosis import Diagnosis


def examine_libraries() -> list[Diagnosis]:
    """One finding for each library; none where nothing could be compiled with them."""
    if not nvcc_available():
        return []
    try:
        toolkit = find_toolkit()
    except InfrastructureError:  # reported with nvcc already
        return []
    here = {found.library: found for found in header_libraries(toolkit)}
    return [_finding(library, here.get(library)) for library in KNOWN]


def _finding(library: Library, found: FoundLibrary | None) -> Diagnosis:
    if found is None:
        return Diagnosis(library.name, "limited", why_not_found(library), library.remedy)
    if mistake := wrong_variable(library):  # nvcc finds the toolkit's own in any case
        remedy = f"unset {library.variable}, or set it to a folder with that header"
        return Diagnosis(library.name, "limited", f"{mistake}; kernels get {found.version} ({found.origin})", remedy)
    note = f"; {library.note}" if library.note else ""
    return Diagnosis(library.name, "ok", f"{found.version} ({found.origin}){note}".lstrip())
