"""The symbolic walk of a program."""

from . import expressions, imports, statements
from .core import Exhausted, Stop, Walk

__all__ = ["Exhausted", "Stop", "Walk", "expressions", "imports", "statements"]
