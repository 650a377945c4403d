"""The works that are timed, one module each: its sizes, its contestants and what it must show."""
