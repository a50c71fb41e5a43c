"""Each file answers one question; the first line of its docstring is the hypothesis. Results are in
results/ and, in short, in README.md.
"""
