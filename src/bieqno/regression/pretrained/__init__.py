"""Regression of tables: local kriging experts with a pre-trained correction, a Gaussian process, trees, and their stack.

Local: `neighbours`, `experts`, `mixture`, `correction`, weighted by `leave_one_out`, joined in `process`. Global: `likelihood`,
`ard`, `trees`.
`stacking` weighs them, `joint` correlates predictions, `transforms` are those of the targets; `table` joins everything.
"""
