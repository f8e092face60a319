"""Starts beside disks that cannot be used, starts that fail, and the modes of files.

Bad disks are made as they happen: a read-only mount, another owner, a damaged file, a disk that hangs. Mounts need root; what cannot be
made here is skipped, with the reason.
"""

import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

from .hanging import HangingDisk, why_unavailable
from .s3 import Client
from .servers import Striate, striate_binary
from .sigv4 import Credentials

NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
OBJECT = secrets.token_bytes(300_000)
ROSTER, EPOCH = ".striate/cluster", ".striate/meta/meta.epoch"
ANSWERS_WITHIN_S = 10  # a start beside a hanging disk


class Started(Striate):
    """A server on six directories, as this or another user, with further options."""

    def __init__(self, base, program=None, options=(), as_nobody=False):
        super().__init__(base, program=program)
        self.options, self.as_nobody = list(options), as_nobody

    def command(self):
        return [*(AS_NOBODY if self.as_nobody else []), *super().command(), *self.options]

    def ready_url(self):
        return f"{self.console}/health/live"

    def fill(self):
        client = self.client()
        client.make_bucket("start")
        for number in range(4):
            client.put("start", f"object{number}", OBJECT)

    def reads_all(self):
        client = self.client()
        return all(client.get("start", f"object{number}") == OBJECT for number in range(4))

    def site_line(self, directory):
        """Returns what the status says of a directory, or an empty text."""
        # Only its own user finds a server.
        command = [*(AS_NOBODY if self.as_nobody else []), self.program, "status", "--json"]
        printed = subprocess.run(
            command, env={**os.environ, **self.environment}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        ).stdout
        warnings = json.JSONDecoder().raw_decode(printed)[0]["warnings"]
        return next((warning for warning in warnings if str(directory) in warning), "")


def digest(*folders):
    """Returns a digest of the names and contents of all files below folders."""
    found = hashlib.sha256()
    for folder in folders:
        for path in sorted([Path(folder), *Path(folder).rglob("*")]):
            found.update(str(path).encode())
            if path.is_file() and not path.is_symlink():
                found.update(path.read_bytes())
    return found.hexdigest()


def refused(server, environment=None, cwd=None, timeout_s=30):
    """Runs a start that should be refused. Returns its exit status, or None if it had to be ended, and what it printed."""
    environment = {**os.environ, **server.environment, **(environment or {})}
    environment = {name: value for name, value in environment.items() if value is not None}
    process = subprocess.Popen(
        server.command(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=environment, cwd=cwd or server.base,
    )
    try:
        printed, _ = process.communicate(timeout=timeout_s)
        return process.returncode, printed
    except subprocess.TimeoutExpired:
        process.terminate()
        printed, _ = process.communicate()
        return None, printed


def is_root():
    return os.geteuid() == 0


@contextmanager
def mounted(*arguments, at):
    subprocess.run(["mount", *map(str, arguments), str(at)], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=False, capture_output=True)


@contextmanager
def read_only(path):
    with mounted("--bind", path, at=path):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(path)], check=True, capture_output=True)
        yield


@contextmanager
def mode_000(path):
    path.chmod(0)
    try:
        yield
    finally:
        path.chmod(0o700)


@contextmanager
def another_owner(path):
    for each in [path, path / ".striate"]:
        os.chown(each, 0, 0)
        each.chmod(0o700)
    try:
        yield
    finally:
        for each in [path, path / ".striate"]:
            os.chown(each, NOBODY, NOBODY)


@contextmanager
def a_file(path):
    aside = path.with_name(path.name + ".aside")
    path.rename(aside)
    path.write_text("not a directory\n")
    try:
        yield
    finally:
        path.unlink()
        aside.rename(path)


def damaged(name):
    @contextmanager
    def damage(path):
        whole = (path / name).read_bytes()
        (path / name).write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
        try:
            yield
        finally:
            (path / name).write_bytes(whole)

    return damage


