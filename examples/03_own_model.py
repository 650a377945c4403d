"""Train your own network: any `nn.Module` that returns one logit per class.

python examples/03_own_model.py
"""

import torch
from torch import Tensor, nn

import headwater as hw


class SmallNet(nn.Module):
    """Two layers for the digits: inputs are (batch, 1, 8, 8), outputs are (batch, 10)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, width)
        self.output = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(torch.relu(self.hidden(x.flatten(1))))


# Give a function that builds the model. It is called where one is needed; the run's seed decides the initial weights.
# On the command line, name it instead: headwater run fedavg --set model.name=my_package.my_module:SmallNet
run = hw.run("fedavg", model=lambda: SmallNet(width=48), clients=4, alpha=1.0, rounds=3, local__epochs=5)
print(f"fedavg: accuracy {run.accuracy:.3f} with {run.result['parameters']} parameters")

# The trained model comes back as the same class, in evaluation mode.
model = run.model
logits = model(torch.zeros(5, 1, 8, 8))
print(f"{type(model).__name__} returns logits of shape {tuple(logits.shape)}")

# Methods that use features (moon, fedproto, fedhkd, fedgen) need a feature extractor and a classifier. A module without
# parts called `features` and `classifier` is divided at the linear layer that returns the logits.
run = hw.run("moon", model=SmallNet, clients=4, alpha=1.0, rounds=2, local__epochs=5)
print(f"moon: accuracy {run.accuracy:.3f}, divided before the last linear layer")
