"""Each file answers one question; the first line of its docstring is the hypothesis. Results are in
README.md.
"""