# What is wrong with a disk, how it is made so, and whether another user's server is needed to see it.
BAD_DISKS = [
    ("read-only", read_only, False),
    ("with mode 000", mode_000, True),
    ("of another owner", another_owner, True),
    ("with a file in its place", a_file, False),
    ("with a damaged roster", damaged(ROSTER), False),
    ("with a damaged meta.epoch", damaged(EPOCH), False),
]


def usable_by_nobody(folder):
    """Returns a copy of the program that every user can run, since a checkout's folder may be private."""
    Path(folder).chmod(0o755)
    program = Path(folder) / "striate"
    shutil.copy(striate_binary(), program)
    program.chmod(0o755)
    return program


def give_to_nobody(server):
    server.run_directory()
    for path in [server.base, *server.base.rglob("*")]:
        os.lchown(path, NOBODY, NOBODY)


def prove_bad_disks(ledger, folder, program):
    outcomes, reasons = [], []
    for number, (kind, spoil, as_nobody) in enumerate(BAD_DISKS):
        server = Started(folder / f"bad{number}", program=program, as_nobody=as_nobody)
        server.base.chmod(0o755)
        if as_nobody:
            give_to_nobody(server)
        with server:
            server.fill()
        bad = server.directories[number % 6]
        missing = server.directories[(number + 1) % 6]
        aside = server.base / "aside"
        with ExitStack() as stack:
            stack.enter_context(spoil(bad))
            before = digest(bad)
            missing.rename(aside)
            try:
                server.start()
                line = server.site_line(bad)
                good = server.reads_all() and "excluded" in line
                reasons.append(f"{kind}: {line.rpartition('left as it is: ')[2][:60]}")
            except RuntimeError as error:
                good = False
                reasons.append(f"{kind}: {str(error).strip().splitlines()[-1][:120]}")
            finally:
                server.stop()
            good = good and digest(bad) == before
        aside.rename(missing)
        try:
            with server:
                good = good and server.reads_all() and not server.site_line(bad)
        except RuntimeError:
            good = False
        outcomes.append((kind, good))
    ledger.note("; ".join(reasons))
    failed = [kind for kind, good in outcomes if not good]
    ledger.add(
        "one bad disk and one missing disk of six: rs(4,2) starts without them, reads everything, names the bad one, writes "
        "nothing to it, and has it back when it is mended (A F4, B F5)",
        f"{len(outcomes) - len(failed)} of {len(outcomes)} kinds" + (f"; not {', '.join(failed)}" if failed else ""),
        not failed, "all kinds: " + ", ".join(kind for kind, _, _ in BAD_DISKS),
    )


def prove_refusals(ledger, folder, program):
    """Mistakes of an operator stay refusals."""
    server, other = Started(folder / "mine", program=program), Started(folder / "theirs", program=program)
    for each in (server, other):
        with each:
            pass
    first, second = server.directories[:2]

    def changed(name, change):
        whole = (first / name).read_text()
        (first / name).write_text(change(whole))
        status, printed = refused(server)
        (first / name).write_text(whole)
        return status, printed

    def with_foreign():
        aside = server.base / "aside"
        first.rename(aside)
        shutil.copytree(other.directories[0], first, ignore=shutil.ignore_patterns("*.sock"))
        outcome = refused(server)
        shutil.rmtree(first)
        aside.rename(first)
        return outcome

    def while_locked():
        rival = Started(server.base, program=program)
        with server:
            return refused(rival)

    newer = lambda text: text.replace('"version":2', '"version":9').replace('"version":1', '"version":9')  # noqa: E731
    cases = {
        "a newer roster": lambda: changed(ROSTER, newer),
        "a newer meta.epoch": lambda: changed(EPOCH, newer),
        "another disk's meta.epoch": lambda: changed(EPOCH, lambda _: (second / EPOCH).read_text()),
        "another cluster's directory": with_foreign,
        "a directory in use": while_locked,
    }
    statuses = {name: case()[0] for name, case in cases.items()}
    ledger.add(
        "what points to a mistake still refuses the start, even of one directory of six (A F4)",
        f"{sum(status == 2 for status in statuses.values())} of {len(statuses)} refused: {', '.join(statuses)}",
        all(status == 2 for status in statuses.values()), "exit status 2",
    )


