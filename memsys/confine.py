"""Runs a command isolated from the rest of the machine: `python -I -S confine.py PLAN COMMAND…`, Linux only, standard library only.

This process supervises the command. All processes that the command starts end with it, even those that left its process group, and all of
them end when the process that wrote PLAN ends. PLAN is a JSON object: `parent` is the process id of the process that wrote it;
`capabilities` are the capabilities that a command run by root keeps (null: all).
With `root`, the command gets its own namespaces (user, mount, process, network, IPC, host name) and sees only the files of `binds`, each
`[source, target, writable]`, mounted below the empty folder `root`; it starts in the last one. Its only network device is loopback.

A command that ends by signal n gives the exit code 128 + n.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import sys
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
DEATH_SIGNAL, BOUNDING_SET_DROP, SUBREAPER, NO_NEW_PRIVILEGES = 1, 24, 36, 38
"""Numbers of prctl(2)."""
NAMESPACES = 0x10000000 | 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000
"""User, mount, process, network, IPC and host name, for unshare(2)."""
NO_SUID, NO_DEVICES, NO_PROGRAMS, BIND, RECURSIVE, PRIVATE = 2, 4, 8, 1 << 12, 1 << 14, 1 << 18
"""Flags of mount(2)."""
MOUNT_SETATTR, HERE, WHOLE_TREE, READ_ONLY = 442, -100, 0x8000, 1
"""For mount_setattr(2), which has this number on every architecture."""
DETACH = 2
USER = 1000
"""Id of the user and the group in the namespaces. Servers such as PostgreSQL refuse to run as root, even if root has no rights outside."""
DEVICES = ("null", "zero", "full", "random", "urandom")
LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}


def main() -> None:
    plan, command = json.loads(sys.argv[1]), sys.argv[2:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    LIBC.prctl(DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != plan["parent"]:
        sys.exit(128 + signal.SIGTERM)
    LIBC.prctl(SUBREAPER, 1)
    if "root" in plan:
        leave(plan["root"])
        inner = os.fork()  # the first process of the namespace: when it ends, all end
        if inner == 0:
            LIBC.prctl(DEATH_SIGNAL, signal.SIGKILL)
            os._exit(first_of_all(plan, command))
    else:
        inner = started(plan, command)
    try:
        code = ended(inner)
    finally:
        end_all()
    os._exit(code)


def first_of_all(plan: dict[str, Any], command: list[str]) -> int:
    """Move into the new root, then run the command; return its exit code."""
    try:
        furnish(plan["root"], plan["binds"])
        enter(plan["root"])
        os.chdir(plan["binds"][-1][1])
        loopback()
        return ended(started(plan, command))
    except BaseException as error:
        print(f"sandbox: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 125


def started(plan: dict[str, Any], command: list[str]) -> int:
    """Process id of the command, which has lost its privileges and ends with this process."""
    child = os.fork()
    if child:
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1):  # the pipes are the command's, and readers must see when it closes them
            os.dup2(nothing, stream)
        return child
    try:
        LIBC.prctl(DEATH_SIGNAL, signal.SIGKILL)
        if plan["capabilities"] is not None:
            drop(plan["capabilities"], for_good="root" in plan)
        for number in (signal.SIGTERM, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)
    except BaseException as error:
        print(f"{command[0]}: {error}", file=sys.stderr, flush=True)
    os._exit(127)


def drop(kept: list[int], *, for_good: bool) -> None:
    """Keep only these capabilities, for programs that are started from now on."""
    for number in range(64):
        if number not in kept:
            # Refused without privileges, and then there is nothing to drop.
            LIBC.prctl(BOUNDING_SET_DROP, number, 0, 0, 0)
    if for_good:
        LIBC.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)


def ended(child: int) -> int:
    """Wait for a child, and reap orphaned descendants meanwhile; return the child's exit code."""
    while True:
        process, status = os.wait()
        if process == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def end_all() -> None:
    """Kill all descendants. Processes whose parents are killed become children of this process, and are killed too."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        while True:
            for child in children():
                os.kill(child, signal.SIGKILL)
            os.wait()
    except ChildProcessError:
        return


def children() -> list[int]:
    """Process ids of this process's children. It is quick where the kernel lists them, so that no child forks faster than it is killed."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        pass
    own, found = str(os.getpid()), []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    if file.read().rpartition(b")")[2].split()[1].decode() == own:
                        found.append(int(name))
            except OSError:  # the process has ended meanwhile
                continue
    return found


def check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def leave(root: str) -> None:
    """Leave the namespaces of the machine."""
    user, group = os.getuid(), os.getgid()
    check(LIBC.unshare(NAMESPACES), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{USER} {user} 1"), ("gid_map", f"{USER} {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
    check(LIBC.mount(None, b"/", None, RECURSIVE | PRIVATE, None), "mount /")


def furnish(root: str, binds: list[tuple[str, str, bool]]) -> None:
    """Mount the files of the command below `root`."""
    mount("tmpfs", root, "tmpfs", NO_SUID | NO_DEVICES, "mode=755,size=1m")
    for source, target, writable in binds:
        bind(source, root + target)
        if not writable and not os.path.islink(root + target):
            read_only(root + target, WHOLE_TREE)
    os.makedirs(f"{root}/dev/shm")
    mount("tmpfs", f"{root}/dev/shm", "tmpfs", NO_SUID | NO_DEVICES | NO_PROGRAMS, "mode=1777,size=64m")
    for name in DEVICES:
        bind(f"/dev/{name}", f"{root}/dev/{name}")
    for name, target in LINKS.items():
        os.symlink(target, f"{root}/dev/{name}")
    os.makedirs(f"{root}/proc")
    mount("proc", f"{root}/proc", "proc", NO_SUID | NO_DEVICES | NO_PROGRAMS, None)
    with open(f"{root}/proc/sys/user/max_user_namespaces", "w", encoding="ascii") as file:
        file.write("0")  # no further user namespaces inside this one
    read_only(root, 0)


def bind(source: str, target: str) -> None:
    """Mount a file or folder at `target`; a symbolic link, as /bin is on most systems, is copied as a link."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(source) and not os.path.isabs(os.readlink(source)):
        os.symlink(os.readlink(source), target)
        return
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        with open(target, "a", encoding="ascii"):
            pass
    mount(source, target, None, BIND | RECURSIVE, None)


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    check(LIBC.mount(*encoded[:3], flags, encoded[3]), f"mount {target}")


def read_only(target: str, reach: int) -> None:
    """Make a mount read-only; with `WHOLE_TREE`, the mounts below it too."""
    attributes = struct.pack("QQQQ", READ_ONLY | NO_SUID, 0, 0, 0)
    check(LIBC.syscall(MOUNT_SETATTR, HERE, os.fsencode(target), reach, attributes, len(attributes)), "mount_setattr")


def enter(root: str) -> None:
    """Make `root` the root, and unmount the old root."""
    os.chdir(root)
    check(LIBC.pivot_root(b".", b"."), "pivot_root")
    check(LIBC.umount2(b".", DETACH), "umount")
    os.chdir("/")


def loopback() -> None:
    """Switch the loopback device of the new network on."""
    with socket.socket() as handle:
        fcntl.ioctl(handle, 0x8914, struct.pack("16sH22x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP


if __name__ == "__main__":
    main()
