"""Closed forms and by-hand calculations that tests compare results with."""
