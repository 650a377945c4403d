"""Train FedHEAD on the built-in digits and read what a run returns.

    python examples/01_first_run.py

The federation is simulated in this process: one server, 2 sectors, 6 clients. Nothing is written to disk.
"""

import headwater as hw

run = hw.run(
    "fedhead",  # any name of `headwater list algorithms`
    data="digits",  # 8 x 8 images, part of the installation
    model="mlp",  # a small network; without this line one is chosen to suit the data
    clients=6,
    sectors=2,
    alpha=1.0,  # label skew: clients' class shares are drawn from a Dirichlet distribution; small means very unequal
    rounds=3,
    local__epochs=4,  # key `epochs` of section [local]; the section is needed because several sections have `epochs`
    seed=0,  # all random numbers follow from the seed: run this twice and the model is the same, bit for bit
)

# The global model on the test set, after the last round and after each one.
print(f"test accuracy {run.accuracy:.3f}")
for row in run.history:
    print(f"round {row['round']}: accuracy {row['accuracy']:.3f}, loss {row['loss']:.3f}")

# The ledger counts every byte that training moved over a link, both directions together.
print(f"server and sectors exchanged {run.ledger.bytes('server_sector')} bytes")
print(f"sectors and clients exchanged {run.ledger.bytes('sector_client')} bytes")

# The trained model is an ordinary torch module.
print(f"{sum(parameter.numel() for parameter in run.model.parameters())} parameters, {type(run.model).__name__}")
