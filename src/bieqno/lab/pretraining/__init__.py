"""The training of the weights that ship."""
