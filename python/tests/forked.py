"""Runs a function in a forked child, for tests of children that members of a group make."""

import os
import signal
import threading
import traceback

CHILD_S = 30  # a child that takes longer hangs


def in_child(body):
    """Calls body() in a forked child, which ends without Python's clean-up. Raises an exception if the child failed or hung."""
    child = os.fork()
    if child == 0:
        signal.alarm(CHILD_S)
        code = 1
        try:
            body()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    # The alarm does not reach a child that hangs in os.fork().
    watch = threading.Timer(2 * CHILD_S, os.kill, (child, signal.SIGKILL))
    watch.start()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    watch.cancel()
    assert code == 0, f"the child ended with {code}"
