"""What a rank gives up, tried in forked children of the tests."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import resource
import signal
import socket
import struct
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pkb_gym.engine.rankside import confine
from pkb_gym.engine.wire.forking import NO_CORE_BYTES
from tests.engine.forked import in_child

pytestmark = pytest.mark.skipif(
    platform.machine() not in confine._ARCHITECTURES, reason=f"no system call filter for {platform.machine()}"
)
LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_NAME, PR_GET_MEMORY_MERGE = 15, 68
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS


def refused(call: Callable[[], object], number: int = errno.EPERM) -> None:
    """A refusal by the filter; a success, or another error, is a failure."""
    try:
        result = call()
    except OSError as error:
        assert error.errno == number, error
        return
    assert isinstance(result, int) and result < 0, f"{call}: {result}"
    assert ctypes.get_errno() == number, os.strerror(ctypes.get_errno())


def fork_and_leave() -> None:
    if os.fork() == 0:
        os._exit(0)


def filtered(work: Callable[[], object], *, allow_processes: bool = False) -> None:
    def run() -> None:
        assert confine.filter_system_calls(allow_processes)
        work()

    in_child(run)


def test_no_process_is_started() -> None:
    def work() -> None:
        refused(fork_and_leave)
        refused(lambda: os.execv("/bin/true", ["true"]))
        refused(lambda: os.posix_spawn("/bin/true", ["true"], {}))
        numbers = confine._ARCHITECTURES[platform.machine()][1]
        refused(lambda: LIBC.syscall(numbers["clone3"], 0, 0), errno.ENOSYS)

    filtered(work)


def test_threads_are_allowed() -> None:
    def work() -> None:
        ran: list[int] = []
        threads = [threading.Thread(target=ran.append, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(ran) == [0, 1, 2, 3]

    filtered(work)


CLONE_VM, CLONE_FS, CLONE_SIGHAND = 0x100, 0x200, 0x800


def test_threads_share_one_table_of_descriptors() -> None:
    """Each may hold as many as the limit allows: 60 threads took two thirds of all watches that a user may have."""

    def work() -> None:
        numbers = confine._ARCHITECTURES[platform.machine()][1]
        flags = CLONE_VM | CLONE_FS | CLONE_SIGHAND | confine.CLONE_THREAD
        refused(lambda: LIBC.syscall(numbers["clone"], ctypes.c_ulong(flags), 0, 0, 0, 0))
        close_range, none = confine._EVERYWHERE["close_range"], ctypes.c_uint(4_000_000)
        refused(lambda: LIBC.syscall(close_range, none, none, confine.CLOSE_RANGE_UNSHARE))
        assert LIBC.syscall(close_range, none, none, 0) == 0
        kept, other = os.open("/dev/null", os.O_RDONLY), os.open("/dev/null", os.O_RDONLY)
        os.closerange(other, other + 1)
        os.fstat(kept)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(other)

    for allow_processes in (False, True):
        filtered(work, allow_processes=allow_processes)


def test_no_memory_of_the_kernel_that_nothing_counts() -> None:
    """A table of futexes of 1 GiB, by one call; filters of system calls, which can also fill the machine's log."""

    def work() -> None:
        log_every_call = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0x7FFC0000))
        program = struct.pack("HxxxxxxP", 1, ctypes.addressof(log_every_call))
        refused(lambda: LIBC.prctl(confine.PR_SET_SECCOMP, confine.SECCOMP_MODE_FILTER, program, 0, 0))
        refused(lambda: LIBC.prctl(confine.PR_FUTEX_HASH, 1, ctypes.c_ulong(1 << 10), 0, 0))
        ruleset = struct.pack("QQ", 0, 3)
        refused(lambda: LIBC.syscall(confine._EVERYWHERE["landlock_create_ruleset"], ruleset, ctypes.c_size_t(16), 0))

    filtered(work)


def test_no_other_order_of_input_and_output() -> None:
    """Any process of the user could be made to wait for all others."""

    def work() -> None:
        refused(lambda: LIBC.syscall(confine._ARCHITECTURES[platform.machine()][1]["ioprio_set"], 1, 0, 3 << 13))

    filtered(work)


