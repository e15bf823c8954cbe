"""torch.distributed's all_reduce with Gloo, one thread per rank, under the shared measuring loop.

  RANK=0 WORLD_SIZE=2 torch_bench.py --loop callback_loop.so --store DIR --address HOST --board FILE --plan 1024,65536
"""

import ctypes
import os
import sys
import traceback

import torch
import torch.distributed as distributed

PREPARE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int)


class Functions(ctypes.Structure):
    _fields_ = [("prepare", PREPARE), ("call", FUNCTION), ("barrier", FUNCTION)]


class Subject:
    tensor = None

    def prepare(self, collective, _input, output, elements):
        if collective != b"all_reduce":
            return 1
        self.tensor = torch.frombuffer((ctypes.c_float * elements).from_address(output), dtype=torch.float32)
        return 0

    def call(self):
        distributed.all_reduce(self.tensor)
        return 0

    def barrier(self):
        distributed.barrier()
        return 0


def guarded(function):
    """An exception must not be lost on its way through C: it is printed, and the run ends."""
    def call(*arguments):
        try:
            return function(*arguments)
        except Exception:
            traceback.print_exc()
            return 2
    return call


def value_of(name):
    return sys.argv[sys.argv.index(name) + 1]


def main():
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method="file://" + os.path.join(value_of("--store"), "torch"), rank=rank,
                                   world_size=world_size)
    subject = Subject()
    functions = Functions(
        PREPARE(guarded(subject.prepare)), FUNCTION(guarded(subject.call)), FUNCTION(guarded(subject.barrier))
    )
    loop = ctypes.CDLL(value_of("--loop"))
    words = [word.encode() for word in sys.argv]
    status = loop.bench_loop(len(words), (ctypes.c_char_p * len(words))(*words), rank, world_size, ctypes.byref(functions))
    distributed.destroy_process_group()
    return status


if __name__ == "__main__":
    sys.exit(main())
