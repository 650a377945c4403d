"""What should happen, as formulas: bytes on every link, published bounds, and how unlike the clients are.

Nothing here looks at a run. The ledger says what did move, and the tests hold the two against each other.
"""
