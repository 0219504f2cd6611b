"""Runs `earrrl top` in a pseudo-terminal. Prints "good".

usage: terminal.py show|close BINARY ARGUMENT…
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

COLUMNS, LINES = 120, 24
TIMEOUT = 60
CLEAR = b"\x1b[H\x1b[2J"


class Terminal:
    """A program in a terminal."""

    def __init__(self, arguments):
        self.received = b""
        self.process, self.file = pty.fork()
        if self.process == 0:
            # A shell starts what runs in its background with this signal ignored.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execv(arguments[0], arguments)
        ioctl(self.file, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))

    def until(self, reason, holds):
        """Reads what the program writes until the condition holds for it."""
        end = time.monotonic() + TIMEOUT
        while not holds(self.received):
            assert time.monotonic() < end, f"{reason} is not shown: {self.received}"
            if select.select([self.file], [], [], 0.05)[0]:
                self.received += os.read(self.file, 65536)

    def status_at_its_end(self):
        """Waits until the program has ended."""
        end = time.monotonic() + TIMEOUT
        while (ended := os.waitpid(self.process, os.WNOHANG)) == (0, 0):
            assert time.monotonic() < end, "the program goes on"
            time.sleep(0.01)
        return ended[1]


def show(terminal):
    """Waits for two tables, and interrupts the program."""
    terminal.until("a second table", lambda text: text.count(CLEAR) >= 3)
    table = terminal.received.split(CLEAR)[2].decode()
    for text in ("alice", "bob", "/s denied", r"eve\x1b[2J\x07\x202e"):
        assert text in table, table
    # The hostile name is escaped, so that neither its escape sequence nor its bell reaches the terminal.
    for character in ("\x1b", "\x07", "\u202e"):
        assert character not in table, table
    os.write(terminal.file, b"\x03")
    assert os.WTERMSIG(terminal.status_at_its_end()) == signal.SIGINT


def close(terminal):
    """Closes the terminal of a program that ignores SIGHUP, as under nohup: the program must end."""
    terminal.until("the clients", lambda text: b"alice" in text)
    os.close(terminal.file)
    terminal.status_at_its_end()


def main(part, binary, *arguments):
    if part == "close":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    terminal = Terminal([binary, "top", *arguments])
    {"show": show, "close": close}[part](terminal)
    print("good")


main(*sys.argv[1:])
