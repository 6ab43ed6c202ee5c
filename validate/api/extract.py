"""Make `torch.json`, the table of torch's distributed API by release, from the releases' own sources.

    python -m pytorch_fsdp2_dcp.validate.api.extract      (or `make api`)

Downloads the macOS wheel of each release by pip, one after the other (some 100 MB each, none is installed or run), and
reads the modules below out of it. Run it when torch has a new release, read the difference of the table, and commit it.
Releases that pip is not allowed to have here are left out, and it says so.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from .sources import VALUE, Sources

TABLE = Path(__file__).with_name("torch.json")
FIRST = (2, 6)  # the oldest torch that the project supports
PLATFORMS = ("macosx_14_0_arm64", "macosx_11_0_arm64")  # the smallest wheels; the Python files are all platforms'

_CHECKPOINT = (
    "|".join((
        "api", "default_planner", "filesystem", "format_utils", "hf_storage", "metadata", "optimizer", "planner",
        "quantized_hf_storage", "staging", "state_dict", "state_dict_loader", "state_dict_saver", "stateful",
        "storage", "_fsspec_filesystem", "protocol",
    ))
)  # fmt: skip
# The modules whose names the table lists; of the others below torch.distributed it knows that they exist.
LISTED = re.compile(
    r"torch\.accelerator(\.memory|\.random|\.graphs)?"
    r"|torch\.nn\.utils(\.clip_grad)?"
    r"|torch\.distributed(\.distributed_c10d|\.device_mesh)?"
    r"|torch\.distributed\.fsdp(\.api|\.wrap|\.fully_sharded_data_parallel|\.sharded_grad_scaler|\._fully_shard)?"
    rf"|torch\.distributed\.checkpoint(\.({_CHECKPOINT}))?"
    r"|torch\.distributed\.tensor(\.parallel(\.\w+)?|\.placement_types|\.experimental|\.debug|\.device_mesh)?"
    r"|torch\.distributed\._tensor(\.api|\.placement_types|\.device_mesh)?"
    r"|torch\.distributed\._composable(\.fsdp)?"
    r"|torch\.distributed\.algorithms\._checkpoint\.checkpoint_wrapper"
)
READ = re.compile(r"torch/(distributed/|accelerator/|nn/utils/|nn/modules/module\.py$)")
MODULE = "torch.nn.modules.module"


def main() -> None:
    """Write the table."""
    releases: dict[str, dict[str, str]] = {}
    others: dict[str, set[str]] = {}
    for version in versions():
        with tempfile.TemporaryDirectory() as folder:
            wheel = download(version, Path(folder))
            if wheel is None:
                print(f"torch {version}: pip does not offer it here; left out", file=sys.stderr)
                continue
            sources = sources_of(wheel)
            releases[release(version)] = describe(sources)
            for module, names in foreign(sources).items():
                others.setdefault(module, set()).update(names)
            print(f"torch {version}: {len(releases[release(version)])} names", file=sys.stderr)
    TABLE.write_text(dumps(releases, others))


def release(version: str) -> str:
    """`2.9` of `2.9.0`: torch changes its API from one minor release to the next."""
    return ".".join(version.split(".")[:2])


def versions() -> list[str]:
    """The first of each minor release that the package index has, oldest first."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", "torch"], capture_output=True, text=True, check=True
    ).stdout
    found = {tuple(map(int, m.groups())) for m in re.finditer(r"\b(\d+)\.(\d+)\.(0)\b(?!\+)", listed)}
    return [".".join(map(str, v)) for v in sorted(found) if v[:2] >= FIRST]


def download(version: str, folder: Path) -> Path | None:
    """The wheel of a release; None when pip cannot or must not get it."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += [option for platform in PLATFORMS for option in ("--platform", platform)]
    command += ["--python-version", "3.11", "--dest", str(folder), f"torch=={version}"]
    subprocess.run(command, capture_output=True, check=False)
    return next(folder.glob("*.whl"), None)


def sources_of(wheel: Path) -> Sources:
    """The modules of a wheel that the table is made from."""
    texts: dict[str, str] = {}
    packages: set[str] = set()
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not (name.endswith(".py") and READ.match(name)):
                continue
            module = name.removesuffix(".py").replace("/", ".")
            if module.endswith(".__init__"):
                module = module.removesuffix(".__init__")
                packages.add(module)
            texts[module] = archive.read(name).decode()
    return Sources(texts, packages)


def describe(sources: Sources) -> dict[str, str]:
    """What one release has: a line for each name. A module's line ends in `...` when its names are not listed."""
    found: dict[str, str] = {}
    for module in sources.modules():
        found[module] = "module" if LISTED.fullmatch(module) and not sources.grows(module) else "module ..."
    for module in sources.modules():  # a function may go by the name of the module that it is in: it wins
        if LISTED.fullmatch(module):
            found.update(_names(sources, module))
    name, node = sources.find(MODULE, "Module")
    found.update(sources.describe(name, node, MODULE))
    return found


def foreign(sources: Sources) -> dict[str, set[str]]:
    """The names in the listed modules that are of other libraries, of which nobody asks since which release."""
    listed = (module for module in sources.modules() if LISTED.fullmatch(module))
    return {m: {n for n in sources.names(m) if not n.startswith("_") and sources.is_foreign(m, n)} for m in listed}


def _names(sources: Sources, module: str) -> Iterator[tuple[str, str]]:
    for name in sources.names(module):
        if name.startswith("_") or sources.is_foreign(module, name):
            continue
        path = f"{module}.{name}"
        defined, node = sources.find(module, name)
        home = defined.rpartition(".")[0]
        if defined in sources:
            if defined != path:  # a module under another name
                yield path, f"= {defined}"
        elif node is None or home not in sources:
            yield path, VALUE
        else:
            if defined != path:
                yield path, f"= {defined}"
            yield from _defined(sources, defined, node)


def _defined(sources: Sources, name: str, node: ast.AST | None) -> Iterator[tuple[str, str]]:
    """A definition and, for a class, those of its bases."""
    home = name.rpartition(".")[0]
    yield from sources.describe(name, node, home)
    if isinstance(node, ast.ClassDef):
        for base, inner in sources.bases(home, node):
            yield from _defined(sources, base, inner)


def dumps(releases: dict[str, dict[str, str]], others: dict[str, set[str]]) -> str:
    """The table as JSON, a line for each name.

    What all releases agree on is a string; what changed is an object: from which release on, what (null: gone).
    """
    names = sorted({name for names in releases.values() for name in names})
    parts = {
        "releases": json.dumps(list(releases)),
        "foreign": _lines((module, " ".join(sorted(others[module]))) for module in sorted(others) if others[module]),
        "names": _lines((name, _history(name, releases)) for name in names),
    }
    return "{\n" + ",\n".join(f" {json.dumps(key)}: {text}" for key, text in parts.items()) + "\n}\n"


def _lines(items: Iterable[tuple[str, object]]) -> str:
    return "{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in items) + "\n }"


def _history(name: str, releases: dict[str, dict[str, str]]) -> str | dict[str, str | None]:
    texts = [(number, names.get(name)) for number, names in releases.items()]
    changes = [(number, text) for i, (number, text) in enumerate(texts) if i == 0 or text != texts[i - 1][1]]
    if len(changes) == 1:
        assert changes[0][1] is not None
        return changes[0][1]
    return dict(changes if changes[0][1] is not None else changes[1:])


if __name__ == "__main__":
    main()
