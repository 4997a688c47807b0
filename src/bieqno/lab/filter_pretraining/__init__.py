"""Pre-training of the ensemble filter that ships: families of random systems and the training on them."""