def test_a_thread_is_filtered_too() -> None:
    def work() -> None:
        ready, go, errors = threading.Event(), threading.Event(), []

        def late() -> None:
            ready.set()
            go.wait()
            try:
                refused(fork_and_leave)
            except AssertionError as error:
                errors.append(error)

        confine.filter_system_calls(False)
        thread = threading.Thread(target=late)
        thread.start()
        ready.wait()
        go.set()
        thread.join()
        assert not errors, errors

    in_child(work)


def test_signals_reach_itself_alone() -> None:
    def work() -> None:
        caught: list[int] = []
        signal.signal(signal.SIGUSR1, lambda number, _: caught.append(number))
        os.kill(os.getpid(), signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR1)
        assert len(caught) == 2
        parent, numbers = os.getppid(), confine._ARCHITECTURES[platform.machine()][1]
        for pid in (parent, 0, -1, 1):
            refused(lambda pid=pid: os.kill(pid, 0))  # signal 0: only asks whether one could be sent
        refused(lambda: LIBC.syscall(numbers["tkill"], parent, 0))
        refused(lambda: LIBC.syscall(numbers["tgkill"], parent, parent, 0))
        refused(lambda: LIBC.syscall(numbers["rt_sigqueueinfo"], parent, 0, bytes(128)))
        refused(lambda: LIBC.syscall(numbers["rt_tgsigqueueinfo"], parent, parent, 0, bytes(128)))
        refused(lambda: signal.pidfd_send_signal(os.pidfd_open(parent), 0))

    filtered(work)


def test_processors_and_places_of_pages_are_its_own_alone_to_choose() -> None:
    """Whoever may run as this user may choose them for any of its processes, the baseline's ranks among them."""

    def work() -> None:
        own = os.sched_getaffinity(0)
        os.sched_setaffinity(0, own)
        os.sched_setaffinity(os.getpid(), own)
        parent, numbers = os.getppid(), confine._ARCHITECTURES[platform.machine()][1]
        refused(lambda: os.sched_setaffinity(parent, own))
        refused(lambda: LIBC.syscall(numbers["migrate_pages"], parent, 0, None, None))
        refused(lambda: LIBC.syscall(numbers["move_pages"], parent, 0, None, None, None, 0))
        assert LIBC.syscall(numbers["move_pages"], 0, 0, None, None, None, 0) == 0
        ran: list[set[int]] = []

        def other() -> None:
            os.sched_setaffinity(0, {min(own)})
            ran.append(os.sched_getaffinity(0))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert ran == [{min(own)}] and os.sched_getaffinity(0) == own

    filtered(work)


def test_where_no_others_are_seen_all_threads_can_be_placed() -> None:
    def work() -> None:
        assert confine.filter_system_calls(False, isolated=True)
        ready, go = threading.Event(), threading.Event()
        thread = threading.Thread(target=lambda: (ready.set(), go.wait()))
        thread.start()
        ready.wait()
        assert thread.native_id is not None
        os.sched_setaffinity(thread.native_id, {min(os.sched_getaffinity(0))})
        go.set()
        refused(fork_and_leave)

    in_child(work)


def test_a_frozen_rank_has_no_signal_sent_to_itself() -> None:
    """SIGCONT would let it go on while the clock stands."""

    def work() -> None:
        numbers = confine._ARCHITECTURES[platform.machine()][1]
        event = struct.pack("Piii44x", 0, signal.SIGCONT, 0, 0)
        refused(lambda: LIBC.syscall(numbers["timer_create"], 1, event, ctypes.byref(ctypes.c_int())))
        reading = os.pipe()[0]
        for number in (signal.SIGCONT, signal.SIGUSR1, 0):
            refused(lambda number=number: fcntl.fcntl(reading, confine.F_SETSIG, number))
        refused(lambda: LIBC.syscall(numbers["fcntl"], reading, ctypes.c_ulong(1 << 32 | confine.F_SETSIG), 18))
        fcntl.fcntl(reading, fcntl.F_SETFL, os.O_NONBLOCK)
        assert fcntl.fcntl(reading, fcntl.F_GETFL) & os.O_NONBLOCK, "the rest of fcntl is needed"
        signal.setitimer(signal.ITIMER_REAL, 1000)  # SIGALRM wakes nobody
        signal.setitimer(signal.ITIMER_REAL, 0)

    filtered(work)


