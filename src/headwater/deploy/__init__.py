"""A real federation: each party is a process of its own, with its own data and disk, and messages go along the tree."""
