"""Contractions of many operands, and questions to a whole network of tables.

The door is `tropical_einsum`: it checks arguments and chooses how a plan runs. Then, in this order:

plan
    `tropical_plan`: equation and sizes to the order of contractions. `plan_text`: a plan as the
    text of a payload and as the integers of the native library. `plan_rows`: a plan as the rows of
    a table that a loop reads.
forward
    `steps`: step by step, an op for each; for any semiring, symbolic sizes and several devices.
    `question`: a plan as one op, the base of all questions: `value` (with the first best
    assignment), `many` (samples, the best ones), `log_derivatives`. One native call answers them on
    CPU (step/native/network.cc); elsewhere `loops` with a rule for each question.
walk
    `walk`: from the last step back to the first, with a choice at each; `walk` in network.cc is the
    same. `rows_of`: the labels that it finds, each as an output of its own. `NetworkEntries`: the
    entries of tables there, which are the derivative of a value that selects.
slices
    `tropical_slices`: a plan cut along labels, one slice after another or over devices.
"""