def test_no_other_process_is_sent_signals_about_a_descriptor() -> None:
    """SIGIO ends whoever does not expect it; without bubblewrap, that could be the evaluator."""

    def work() -> None:
        parent, (reading, writing) = os.getppid(), os.pipe()
        for owner in (parent, -os.getpgid(parent), 0, 1):
            refused(lambda owner=owner: fcntl.fcntl(reading, fcntl.F_SETOWN, owner))
            refused(lambda owner=owner: fcntl.fcntl(reading, confine.F_SETOWN_EX, struct.pack("ii", 1, owner)))
        with socket.socket() as connection:
            for request in (confine.FIOSETOWN, confine.SIOCSPGRP):
                refused(lambda request=request: fcntl.ioctl(connection, request, struct.pack("i", parent)))
        caught: list[int] = []
        signal.signal(signal.SIGIO, lambda number, _: caught.append(number))
        fcntl.fcntl(reading, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(reading, fcntl.F_SETFL, os.O_ASYNC)
        os.write(writing, b"x")
        assert caught == [signal.SIGIO], "its own are its own"

    filtered(work)
    filtered(work, allow_processes=True)


def test_no_thread_can_wait_where_it_cannot_be_stopped() -> None:
    """With a listener of its own for another filter a rank held the freeze up for 20 s."""
    filtered(lambda: refused(lambda: LIBC.syscall(confine._ARCHITECTURES[platform.machine()][1]["seccomp"], 1, 40, 0)))


@pytest.mark.parametrize("allow_processes", [False, True])
def test_no_thread_can_wait_for_another_where_it_cannot_be_stopped(allow_processes: bool) -> None:
    clone = confine._ARCHITECTURES[platform.machine()][1]["clone"]
    of_a_thread = 0x100 | 0x800 | confine.CLONE_THREAD  # CLONE_VM, CLONE_SIGHAND
    filtered(
        lambda: refused(lambda: LIBC.syscall(clone, of_a_thread | confine.CLONE_VFORK, 0, 0, 0, 0)),
        allow_processes=allow_processes,
    )


def test_no_lease_is_taken_on_a_file_of_the_system() -> None:
    """Whoever opens the file waits for up to 45 s until its holder gives it back: compilers, and the evaluator."""

    def work() -> None:
        for kind in (fcntl.F_RDLCK, fcntl.F_WRLCK):
            with open("/etc/hostname") as file:
                refused(lambda kind=kind, file=file: fcntl.fcntl(file, fcntl.F_SETLEASE, kind))

    filtered(work)


def test_other_processes_stay_out_of_reach() -> None:
    def work() -> None:
        parent, numbers = os.getppid(), confine._ARCHITECTURES[platform.machine()][1]
        refused(lambda: LIBC.ptrace(16, parent, 0, 0))
        for name in ("process_vm_readv", "process_vm_writev", "pidfd_getfd", "perf_event_open", "bpf", "userfaultfd"):
            refused(lambda name=name: LIBC.syscall(numbers[name], parent, 0, 0, 0, 0, 0))
        refused(lambda: resource.prlimit(parent, resource.RLIMIT_CPU))
        assert resource.getrlimit(resource.RLIMIT_CPU) == resource.prlimit(os.getpid(), resource.RLIMIT_CPU)
        refused(lambda: LIBC.prctl(confine.PR_SET_PDEATHSIG, 0, 0, 0, 0))  # it cannot choose to outlive its leader

    filtered(work)


def test_no_namespaces_and_no_mounts() -> None:
    def work() -> None:
        refused(lambda: LIBC.unshare(0x10000000))
        refused(lambda: LIBC.mount(b"none", b"/", None, 0, None))
        refused(lambda: LIBC.syscall(confine._EVERYWHERE["fsopen"], b"tmpfs", 0))
        refused(lambda: LIBC.syscall(confine._EVERYWHERE["open_tree"], -1, b"/", 0))

    filtered(work)


def test_memory_that_no_limit_counts_is_refused() -> None:
    def work() -> None:
        refused(lambda: os.memfd_create("hoard"))
        refused(lambda: LIBC.shmget(0, 4096, 0o1600))
        refused(lambda: LIBC.semget(0, 1, 0o1600))
        refused(lambda: LIBC.msgget(0, 0o1600))
        refused(lambda: mmap.mmap(-1, 4096).close())  # shared: of one that is partly unmapped, all of it is kept
        mmap.mmap(-1, 4096, flags=PRIVATE).close()

    filtered(work)


def test_ranks_on_gpus_may_pin_memory() -> None:
    """CUDA's driver maps shared memory without a name."""

    def work() -> None:
        assert confine.filter_system_calls(False, pins_memory=True)
        mmap.mmap(-1, 4096).close()

    in_child(work)


def test_sockets_of_other_families_are_refused() -> None:
    def work() -> None:
        for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
            socket.socket(family).close()
        assert socket.if_nameindex()  # gloo looks for interfaces
        for protocol in (socket.IPPROTO_TCP, 0):
            socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol).close()
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_UDP).close()
        for protocol in (262, 256, 132):  # MPTCP, SMC and SCTP, whose connections /proc/net/tcp does not list
            refused(lambda protocol=protocol: socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol))
        refused(lambda: socket.socket(40, socket.SOCK_STREAM))  # AF_VSOCK heeds no network namespace
        refused(lambda: socket.socket(17, socket.SOCK_RAW))  # AF_PACKET

    filtered(work)


