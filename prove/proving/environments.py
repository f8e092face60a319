"""Python environments for the packages of comparisons, outside the tree, each installed once into the user's cache directory."""

import os
import subprocess
import sys
from pathlib import Path

from . import ROOT


class Environment:
    """An environment with these packages; the environment variable `variable` may name the folder of an existing one."""

    def __init__(self, name, packages, variable, settings=None):
        given = os.environ.get(variable)
        cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        self.folder = Path(given) if given else cache / "striate" / name
        done = self.folder / "striate-done"
        if not given and not done.exists():
            subprocess.run([sys.executable, "-m", "venv", self.folder], check=True)
            subprocess.run([self.folder / "bin" / "pip", "install", "--quiet", *packages], check=True)
            done.touch()
        self.variables = {
            **os.environ, **(settings or {}), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT / "python" / "src"),
        }

    def run(self, program, *arguments, given=None, timeout_s=600):
        """Runs a program of the environment with the input `given`, and returns its output."""
        done = subprocess.run(
            [self.folder / "bin" / program, *map(str, arguments)], input=given or "", capture_output=True, text=True,
            timeout=timeout_s, env=self.variables,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} {arguments[0]}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout
