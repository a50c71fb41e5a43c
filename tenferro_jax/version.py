"""The version of this distribution, of both packages in it: the one place that says it."""

__version__ = "0.1.0"