def test_no_connection_waits_for_its_peer_when_it_is_closed() -> None:
    """Sent to the evaluator, it kept the evaluator waiting in `close`, for an hour or a day."""

    def work() -> None:
        with socket.socket() as connection:
            off = connection.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == off
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    filtered(work)


def test_the_kernel_sends_nothing_at_a_set_pace() -> None:
    """It went on while the rank was frozen: 18,000 packets a second beside the baseline."""

    def work() -> None:
        with socket.socket() as connection:
            pace, control = ((socket.SOL_SOCKET, 47), (socket.IPPROTO_TCP, 13))  # SO_MAX_PACING_RATE, TCP_CONGESTION
            before = [connection.getsockopt(*option, 16) for option in (pace, control)]
            connection.setsockopt(*pace, 100_000)
            connection.setsockopt(*control, b"reno")
            assert [connection.getsockopt(*option, 16) for option in (pace, control)] == before
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)

    filtered(work)


def test_buffers_of_sockets_stay_small() -> None:
    """Sockets of one rank held 3 GiB of the kernel's memory, beside its limit."""

    def work() -> None:
        near, far = socket.socketpair()
        with near, far:
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                before = near.getsockopt(socket.SOL_SOCKET, option)
                near.setsockopt(socket.SOL_SOCKET, option, 1 << 30)
                assert near.getsockopt(socket.SOL_SOCKET, option) == before

    filtered(work)


def test_no_timers_run_out_and_no_files_are_watched_while_it_is_frozen() -> None:
    """A thousand timers of a frozen rank took a fifth of a processor; watches are counted for all of a user."""

    def work() -> None:
        refused(lambda: LIBC.timerfd_create(1, 0), errno.ENOSYS)
        refused(lambda: LIBC.inotify_init1(0))
        refused(lambda: LIBC.fanotify_init(0, 0))
        with tempfile.TemporaryDirectory() as name:
            folder = os.open(name, os.O_RDONLY)
            for events in (fcntl.DN_ACCESS, fcntl.DN_ACCESS | fcntl.DN_MULTISHOT, 0):
                refused(lambda events=events: fcntl.fcntl(folder, fcntl.F_NOTIFY, events))
            os.close(folder)

    filtered(work)


