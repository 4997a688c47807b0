"""Pre-training of the weights that ship: random functions and the training on them."""
