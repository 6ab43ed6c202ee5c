"""What a run needs, before it runs: memory, checkpoints, how often to save, what fits, and how DCP's planning scales.

`model` is what is sharded, made from numbers or a config by `transformer` or from code by `build`; `memory` has the
formulas and `tracked` torch's own memory tracker; `checkpoint`, `interval`, `fits` and `scale` answer one question
each; `report` is the result as people and programs read it.
"""
