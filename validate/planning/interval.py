"""How often to save: the interval at which the time lost to saving and to failures together is least."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """Seconds. `cost` is what training stops for at each save; `mtbf` is of the whole job.

    * `every`: what to do: `daly`, but at least as long as a save takes, because one runs at a time.

    * `young`: by Young 1974, "A first order approximation to the optimum checkpoint interval", CACM 17(9).
    * `daly`: by Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3).
    * `lost`: the share of all time that goes to saves, work done again and restarts when saving so.
    """

    cost: float
    mtbf: float
    restart: float
    young: float
    daly: float
    every: float
    lost: float


def interval(cost: float, save: float, mtbf_of_a_node: float, nodes: int, restart: float) -> Interval:
    """The interval for a job that any node's failure stops; failures of nodes are independent, so their rates add up.

    `cost` is what training stops for, `save` how long it takes until a checkpoint is durable.
    """
    mtbf = mtbf_of_a_node / nodes
    daly = _daly(cost, mtbf)
    every = max(daly, save)
    return Interval(
        cost, mtbf, restart, math.sqrt(2 * cost * mtbf), daly, every, lost_share(every, cost, mtbf, restart)
    )


def _daly(cost: float, mtbf: float) -> float:
    """Equation 37 of the paper: Young's, corrected for a cost that is no small part of the time between failures."""
    if cost >= 2 * mtbf:
        return mtbf
    part = cost / (2 * mtbf)
    return math.sqrt(2 * cost * mtbf) * (1 + math.sqrt(part) / 3 + part / 9) - cost


def lost_share(every: float, cost: float, mtbf: float, restart: float) -> float:
    """The share of time lost when saving after each `every` seconds of work.

    Equation 20 of Daly 2006: of exponential times between failures, the expected time of work Ts is
    M e^(R/M) (e^((t+d)/M) - 1) Ts/t.
    """
    exponent = (every + cost) / mtbf
    if restart / mtbf + exponent > 700:  # more than a float can say: nothing is ever finished
        return 1.0
    return 1 - every / (mtbf * math.exp(restart / mtbf) * math.expm1(exponent))
