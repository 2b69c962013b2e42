"""The use that a process has made of its machine."""

from __future__ import annotations

import resource

from pkb_gym.engine.wire.orders import ProcessUsage


def usage_since(before: resource.struct_rusage) -> ProcessUsage:
    """Page faults, context switches and processor time of this process since `before`."""
    after = resource.getrusage(resource.RUSAGE_SELF)
    return ProcessUsage(
        minor_page_faults=after.ru_minflt - before.ru_minflt,
        major_page_faults=after.ru_majflt - before.ru_majflt,
        voluntary_switches=after.ru_nvcsw - before.ru_nvcsw,
        involuntary_switches=after.ru_nivcsw - before.ru_nivcsw,
        user_ns=int((after.ru_utime - before.ru_utime) * 1e9),
        system_ns=int((after.ru_stime - before.ru_stime) * 1e9),
    )
