"""The house rules that a machine can check (STYLE.md gives the reasons)."""

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE_FOLDERS = ("core", "format", "services", "client", "spark")
GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")

QUESTION_WORDS = {"How", "What", "When", "Where", "Whether", "Which", "Who", "Why"}
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "manager", "misc", "impl"}
KEPT = {".py", ".md", ".toml", ".txt", ".yaml", "Makefile", "run"}
MADE = {".git", ".venv", ".demo", ".bench", ".load", ".hypothesis", "__pycache__"}
FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 90


def sources(*folders: str) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not GENERATED.search(path.name) and ".venv" not in path.parts:
                yield path


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def kept_files() -> Iterator[Path]:
    """Files of the repository, without looking into the tens of thousands that tools made."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in MADE]
        yield from (Path(folder, name) for name in names)


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All of a module; expressions, which are most of it, hold none."""
    statements: list[ast.AST] = [tree]
    while statements:
        statement = statements.pop()
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement
        statements += [
            child
            for child in ast.iter_child_nodes(statement)
            if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case)
        ]


def test_files_are_named_after_what_is_in_them_and_fit_a_reading() -> None:
    for path in sources(*SOURCE_FOLDERS):
        assert path.stem not in VAGUE_NAMES, f"{shown(path)}: name it after the noun it holds"
        lines = path.read_text().count("\n")
        assert lines <= FILE_LINES_MAX, f"{shown(path)}: {lines} lines: split by object and role"


def test_functions_fit_a_screen_and_modules_say_what_they_are_for() -> None:
    for path in sources(*SOURCE_FOLDERS):
        tree = ast.parse(path.read_text())
        if tree.body:
            first = (ast.get_docstring(tree) or "").split(" ")[0].rstrip(",:")
            assert first, f"{shown(path)}: a module begins with what it is for"
            assert first not in QUESTION_WORDS, f"{shown(path)}: begin with a noun to search for"
        for each in functions(tree):
            length = (each.end_lineno or each.lineno) - each.lineno + 1
            assert length <= FUNCTION_LINES_MAX, f"{shown(path)}: {each.name}: {length} lines"


def test_tests_never_sleep_and_never_mock() -> None:
    for path in sources("tests"):
        text = path.read_text()
        if "mock" not in text and "sleep" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
                assert not any("mock" in name for name in names), (
                    f"{shown(path)}: write a fake and verify it"
                )
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                slept = node.func.attr == "sleep" and node.args
                if slept and isinstance(node.args[0], ast.Constant):
                    assert node.args[0].value == 0, (
                        f"{shown(path)}, line {node.lineno}: wait for what you wait for"
                    )


def spins(node: ast.AST) -> bool:
    """Whether a loop does nothing but look."""
    return isinstance(node, ast.While) and all(
        isinstance(each, ast.Pass | ast.Continue) for each in node.body
    )


def test_nothing_waits_by_taking_the_processor_from_what_it_waits_for() -> None:
    for path in sources(*SOURCE_FOLDERS, "protos", "tests", "tools", "bench", "deploy"):
        text = path.read_text()
        if re.search(r"^ *(pass|continue)\b", text, re.MULTILINE):
            found = [each.lineno for each in ast.walk(ast.parse(text)) if spins(each)]
            assert not found, f"{shown(path)}, lines {found}: wait for it, or work in the body"


def test_the_repository_names_no_machine_and_no_registry() -> None:
    words = re.compile("/" + r"work/|pypi\." + r"org|files\.python" + "hosted")
    for path in kept_files():
        if path != Path(__file__) and (path.suffix in KEPT or path.name in KEPT):
            assert not words.search(path.read_text(errors="replace")), shown(path)


def test_every_link_and_every_path_in_the_documents_leads_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{shown(page)}: {target}"
    reading = (ROOT / "docs" / "architecture.md").read_text().partition("## Reading the source")[2]
    paths = re.findall(r"^\d\. `([^`]+)`", reading, re.MULTILINE)
    assert len(paths) == 5
    for path in paths:
        assert (ROOT / path).is_file(), path


def test_the_table_of_folders_names_folders_and_files_that_there_are() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.partition("## Folders")[2].partition("## Flows")[0]
    named = re.findall(r"`([\w/]+(?:\.py|/))`", table)
    assert len(named) > 30
    paths = [path.as_posix() for path in sources(*SOURCE_FOLDERS, "protos")]
    assert [name for name in named if not any(f"/{name}" in path for path in paths)] == []


def test_python_in_the_readme_and_the_users_pages_compiles() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs" / "use").glob("*.md")]:
        blocks = re.findall(
            r"^( *)```python\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE
        )
        for indent, block in blocks:
            text = re.sub(f"^{indent}", "", block, flags=re.MULTILINE)
            compile(text, str(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_an_installed_package_brings_one_unmistakable_import_name() -> None:
    for metadata in [*ROOT.glob("*/pyproject.toml"), *ROOT.glob("services/*/pyproject.toml")]:
        packages = [
            folder.name for folder in metadata.parent.iterdir() if (folder / "__init__.py").exists()
        ]
        assert len(packages) == 1, f"{shown(metadata)}: {packages}"
        assert packages[0].startswith("rockoon"), packages
