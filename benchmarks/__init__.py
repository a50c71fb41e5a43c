"""One file a question; its first docstring line is the hypothesis. Results are kept in README.md."""
