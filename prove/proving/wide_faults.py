"""Random faults on clusters with wide stripes, and the planted defects of sealing that they must find.

All of it runs in virtual time, so it may run beside sections that have claims about bytes but none about time.
"""

import re

from .laboratory import prove_campaign, prove_mutations

# One seed of five has wide stripes; `--family wide` skips the others. A little more than five, so that chance leaves enough.
EVERY = 5.5
# Seeds of the full run, and of the short one: a seed takes most of a second of a processor.
STATED, SHORT = 10_000, 500
# Minimum number of events per seed, on average: otherwise the campaign tests less than it claims.
LEAST = {"sealed": 1.0, "stripes have dropped their parities": 1.0, "have them again": 0.2, "members moved or repaired": 0.5, "places left": 0.2,
         "taken": 0.2, "changed for a local parity's": 0.5, "wide stripes emptied into others": 0.01, "changed in place": 0.03, "racks lost": 1.0}
# Planted defects of sealing, and of changes of sealed data.
MUTATIONS = ["drop-while-building", "seal-without-globals", "claim-ignores-member", "claim-ignores-wide",
             "abort-deletes-at-once", "seal-keeps-generation", "move-forgets-copy", "rule-at-open-only",
             "close-without-entry", "cancel-forgets-garbage", "old-wide-row", "old-content", "release-ignores-members",
             "exchange-ignores-members", "exchange-forgets-globals", "update-forgets-globals", "update-forgets-own-parities",
             "swap-in-two-transactions", "dissolve-while-one-lives", "dissolve-forgets-garbage", "transfer-in-two-transactions"]
# Number of seeds, skipped ones included, within which each defect must be found.
FOUND_WITHIN = 1_500


def prove_wide_faults(ledger, laboratory):
    wanted = STATED if laboratory.full else SHORT
    claim = "the store as it is, under random faults, with wide stripes in every cluster"
    if not laboratory.full:
        claim += f" ({STATED:,} seeds in the full form; 2,000 would take longer than the whole short proof may)"
    campaign = prove_campaign(ledger, laboratory, claim, wanted, "--family", "wide", every=EVERY)
    if campaign:
        add_happened(ledger, *campaign)
    prove_mutations(ledger, laboratory, MUTATIONS, FOUND_WITHIN, "--family", "wide")


def add_happened(ledger, seeds, text):
    """Claims that enough has happened to wide stripes."""
    counts = {what: int(match[1]) if (match := re.search(rf"(\d+) {re.escape(what)}\b", text)) else 0 for what in LEAST}
    few = [f"{count} {what}" for what, count in counts.items() if count < LEAST[what] * seeds]
    line = next((line for line in text.splitlines() if line.startswith("wide stripes: ")), "")
    ledger.add("   what happened to wide stripes meanwhile, for each seed", ", ".join(f"{count / max(1, seeds):.2f} {what}" for what, count in counts.items()),
               seeds > 0 and not few, ", ".join(f"{least:g}" for least in LEAST.values()) + " at least", f"too few: {', '.join(few)}" if few else line)
