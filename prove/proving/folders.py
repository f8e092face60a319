"""Temporary folders that are removed by a process of their own.

Deleting a hundred thousand small files can take minutes on a busy disk; nobody needs to wait for it.
"""

import subprocess
import tempfile
from contextlib import contextmanager


@contextmanager
def fresh_folder(prefix, base=None):
    folder = tempfile.mkdtemp(prefix=prefix, dir=base)
    try:
        yield folder
    finally:
        subprocess.Popen(["rm", "-rf", folder], stdin=subprocess.DEVNULL, start_new_session=True)
