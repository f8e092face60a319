"""What proofs in sections share."""

import signal
import traceback
from pathlib import Path

from .claims import Ledger
from .folders import fresh_folder


# What ends a proof from outside.
ENDS = (signal.SIGINT, signal.SIGTERM)


def interrupted(*_):
    """The first of them takes down what the proof has started; further ones do not disturb that."""
    for end in ENDS:
        signal.signal(end, signal.SIG_IGN)
    raise KeyboardInterrupt


class Proof:
    """A proof whose sections can be run by themselves."""

    def __init__(self, program, options, sections):
        for end in ENDS:
            signal.signal(end, interrupted)
        self.full = options.full
        self.sections = options.sections or sections
        self.ledger = Ledger(program, self.full)

    def section(self, name, title, prove):
        """One section; when it breaks down that is a claim that does not hold, and the others still run."""
        if name not in self.sections:
            return
        self.ledger.section(title)
        try:
            with fresh_folder(f"striate-{self.ledger.program}-", None) as folder:
                prove(Path(folder))
        except Exception as error:  # noqa: BLE001 - whatever it was, the proof is missing
            traceback.print_exc()
            self.ledger.add(f"{title}: the run", f"broke down: {error}"[:600], False, "runs to its end")
