"""Drives `earrrl top` in a pseudo-terminal, whose screen pyte keeps. Prints "good".

usage: terminal.py server|memory|close BINARY ARGUMENT…
"""
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from fcntl import ioctl

import pyte

COLUMNS, LINES = 120, 24
TIMEOUT = 60


class Terminal:
    """A program in a terminal."""

    def __init__(self, arguments):
        self.screen = pyte.Screen(COLUMNS, LINES)
        self.stream = pyte.ByteStream(self.screen)
        self.received = b""
        self.process, self.file = pty.fork()
        if self.process == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execv(arguments[0], arguments)
        ioctl(self.file, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))

    def read(self):
        """Shows what the program has written; returns False once it has ended."""
        if not select.select([self.file], [], [], 0.05)[0]:
            return True
        try:
            data = os.read(self.file, 65536)
        except OSError:
            return False
        self.received += data
        self.stream.feed(data)
        return data != b""

    def text(self):
        return "\n".join(self.screen.display)

    def press(self, keys):
        os.write(self.file, keys.encode())

    def until(self, reason, holds, never=None):
        end = time.monotonic() + TIMEOUT
        while not holds(self.text()):
            assert never is None or never not in self.text(), f"{never} is shown before {reason}:\n{self.text()}"
            assert time.monotonic() < end, f"{reason} is not shown:\n{self.text()}"
            assert self.read(), f"the program ended before {reason}:\n{self.text()}"

    def until_it_ends(self):
        end = time.monotonic() + TIMEOUT
        while self.read():
            assert time.monotonic() < end, "the program does not end"
        _, status = os.waitpid(self.process, 0)
        assert os.waitstatus_to_exitcode(status) == 0, status
        # It leaves the alternate screen and shows the cursor again.
        assert b"\x1b[?1049l" in self.received and b"\x1b[?25h" in self.received


def contains(*texts):
    return lambda screen: all(text in screen for text in texts)


def order(screen):
    """Returns the order in which the clients are shown."""
    return sorted((name for name in ("alice", "bob", "eve") if name in screen), key=screen.index)


def show_a_server(terminal):
    # The hostile name is escaped, so that neither its escape sequence nor its bell reaches the terminal.
    terminal.until("the clients", contains("alice", "bob", "> api", "engine memory", "100%", r"eve\x1b[2J\x07\x202e"))
    assert b"\x07" not in terminal.received
    assert "\u202e".encode() not in terminal.received
    terminal.press("ss")
    terminal.until("the order by name", lambda screen: "sort (name)" in screen and order(screen) == ["alice", "bob", "eve"])
    # Keys that arrive together are handled together, so that the prompt is not shown in between.
    terminal.press("/bob\r")
    terminal.until("the filter", lambda screen: order(screen) == ["bob"], never="filter: ")
    terminal.press("rn")
    terminal.until("the filter after a reset was declined", contains("bob", "s sort"))
    terminal.press("r")
    terminal.until("the confirmation of a reset", contains("reset bob? y/n"))
    terminal.press("y")
    terminal.until("the table without the client", lambda screen: order(screen) == [])
    terminal.press("/\x1b")
    terminal.until("the table without the filter", contains("alice", "eve"))
    terminal.press("\t")
    terminal.until("the next rule", contains("> login"))
    terminal.press("p")
    terminal.until("the pause", contains("PAUSED"))


def close(terminal):
    """Closes the terminal of a program that ignores SIGHUP, as under nohup: the program must end."""
    terminal.until("the clients", contains("alice"))
    os.close(terminal.file)
    end = time.monotonic() + TIMEOUT
    while os.waitpid(terminal.process, os.WNOHANG) == (0, 0):
        assert time.monotonic() < end, "the program goes on without its terminal"
        time.sleep(0.01)
    print("good")


def report_memory(terminal):
    """For each line on standard input, prints the memory of the program in KiB without the pages of its code."""
    while True:
        ready, _, _ = select.select([terminal.file, sys.stdin], [], [])
        if terminal.file in ready:
            assert terminal.read(), f"the program ended:\n{terminal.text()}"
            terminal.received = b""
        if sys.stdin in ready:
            if not sys.stdin.readline():
                return
            with open(f"/proc/{terminal.process}/status") as status:
                print(next(line for line in status if line.startswith("RssAnon:")).split()[1], flush=True)


def main(part, binary, *arguments):
    if part == "close":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    terminal = Terminal([binary, "top", *arguments])
    if part == "close":
        return close(terminal)
    if part == "memory":
        return report_memory(terminal)
    show_a_server(terminal)
    terminal.press("q")
    terminal.until_it_ends()
    print("good")


main(*sys.argv[1:])
