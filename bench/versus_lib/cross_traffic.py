"""Traffic of others on the same links: a host that sends so many bytes by TCP to another one, chosen at random, at random
times, and takes what the others send.

cross_traffic.py SELF INTERVAL BYTES SEED ADDRESS...     SELF: which of the addresses; INTERVAL: seconds between bursts of this
host, on average; until it is ended
"""

import asyncio
import contextlib
import random
import sys

PORT = 29400
AT_ONCE = 10


async def take(reader, writer):
    with contextlib.suppress(OSError):
        while await reader.read(1 << 18):
            pass
    writer.close()


async def send(address, count):
    with contextlib.suppress(OSError):  # the receiver has not started yet, or has ended
        _, writer = await asyncio.open_connection(address, PORT)
        try:
            writer.write(bytes(count))
            await writer.drain()
        finally:
            writer.close()


async def main():
    own, interval, count, seed, addresses = (
        int(sys.argv[1]),
        float(sys.argv[2]),
        int(sys.argv[3]),
        int(sys.argv[4]),
        sys.argv[5:],
    )
    chance = random.Random(f"{seed}/{own}")
    others = [address for at, address in enumerate(addresses) if at != own]
    bursts = set()
    async with await asyncio.start_server(take, addresses[own], PORT):
        print("listens", flush=True)
        while True:
            await asyncio.sleep(chance.expovariate(1 / interval))
            if len(bursts) >= AT_ONCE:
                continue  # the lossy link is slower than the bursts
            burst = asyncio.ensure_future(send(chance.choice(others), count))
            bursts.add(burst)
            burst.add_done_callback(bursts.discard)


if __name__ == "__main__":
    asyncio.run(main())