def prove_failed_starts(ledger, folder, program):
    """First starts with an option that cannot be used leave empty directories and no key."""
    without_key = {"STRIATE_ACCESS_KEY": None, "STRIATE_SECRET_KEY": None}
    (folder / "short").write_text("short")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        cases = {
            "audit log": ["--audit-log", folder / "absent" / "audit.jsonl"],
            "metrics token": ["--metrics-token-file", folder / "short"],
            "origin CA": ["--origin-ca", folder / "absent.pem"],
            "certificates": ["--certs", folder / "absent"],
            "domain": ["--domain", "not a domain"],
            "profile": ["--profile", "rs(40,2)"],
            "console port": [],
        }
        changed = []
        for number, (name, options) in enumerate(cases.items()):
            server = Started(folder / f"failing{number}", program=program, options=map(str, options))
            if name == "console port":
                server.console_port = taken.getsockname()[1]
            before = digest(*server.directories)
            status, printed = refused(server, without_key)
            if status != 2 or digest(*server.directories) != before or list(server.base.glob("*key*")):
                changed.append(f"{name} ({status})")
    server = Started(folder / "failing", program=program)
    unwritable = folder / "unwritable"
    unwritable.mkdir(mode=0o555)
    if is_root():
        give_to_nobody(server)
        cases["nowhere to show the key"] = []
        server.as_nobody = True
        before = digest(*server.directories)
        status, printed = refused(server, {**without_key, "TMPDIR": str(unwritable)}, cwd=unwritable)
        if status != 2 or digest(*server.directories) != before:
            changed.append(f"nowhere to show the key ({status})")
    server = Started(folder / "failing0", program=program)
    status, printed = refused(server, without_key, timeout_s=15)
    key = "The first access key and its secret are in" in printed
    ledger.add(
        "a first start that is refused because of an option changes no directory, and the next one shows the first key (C 4)",
        f"{len(cases) - len(changed)} of {len(cases)} changed nothing" + (f"; not {', '.join(changed)}" if changed else "")
        + f"; the next start {'shows' if key else 'does not show'} a key",
        not changed and key, "exit status 2, directories as before",
    )


def prove_rotation(ledger, folder, program):
    """A rotation without a terminal, where the last secret's file still lies, and where no file can be written."""
    server = Started(folder / "rotating", program=program)
    with server:
        folder_of_keys, unwritable = server.base / "keys", server.base / "unwritable"
        folder_of_keys.mkdir()
        environment = {**os.environ, **server.environment}

        def keys(*words, cwd=folder_of_keys, temporary=folder_of_keys):
            done = subprocess.run(
                [program, "admin", "keys", *words], cwd=cwd, env={**environment, "TMPDIR": str(temporary)},
                stdin=subprocess.DEVNULL, capture_output=True, text=True,
            )
            return done.returncode, done.stdout + done.stderr

        def works(path):
            exports = dict(line.removeprefix("export ").split("=", 1) for line in path.read_text().splitlines())
            key = Credentials(exports["STRIATE_ACCESS_KEY"], exports["STRIATE_SECRET_KEY"])
            return Client(server.endpoint, key).send("GET", "/").status == 200

        keys("create", "--description", "rotated")
        [first] = folder_of_keys.glob("striate-key-*.sh")
        name = first.name.removeprefix("striate-key-").removesuffix(".sh")
        status, printed = keys("rotate", name, "--grace-minutes", "0")
        others = [path for path in folder_of_keys.glob("*.sh") if path != first]
        time.sleep(1.1)  # a secret is looked up again after a second
        shown = status == 0 and len(others) == 1 and works(others[0]) and not works(first)
        unwritable.write_text("a file, in which nothing can be written")
        gone = folder_of_keys / "gone"
        gone.mkdir()
        refused_status = subprocess.run(
            ["sh", "-c", f"cd {gone} && rmdir {gone} && exec {program} admin keys rotate {name} --grace-minutes 0"],
            env={**environment, "TMPDIR": str(unwritable)}, stdin=subprocess.DEVNULL, capture_output=True,
        ).returncode
        time.sleep(1.1)
        kept = refused_status == 2 and bool(others) and works(others[0])
    ledger.add(
        "a rotation shows the new secret beside an older file, and one that could not show it leaves the old secret valid (C 5)",
        f"shown in {others[0].name if others else 'no file'}; without a place: status {refused_status}, "
        f"the old secret {'works' if kept else 'is lost'}",
        shown and kept, "the shown secret works; status 2 and the old one works",
    )


