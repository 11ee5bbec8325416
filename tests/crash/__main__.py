"""The long form: ``python -m tests.crash --kills 300``; prints its figures, fails on any fault."""

from __future__ import annotations

import argparse
import random
import sys
import time

from tests.crash.campaign import run
from tests.crash.world import open_world


def main() -> int:
    """Run a campaign; the exit code says whether all held."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time")
    options = parser.parse_args()
    seed = random.randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    began = time.monotonic()

    def told(line: str) -> None:
        print(f"{time.monotonic() - began:7.0f} s  {line}", flush=True)

    with open_world() as world:
        run(world, options.kills, random.Random(seed), told=told)
        print("\n".join(world.figures.lines()))
        for fault in world.faults:
            print(f"FAULT: {fault}", file=sys.stderr)
        if world.faults:
            print(world.log(), file=sys.stderr)
        return 1 if world.faults else 0


if __name__ == "__main__":
    sys.exit(main())
