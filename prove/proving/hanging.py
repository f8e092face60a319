"""A disk that hangs: a passthrough file system over a directory whose calls wait for as long as a test says.

Nothing else makes a disk hang on demand without being root of the machine's block devices. A server gets the mount as one of its
directories. While `hang` is in force, its calls wait in the kernel as on a disk that does not answer: not even SIGKILL ends them, except
where `killable` is given, as on NFS. Closing a file never waits, as on a local file system.

Needs /dev/fuse and `tools/install.sh fuse`. By hand: `.tools/fuse/bin/python -m proving.hanging BACKING MOUNT SWITCH` in `prove/`; the
disk hangs while the file SWITCH is there. It names the kinds of calls that wait (`stat`, `open`, `read`, `write`, `sync`, `names`), or
none for all.
"""

import errno
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from . import ROOT, TOOLS

KINDS = {
    "stat": ["getattr", "statfs", "access"],
    "open": ["open", "create", "opendir"],
    "read": ["read", "readdir"],
    "write": ["write", "truncate", "fallocate"],
    "sync": ["fsync", "fsyncdir"],
    "names": ["rename", "unlink", "mkdir", "rmdir", "chmod", "utimens"],
}
PYTHON = TOOLS / "fuse" / "bin" / "python"


def why_unavailable():
    """Returns what is missing to make a disk hang here, or None."""
    if not Path("/dev/fuse").exists():
        return "/dev/fuse"
    return None if PYTHON.exists() else "tools/install.sh fuse"


