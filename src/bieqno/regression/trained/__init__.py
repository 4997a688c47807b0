"""The paper's generalized Gaussian process, trained on the data at hand."""
