"""Nothing that a test asks for."""


class StructuredOutputsParams:
    """Never made."""
