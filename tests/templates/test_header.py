"""The `# /// fsdp2` block: what is written is read back, it is TOML, and a broken one is refused."""

from __future__ import annotations

import sys

import pytest
from pytorch_fsdp2_dcp.validate import header
from pytorch_fsdp2_dcp.validate.errors import UserError
from pytorch_fsdp2_dcp.validate.header import Header

HEADER = Header(
    version="1.2.3",
    answers={"mesh": "dp_shard=-1", "async_mode": "async"},
    digest="0123456789abcdef",
    checkpoint_arg="--checkpoint-dir",
    steps_arg="--steps",
    proof_args=("--steps", "8", "--name", 'a "b" = \\ é', ""),
)
BLOCK = header.render(HEADER)
SCRIPT = f'"""A script."""\n{BLOCK}\n\nprint()\n'


def test_what_is_rendered_is_read_back() -> None:
    assert header.parse(SCRIPT) == HEADER


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib is of Python 3.11")
def test_the_block_is_toml_in_comments() -> None:
    import tomllib

    document = tomllib.loads("\n".join(line[2:] for line in BLOCK.splitlines()[1:-1]))
    assert document["answers"] == HEADER.answers
    assert document["validate"]["steps_arg"] == "--steps"


def test_a_script_without_a_block_carries_nothing() -> None:
    assert header.parse("import torch  # /// fsdp2 is not at the start of this line\n") is None


def test_keys_of_a_later_version_are_passed_over() -> None:
    assert header.parse(SCRIPT.replace("# [answers]", "# later = true\n# [answers]")) == HEADER


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("# ///\n", "", "not closed"),
        ("# ///\n", "x = 1\n# ///\n", "not closed"),
        ("print()", BLOCK, "second"),
        ('"1.2.3"', "1.2.3", "not JSON"),
        ('"1.2.3"', "", "not JSON"),
        ('"1.2.3"', "1", "no string as `version`"),
        ('# version = "1.2.3"\n', "", "has no `version`"),
        ('# steps_arg = "--steps"\n', "", "has no `steps_arg` under \\[validate\\]"),
        ("# [validate]", "# [answers]", "opens \\[answers\\] again"),
        ("# mesh =", "# mesh", "expected `key = JSON value`"),
        ("# mesh =", "# async_mode =", "sets `async_mode` again"),
        ("# mesh = \"dp_shard=-1\"", "# mesh = [1]", "no string as `mesh`"),
        ("--steps 8", "'--steps 8", "No closing quotation"),
    ],
)  # fmt: skip
def test_a_malformed_block_is_refused_in_one_line(old: str, new: str, reason: str) -> None:
    assert old in SCRIPT
    with pytest.raises(UserError, match=reason) as caught:
        header.parse(SCRIPT.replace(old, new, 1))
    assert "\n" not in str(caught.value)
    assert "expected" in str(caught.value)


def test_the_digest_is_of_the_script_without_its_block() -> None:
    assert header.digest(SCRIPT) == header.digest(SCRIPT.replace("1.2.3", "4.5.6"))
    assert header.digest(SCRIPT) != header.digest(SCRIPT.replace("print()", "print(1)"))