class HangingDisk:
    """A directory `mount` that passes calls on to `backing`; a context manager that mounts it and unmounts it."""

    def __init__(self, backing, mount, killable=False):
        self.backing, self.mount, self.killable = Path(backing), Path(mount), killable
        self.switch = self.backing.with_name(self.backing.name + ".hangs")
        self.process = None

    def __enter__(self):
        for folder in (self.backing, self.mount):
            folder.mkdir(parents=True, exist_ok=True)
        self.switch.unlink(missing_ok=True)
        options = ["--killable"] if self.killable else []
        with open(self.backing.with_name(self.backing.name + ".log"), "ab") as log:
            self.process = subprocess.Popen(
                [PYTHON, "-m", "proving.hanging", self.backing, self.mount, self.switch, *options], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, cwd=ROOT / "prove", env={**os.environ, "FUSE_LIBRARY_NAME": "fuse3"},
            )
        deadline = time.monotonic() + 20
        while not os.path.ismount(self.mount):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.mount} could not be mounted: /dev/fuse is not usable here")
            time.sleep(0.02)
        return self

    def hang(self, *kinds):
        """Makes calls of these kinds wait from now on; all, if none is named."""
        whole = self.switch.with_suffix(".new")
        whole.write_text(" ".join(kinds))
        whole.rename(self.switch)

    def release(self):
        """Lets all waiting calls go on."""
        self.switch.unlink(missing_ok=True)

    @contextmanager
    def hanging(self, *kinds):
        self.hang(*kinds)
        try:
            yield
        finally:
            self.release()

    def __exit__(self, *_):
        self.release()
        subprocess.run(["umount", "--lazy", self.mount], check=False, capture_output=True)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def serve(backing, mount, switch, killable):
    """Mounts and serves until the mount is gone."""
    import mfusepy  # only the environment of `tools/install.sh fuse` has it

    class Passthrough(mfusepy.Operations):
        use_ns = True

        def __getattribute__(self, name):
            """Returns an operation that waits first while its kind hangs."""
            found = super().__getattribute__(name)
            kind = KIND_OF.get(name)
            if kind is None:
                return found

            def waiting(*arguments):
                wait(kind)
                return found(*arguments)

            return waiting

        def init_with_config(self, _connection, config):
            config.use_ino = 1
            config.hard_remove = 1
            config.nullpath_ok = 1
            for timeout in ("entry_timeout", "attr_timeout", "negative_timeout"):
                setattr(config, timeout, 0.0)

        def getattr(self, path, fh=None):
            found = os.fstat(fh) if fh else os.lstat(at(path))
            names = ["st_mode", "st_ino", "st_dev", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks", "st_blksize"]
            times = {f"st_{time}time": getattr(found, f"st_{time}time_ns") for time in "amc"}
            return {**{name: getattr(found, name) for name in names}, **times}

        def statfs(self, path):
            found = os.statvfs(at(path))
            return {name: getattr(found, name) for name in dir(found) if name.startswith("f_") and name != "f_fsid"}

        def access(self, path, mode):
            if not os.access(at(path), mode):
                raise mfusepy.FuseOSError(errno.EACCES)
            return 0

        def open(self, path, flags):
            return os.open(at(path), flags & ~(os.O_DIRECT | os.O_APPEND))

        def create(self, path, mode, fi=None):
            return os.open(at(path), os.O_RDWR | os.O_CREAT, mode)

        def read(self, path, size, offset, fh):
            return os.pread(fh, size, offset)

        def write(self, path, data, offset, fh):
            return os.pwrite(fh, data, offset)

        def truncate(self, path, length, fh=None):
            os.truncate(fh or at(path), length)
            return 0

        def fallocate(self, path, mode, offset, size, fh):
            if mode:
                raise mfusepy.FuseOSError(errno.EOPNOTSUPP)
            os.posix_fallocate(fh, offset, size)
            return 0

        def fsync(self, path, datasync, fh):
            os.fdatasync(fh) if datasync else os.fsync(fh)
            return 0

        def opendir(self, path):
            return os.open(at(path), os.O_RDONLY | os.O_DIRECTORY)

        def readdir(self, path, fh):
            # Names without an inode count as removed.
            with os.scandir(fh) as entries:
                found = [(entry.name, {"st_ino": entry.inode()}, 0) for entry in entries]
            return [(name, {"st_ino": 1}, 0) for name in (".", "..")] + found

        def fsyncdir(self, path, datasync, fh):
            os.fsync(fh)
            return 0

        def release(self, path, fh):
            os.close(fh)
            return 0

        releasedir = release

        def flush(self, path, fh):
            return 0

        def rename(self, old, new):
            os.rename(at(old), at(new))
            return 0

        def unlink(self, path):
            os.unlink(at(path))
            return 0

        def mkdir(self, path, mode):
            os.mkdir(at(path), mode)
            return 0

        def rmdir(self, path):
            os.rmdir(at(path))
            return 0

        def chmod(self, path, mode):
            os.chmod(at(path), mode)
            return 0

        def utimens(self, path, times=None):
            os.utime(at(path), ns=times)
            return 0

    class Mount(mfusepy.FUSE):
        def truncate_fuse_3(self, path, length, info):
            """Passes the open file on: a file that was removed has no path."""
            return self.operations.truncate(path and path.decode(), length, info.contents.fh if info else None)

    def at(path):
        return f"{backing}{path}"

    def wait(kind):
        while True:
            try:
                kinds = Path(switch).read_text().split()
            except FileNotFoundError:
                return
            if kinds and kind not in kinds:
                return
            if killable and mfusepy._libfuse.fuse_interrupted():
                raise mfusepy.FuseOSError(errno.EINTR)
            time.sleep(0.01)

    options = {}
    if killable:
        options["intr"] = True
        signal.signal(signal.SIGUSR1, lambda *_: None)  # which libfuse sends to the thread of a call that is interrupted
    # As many threads as calls can wait, or those that do not wait would queue behind them.
    Mount(Passthrough(), mount, foreground=True, max_threads=500, allow_other=True, **options)


KIND_OF = {operation: kind for kind, operations in KINDS.items() for operation in operations}


def main(arguments):
    backing, mount, switch = arguments[:3]
    serve(os.path.abspath(backing), mount, switch, "--killable" in arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
