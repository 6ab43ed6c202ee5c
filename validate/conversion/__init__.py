"""Write what `checkpoint` reads, in another format: DCP, one `.pt` file, safetensors. Needs NumPy, and no torch.

`entries` makes a list of what the source holds, `names` chooses and renames, `cast` changes dtypes, `pickling` and
`archive` write what `torch.save` writes, `pt`, `dcp` and `safetensors` are the destinations, `output` is the disk.
"""
