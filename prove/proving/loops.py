"""Disks of a fixed size: ext4 in a sparse file on a loop device. They need root."""

import os
import subprocess
from pathlib import Path

NEEDS_ROOT = "loop devices and mounts need root"


def are_available():
    return os.geteuid() == 0 and Path("/dev/loop-control").exists()


class LoopDisk:
    """An ext4 file system of `size` bytes, mounted at `path`; a context manager that unmounts it."""

    def __init__(self, image, path, size):
        self.image, self.path, self.size = Path(image), Path(path), size
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.image, "wb") as file:
            file.truncate(size)
        run("mkfs.ext4", "-q", "-F", "-m", "0", self.image)

    def mount(self):
        run("mount", "-o", "loop", self.image, self.path)

    def unmount(self, lazy=False):
        run("umount", *(["-l"] if lazy else []), self.path)

    def is_mounted(self):
        return os.path.ismount(self.path)

    def free_bytes(self):
        stat = os.statvfs(self.path)
        return stat.f_bavail * stat.f_frsize

    def __enter__(self):
        self.mount()
        return self

    def __exit__(self, *_):
        if self.is_mounted():
            self.unmount(lazy=True)


def run(*command):
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip() or done.stdout.strip()}")
