# SPDX-License-Identifier: Apache-2.0
"""Starts the real programs as a user does: in process groups and pseudo-terminals, with signals, time limits and small disks."""
import atexit
import dataclasses
import os
import pathlib
import pty
import re
import resource
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("MESHARD_PROGRAM", SOURCE / "build/release/bin/meshard")).resolve()
REPETITIONS = int(os.environ.get("MESHARD_REPETITIONS", "1"))   # of interruptions and races, whose moment varies; 20 before a release
# Where mpirun has its sessions: in one folder for all, one removes it at its end while another one begins.
MPI_SESSIONS = tempfile.mkdtemp(prefix="ompi-")
atexit.register(shutil.rmtree, MPI_SESSIONS, ignore_errors=True)
MPI_ENVIRONMENT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
                   "OMPI_MCA_orte_tmpdir_base": MPI_SESSIONS}


@dataclasses.dataclass
class Result:
    code: int      # exit code; of a signal that ended it minus its number
    out: str
    err: str       # on a terminal: empty, all is in `out`

    def __str__(self):
        return f"exit code {self.code}\n--- stdout\n{self.out[-3000:]}\n--- stderr\n{self.err[-3000:]}"


class Process:
    """A program that runs: in a session and process group of its own, on request at a terminal of its own."""

    def __init__(self, words, *, cwd, environment=None, terminal=False, limit=100, max_file_bytes=None, closed=(), stdout=None, stdin=None, user=None, ignored=()):
        self.words = [str(word) for word in words]
        self._deadline = time.monotonic() + limit
        self._texts = {}
        self._is_terminal_lost = False
        self._threads = []
        environment = {**os.environ, **MPI_ENVIRONMENT, "OMP_NUM_THREADS": "1", **(environment or {})}

        def prepare():
            if terminal:
                os.setsid()
                import fcntl, termios
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            for number in ignored:
                signal.signal(number, signal.SIG_IGN)
            if max_file_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))
            for stream in closed:
                os.close(stream)

        options = dict(cwd=cwd, env=environment, preexec_fn=prepare, start_new_session=not terminal)
        if user is not None:
            options["user"] = user
        if terminal:
            self._terminal, other = pty.openpty()
            self._popen = subprocess.Popen(self.words, stdin=other, stdout=other, stderr=other, **options)
            os.close(other)
            self._start(self._read_terminal)
        else:
            self._popen = subprocess.Popen(self.words, stdin=stdin or subprocess.DEVNULL, stdout=stdout or subprocess.PIPE, stderr=subprocess.PIPE, **options)
            if stdout is None:
                self._collect("out", self._popen.stdout)
            self._collect("err", self._popen.stderr)

    def _collect(self, name, stream):
        def read():
            while piece := stream.read1(4096):
                self._texts[name] = self._texts.get(name, b"") + piece
            stream.close()

        self._start(read)

    def _read_terminal(self):
        """Never waits in a read: the terminal would stay open as long as that lasts."""
        try:
            while not self._is_terminal_lost:
                if select.select([self._terminal], [], [], 0.05)[0]:
                    self._texts["out"] = self._texts.get("out", b"") + os.read(self._terminal, 4096)
        except OSError:   # how the end of a terminal looks
            pass
        os.close(self._terminal)

    def _start(self, work):
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self._threads.append(thread)

    @property
    def pid(self):
        return self._popen.pid

    def text(self, name="err"):
        return self._texts.get(name, b"").decode(errors="replace")

    def type(self, text):
        """As typed at the terminal: "\\x03" is Ctrl-C."""
        os.write(self._terminal, text.encode())

    def send(self, number):
        """A signal for this process alone."""
        os.kill(self.pid, number)

    def send_to_group(self, number):
        os.killpg(self.pid, number)

    def close_terminal(self):
        self._is_terminal_lost = True
        self._threads[0].join()

    def has_ended(self):
        return self._popen.poll() is not None

    def wait_for(self, condition, what):
        """Until `condition()` is true; an error if the program ends or its time is up before."""
        while not condition():
            if self.has_ended():
                raise AssertionError(f"{' '.join(self.words)} ended before {what}\n{self.result()}")
            if time.monotonic() > self._deadline:
                raise AssertionError(f"{' '.join(self.words)}: no {what} in time\n{self.end()}")
            time.sleep(0.01)

    def result(self):
        """Waits for the end. A program that takes longer than its limit is killed, and that is an error."""
        try:
            self._popen.wait(max(0.1, self._deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{' '.join(self.words)} did not end in time and was killed\n{self.end()}") from None
        return self._collected()

    def _collected(self):
        for thread in self._threads:
            thread.join(5)   # a process that outlives the program may keep a stream open
        return Result(self._popen.returncode, self.text("out"), self.text("err"))

    def end(self):
        for pid in self.processes_left():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if self._popen.poll() is None:
            self._popen.kill()
        self._popen.wait()
        return self._collected()

    def processes_left(self):
        """Processes of the program's session that still run."""
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                state = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(state[3]) == self.pid and state[0] != "Z":
                found.append(int(entry.name))
        return found


class Case(unittest.TestCase):
    """A test with an empty folder of its own, `self.folder`, where programs run."""
    timeout = 120
    maxDiff = None

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="meshard-programs-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self._processes = []
        self.addCleanup(lambda: [process.end() for process in self._processes])

    def start(self, *words, **options):
        options.setdefault("cwd", self.folder)
        process = Process(words, **options)
        self._processes.append(process)
        return process

    def run_words(self, *words, **options):
        process = self.start(*words, **options)
        result = process.result()
        left = process.processes_left()
        if left:
            time.sleep(0.5)   # ranks that are just ending
            left = process.processes_left()
        self.assertEqual(left, [], f"{' '.join(process.words)}: processes live on\n{result}")
        return result

    def meshard(self, *words, **options):
        return self.run_words(PROGRAM, *words, **options)

    def start_meshard(self, *words, **options):
        return self.start(PROGRAM, *words, **options)

    def assert_good(self, result):
        self.assertEqual(result.code, 0, str(result))

    def assert_fails(self, result, code, *texts):
        """Ends with `code`; the last line on stderr, and no other, is of meshard, and holds all `texts`. Progress and warnings may stand before."""
        self.assertEqual(result.code, code, str(result))
        lines = [line for line in result.err.splitlines() if line.startswith("meshard") and "warning:" not in line]
        self.assertEqual(len(lines), 1, f"expected one line of an error on stderr\n{result}")
        self.assertTrue(result.err.endswith(lines[0] + "\n"), f"the error is not said last\n{result}")
        for text in texts:
            self.assertIn(text, lines[0])

    def names(self, folder=None):
        """What lies in a folder, sorted: shows what was left half-written."""
        return sorted(entry.name for entry in (folder or self.folder).iterdir())

    def needs(self, program):
        if shutil.which(program) is None:
            self.skipTest(f"{program} is not installed")


def exit_codes_of_source():
    """Name to number of every exit code, from apps/console/console.h."""
    text = (SOURCE / "apps/console/console.h").read_text()
    codes = {name: int(number) for name, number in re.findall(r"inline constexpr int (\w+) = (\d+);", text)}
    assert len(codes) >= 8, "apps/console/console.h no longer lists the exit codes as `inline constexpr int NAME = N;`"
    return codes
