"""A domain of Landlock (landlock(7)) for a rank that sees the processes of the machine.

Processes of one user may read and write each other's memory through /proc. From within a domain, those outside of it
are out of reach.
"""

from __future__ import annotations

import ctypes
import os
import struct

from .confine import PR_SET_NO_NEW_PRIVS, prctl

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""System calls, whose numbers are the same everywhere."""

_VERSION, _PATH_BENEATH = 1, 1
_REFER = 1 << 13
"""Right to link or rename a file into another folder, which no domain may unless a rule allows it; since version 2."""

_LIBC = ctypes.CDLL(None, use_errno=True)


def keep_out_of_other_processes() -> bool:
    """Puts this process, and whatever it starts, into a domain that forbids no file.

    Returns:
        False where the kernel has no Landlock, or one before version 2.
    """
    if _LIBC.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION) < 2:
        return False
    handled = struct.pack("Q", _REFER)
    rules = _LIBC.syscall(CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0)
    if rules < 0:
        return False
    root = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        rule = struct.pack("=Qi", _REFER, root)
        added: int = _LIBC.syscall(ADD_RULE, rules, _PATH_BENEATH, rule, 0)
        restricted: int = -1 if added else _LIBC.syscall(RESTRICT_SELF, rules, 0)
        return restricted == 0
    finally:
        os.close(root)
        os.close(rules)
