"""A whole plan as one op: one pass forward over its steps, and one way back. And an upper bound,
which needs no plan.

`question`
    The base of all questions to a plan: what each takes and gives, and where it runs. One native
    call answers it on CPUs (native/network.cc); elsewhere a loop in standard ops.
`value`
    The value, with the first best assignment; and which einsums run as one op.
`many`
    Samples, and the k best assignments.
`log_derivatives`
    The first and the second derivative under `log_sum_exp`: the gradient of a network.
`lanes`
    Derivatives in batches, where some inputs lack the labels of the batch.
`walk`
    Back from the last step to the first, with a choice at each: assignments. `NetworkEntries`: the
    entries of tables there, which are the gradient of a value that selects.
`loops`
    The loop in standard ops, whose program does not grow with the plan; a rule for each question.
`bound`, `bound_sweeps`, `bound_turns`
    An upper bound by sweeps over the variables, with its derivative; these sweeps in standard ops;
    and which variables each turn of theirs takes.
`former`
    An op that old files hold.
`plan_rows`, `plan_text`
    A plan as the rows that the loop reads, as the text of a payload, and as the integers of the
    native library.
"""
