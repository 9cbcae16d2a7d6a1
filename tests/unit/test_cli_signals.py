"""Signals take effect at any point of the main thread."""

from __future__ import annotations

import subprocess
import sys

WAITS = """
import os, signal, threading, time
from headwater.cli.signals import STOPS, on_signals
told = []
stop = threading.Event()

def tell(number):
    told.append(number)
    stop.set()

back = on_signals(STOPS, tell)

class Interrupted(type(stop._cond)):
    def __enter__(self):  # the worst moment: whoever waits holds the lock that set() needs
        entered = super().__enter__()
        if threading.current_thread() is threading.main_thread() and not told:
            os.kill(os.getpid(), signal.SIGTERM)
        return entered

stop._cond = Interrupted(threading.Lock())
assert stop.wait(30)
assert told[0] == signal.SIGTERM
back()
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
"""


def test_a_signal_in_the_midst_of_a_wait_is_felt() -> None:
    subprocess.run([sys.executable, "-c", WAITS], check=True, timeout=40)


ELSEWHERE = """
import os, signal, threading
from headwater.cli.signals import stopped_by_signals
stop = stopped_by_signals()
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # so the kernel gives it to another thread
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
stop.wait()
"""


def test_a_signal_that_another_thread_was_given_is_felt() -> None:
    subprocess.run([sys.executable, "-c", ELSEWHERE], check=True, timeout=40)
