"""Temporary folders that a separate process removes.

Deleting a hundred thousand small files can take minutes on a busy disk; the proof need not wait for it.
"""

import os
import subprocess
import tempfile
from contextlib import contextmanager


@contextmanager
def fresh_folder(prefix, base=None):
    folder = tempfile.mkdtemp(prefix=prefix, dir=base)
    # Servers that a proof starts may run as other users: PostgreSQL refuses root.
    os.chmod(folder, 0o711)
    try:
        yield folder
    finally:
        subprocess.Popen(["rm", "-rf", folder], stdin=subprocess.DEVNULL, start_new_session=True)
