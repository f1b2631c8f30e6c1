"""The house rules that a machine can check (STYLE.md gives the reasons)."""

import ast
import gc
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from functools import cache
from pathlib import Path

import pytest

from tools import stranger

ROOT = Path(__file__).resolve().parent.parent
SOURCE_FOLDERS = ("core", "format", "rpc", "services", "client", "spark")
GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")

QUESTION_WORDS = {"How", "What", "When", "Where", "Whether", "Which", "Who", "Why"}
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "manager", "misc", "impl"}
KEPT = {".py", ".md", ".toml", ".txt", ".yaml", "Makefile", "run"}
MADE = {
    ".git",
    ".venv",
    ".demo",
    ".bench",
    ".compare",
    ".conformance",
    ".rocketmq",
    ".load",
    ".docs",
    ".images",
    ".hypothesis",
    "__pycache__",
    "target",
}
FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70
LONG_FUNCTIONS = {
    # A table of steps: a split would hide their order.
    "rockoon_spark/jobs/export.py: export",
    # One match over the kinds of action.
    "rockoon_replica/replica.py: _carry_out",
}
LONG_FUNCTION_LINES_MAX = 90
CIRCLE_MODULES_MAX = 3
# The SDK once more, without asyncio: what is there has the name that it has in the SDK.
TWINS = "rockoon.sync"


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


@cache
def tree_of(path: Path) -> ast.Module:
    """A file's syntax; several rules look at the same."""
    return ast.parse(path.read_text())


@pytest.fixture(scope="module", autouse=True)
def trees() -> Iterator[None]:
    """Keep the trees for the tests of this module only.

    The garbage collector is off: trees have no cycles, and each full collection visits all nodes.
    """
    gc.disable()
    yield
    tree_of.cache_clear()
    gc.enable()


def statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """All of a module; expressions, which are most of it, hold none."""
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.stmt):
            yield node
        nodes += [
            child
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case)
        ]


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for each in statements(tree):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield each


def modules() -> Mapping[str, ast.Module]:
    """Our packages' modules, by the names that they are imported by."""
    found: dict[str, ast.Module] = {}
    for path in sources(*SOURCE_FOLDERS):
        parts = path.relative_to(ROOT).with_suffix("").parts
        package = next((at for at, part in enumerate(parts) if part.startswith("rockoon")), None)
        if package is not None:
            name = ".".join(parts[package:]).removesuffix(".__init__")
            found[name] = tree_of(path)
    return found


def imported(tree: ast.Module) -> Iterator[str]:
    """All that a module imports, in functions and for types only too: modules, or names in them."""
    for node in statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            yield str(node.module)


def circles(graph: Mapping[str, Set[str]]) -> Iterator[set[str]]:
    """Sets of two and more that all lead to each other: Kosaraju's strong components."""
    order: list[str] = []
    back: dict[str, set[str]] = defaultdict(set)
    seen: set[str] = set()

    def visit(start: str, arrows: Mapping[str, Set[str]], left: list[str]) -> None:
        """Put what can be reached and has not been seen into `left`, the farthest first."""
        ways = [(start, iter(sorted(arrows.get(start, ()))))]
        seen.add(start)
        while ways:
            place, onward = ways[-1]
            following = next((each for each in onward if each not in seen), None)
            if following is None:
                left.append(place)
                ways.pop()
            else:
                seen.add(following)
                ways.append((following, iter(sorted(arrows.get(following, ())))))

    for place, following in graph.items():
        if place not in seen:
            visit(place, graph, order)
        for each in following:
            back[each].add(place)
    seen.clear()
    for place in reversed(order):
        if place not in seen:
            circle: list[str] = []
            visit(place, back, circle)
            if len(circle) > 1:
                yield set(circle)


def test_files_are_named_after_what_is_in_them_and_fit_a_reading() -> None:
    for path in sources(*SOURCE_FOLDERS):
        assert path.stem not in VAGUE_NAMES, f"{shown(path)}: name it after the noun it holds"
        lines = path.read_text().count("\n")
        assert lines <= FILE_LINES_MAX, f"{shown(path)}: {lines} lines: split by object and role"


