"""Those who do the work that is timed, each in a process of its own; `serve` is what they have in common."""
