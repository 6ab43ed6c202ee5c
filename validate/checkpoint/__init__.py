"""Read checkpoints (DCP's, and safetensors written through DCP) without torch and without executing anything in them.

`folders` lists and reads files, `pickles` is the machine that builds only what it is told, `metadata` and `safetensors`
say what a checkpoint holds and where, `archives` finds the bytes of one chunk, `values` streams a tensor's.
"""