def test_disks_of_the_machine_are_not_written_out() -> None:
    def work() -> None:
        os.sync()
        assert LIBC.syncfs(-1) == 0, "the kernel knows no such descriptor, so that it was not called"

    filtered(work)


def test_what_lies_in_the_page_cache_is_not_shown(tmp_path: Path) -> None:
    """One evaluation read pages of a library, by which the next knew its answers."""
    path = tmp_path / "library"
    path.write_bytes(b"text")

    def work() -> None:
        numbers = confine._ARCHITECTURES[platform.machine()][1] | confine._EVERYWHERE
        with path.open("rb") as file:
            address, seen = ctypes.c_void_p(1 << 20), ctypes.create_string_buffer(1)
            refused(lambda: LIBC.syscall(numbers["mincore"], address, ctypes.c_size_t(1), seen))
            refused(lambda: LIBC.syscall(numbers["cachestat"], file.fileno(), None, None, 0), errno.ENOSYS)
            refused(lambda: os.preadv(file.fileno(), [bytearray(4)], 0, os.RWF_NOWAIT))
            assert os.preadv(file.fileno(), [read := bytearray(4)], 0, os.RWF_HIPRI) == 4 and read == b"text"

    filtered(work)


def test_the_kernel_reads_no_files_ahead_and_drops_none() -> None:
    """What was begun before a rank was frozen goes on beside the baseline: hundreds of megabytes from the disk."""

    def work() -> None:
        os.posix_fadvise(-1, 0, 0, os.POSIX_FADV_WILLNEED)  # the kernel knows no such descriptor
        assert LIBC.readahead(-1, ctypes.c_int64(0), ctypes.c_size_t(4096)) == 0
        nowhere = ctypes.c_void_p(1)
        for advice in (mmap.MADV_WILLNEED, mmap.MADV_MERGEABLE, confine.MADV_PAGEOUT, confine.MADV_COLLAPSE):
            assert LIBC.madvise(nowhere, ctypes.c_size_t(1), advice) == 0
        assert LIBC.madvise(nowhere, ctypes.c_size_t(1), mmap.MADV_DONTNEED) == -1, "allocators give memory back by it"
        with mmap.mmap(-1, 4 * mmap.PAGESIZE, flags=PRIVATE) as memory:
            memory[0] = 1
            memory.madvise(mmap.MADV_DONTNEED)

    filtered(work)


def test_the_kernel_compares_no_pages_of_a_frozen_rank() -> None:
    """What `MADV_MERGEABLE` does for some pages, an option of the process does for all of them."""

    def work() -> None:
        assert LIBC.prctl(confine.PR_SET_MEMORY_MERGE, 1, 0, 0, 0) == 0
        assert LIBC.prctl(confine.PR_SET_MEMORY_MERGE, 1, 1, 1, 1) == 0, "the kernel refuses this, so it was not called"
        assert LIBC.prctl(PR_GET_MEMORY_MERGE, 0, 0, 0, 0) <= 0

    filtered(work)


def test_a_rank_keeps_no_core_to_itself() -> None:
    def work() -> None:
        for command in range(4):  # to ask, to begin, to give to another process, to take from one
            refused(lambda command=command: LIBC.prctl(confine.PR_SCHED_CORE, command, 0, 0, 0))
        name = ctypes.create_string_buffer(b"renamed")
        assert LIBC.prctl(PR_SET_NAME, name, 0, 0, 0) == 0, "the rest of prctl is needed"

    filtered(work)


def test_the_limit_of_core_dumps_stays() -> None:
    """With a limit of 0 in place of 1, dumps are piped to the program that the machine has for them."""

    def work() -> None:
        confine.limit_resources({"RLIMIT_CORE": NO_CORE_BYTES})
        before = resource.getrlimit(resource.RLIMIT_CORE)
        assert confine.filter_system_calls(allow_processes=False)
        none = struct.pack("LL", 0, 0)
        refused(lambda: LIBC.prlimit(0, resource.RLIMIT_CORE, none, None))
        number = confine._ARCHITECTURES[platform.machine()][1]["setrlimit"]
        refused(lambda: LIBC.syscall(number, resource.RLIMIT_CORE, none))
        assert resource.getrlimit(resource.RLIMIT_CORE) == before
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (60, 60)

    in_child(work)


