"""Shared code of proofs with sections."""

import argparse
import json
import re
import signal
import subprocess
import sys
import traceback
from pathlib import Path

from . import ROOT
from .claims import Ledger, machine
from .folders import fresh_folder

# Signals that end a proof from outside.
ENDS = (signal.SIGINT, signal.SIGTERM)
# The file with the record, in the last line of a proof.
WRITTEN_TO = re.compile(r"written to (\S+)$")


def parser_of(doc, sections):
    """Returns a parser of the options that proofs share. `doc` is the proof's docstring."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", choices=[[], *sections], help=f"only these: {' '.join(sections)}")
    parser.add_argument("--full", action="store_true", help="the full run")
    parser.add_argument("--base", help="a folder on the disk to use (default: the system's temporary folder)")
    return parser


def interrupted(*_):
    """Ends the proof on the first signal, so that it stops what it has started, and ignores further ones."""
    for end in ENDS:
        signal.signal(end, signal.SIG_IGN)
    raise KeyboardInterrupt


class Beside:
    """A section in its own process: the same proof with only this section."""

    def __init__(self, name, sections, nice):
        options = [word for word in sys.argv[1:] if word not in sections]
        command = ["nice", "-n", str(nice), sys.executable, sys.argv[0], *options, name]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)

    def record(self):
        """Waits for the section's end and returns its record."""
        printed, _ = self.process.communicate()
        path = WRITTEN_TO.search(printed.strip())
        if not path:
            raise RuntimeError(f"it ended with {self.process.returncode}, without a record: {printed.strip()[-300:]}")
        return json.loads((ROOT / path[1]).read_text())

    def end(self):
        """Stops the section and waits until it has cleaned up."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.communicate()


class Proof:
    """A proof in sections that can also run alone. A subclass's `prove` goes through them.

    `folder` lasts as long as the proof; each section has one of its own in it.
    """

    def __init__(self, program, options, sections):
        for end in ENDS:
            signal.signal(end, interrupted)
        self.full, self.base, self.folder = options.full, options.base, None
        self.all_sections, self.sections = sections, options.sections or sections
        self.ledger = Ledger(program, self.full)
        self.besides = {}

    def run(self):
        """Runs the proof and returns the exit status."""
        print(f"{machine()}\nclaim | bar | measured | spread | holds")
        with fresh_folder(f"striate-{self.ledger.program}-", self.base) as folder:
            self.folder = Path(folder)
            try:
                self.prove()
            finally:
                for beside in self.besides.values():
                    beside.end()
        return self.ledger.finish()

    def beside(self, name, nice=0):
        """Starts a section without claims about time beside others without any; `section` waits for it."""
        if name in self.sections and len(self.sections) > 1:
            self.besides[name] = Beside(name, self.all_sections, nice)

    def section(self, name, title, prove):
        """Runs one section; an exception counts as a claim that does not hold, and the other sections still run."""
        if name not in self.sections:
            return
        self.ledger.section(title)
        try:
            if name in self.besides:
                return self.ledger.take_over(self.besides.pop(name).record())
            with fresh_folder(f"{name}-", self.folder) as folder:
                prove(Path(folder))
        except Exception as error:  # noqa: BLE001 - whatever it was, the proof is missing
            traceback.print_exc()
            self.ledger.add(f"{title}: the run", f"broke down: {error}"[:600], False, "runs to its end")
