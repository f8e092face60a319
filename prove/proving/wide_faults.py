"""Random faults on clusters with wide stripes, and the planted defects of sealing that they must find.

All of it is in virtual time, so that it may run beside sections that judge bytes and no times.
"""

import re
import subprocess
import threading

from .laboratory import FOUND, printed
from .servers import lab_binary

# One seed of five has wide stripes; `--family wide` passes over the others. A little more, so that chance leaves enough.
EVERY = 5.5
# What is stated, and what there is time for in short: a seed takes most of a second of a processor.
STATED, SHORT = 10_000, 600
CLEAN = re.compile(r"(\d+) seeds clean, (\d+) broken")
# What must happen to wide stripes in a seed on average, at least: otherwise the campaign tries less than it says.
LEAST = {"sealed": 1.0, "stripes have dropped their parities": 1.0, "have them again": 0.2, "members moved or repaired": 0.5, "places left": 0.2,
         "taken": 0.2, "changed for a local parity's": 0.5, "changed in place": 0.03, "racks lost": 1.0}
# Those of sealing, and of changes of what is sealed.
MUTATIONS = ["drop-while-building", "seal-without-globals", "claim-ignores-member", "claim-ignores-wide",
             "abort-deletes-at-once", "seal-keeps-generation", "move-forgets-copy", "rule-at-open-only",
             "close-without-entry", "cancel-forgets-garbage", "old-wide-row", "release-ignores-members",
             "exchange-forgets-globals", "update-forgets-globals", "swap-in-two-transactions",
             "dissolve-while-one-lives", "dissolve-forgets-garbage"]
# Seeds within which they must be found, with those that are passed over.
FOUND_WITHIN = 1_500


class WideFaults:
    """The campaign, and each planted defect after it, one program after the other and behind everything else that wants the processors."""

    def __init__(self, full):
        self.wanted = STATED if full else SHORT
        self.outcomes, self.running, self.is_stopped = {}, None, False
        self.thread = threading.Thread(target=self.work, daemon=True)

    def start(self):
        if not self.thread.is_alive() and not self.outcomes:
            self.thread.start()

    def stop(self):
        """Nothing stays behind."""
        self.is_stopped = True
        if self.running is not None:
            self.running.kill()

    def work(self):
        runs = {None: ["--seeds", int(EVERY * self.wanted)], **{name: ["--mutation", name, "--seeds", FOUND_WITHIN] for name in MUTATIONS}}
        for name, options in runs.items():
            try:
                self.outcomes[name] = self.run("faults", "--family", "wide", *options)
            except Exception as error:  # noqa: BLE001 - whatever it was, the claim says so
                self.outcomes[name] = error

    def run(self, *arguments):
        if self.is_stopped:
            raise RuntimeError("it was ended")
        command = ["nice", "-n", "15", lab_binary(), *map(str, arguments)]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as self.running:
            out, complaints = self.running.communicate()
        return printed(arguments, self.running.returncode, out, complaints)

    def claim(self, ledger):
        """Waits for all of it."""
        self.start()
        self.thread.join()
        self.add_campaign(ledger, self.outcomes[None])
        for name in MUTATIONS:
            outcome = self.outcomes[name]
            found = None if isinstance(outcome, Exception) else FOUND.search(outcome)
            verdict = f"found after {found[1]} seeds, by {found[2]}" if found else str(outcome)[-300:]
            ledger.add(f"planted: {name}", verdict, found is not None, f"found within {FOUND_WITHIN:,} seeds")

    def add_campaign(self, ledger, outcome):
        claim, bar = "the store as it is, under random faults, with wide stripes in every cluster", f"{self.wanted:,} seeds, no invariant broken"
        if isinstance(outcome, Exception):
            ledger.add(claim, str(outcome)[-300:], False, bar)
            return
        clean, broken = map(int, CLEAN.search(outcome).groups())
        ledger.add(claim, f"{clean:,} seeds clean, {broken} broken", broken == 0 and clean >= self.wanted, bar,
                   "" if self.wanted == STATED else f"{STATED:,} in the full form; 2,000 would take longer than the whole short proof may")
        add_happened(ledger, outcome, clean)


def add_happened(ledger, text, seeds):
    """What has happened to wide stripes."""
    counts = {what: int(match[1]) if (match := re.search(rf"(\d+) {re.escape(what)}\b", text)) else 0 for what in LEAST}
    few = [f"{count} {what}" for what, count in counts.items() if count < LEAST[what] * seeds]
    line = next((line for line in text.splitlines() if line.startswith("wide stripes: ")), "")
    ledger.add("   what happened to wide stripes meanwhile, for each seed", ", ".join(f"{count / max(1, seeds):.2f} {what}" for what, count in counts.items()),
               seeds > 0 and not few, ", ".join(f"{least:g}" for least in LEAST.values()) + " at least", f"too few: {', '.join(few)}" if few else line)