def loose(server):
    """Returns the files and folders of a server's state that others may reach."""
    return [
        path for directory in server.directories for path in [directory / ".striate", *(directory / ".striate").rglob("*")]
        if path.stat().st_mode & 0o077
    ]


def prove_modes(ledger, folder, program):
    server = Started(folder / "modes", program=program)
    old_mask = os.umask(0o022)
    try:
        with server:
            server.fill()
            fresh = loose(server)
        for path in [path for directory in server.directories for path in (directory / ".striate").rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        for directory in server.directories:
            (directory / ".striate").chmod(0o755)
        with server:
            tightened = loose(server)
            reads = server.reads_all()
    finally:
        os.umask(old_mask)
    ledger.add(
        "files and folders of a store are private to its user, also those that an older release left readable (B F6)",
        f"{len(fresh)} of a new store readable for others, {len(tightened)} after a restart of a store with modes 0644 and 0755",
        not fresh and not tightened and reads, "none",
    )


def prove_full_disks(ledger, folder, program):
    if not is_root():
        ledger.skip("starts on full disks need root, to mount file systems of 96 MiB")
        return
    server, rounds = Started(folder / "full", program=program), 6
    with ExitStack() as stack:
        for directory in server.directories:
            stack.enter_context(mounted("-t", "tmpfs", "-o", "size=96m", "tmpfs", at=directory))
        with server:
            server.fill()
        outcomes = []
        for _ in range(rounds):
            for directory in server.directories:
                fill_up(directory)
            try:
                server.start()
                for directory in server.directories:
                    fill_up(directory)
                outcomes.append(server.reads_all())
            except RuntimeError as error:
                ledger.note(str(error).strip().splitlines()[-1][:200])
                outcomes.append(False)
            finally:
                server.stop()
    ledger.add(
        "starts on six disks that another writer keeps at 0 bytes free (A F12)",
        f"{sum(outcomes)} of {rounds} starts serve reads", all(outcomes), f"{rounds} of {rounds}",
    )


def fill_up(directory):
    """Takes every free byte of a file system."""
    with open(directory / "filler", "ab", buffering=0) as filler:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    filler.write(b"\0" * size)
            except OSError:
                pass


def prove_hanging(ledger, folder, program, full=False):
    if why := why_unavailable():
        ledger.skip(f"a start beside a hanging disk needs {why}")
        return
    server = Started(folder / "hanging", program=program)
    kinds, seconds = [(), ("read",)] + ([("open",), ("stat",), ("sync",)] if full else []), []
    with server:
        server.fill()
    backing, good = folder / "hanging" / "backing", []
    server.directories[2].rename(backing)
    with HangingDisk(backing, server.directories[2], killable=True) as disk:
        for kind in kinds:
            with disk.hanging(*kind):
                began = time.monotonic()
                try:
                    server.start()
                    seconds.append(time.monotonic() - began)
                    good.append(server.reads_all() and "does not answer" in server.site_line(server.directories[2]))
                except RuntimeError as error:
                    ledger.note(f"{kind}: {str(error).strip().splitlines()[-1][:200]}")
                    good.append(False)
                finally:
                    server.process and server.process.poll() is None and server.process.send_signal(signal.SIGKILL)
            if server.process:
                server.process.wait(30)
    ledger.add(
        "a start beside a disk that hangs goes on without it (E)",
        f"{sum(good)} of {len(kinds)} ({', '.join(' '.join(kind) or 'all calls' for kind in kinds)}); " + ", ".join(f"{value:.1f} s" for value in seconds),
        all(good) and max(seconds, default=99) <= ANSWERS_WITHIN_S + 5,
        f"all; within {ANSWERS_WITHIN_S} s, and 5 s for the start itself",
    )


def prove_named(ledger, folder, program):
    """What a start must name: old copies of mirrors, a foreign sealing key, a key that everybody can read, its address."""
    server = Started(folder / "named", program=program)
    with server:
        mirrors = [Path(mirror["directory"]) for mirror in server.status()["mirrors"]]
    copies = {mirror: (mirror / "meta.redb").read_bytes() for mirror in mirrors}
    with server:
        server.fill()
        server.run("admin", "keys", "create", "--description", "x", "--secret-file", server.base / "key.sh")
    for mirror, copy in copies.items():
        newest = (mirror / "meta.redb").read_bytes()
        (mirror / "meta.redb").write_bytes(copy)
        copies[mirror] = newest
    with server:
        stale = sum("old copy" in warning for warning in server.status()["warnings"])
    for mirror, newest in copies.items():
        (mirror / "meta.redb").write_bytes(newest)
    for directory in server.directories:
        (directory / ".striate" / "sealing.key").write_text("7" * 64 + "\n")
    with server:
        foreign = any("sealing.key" in warning for warning in server.status()["warnings"])
    ledger.add(
        "a start names mirrors of the metadata that are old copies, and a sealing.key that is another store's (B F13)",
        f"{stale} of {len(mirrors)} old copies named; the sealing key {'is' if foreign else 'is not'} named",
        stale == len(mirrors) and foreign, "all",
    )
    certificates = server.base / "certs"
    certificates.mkdir()
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-keyout", certificates / "private.key", "-out", certificates / "public.crt"],
        check=True, capture_output=True,
    )
    (certificates / "private.key").chmod(0o644)
    server = Started(folder / "named", program=program, options=["--certs", str(certificates)])
    server.log_path.unlink()
    everywhere = [str(word).replace(f"127.0.0.1:{server.port}", f":{server.port}") for word in server.command()]
    with open(server.log_path, "ab") as log:
        process = subprocess.Popen(everywhere, stdout=log, stderr=log, env={**os.environ, **server.environment})
    deadline = time.monotonic() + 60
    while " serves" not in server.log_tail() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    survives = process.poll() is None
    process.terminate()
    process.wait(60)
    log = server.log_tail()
    exposed, named = "private.key (mode 0644)" in log, f"https://*:{server.port}" in log
    ledger.add(
        "a start warns of a private key that everybody can read and names the addresses on which it listens; SIGHUP does not end it "
        "(B F13, A Differs)",
        f"key {'named' if exposed else 'not named'}; address {'named' if named else 'not named'}; "
        f"{'runs' if survives else 'ended'} after SIGHUP",
        exposed and named and survives, "all three",
    )


def prove_start(ledger, folder, full):
    folder = Path(folder)
    program = usable_by_nobody(folder)
    if is_root():
        prove_bad_disks(ledger, folder, program)
    else:
        ledger.skip("bad disks need root, to mount them read-only and to start as another user")
    prove_refusals(ledger, folder, program)
    prove_failed_starts(ledger, folder, program)
    prove_rotation(ledger, folder, program)
    prove_modes(ledger, folder, program)
    prove_full_disks(ledger, folder, program)
    prove_hanging(ledger, folder, program, full)
    prove_named(ledger, folder, program)
