"""What a worker process runs: imports with the collector out of the way, then the worker itself."""

from __future__ import annotations

import sys

from headwater import startup


def main() -> None:
    startup.begin()
    from headwater.engines.workers import worker

    startup.end()
    pipe, number, threads, *folders = sys.argv[1:]
    worker.main(int(number), int(threads), int(pipe), folders)


if __name__ == "__main__":
    main()
