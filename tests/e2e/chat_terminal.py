"""tern chat on a terminal: line editing, history, Ctrl-C at the prompt and during a reply."""
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

TERN, MODEL = os.environ["TERN"], os.environ["MODEL"]
complaints = []


class Terminal:
    def __init__(self, *options, term="xterm", out=None):
        self.seen = self.all = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM=term, LC_ALL="C.UTF-8")
            if out is not None:
                os.dup2(out, 1)
            os.execv(TERN, [TERN, "chat", "-m", MODEL, *options])

    def expect(self, text, seconds=60):
        """Waits for a text behind what was expected before."""
        end = time.time() + seconds
        while text not in self.seen and time.time() < end:
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    more = os.read(self.fd, 65536)
                    self.seen += more
                    self.all += more
                except OSError:
                    break
        at = self.seen.find(text)
        if at < 0:
            complaints.append(f"no {text!r} in {self.seen!r}")
        else:
            self.seen = self.seen[at + len(text):]

    def type(self, text):
        os.write(self.fd, text)

    def status(self):
        end = time.time() + 60
        while time.time() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            try:
                if select.select([self.fd], [], [], 0.05)[0]:
                    os.read(self.fd, 65536)
            except OSError:
                pass
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return "no end"


def check(condition, what):
    if not condition:
        complaints.append(what)


# A reply to a line that was corrected while typing, accents and all; then the same line from the history.
t = Terminal("-n", "6", "--logit-bias", "74=400")
t.expect(b"> ")
t.type("caf\u00e9s".encode() + b"\x7f" + b"\r")
t.expect(b"JJJJJJ\r\n")
t.expect(b"> ")
t.type(b"\x1b[A")
t.expect("caf\u00e9".encode())
t.type(b"\r")
t.expect(b"JJJJJJ\r\n")
t.expect(b"> ")
t.type(b"/stats\r")
t.expect(b"4 turns")
t.expect(b"> ")
# Ctrl-C drops a half-typed line and keeps the session.
t.type(b"half a li\x03")
t.expect(b"/quit")
t.expect(b"> ")
t.type(b"/stats\r")
t.expect(b"4 turns")
t.expect(b"> ")
t.type(b"\x04")
check(t.status() == 0, "status 0 at the end of input")

# Ctrl-C during a reply ends the reply; twice at the prompt leaves.
t = Terminal("-n", "8000", "--logit-bias", "74=400", "--exact", "--cpu-mask", "c", "--loops", "allow")
t.expect(b"> ")
t.type(b"talk\r")
t.expect(b"JJJ")
t.type(b"\x03")
t.expect(b"stopped")
t.expect(b"> ")
t.type(b"/stats\r")
t.expect(b"2 turns")
t.expect(b"> ")
t.type(b"\x03")
t.expect(b"> ")
t.type(b"\x03")
check(t.status() == 130, "status 130 after Ctrl-C twice")

# What is pasted is one message, lines, tabs and all; a short line is edited like a typed one; Escape still works.
t = Terminal("-n", "2", "--logit-bias", "74=400")
t.expect(b"\x1b[?2004h")
t.expect(b"> ")
t.type(b"/stats\r")
t.expect(b"0 turns")
check(b"last reply" not in t.seen, "no reply, no figures of one")
t.expect(b"> ")
t.type(b"see: \x1b[200~one\rtwo\tx\r\rfour\x1b[201~")
t.expect(b"[pasted 4 lines #1]")
t.type(b" and \x1b[200~a b\x1b[201~!\r")
t.expect(b"a b")
t.expect(b"JJ\r\n")
t.expect(b"> ")
saved = os.path.join(tempfile.mkdtemp(), "session")
t.type(b"/save " + saved.encode() + b"\r")
t.expect(b"saved")
t.expect(b"> ")
with open(saved + ".turns.json", encoding="utf8") as f:
    turns = json.load(f)["turns"]
check([x["content"] for x in turns] == ["see: one\ntwo\tx\n\nfour and a b!", "JJ"], f"one message from a paste: {turns}")
t.type(b"ab\x1b[Dc\r")  # cursor left, and the third letter in the middle
t.expect(b"JJ\r\n")
t.expect(b"> ")
t.type(b"/undo\r")
t.expect(b'"acb"')
t.expect(b"> ")
# A window of another size draws the line anew.
t.type(b"a line that is being typed")
t.expect(b"being typed")
for columns in 60, 50, 70:
    fcntl.ioctl(t.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    t.expect(b"a line that is being typed")
t.type(b"\x03")
t.expect(b"> ")
t.type(b"/exit\r")
check(t.status() == 0, "status 0 after /exit")

# Replies that go to a file: the line is edited on the terminal all the same, and the file has nothing but them.
with tempfile.TemporaryFile() as replies:
    t = Terminal("-n", "2", "--logit-bias", "74=400", out=replies.fileno())
    t.expect(b"> ")
    t.type(b"hello\r")
    t.expect(b"> ")
    t.type(b"/quit\r")
    check(t.status() == 0, "status 0 with replies to a file")
    replies.seek(0)
    text = replies.read()
    check(text == b"JJ\n", f"the file has the reply alone: {text!r}")
# A terminal that knows no escape sequences gets none.
t = Terminal("-n", "2", term="dumb")
t.expect(b"/help lists the commands\r\n")
t.expect(b"> ")
check(b"\x1b" not in t.all, f"no escape sequences: {t.all!r}")
t.type(b"/quit\r")
check(t.status() == 0, "status 0 on a dumb terminal")

# Lines of programs that share a terminal stay whole: each is one write, which a pipe of packets shows.
reader, writer = os.pipe2(os.O_DIRECT)
subprocess.run([TERN, "run", "-m", MODEL], stderr=writer, stdin=subprocess.DEVNULL, check=False)
line = os.read(reader, 65536)
check(line.startswith(b"tern: a prompt is missing") and line.endswith(b"\n"), f"one write for a line: {line!r}")

for c in complaints:
    print("FAILED:", c)
sys.exit(bool(complaints))
