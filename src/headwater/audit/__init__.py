"""What a party could learn from what it saw in a run: the models that it held, and simple attacks on them."""
