"""The base of everything that crosses a wire or is stored."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, PlainValidator


def _any_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, got {type(value).__name__}")
    return value


Text = Annotated[str, PlainValidator(_any_text)]
"""Any characters, lone surrogates included, as models and candidates may write them."""


class Record(BaseModel):
    """Frozen, strict about its fields, and free of NaN: what was not measured is None."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
