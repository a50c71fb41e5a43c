"""What the author of a function's op wrote, in place of the methods of the classes of ops."""

from __future__ import annotations

import re

from ..extension.contract import ExtensionOp
from ..extension.function_extension import FunctionExtension

TWICE = re.compile(r"\b([\w ]+?)(?:, or what| or|, or write) \1\b(?: emits,)?")


def in_words_of(op: ExtensionOp, text: str) -> str:
    """The text with the names under which the author of the op gave its parts.

    Example:
      >>> import tenferro_jax as tj
      >>> soft = tj.op("docs-words.soft.v1")(lambda x: x)
      >>> soft.defjvp(lambda primals, outputs, tangents: tangents[0]) and in_words_of(
      ...     soft.op(), "Correct transpose_rule or linearize.")
      'Correct defjvp.'
    """
    if not isinstance(op, FunctionExtension):
        return text
    given = op.function
    rule = "defjvp" if given.jvp else "bwd" if given.fwd else ""
    rule = rule or ("def_transpose" if given.transpose else "the function")
    infers = "def_infer" if given.infer else "the function"
    for name, written in (
        ("Override lower_to_standard_ops( or sharding_rule)?", r"Return arrays from the function"),
        (r"Override (linearize|transpose_rule|it\b)", "Write @f.defjvp"),
        ("Override ", "Write f."),
        (r"linearize|transpose_rule", rule),
        ("infer_output_meta and the implementation", f"{infers} and what computes the result"),
        ("infer_output_meta", infers),
        ("eager_execute|the host form", "def_host"),
        (r"batched\((in_axes)?\)", "def_vmap"),
        ("differentiable_form", "fwd"),
        ("sharding_rule", "def_sharding"),
        (r"\b([Tt])he lowering\b", r"\1he function"),
        (r"\blowerings\b", "functions"),
        ("lower_to_standard_ops", "the function"),
    ):
        text = re.sub(name, written, text)
    return TWICE.sub(r"\1", text)
