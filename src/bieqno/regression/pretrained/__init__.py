"""Zero-shot regression: a mixture of kriging experts near each point, and an operator that has learned to correct it.

The path of a prediction: `neighbours`, `experts`, `mixture`, `correction`, weighted by `leave_one_out`; `process` joins them.
"""
