"""Where the ranks begin to call different sharded modules, or the same ones in another order.

Each call gathers parameters, by a collective that pairs up with whatever the other ranks call: with the wrong one, it
is given parts of other parameters where these have the same shape, and waits or fails where they have not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..events import Event, Location, RanksParted, Ref


@dataclass(frozen=True)
class Call:
    """A call of a sharded module: its number in the order of sharding, its id, and where it is called."""

    number: int
    id: int
    at: Location


@dataclass(frozen=True)
class Parting:
    """The first difference; `orders` of the calls by the program that lead there, by rank, as `calls`.

    None for a rank that makes no more calls there.
    """

    orders: Mapping[int, int]
    calls: Mapping[int, Call | None]

    def mark(self, events: list[list[Event]], names: list[Callable[[int], str | None]]) -> None:
        """Tell of it, on one of the ranks that go another way than most."""
        ways: dict[int | None, list[int]] = {}
        for rank, call in self.calls.items():
            ways.setdefault(None if call is None else call.number, []).append(rank)
        rank = min((ranks for way, ranks in ways.items() if way is not None), key=lambda r: (len(r), r))[0]
        call = self.calls[rank]
        assert call is not None
        others = [r for r in self.calls if r not in ways[call.number]]
        instead = {r: self._shown(r, names[r]) for r in others}
        words = [
            f"{said} on {'rank' if len(on) == 1 else 'ranks'} {', '.join(map(str, on))}"
            for said in dict.fromkeys(instead.values())
            if (on := [r for r in others if instead[r] == said])
        ]
        order = self.orders[rank]
        place = next(i for i, e in enumerate(events[rank]) if e.order == order)
        module = Ref(call.id, names[rank](call.id) or "a sharded module")
        when = events[rank][place].when
        event = RanksParted(order=order, at=call.at, when=when, module=module, instead=" and ".join(words))
        events[rank].insert(place + 1, event)

    def _shown(self, rank: int, name: Callable[[int], str | None]) -> str:
        call = self.calls[rank]
        return "nothing more" if call is None else f"`{name(call.id) or 'another module'}`"


def parted(called: list[dict[int, list[Call]]], returned: list[set[int]], events: list[list[Event]]) -> Parting | None:
    """The first difference between the ranks, call by call of the program, as far as each is known to have come."""
    if len(called) < 2:
        return None
    ends = [max((e.order for e in own), default=-1) for own in events]
    for orders in zip(*(sorted(one) for one in called), strict=False):
        ways = [one[order] for one, order in zip(called, orders, strict=True)]
        whole = [o in done and o < end for o, done, end in zip(orders, returned, ends, strict=True)]
        for place in range(max(map(len, ways))):
            calls = {
                rank: way[place] if place < len(way) else None
                for rank, way in enumerate(ways)
                if place < len(way) or whole[rank]
            }
            if len({None if call is None else call.number for call in calls.values()}) > 1:
                return Parting(dict(enumerate(orders)), calls)
    return None
