"""What bytes of unknown origin may ask of this process."""

from __future__ import annotations

import dataclasses

from ..errors import InvalidConfig, LimitExceeded


@dataclasses.dataclass(frozen=True)
class Limits:
    """The most that bytes may hold; each is checked before memory is taken for what it bounds.

    Of an exported program `load_exported` asks for `file_bytes`, and in its manifest `record_bytes` (all of it), `nodes` (extension
    calls), `payload_bytes` and `text_bytes`; graph bytes ask for all.

    Attributes:
      file_bytes: the whole.
      nodes: nodes, a body of control flow counted wherever it is used.
      values: what nodes read and give.
      records: lines that define something: types, tensors, ops.
      record_bytes: one line.
      payload_bytes: the payload of one extension.
      text_bytes: any other text: a name, a dimension, a guard.
      rank: axes of a value.
      elements: the product of the sizes of a value, symbolic ones left out.
      nesting: graphs in graphs, and brackets in one line.

    Raises:
      InvalidConfig: a limit that is no integer from 0.

    Example:
      >>> Limits(nodes=1_000_000).nodes
      1000000
    """

    file_bytes: int = 2**31
    nodes: int = 100_000
    values: int = 1_000_000
    records: int = 200_000
    record_bytes: int = 2**25
    payload_bytes: int = 2**24
    text_bytes: int = 2**16
    rank: int = 64
    elements: int = 2**48
    nesting: int = 64

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if type(value) is not int or value < 0:
                given = f"{field.name}={value!r}"
                raise InvalidConfig(where="Limits", given=given, needed="an integer from 0", fix="Leave it out for the default.")

    @classmethod
    def given(cls, limits: object, where: str) -> Limits:
        """The limits that a caller passed.

        Raises:
          InvalidConfig: they are none.
        """
        if not isinstance(limits, cls):
            raise InvalidConfig(where=where, given=f"limits={limits!r}", needed="Limits", fix="Leave it out for the usual.")
        return limits

    def require(self, name: str, size: int, where: str) -> None:
        """Refuse a size above a limit.

        Raises:
          LimitExceeded: the text names both, and the argument that allows more.
        """
        most = getattr(self, name)
        if size > most:
            raise LimitExceeded(
                where=where,
                given=f"{size} for {name}",
                needed=f"at most {most}",
                fix=f"Where you trust these bytes, pass limits=Limits({name}=...).",
            )
