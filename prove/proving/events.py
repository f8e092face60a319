"""Events in a cluster while clients work on it, and what the clients notice."""

import math
import statistics
import time
from dataclasses import dataclass, field

CALM_S = 6  # before the first event and after each


@dataclass
class Event:
    """A fault that is applied to a process and later undone."""

    name: str
    begin: object  # called with the cluster
    end: object
    lasts_s: float = 6
    is_outage: bool = False  # no request can succeed meanwhile
    started: float = field(default=0.0, init=False)  # in seconds since the history's start
    ended: float = field(default=0.0, init=False)


def killed(name, which=None, is_outage=False):
    """Returns the event of killing and restarting a process. If given, `which` chooses the process when the event begins."""
    chosen = []

    def begin(cluster):
        chosen[:] = [which(cluster) if which else name]
        cluster.kill(chosen[0])

    return Event(f"{name} killed", begin, lambda cluster: cluster.restart(chosen[0]), is_outage=is_outage)


def cut(rack, hears=False):
    """Returns the event of cutting a rack off from the others, in both directions or in one."""
    what = "is heard by no other" if hears else "is cut off"
    return Event(f"rack {rack} {what}", lambda cluster: cluster.cut(rack, hears), lambda cluster: cluster.mend())


def paused(name, which=None):
    chosen = []

    def begin(cluster):
        chosen[:] = [which(cluster) if which else name]
        cluster.pause(chosen[0])

    return Event(f"{name} paused", begin, lambda cluster: cluster.resume(chosen[0]))


def story(cluster, events, operations, say):
    """Returns the callback for `drive`: calm, one event after the other, then calm until `operations` are done."""

    def during(history):
        time.sleep(CALM_S)
        for event in events:
            event.started = history.now()
            event.begin(cluster)
            time.sleep(event.lasts_s)
            event.end(cluster)
            event.ended = history.now()
            say(f"{event.name}: {history.operations} operations so far")
            time.sleep(CALM_S)
        while history.operations < operations:
            time.sleep(0.2)

    return during


def figures(history, since, until):
    """Returns the number, failures and latencies of the operations that clients began between two times."""
    samples = [sample for sample in history.samples if since <= sample[0] < until]
    times = sorted(sample[2] for sample in samples) or [0.0]
    failed = [sample for sample in samples if sample[3] == "unknown"]
    return {
        "operations": len(samples), "per_second": len(samples) / max(until - since, 1e-9),
        "failed": len(failed), "statuses": sorted({str(sample[4]) for sample in failed}),
        "p50_ms": statistics.median(times) * 1e3, "p99_ms": times[min(len(times) - 1, len(times) * 99 // 100)] * 1e3,
        "max_ms": times[-1] * 1e3,
    }


def silence_s(history, since, until):
    """Returns the longest time between two answers, over all clients."""
    ends = sorted(start + took for start, _, took, outcome, _ in history.samples if outcome != "unknown")
    ends = [since, *[end for end in ends if since <= end < until], until]
    return max(later - earlier for earlier, later in zip(ends, ends[1:]))


def draw(history, events, title):
    """Draws an SVG: the median and slowest answer of each half second, and errors."""
    width, height, left, top, step = 1000, 360, 60, 40, 0.5
    end = max(sample[0] for sample in history.samples)
    x = lambda at: left + (width - left - 20) * at / end
    decades = 4.5  # from 1 ms to 30 s
    y = lambda ms: height - 40 - (height - 40 - top) * min(math.log10(max(ms, 1)), decades) / decades
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/><text x="{left}" y="20" font-size="15">{title}</text>',
    ]
    for event in events:
        parts.append(f'<rect x="{x(event.started):.1f}" y="{top}" width="{x(event.ended) - x(event.started):.1f}" '
                     f'height="{height - 40 - top}" fill="#fdebd0"/>'
                     f'<text transform="translate({x(event.started) + 11:.1f},{height - 46}) rotate(-90)" '
                     f'fill="#935116">{event.name}</text>')
    for ms in (1, 10, 100, 1000, 10000):
        parts.append(f'<line x1="{left}" x2="{width - 20}" y1="{y(ms):.1f}" y2="{y(ms):.1f}" stroke="#ddd"/>'
                     f'<text x="{left - 6}" y="{y(ms) + 4:.1f}" text-anchor="end">{ms} ms</text>')
    slices = {}
    for at, _, took, outcome, _ in history.samples:
        slices.setdefault(int(at / step), []).append((took * 1e3, outcome))
    for number, of in sorted(slices.items()):
        middle, times = x((number + 0.5) * step), sorted(took for took, _ in of)
        errors = sum(outcome == "unknown" for _, outcome in of)
        parts.append(f'<circle cx="{middle:.1f}" cy="{y(statistics.median(times)):.1f}" r="1.6" fill="#2471a3"/>'
                     f'<circle cx="{middle:.1f}" cy="{y(times[-1]):.1f}" r="1.6" fill="#7fb3d5"/>')
        if errors:
            parts.append(f'<rect x="{middle - 1.5:.1f}" y="{height - 36}" width="3" height="{min(errors, 16)}" fill="#c0392b"/>')
    for second in range(0, int(end) + 1, 10):
        parts.append(f'<text x="{x(second):.1f}" y="{height - 6}" text-anchor="middle">{second} s</text>')
    parts.append(f'<text x="{width - 20}" y="20" text-anchor="end"><tspan fill="#2471a3">median</tspan> and '
                 '<tspan fill="#7fb3d5">slowest</tspan> answer of each half second, '
                 '<tspan fill="#c0392b">errors</tspan></text></svg>')
    return "\n".join(parts) + "\n"
