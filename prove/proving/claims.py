"""Claims, one line each: the promise, the bar, the measurement, and whether it holds."""

import datetime
import json
import os
import platform
import statistics
import subprocess
import time
from dataclasses import asdict, dataclass

from . import RESULTS, ROOT


@dataclass
class Claim:
    section: str
    claim: str
    bar: str
    measured: str
    spread: str
    holds: bool | None  # None: stated, without a bar

    def verdict(self):
        return {True: "holds", False: "**does not hold**", None: "stated"}[self.holds]

    def line(self):
        return " | ".join([self.claim, self.bar or "–", self.measured, self.spread or "–", self.verdict()])


class Ledger:
    """Collects claims, prints each as it is added, and keeps a record of the whole run."""

    def __init__(self, program, full):
        self.program, self.full = program, full
        self.claims, self.figures, self.skipped = [], {}, []
        self.started = time.monotonic()

    def section(self, title):
        print(f"\n## {title}  [{time.monotonic() - self.started:.0f} s]", flush=True)
        self.title = title

    def add(self, claim, measured, holds=None, bar="", spread=""):
        entry = Claim(self.title, claim, bar, measured, spread, holds)
        self.claims.append(entry)
        print(entry.line(), flush=True)

    def note(self, text):
        print(f"   {text}  [{time.monotonic() - self.started:.0f} s]", flush=True)

    def skip(self, why):
        """Records a part of this section that was not run. `why` says what it needs. The run then exits with 1."""
        self.skipped.append(f"{self.title}: {why}")
        print(f"   **not run**: {why}", flush=True)

    def record(self, name, figures):
        self.figures[name] = figures

    def take_over(self, record):
        """Takes over the record of another run of the same proof."""
        for claim in (Claim(**fields) for fields in record["claims"]):
            self.claims.append(claim)
            print(claim.line(), flush=True)
        for why in record["not_run"]:
            self.skip(why.partition(": ")[2])
        self.figures.update(record["figures"])

    def failed(self):
        return [claim for claim in self.claims if claim.holds is False]

    def finish(self):
        """Writes the record, prints the summary, returns the exit status."""
        RESULTS.mkdir(exist_ok=True)
        record = {
            "program": self.program, "full": self.full, "machine": machine(), "commit": commit(),
            "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - self.started),
            "claims": [asdict(claim) for claim in self.claims], "not_run": self.skipped, "figures": self.figures,
        }
        path = RESULTS / f"{self.program}-{datetime.datetime.now():%Y%m%d-%H%M%S-%f}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
        held = sum(claim.holds is True for claim in self.claims)
        print(f"\n{held} claims hold, {len(self.failed())} do not, "
              f"{sum(claim.holds is None for claim in self.claims)} figures are stated without a bar; {self.not_run()}"
              f"{record['seconds']} s; written to {path.relative_to(ROOT)}")
        return 1 if self.failed() or self.skipped or held == 0 else 0

    def not_run(self):
        if not self.skipped:
            return ""
        return f"**{len(self.skipped)} parts were not run** ({'; '.join(self.skipped)}); "


def spread(values):
    """Returns the range over all rounds as text."""
    return f"{min(values):.2f}–{max(values):.2f}" if len(values) > 1 else "one round"


def median(values):
    return statistics.median(values)


def machine():
    model = "unknown processor"
    with open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return f"{os.cpu_count()} cores, {model}, Linux {platform.release()}"


def commit():
    done = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"
