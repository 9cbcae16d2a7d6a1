"""The command that Spark starts as Python: pass it on to the zygote of this Spark, and wait for its end.

It runs as a script without site-packages, in about 15 ms. Where no zygote answers it becomes the
Python that Spark asked for. A shell waits for the end: Spark has dozens of such processes, and each Python takes 4 MB.
Arguments: the real interpreter, the zygote's directory, the command.
"""

import json
import os
import socket
import sys

SOCKET = "zygote.sock"
_SHELL = "/bin/sh"
_WAIT = 'read -r code <&3; exit "${code:-1}"'


def main() -> int:
    """Send arguments, environment, directory and standard streams; return the command's exit code."""
    interpreter, directory, command = sys.argv[1], sys.argv[2], sys.argv[3:]
    here = os.getcwd()
    with socket.socket(socket.AF_UNIX) as zygote:
        try:
            os.chdir(directory)  # a socket's path has at most 107 bytes: a relative one fits
            zygote.connect(SOCKET)
        except OSError:
            os.chdir(here)
            os.execv(interpreter, [interpreter, *command])
        request = json.dumps({"argv": command, "env": dict(os.environ), "cwd": here}).encode()
        socket.send_fds(zygote, [len(request).to_bytes(4, "big")], [0, 1, 2])
        zygote.sendall(request)
        if os.access(_SHELL, os.X_OK):
            os.dup2(zygote.fileno(), 3)
            os.set_inheritable(3, True)  # where it was that number already
            os.execv(_SHELL, ["sh", "-c", _WAIT, __file__, directory, *command])
        code = zygote.recv(8)
    return int(code) if code.strip() else 1


if __name__ == "__main__":
    sys.exit(main())
