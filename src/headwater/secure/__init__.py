"""Secure aggregation: whoever adds up the values of several members learns their sum and no single value.

`fixed_point` turns numbers into integers that add up exactly, `primitives` names the cryptography (all of it from
`cryptography` and `pycryptodome`), and `protocol` has the steps of members and aggregator. None of it knows of
transport, engines or methods; `headwater.core.secure_sums` puts it under the verbs.
"""
