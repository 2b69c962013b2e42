"""Errors of pkb-gym.

A candidate's failure is data (`Feedback.failure`), never one of these: an exception means wrong usage or a fault of
ours.

    PkbError
    ├── DeclarationError
    ├── ConfigError
    │   ├── PermissionRefused
    │   ├── ProblemNotFound
    │   └── SizeError
    │       └── AxisNotFound
    └── InfrastructureError
        ├── ReferenceOutOfMemory
        ├── StoreError
        ├── ServiceBusy
        └── EvaluationNotFound
"""

from __future__ import annotations


class PkbError(Exception):
    """Base of every error that pkb-gym raises on purpose."""


class DeclarationError(PkbError, ValueError):
    """Raised when a problem's declaration contradicts itself."""


class ConfigError(PkbError, ValueError):
    """Raised when an argument is not understood, or an evaluation's configuration cannot be met."""


class PermissionRefused(ConfigError):
    """Raised when an evaluation service does not let this client do that."""


class ProblemNotFound(ConfigError, KeyError):
    """Raised when a name is not in the catalogue."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""  # KeyError would show the message in quotes


class SizeError(ConfigError):
    """Raised when the axes of a problem do not fit together, or not with the world size."""


class AxisNotFound(SizeError, KeyError):
    """Raised when a problem has no axis of that name."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""  # see `ProblemNotFound`


class InfrastructureError(PkbError, RuntimeError):
    """Raised when this machine or this code failed, not the candidate."""


class ReferenceOutOfMemory(InfrastructureError):
    """Raised when a reference gang found no memory on its device."""


class StoreError(InfrastructureError):
    """Raised when a finished evaluation could not be written to where it is kept."""


class ServiceBusy(InfrastructureError):
    """Raised when an evaluation service has as many requests waiting as it takes; ask again later."""


class EvaluationNotFound(InfrastructureError):
    """Raised when an evaluation service knows no such evaluation: it was given up, or answered long ago."""
