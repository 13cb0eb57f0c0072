"""Deny system calls with a seccomp filter (Linux on x86-64 and arm64).

The list names denied calls, not allowed ones: an honest program must not fail because another libc makes
other calls. Calls newer than this list fail as if they did not exist.
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
SET_OWNER, SET_SIGNAL, SET_OWNER_EX = 8, 10, 15  # fcntl: target and kind of signals
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

# name: number on x86-64 and on arm64, None if there is no such call
DENIED: dict[str, tuple[int | None, int | None]] = {
    # processes and signals
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "setsid": (112, 157),
    "setpgid": (109, 154),
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
    # network; socketpair stays, asyncio needs it
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "sendmsg": (46, 211),
    "sendmmsg": (307, 269),
    # file operations that Landlock does not cover
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
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
    "msgget": (68, 186),
    "semget": (64, 190),
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
    # the system; these need capabilities as well
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
CLONE, CLONE3, FCNTL, PRLIMIT, SENDTO = (56, 220), 435, (72, 25), (302, 261), (44, 206)


def restrict(libc: ctypes.CDLL) -> bool:
    """Apply the filter to this process for good; needs `no_new_privs`. Return False if it fails."""
    if not PROGRAM:
        return False
    code = ctypes.create_string_buffer(PROGRAM, len(PROGRAM))
    packed = struct.pack("HxxxxxxP", len(PROGRAM) // 8, ctypes.addressof(code))
    return bool(libc.prctl(PR_SET_SECCOMP, MODE_FILTER, packed, 0, 0) == 0)


def _filter(column: int, machine: int) -> bytes:
    """Build the filter as classic BPF instructions."""
    refuse = _step(RETURN, FAIL | EPERM)
    lines = [
        _step(LOAD, ARCHITECTURE),
        _step(EQUAL, machine, 1, 0),
        _step(RETURN, KILL),
        _step(LOAD, NUMBER),
        _step(EQUAL, CLONE3, 1, 0),  # a filter cannot see its flags; libc falls back to clone
        _step(ABOVE, NEWEST, 0, 1),  # also the x32 numbers of x86-64
        _step(RETURN, FAIL | ENOSYS),
    ]
    for numbers in DENIED.values():
        number = numbers[column]
        if number is not None:
            lines += [_step(EQUAL, number, 0, 1), refuse]
    lines += _unless(CLONE[column], 0, ANY_BIT, CLONE_THREAD)
    lines += _unless(PRLIMIT[column], 0, EQUAL, 0)  # itself
    lines += _unless(SENDTO[column], 4, EQUAL, 0)  # no address
    lines += [_step(EQUAL, FCNTL[column], 0, 5), _step(LOAD, _argument(1))]
    lines += [_step(EQUAL, command, left, 0) for command, left in ((SET_OWNER, 2), (SET_SIGNAL, 1))]
    lines += [_step(EQUAL, SET_OWNER_EX, 0, 1), refuse, _step(RETURN, ALLOW)]
    return b"".join(lines)


def _unless(number: int, index: int, test: int, value: int) -> list[bytes]:
    """Deny a call unless the low half of one argument passes the test."""
    return [
        _step(EQUAL, number, 0, 4),
        _step(LOAD, _argument(index)),
        _step(test, value, 0, 1),
        _step(RETURN, ALLOW),
        _step(RETURN, FAIL | EPERM),
    ]


def _argument(index: int) -> int:
    return 16 + 8 * index  # little-endian


def _step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, value)


PROGRAM = (
    _filter(*MACHINES[platform.machine()])
    if platform.machine() in MACHINES and sys.maxsize > 1 << 32
    else b""
)
