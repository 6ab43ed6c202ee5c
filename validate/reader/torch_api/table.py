"""The tables that say what library code does: one entry for an API, written next to its kin in this folder.

`@api("torch.optim.AdamW")` registers what a call of that canonical name does (`torch.nn.*`: of each name that has no
entry of its own), `@method(What.MODULE, "state_dict")` a method of objects without source, `@anything("full_tensor")` a
method name that tells by itself what the receiver is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..values import Obj, Value, What

if TYPE_CHECKING:
    from ..walk.calls import Call

API: dict[str, Callable[[Call], Value]] = {}
METHODS: dict[tuple[What, str], Callable[[Call, Obj], Value]] = {}
ANY_METHODS: dict[str, Callable[[Call, Value], Value | None]] = {}

Api = Callable[["Call"], Value]
MethodApi = Callable[["Call", Obj], Value]
AnyApi = Callable[["Call", Value], "Value | None"]


def api(*names: str) -> Callable[[Api], Api]:
    """Register what a call of these canonical names does."""

    def register(handler: Api) -> Api:
        API.update(dict.fromkeys(names, handler))
        return handler

    return register


def method(what: What | tuple[What, ...], *names: str) -> Callable[[MethodApi], MethodApi]:
    """Register what these methods of such objects do."""

    def register(handler: MethodApi) -> MethodApi:
        for kind in what if isinstance(what, tuple) else (what,):
            METHODS.update({(kind, name): handler for name in names})
        return handler

    return register


def anything(*names: str) -> Callable[[AnyApi], AnyApi]:
    """Register a method that any unknown receiver may have; the handler returns None when it does not apply."""

    def register(handler: AnyApi) -> AnyApi:
        ANY_METHODS.update(dict.fromkeys(names, handler))
        return handler

    return register
