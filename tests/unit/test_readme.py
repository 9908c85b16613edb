"""What the documents say is what the code does: options, words, commands, names of tests and rules.

Everything is read from sources as text or syntax, so nothing heavy is imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from s3kv.bucket.capabilities import Capabilities
from s3kv.cli import app
from s3kv.config import MIB, RequestOptions, Settings
from s3kv.core.reasons import MissReason

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
TESTING = (ROOT / "docs/testing.md").read_text("utf-8")
ARCHITECTURE = (ROOT / "docs/ARCHITECTURE.md").read_text("utf-8")
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "terraform/README.md"]) + [
    path for path in sorted(ROOT.glob("docs/**/*.md")) if path.name != "test-report.md"
]
WRITTEN_BY_MAKE = ROOT / "docs/test-report.md"
UNSET = {"none", "AWS", "the SDK's chain"}


def rows(text: str, header: str) -> list[list[str]]:
    """The cells of the table that begins with a header line, without header and ruler."""
    lines = text[text.index(header) :].splitlines()[2:]
    table = []
    for line in lines:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table


def ticked(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def python_sources(*folders: str) -> str:
    own = Path(__file__)
    paths = [path for folder in folders for path in sorted(ROOT.glob(f"{folder}/**/*.py"))]
    return "\n".join(path.read_text("utf-8") for path in paths if path != own)


# ------------------------------------------------------------------ options
def is_shown(default: object, cell: str) -> bool:
    if default is None:
        return cell in UNSET
    if default == "":
        return cell == "empty"
    if isinstance(default, str):
        return cell == f"`{default}`"
    if isinstance(default, int) and default >= MIB:
        return cell == f"{default // MIB} MiB"
    return cell == f"{default:g}"


def test_the_readme_lists_every_option_and_its_default() -> None:
    listed: dict[str, str] = {}
    for names, default, *_ in rows(README, "| key | default | meaning |"):
        listed.update(dict.fromkeys(ticked(names), default))

    assert list(listed) == list(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        if field.is_required():
            assert listed[name] == "required"
        else:
            assert is_shown(field.default, listed[name]), f"{name}: {listed[name]}"


def test_the_readme_lists_every_option_of_a_request() -> None:
    paragraph = README[README.index("**Per request**") :].split("Every finished request")[0]

    assert set(ticked(paragraph)[1:]) == set(RequestOptions.model_fields)


# ------------------------------------------------------------- miss reasons
def given_in(tree: ast.AST) -> Iterator[str]:
    """Names of the reasons that code uses."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="MissReason"), attr=name):
                yield name


def test_the_miss_reasons_are_those_that_the_code_gives() -> None:
    sources = [*sorted(ROOT.glob("s3kv/connector/*.py")), *sorted(ROOT.glob("s3kv/core/*.py"))]
    given = {
        name
        for path in sources
        if path.stem != "reasons"
        for name in given_in(ast.parse(path.read_text("utf-8")))
    }
    listed = [
        word for names, _ in rows(README, "| `miss_reason` | why |") for word in ticked(names)
    ]

    assert given == set(MissReason.__members__)
    assert len(listed) == len(set(listed))
    assert set(listed) == {reason.value for reason in MissReason}


# ------------------------------------------------------- commands and targets
def make_targets(text: str) -> set[str]:
    in_words = re.findall(r"`make ([a-z][a-z-]*)[^`]*`", text)
    in_blocks = re.findall(r"^make ([a-z][a-z-]*)", text, re.MULTILINE)
    return {*in_words, *in_blocks}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_target_that_a_document_names_exists(path: Path) -> None:
    known = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))

    assert make_targets(path.read_text("utf-8")) <= known


def test_the_readme_and_the_test_guide_name_targets_at_all() -> None:
    assert {"demo", "test"} <= make_targets(README)
    assert {"lint", "test-fast", "test", "test-all"} <= make_targets(TESTING)


def test_the_readme_lists_every_command() -> None:
    listed = [ticked(row[0])[0].split()[1] for row in rows(README, "| command | does |")]

    assert listed == [command.name for command in app.registered_commands]


def test_the_start_up_line_is_the_one_that_is_printed() -> None:
    able = Capabilities(
        readable=True,
        writable=True,
        conditional_put=True,
        ranged_get=True,
        listing=True,
        deletable=True,
        conditional_delete="batch",
    )

    assert able.describe() in " ".join(README.split())


def test_every_variable_in_the_test_guide_is_read_somewhere() -> None:
    sources = python_sources("s3kv", "tests", "tools")
    for names, _ in rows(TESTING, "| variable | effect |"):
        (name,) = ticked(names)
        is_make_s = re.search(rf"^{name} \?=", MAKEFILE, re.MULTILINE)
        assert is_make_s or f'"{name}"' in sources, name


# ----------------------------------------------------- names, links, numbers
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_test_that_a_document_names_exists(path: Path) -> None:
    defined = set(re.findall(r"def (test_\w+)", python_sources("tests") + _own_source()))
    named = set(re.findall(r"`(test_\w+)`", path.read_text("utf-8")))

    assert named - defined == set()


def _own_source() -> str:
    return Path(__file__).read_text("utf-8")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_inside_the_repository_leads_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text("utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, heading = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if target == WRITTEN_BY_MAKE:
            continue
        assert target.exists(), link
        if heading:
            assert heading in headings(target.read_text("utf-8")), link


def headings(text: str) -> list[str]:
    """Anchors of a document's headings, as GitHub makes them."""
    lines = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines]


def cited(pattern: str, text: str) -> set[int]:
    """Numbers after a word, e.g. `FAULTS 3, 47`."""
    found: Sequence[str] = re.findall(pattern, text)
    return {int(number) for each in found for number in re.findall(r"\d+", each)}


def test_every_fault_that_code_cites_has_its_rule() -> None:
    text = (ROOT / "docs/faults.md").read_text("utf-8")
    listed = [int(number) for number in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)]

    assert listed == list(range(1, len(listed) + 1))
    assert cited(r"FAULTS (\d+(?:, \d+)*)", python_sources("s3kv", "tests")) <= set(listed)


def test_every_index_rule_that_code_cites_is_written_down() -> None:
    text = (ROOT / "docs/adr/0002-index-on-the-bucket.md").read_text("utf-8")
    listed = {int(number) for number in re.findall(r"^\| R(\d) \|", text, re.MULTILINE)}

    assert listed == set(range(1, 10))
    assert cited(r"\bR(\d)\b", python_sources("s3kv", "tests")) <= listed


def test_every_way_to_break_the_protocol_is_named_beside_its_rule() -> None:
    text = (ROOT / "docs/adr/0002-index-on-the-bucket.md").read_text("utf-8")
    named = {name for words in re.findall(NAMED_FAULTS, text) for name in ticked(words)}
    tried = re.findall(r'^    "(\w+)": \w+,$', simulation("test_rules"), re.MULTILINE)
    tried += re.findall(
        r'"(\w+)"', simulation("test_simulation").split('"fault", [')[1].split("]")[0]
    )

    assert tried
    assert all(f"`{name}`" in text for name in tried)
    assert named <= set(tried)


NAMED_FAULTS = r"(?:mutants?|story|stories) ((?:`\w+`(?:, )?)+)"


def simulation(name: str) -> str:
    return (ROOT / f"tests/simulation/{name}.py").read_text("utf-8")


def test_the_architecture_lists_every_module_of_the_connector() -> None:
    listed = [
        name for names, _ in rows(ARCHITECTURE, "| module | what |") for name in ticked(names)
    ]

    assert sorted(listed) == sorted(path.stem for path in ROOT.glob("s3kv/connector/*.py"))