def test_no_merge_has_left_its_marks() -> None:
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")):
        assert "\n<<<<<<< " not in path.read_text(), f"{shown(path)}: resolve the conflict"


def test_functions_fit_a_screen_and_modules_say_what_they_are_for() -> None:
    for path in sources(*SOURCE_FOLDERS):
        tree = tree_of(path)
        if tree.body:
            first = (ast.get_docstring(tree) or "").split(" ")[0].rstrip(",:")
            assert first, f"{shown(path)}: a module begins with what it is for"
            assert first not in QUESTION_WORDS, f"{shown(path)}: begin with a noun to search for"
        for each in functions(tree):
            length = (each.end_lineno or each.lineno) - each.lineno + 1
            is_long = f"{shown(path)}: {each.name}".endswith(tuple(LONG_FUNCTIONS))
            most = LONG_FUNCTION_LINES_MAX if is_long else FUNCTION_LINES_MAX
            assert length <= most, f"{shown(path)}: {each.name}: {length} lines"


ENTRY = re.compile(r" {4}([*\w`]+(?:, [*\w`]+)*):(?: |$)")


def unknown_arguments(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return names under `Args:` in a docstring that are no parameters of the function or of the
    class's constructor.
    """
    section = (ast.get_docstring(node) or "").partition("\nArgs:\n")[2]
    entries = re.split(r"\n(?=\S)", section)[0].splitlines()
    named = {
        name.strip("*`")
        for entry in filter(None, map(ENTRY.match, entries))
        for name in entry[1].split(", ")
    }
    parameters = set()
    for part in node.body if isinstance(node, ast.ClassDef) else [node]:
        if isinstance(part, ast.AnnAssign):
            parameters.add(ast.unparse(part.target))
        elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and (
            part is node or part.name in ("__init__", "__new__")
        ):
            parameters |= {each.arg for each in ast.walk(part.args) if isinstance(each, ast.arg)}
    return named - parameters


def test_docstrings_list_parameters_that_there_are() -> None:
    for path in sources(*SOURCE_FOLDERS, "bench", "tools"):
        for node in statements(tree_of(path)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                unknown = unknown_arguments(node)
                assert not unknown, f"{shown(path)}: {node.name} has no parameter {unknown}"


def test_an_argument_in_a_docstring_that_is_no_parameter_is_found() -> None:
    text = """Sum.

    Args:
        a, *rest: numbers; more than
            two: slow.
        c: nothing.

    Returns:
        d: the sum.
    """
    documented = ast.Expr(ast.Constant(text))
    function, cls = ast.parse(
        "def add(a, b, *rest): ...\nclass Sum:\n    def __init__(self, a, *rest): ..."
    ).body
    for node in (function, cls):
        assert isinstance(node, ast.FunctionDef | ast.ClassDef)
        node.body.insert(0, documented)
        assert unknown_arguments(node) == {"c"}


def test_a_name_means_one_class() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module, tree in modules().items():
        for each in tree.body:
            if isinstance(each, ast.ClassDef) and not each.name.startswith("_") and module != TWINS:
                places[each.name].append(module)
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not twice, "name the subject of the class"


def test_renamed_classes_do_not_return() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text().partition("## Renamed")[2]
    renamed = dict(re.findall(r"^\| `(\w+)` \| `(\w+)`", page, re.MULTILINE))
    assert len(renamed) > 20
    names = {
        each.name
        for tree in modules().values()
        for each in statements(tree)
        if isinstance(each, ast.ClassDef)
    }
    assert {old: new for old, new in renamed.items() if old in names} == {}
    assert {new for new in renamed.values() if new not in names} == set()


def test_imports_make_no_large_circles() -> None:
    trees = modules()
    graph = {name: (set(imported(tree)) & trees.keys()) - {name} for name, tree in trees.items()}
    for circle in circles(graph):
        assert len(circle) <= CIRCLE_MODULES_MAX, f"take apart what leads around: {sorted(circle)}"


def test_circles_are_found_whole_and_chains_are_none() -> None:
    graph = {"a": {"b"}, "b": {"c", "x"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d", "f"}, "f": set()}
    assert sorted(map(sorted, circles(graph))) == [["a", "b", "c"], ["d", "e"]]
    assert list(circles({"a": {"b", "c"}, "b": {"c"}, "c": set()})) == []


def test_tests_never_sleep_and_never_mock() -> None:
    for path in sources("tests"):
        text = path.read_text()
        if "mock" not in text and "sleep" not in text:
            continue
        for node in ast.walk(tree_of(path)):
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


# A body whose first statement does nothing, perhaps after comments.
EMPTY_BODY = re.compile(r":\s*(?:#.*\n\s*)*(?:pass|continue|await asyncio\.sleep\(0\))")


def spins(node: ast.AST) -> bool:
    """Whether a loop does nothing but look."""
    return isinstance(node, ast.While) and all(
        isinstance(each, ast.Pass | ast.Continue) or ast.unparse(each) == "await asyncio.sleep(0)"
        for each in node.body
    )


def test_nothing_waits_by_taking_the_processor_from_what_it_waits_for() -> None:
    for path in sources(*SOURCE_FOLDERS, "protos", "tests", "tools", "bench", "deploy"):
        text = path.read_text()
        if EMPTY_BODY.search(text):
            found = [each.lineno for each in statements(tree_of(path)) if spins(each)]
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
    reading = (
        (ROOT / "docs" / "understand" / "architecture.md")
        .read_text()
        .partition("## Reading the source")[2]
    )
    paths = re.findall(r"^\d\. `([^`]+)`", reading, re.MULTILINE)
    assert len(paths) == 5
    for path in paths:
        assert (ROOT / path).is_file(), path


def test_files_that_the_pages_of_flows_name_exist() -> None:
    for page in (ROOT / "docs" / "understand").glob("*.md"):
        folder = ROOT
        for row in page.read_text().partition("## Where to read")[2].splitlines():
            for name in re.findall(r"`([\w/]+(?:\.py|/))`", row):
                path = ROOT / name if (ROOT / name).exists() else folder / name
                assert path.exists(), f"{shown(page)}: {name}"
                folder = path.parent


def test_each_file_that_starts_threads_or_has_locks_is_in_the_page_of_threads() -> None:
    page = (ROOT / "docs" / "understand" / "threads.md").read_text()
    made = re.compile(
        r"ThreadPoolExecutor\(|threading\.(?:Thread|Timer|R?Lock|Condition)\(|to_thread\("
    )
    for path in sources("core", "rpc", "services", "client/rockoon"):
        if made.search(path.read_text()):
            assert path.name in page or f"`{path.parent.name}/`" in page, (
                f"{shown(path)} is missing"
            )


def test_each_decision_has_a_status_a_date_a_subject_and_a_line_in_the_index() -> None:
    index = (ROOT / "docs" / "adr" / "README.md").read_text()
    for page in (ROOT / "docs" / "adr").glob("0*.md"):
        heading, _, status = page.read_text().split("\n")[:3]
        number, title = heading.removeprefix("# ").split(". ", 1)
        found = re.fullmatch(r"Status: .+\. Date: \d{4}-\d\d-\d\d\. Subject: (.+)\.", status)
        assert found is not None, f"{shown(page)}: no status, date and subject in line 3"
        section = index.partition(f"\n## {found[1]}\n")[2].partition("\n## ")[0]
        assert f"| {number} | [{title}]({page.name}) |" in section, f"{shown(page)}: not in README"


def test_the_table_of_folders_names_folders_and_files_that_there_are() -> None:
    page = (ROOT / "docs" / "understand" / "architecture.md").read_text()
    table = page.partition("## Folders")[2].partition("## Flows")[0]
    named = re.findall(r"`([\w/]+(?:\.py|/))`", table)
    assert len(named) > 30
    paths = [path.as_posix() for path in sources(*SOURCE_FOLDERS, "protos")]
    assert [name for name in named if not any(f"/{name}" in path for path in paths)] == []


def test_a_stranger_finds_what_decides_in_two_steps() -> None:
    assert stranger.problems() == []


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
            folder.name
            for folder in metadata.parent.iterdir()
            # Spark finds data sources by the prefix.
            if (folder / "__init__.py").exists() and folder.name != "pyspark_rockoon"
        ]
        assert len(packages) == 1, f"{shown(metadata)}: {packages}"
        assert packages[0].startswith("rockoon"), packages
