"""No process of a tree is left, whatever became of its parents."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DAEMON = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
os.wait()
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
time.sleep({seconds})
"""

DRIVER = """
import os, sys, time
from deployments.quickstart.processes import ProcessTree
code, pid_file = sys.argv[1:]
with open(os.devnull, "wb") as log:
    tree = ProcessTree([sys.executable, "-c", code, pid_file], os.environ, log)
while not os.path.exists(pid_file) or not open(pid_file).read():
    time.sleep(0.01)
daemon = int(open(pid_file).read())
{steps}
assert tree.kill(10), tree.descendants()
assert not tree.descendants()
assert not os.path.exists(f"/proc/{{daemon}}")
"""


def _drive(project: Path, tmp_path: Path, seconds: float, steps: str) -> None:
    """In an interpreter of its own: a tree takes all of its process's descendants for its own."""
    code = DAEMON.replace("{seconds}", str(seconds))
    command = [sys.executable, "-c", DRIVER.format(steps=steps), code, str(tmp_path / "pid")]
    subprocess.run(command, cwd=project, check=True, timeout=60)


def test_a_daemon_whose_parents_have_ended_is_found_and_killed(
    project: Path, tmp_path: Path
) -> None:
    steps = "while tree.exit_code is None: time.sleep(0.01)\nassert daemon in tree.descendants()"
    _drive(project, tmp_path, 0, steps)


def test_an_interrupt_reaches_the_command_alone(project: Path, tmp_path: Path) -> None:
    steps = (
        "assert tree.exit_code is None\ntree.interrupt()\n"
        "while tree.exit_code is None: time.sleep(0.01)\n"
        "tree.interrupt()\nassert daemon in tree.descendants()"
    )
    _drive(project, tmp_path, 600, steps)


FOLLOWER = """
import os, signal, sys, time
with open(sys.argv[1], "w") as alive:
    signal.signal(signal.SIGTERM, lambda *_: (print("ended gently", file=alive), sys.exit()))
    print("alive", flush=True)
    time.sleep(600)
"""


def test_the_command_is_told_to_end_when_this_process_is_killed(
    project: Path, tmp_path: Path
) -> None:
    read_fd, write_fd = os.pipe()
    driver = (
        "import os, sys, time\n"
        "from deployments.quickstart.processes import ProcessTree\n"
        "command = [sys.executable, '-c', sys.argv[1], sys.argv[2]]\n"
        f"tree = ProcessTree(command, os.environ, os.fdopen({write_fd}, 'wb'))\n"
        "time.sleep(600)\n"
    )
    said = tmp_path / "said"
    process = subprocess.Popen(
        [sys.executable, "-c", driver, FOLLOWER, str(said)], cwd=project, pass_fds=[write_fd]
    )
    os.close(write_fd)
    with os.fdopen(read_fd) as pipe:
        assert pipe.readline() == "alive\n"
        process.kill()
        process.wait()
        assert pipe.read() == ""  # to its end: no process holds the other side any more
    assert said.read_text() == "ended gently\n"
