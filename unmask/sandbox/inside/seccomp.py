"""Deny system calls with a seccomp filter (Linux on x86-64 and arm64).

The lists name denied calls, not allowed ones: an honest program must not fail because another libc makes
other calls. Calls newer than these lists fail as if they did not exist. The helper applies a first filter to
itself, which its children inherit; a job adds a second one, which denies calls that only the helper needs.
"""

from __future__ import annotations

import ctypes
import platform
import struct
import sys

PR_SET_SECCOMP, MODE_FILTER = 22, 2
EPERM, ENOSYS = 1, 38
KILL, FAIL, ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
LOAD, EQUAL, ABOVE, ANY_BIT, RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
NUMBER, ARCHITECTURE = 0, 4  # offsets into the filter's input
NEWEST = 450
CLONE_THREAD = 0x10000
SIGNALLING = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX of fcntl
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

# name: number on x86-64 and on arm64, None if there is no such call
DENIED_TO_ALL: dict[str, tuple[int | None, int | None]] = {
    # processes and signals
    "execve": (59, 221),
    "execveat": (322, 281),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    # other processes' memory, priority and place
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "setpriority": (141, 140),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    "ioprio_set": (251, 30),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    # network; socketpair is allowed, because asyncio needs it
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    # file operations that Landlock does not cover
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "truncate": (76, 45),
    "mknod": (133, None),
    "mknodat": (259, 33),
    "open_by_handle_at": (304, 265),
    # objects that outlive a process, or memory that no rlimit counts
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "semctl": (66, 191),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    # indirect ways to do any of this
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "bpf": (321, 280),
    "fanotify_init": (300, 262),
    # system administration, which also needs capabilities
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "syslog": (103, 116),
    "personality": (135, 92),
    "modify_ldt": (154, None),
}
DENIED_TO_JOBS: dict[str, tuple[int | None, int | None]] = {
    "fork": (57, None),
    "vfork": (58, None),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "setsid": (112, 157),
    "setpgid": (109, 154),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
}
CLONE, CLONE3, FCNTL, PRLIMIT, SENDTO = (56, 220), 435, (72, 25), (302, 261), (44, 206)
PRCTL, PARENTING = (157, 167), (1, 36)  # PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER
MAPPING = ((9, 222), (10, 226), (329, 288))  # mmap, mprotect, pkey_mprotect
PROT_EXEC = 4


def restrict(libc: ctypes.CDLL, program: bytes) -> bool:
    """Apply a filter to this process for good; needs `no_new_privs`. Return False if it fails."""
    if not program:
        return False
    code = ctypes.create_string_buffer(program, len(program))
    packed = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    return bool(libc.prctl(PR_SET_SECCOMP, MODE_FILTER, packed, 0, 0) == 0)


def _for_all(column: int) -> list[bytes]:
    return [
        _step(EQUAL, CLONE3, 1, 0),  # a filter cannot see clone3's flags; libc falls back to clone
        _step(ABOVE, NEWEST, 0, 1),  # also the x32 numbers of x86-64
        _step(RETURN, FAIL | ENOSYS),
        *_denied(DENIED_TO_ALL, column),
        *_unless(PRLIMIT[column], 0, EQUAL, 0),  # limits of the process itself
        *_unless(SENDTO[column], 4, EQUAL, 0),  # without an address
        *(step for command in SIGNALLING for step in _if(FCNTL[column], 1, EQUAL, command)),
    ]


def _for_jobs(column: int) -> list[bytes]:
    return [
        *_denied(DENIED_TO_JOBS, column),
        *_unless(CLONE[column], 0, ANY_BIT, CLONE_THREAD),
        *(step for numbers in MAPPING for step in _if(numbers[column], 2, ANY_BIT, PROT_EXEC)),  # no new code
        *(step for option in PARENTING for step in _if(PRCTL[column], 0, EQUAL, option)),
    ]


def _filter(machine: int, lines: list[bytes]) -> bytes:
    """Return a filter in classic BPF instructions."""
    known = [_step(LOAD, ARCHITECTURE), _step(EQUAL, machine, 1, 0), _step(RETURN, KILL), _step(LOAD, NUMBER)]
    return b"".join([*known, *lines, _step(RETURN, ALLOW)])


def _denied(calls: dict[str, tuple[int | None, int | None]], column: int) -> list[bytes]:
    numbers = [both[column] for both in calls.values()]
    refuse = _step(RETURN, FAIL | EPERM)
    return [step for number in numbers if number is not None for step in (_step(EQUAL, number, 0, 1), refuse)]


def _unless(number: int, index: int, test: int, value: int) -> list[bytes]:
    """Deny a call unless the low half of one argument passes the test."""
    return [
        _step(EQUAL, number, 0, 4),
        _step(LOAD, _argument(index)),
        _step(test, value, 0, 1),
        _step(RETURN, ALLOW),
        _step(RETURN, FAIL | EPERM),
    ]


def _if(number: int, index: int, test: int, value: int) -> list[bytes]:
    """Deny a call if the low half of one argument passes the test."""
    return [
        _step(EQUAL, number, 0, 4),
        _step(LOAD, _argument(index)),
        _step(test, value, 0, 1),
        _step(RETURN, FAIL | EPERM),
        _step(LOAD, NUMBER),
    ]


def _argument(index: int) -> int:
    return 16 + 8 * index  # little-endian


def _step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, value)


HELPER, JOB = b"", b""  # the filters; empty on machines whose call numbers we do not know
if platform.machine() in MACHINES and sys.maxsize > 1 << 32:
    _column, _machine = MACHINES[platform.machine()]
    HELPER, JOB = _filter(_machine, _for_all(_column)), _filter(_machine, _for_jobs(_column))
