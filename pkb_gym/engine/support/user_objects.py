"""Objects that users bring, named `module:object` and imported, also from the working directory.

Whatever is wrong with one is a `ConfigError` that names it.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

from pkb_gym.engine.errors import ConfigError
from pkb_gym.engine.support.suggestions import did_you_mean

_REFERENCE = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)")


def is_reference(text: str) -> bool:
    """Whether a text has the form `module:object`."""
    return _REFERENCE.fullmatch(text) is not None


def load_object(reference: str, kind: str) -> object:
    """Imports what a reference names.

    Args:
        reference: Reference such as "my_rewards:squared_speedup".
        kind: Noun for the object, for errors: "reward".

    Raises:
        ConfigError: it is no reference, there is no such module or object, or importing it fails.
    """
    found = _REFERENCE.fullmatch(reference)
    if found is None:
        raise ConfigError(f"{kind} {reference!r}: expected module:function")
    module = _import(found[1], f"{kind} {reference!r}")
    if not hasattr(module, found[2]):
        hint = did_you_mean(found[2], vars(module))
        raise ConfigError(f"{kind} {reference!r}: module {found[1]!r} ({module.__file__}) has no {found[2]!r}.{hint}")
    thing: object = getattr(module, found[2])
    return thing


def _import(name: str, whose: str) -> ModuleType:
    if name not in sys.modules and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # scripts have their own folder there instead; it stays, for unpickling
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(f"{whose}: importing {name!r} failed: {error}") from error
        raise ConfigError(f"{whose}: no module {error.name!r}, neither installed nor in {Path.cwd()}") from None
    except Exception as error:
        raise ConfigError(f"{whose}: importing {name!r} failed: {type(error).__name__}: {error}") from error