def test_a_build_may_start_programs_but_no_namespaces() -> None:
    def work() -> None:
        pid = os.posix_spawn("/bin/true", ["true"], {})
        assert os.waitpid(pid, 0)[1] == 0
        fork_and_leave()
        os.wait()
        refused(lambda: os.kill(os.getppid(), signal.SIGCONT))
        refused(lambda: os.memfd_create("source"))
        refused(lambda: LIBC.unshare(0x10000000))
        numbers = confine._ARCHITECTURES[platform.machine()][1]
        refused(lambda: LIBC.syscall(numbers["clone"], 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0))
        refused(lambda: LIBC.ptrace(16, os.getppid(), 0, 0))

    filtered(work, allow_processes=True)


def test_the_filter_cannot_be_taken_off() -> None:
    def work() -> None:
        with open("/proc/self/status") as file:
            status = dict(line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line)
        assert (status["Seccomp"].strip(), status["NoNewPrivs"].strip()) == ("2", "1")
        with pytest.raises(confine.ConfineError, match="not permitted"):
            confine.filter_system_calls(True)
        refused(fork_and_leave)

    filtered(work)


def test_an_unknown_architecture_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert confine.filter_system_calls(False) is False


def test_what_the_kernel_ends_by_itself_and_terminals_are_refused() -> None:
    """Hanging up, a terminal sends SIGCONT; what is submitted goes on while every thread is stopped."""

    def work() -> None:
        numbers = confine._ARCHITECTURES[platform.machine()][1]
        context = ctypes.c_void_p()
        refused(lambda: LIBC.syscall(numbers["io_setup"], 1, ctypes.byref(context)))
        refused(lambda: LIBC.syscall(numbers["vmsplice"], 1, None, 0, 0))
        refused(os.setsid)
        with open(os.devnull) as file:
            for request in confine.TERMINALS:
                refused(lambda request=request: fcntl.ioctl(file, request, 0))
            refused(lambda: fcntl.ioctl(file, 0x5401, bytes(60)), errno.ENOTTY)  # TCGETS: to ask is allowed

    filtered(work)
    filtered(work, allow_processes=True)


def test_capabilities_are_dropped() -> None:
    def work() -> None:
        confine.drop_capabilities()
        with open("/proc/self/status") as file:
            caps = [line.split()[1] for line in file if line.startswith(("CapPrm", "CapEff", "CapInh"))]
        assert caps == ["0" * 16] * 3

    in_child(work)


def test_memory_is_limited_beyond_what_is_mapped() -> None:
    def work() -> None:
        confine.limit_resources({"RLIMIT_AS": 256 << 20})
        bytearray(64 << 20)
        try:
            bytearray(512 << 20)
        except MemoryError:
            return
        raise AssertionError("512 MiB were given")

    in_child(work)


def test_files_are_limited(tmp_path) -> None:
    def work() -> None:
        files = max(map(int, os.listdir("/proc/self/fd"))) + 64
        confine.limit_resources({"RLIMIT_FSIZE": 1 << 20, "RLIMIT_CORE": 0, "RLIMIT_NOFILE": files})
        with open(tmp_path / "big", "wb", buffering=0) as file:
            assert file.write(bytes(2 << 20)) == 1 << 20
            refused(lambda: file.write(b"x"), errno.EFBIG)
        refused(lambda: [os.dup(0) for _ in range(files)], errno.EMFILE)

    in_child(work)


def test_limits_are_never_raised() -> None:
    def work() -> None:
        confine.limit_resources({"RLIMIT_NOFILE": 50})
        confine.limit_resources({"RLIMIT_NOFILE": 500})
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (50, 50)

    in_child(work)


def test_ranks_are_offered_to_the_oom_killer() -> None:
    def work() -> None:
        confine.offer_to_the_oom_killer()
        with open("/proc/self/oom_score_adj") as file:
            assert file.read().strip() == "1000"

    in_child(work)
