"""Count phrases that make a reader stop, per 1,000 words: docstrings, comments, texts, documents.

    python tools/prose.py                     index of every package and of docs
    python tools/prose.py --show client       lines with a phrase, for a package or a path
    python tools/prose.py --change main       lines of the change since a commit
    python tools/prose.py --log main..HEAD    subjects of commits
    python tools/prose.py --draw client 7     20 docstrings, drawn with a seed, to judge
    python tools/prose.py --check             exit with 1 if a package is above its ceiling

"Texts" are log lines, error texts, help and settings; their index is counted apart from that of
docstrings and comments. Ceilings are in `prose_ceilings.json`; lower a ceiling when a package has
improved, never raise one. The count is a compass: a sentence without a phrase can still be unclear.
"""

import argparse
import ast
import io
import json
import random
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CEILINGS = Path(__file__).with_name("prose_ceilings.json")
SERVICES = ("broker", "gateway", "nameserver", "node", "offset", "replica", "runtime")
PACKAGES = (
    *(f"services/{name}" for name in SERVICES),
    *("client", "core", "rpc", "format", "spark", "bench", "tools", "protos"),
    *("tests", "tests/support"),
)
LEFT_OUT = re.compile(r"_pb2|/\.venv/|/target/|/node_modules/|/examples/")
DIRECTIVE = re.compile(r"#\s*(noqa|type:|pragma|!|ruff|fmt)")
# Lists of statements in a statement.
BRANCHES = ("body", "orelse", "finalbody", "handlers", "cases")
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}

# Each phrase hides the subject of a sentence, or is a verb that says too little.
_RELATIVE = (
    "is was are were has had have it they he she we a an the this that these those to follows "
    "comes? came goes went waits? must may can cannot could will would should does did do no "
    "nobody else there others each both one of brokers readers clients producers replicas another "
    "happens such all"
)
PHRASES = {
    "what": rf"(?<!^)(?<![.?] )\bwhat (?:{'|'.join(_RELATIVE.split())})\b",
    "who": r"(?:(?:^|[.,;:(] ?)|\b(?:for|to|of|by|from|with|tells|told|tell|wakes?|and|or|that|than"
    r"|but|is|are|as|say|says) )[Ww]ho(?:ever)?\b (?!are you|is it\?)",
    "of which": r"\bof (?:which|whom|it|them|those|these|whose|that|another's)\b",
    "as of": r"\bas of\b",
    "so it is": r"\bso (?:it|they|is|does|are|did|was|do|has|long as|many|much|that it)\b",
    "anew": r"\b(?:anew|aside|meanwhile|there(?:of|in|by)|whereby|hence|nevertheless|likewise"
    r"|beforehand|hence?forth|forthwith|afterwards|hitherto)\b",
    "place": r"\b(?:places?|placed|placing)\b",
    "tell": r"\b(?:told|tells?|telling)\b",
    "such": r"\bsuch\b(?! as\b)",
    "take": r"\b(?:taken|takes?|took|taking)\b",
    "stand": r"\b(?:stands?|lies?|bears?|borne)\b",
    "let go": r"\b(?:lets? go|given? up|gives up|gave up|come true|in force|for good|at once"
    r"|by itself|of its own|in turn|now and then)\b",
    "nobody": r"\b(?:nobody|somebody|anybody|everybody|no one|someone|others)\b",
    "but for": r"\b(?:but for|save for|all but|but of)\b",
}
PATTERN = re.compile("|".join(f"(?:{phrase})" for phrase in PHRASES.values()))
DRAWN = 20
WORD = re.compile(r"[A-Za-z']+")

Prose = tuple[int, str]
"""A line number and the text that begins there."""


def docstrings(tree: ast.Module) -> Iterator[Prose]:
    """Docstrings of modules, classes and functions, and of attributes."""
    # Expressions have no docstrings, and are nine of ten nodes.
    nodes: list[ast.AST] = [tree]
    for node in nodes:
        for branch in BRANCHES:
            nodes += getattr(node, branch, ())
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for each in node.body:
                if isinstance(each, ast.Expr) and (text := _constant_text(each.value)):
                    yield each.lineno, text


def comments(source: str) -> Iterator[Prose]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not DIRECTIVE.match(token.string):
            yield token.start[0], token.string.lstrip("# ")


def texts(tree: ast.Module) -> Iterator[Prose]:
    """Log lines, texts of raised errors, help, and descriptions of settings."""
    for node in ast.walk(tree):
        spoken: list[ast.expr] = []
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            spoken = node.exc.args
        elif isinstance(node, ast.Call):
            spoken = [keyword.value for keyword in node.keywords if keyword.arg == "help"]
            if isinstance(node.func, ast.Attribute) and node.func.attr in LOG_METHODS:
                spoken += node.args[:1]
            elif isinstance(node.func, ast.Name) and node.func.id == "setting":
                spoken += node.args[1:2]
        for each in spoken:
            if text := _constant_text(each):
                yield each.lineno, text


def _constant_text(expression: ast.expr) -> str:
    """The literal words of a string or f-string; a value in it counts as "%s"."""
    if isinstance(expression, ast.Constant):
        return expression.value if isinstance(expression.value, str) else ""
    if isinstance(expression, ast.JoinedStr):
        return "".join(_constant_text(part) or "%s" for part in expression.values)
    return ""


def document(source: str) -> Iterator[Prose]:
    """The sentences of a Markdown page, without code and tables."""
    is_code = False
    for number, line in enumerate(source.split("\n"), 1):
        if line.startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith(("|", "    ")):
            yield number, line


def prose(path: Path) -> tuple[list[Prose], list[Prose]]:
    """The docstrings and comments of one file, or the sentences of a document; and its texts."""
    source = path.read_text(errors="replace")
    if path.suffix == ".md":
        return list(document(source)), []
    if path.suffix == ".py":
        tree = ast.parse(source)
        return [*docstrings(tree), *comments(source)], list(texts(tree))
    found = (re.search(r"(?:^|\s)//[/!]?\s?(.*)", line) for line in source.split("\n"))
    return [(number, comment[1]) for number, comment in enumerate(found, 1) if comment], []


def files(folder: Path) -> Iterator[Path]:
    if folder.is_file():
        yield folder
        return
    suffixes = {"docs": ".md", "protos": ".proto"}
    suffix = next((suffixes[each] for each in folder.parts if each in suffixes), ".py")
    for path in sorted(folder.rglob(f"*{suffix}")):
        if not LEFT_OUT.search(str(path)):
            yield path


def index(texts_of: Iterable[str]) -> tuple[int, float]:
    """Number of words, and phrases per 1,000 words."""
    whole = "\n".join(texts_of)
    words = len(WORD.findall(whole))
    return words, 1000 * len(PATTERN.findall(whole)) / max(words, 1)


def measured() -> dict[str, tuple[int, float]]:
    """Words and index by name: a package, "texts" of all packages except the tests, "docs"."""
    found, all_texts = {}, []
    for folder in (*PACKAGES, "docs"):
        written: list[str] = []
        for path in files(ROOT / folder):
            said, shown = prose(path)
            written += (text for _, text in said)
            if not folder.startswith("tests"):
                all_texts += [text for _, text in shown]
        found[Path(folder).name] = index(written)
    return found | {"texts": index(all_texts)}


def show(path: Path) -> None:
    for each in files(path):
        for number, text in chain(*prose(each)):
            for offset, line in enumerate(text.split("\n")):
                if found := PATTERN.search(line):
                    print(f"{each}:{number + offset}: {line.strip()[:150]}   [{found[0].strip()}]")


def draw(path: Path, seed: int) -> None:
    """Print 20 docstrings without their code. For each, a reader answers "who does what?"."""
    found = [
        (f"{each}:{line}", text)
        for each in files(path)
        for line, text in docstrings(ast.parse(each.read_text()))
    ]
    for place, text in random.Random(seed).sample(found, min(DRAWN, len(found))):
        print(f"{place}\n    {text.strip()}\n")


def changed_lines(base: str) -> dict[str, set[int]]:
    """Numbers of the new lines in each file, since a commit."""
    command = ["git", "diff", "-U0", "--no-renames", base, "--"]
    command += ["*.py", "*.md", "*.rs", "*.proto"]
    difference = subprocess.check_output(command, cwd=ROOT, text=True, errors="replace")
    found: dict[str, set[int]] = {}
    lines: set[int] = set()
    for line in difference.split("\n"):
        if line.startswith("+++ "):
            lines = found.setdefault(line[6:], set())
        elif hunk := re.match(r"@@ .*\+(\d+)(?:,(\d+))? @@", line):
            lines.update(range(int(hunk[1]), int(hunk[1]) + int(hunk[2] or 1)))
    return found


def show_change(base: str) -> None:
    said = []
    for name, numbers in sorted(changed_lines(base).items()):
        if not (ROOT / name).exists() or LEFT_OUT.search(name):
            continue
        for start, text in chain(*prose(ROOT / name)):
            for number, line in enumerate(text.split("\n"), start):
                if number in numbers:
                    said.append(line)
                    if found := PATTERN.search(line):
                        print(f"{name}:{number}: {line.strip()[:150]}   [{found[0].strip()}]")
    words, value = index(said)
    print(f"{words} changed words, {value:.1f} phrases per 1,000 words")


def check() -> int:
    """Compare with the ceilings; return the exit status."""
    ceilings: dict[str, float] = json.loads(CEILINGS.read_text())
    above = [
        f"{name}: {value:.1f} phrases per 1,000 words, the ceiling is {ceilings[name]}"
        for name, (_, value) in measured().items()
        if round(value, 1) > ceilings[name]
    ]
    for line in above:
        print(line)
    if above:
        print("`python tools/prose.py --change main` shows the lines; STYLE.md has the rules")
    return bool(above)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--show", type=Path, metavar="PATH", help="print the lines of a path")
    parser.add_argument("--change", metavar="COMMIT", help="print the lines of a change")
    parser.add_argument("--log", metavar="RANGE", help="count in subjects of commits")
    parser.add_argument("--check", action="store_true", help="compare with the ceilings")
    parser.add_argument("--draw", nargs=2, metavar=("PATH", "SEED"), help="print 20 docstrings")
    chosen = parser.parse_args()
    if chosen.check:
        return check()
    if chosen.draw:
        draw(Path(chosen.draw[0]), int(chosen.draw[1]))
    elif chosen.show:
        show(chosen.show)
    elif chosen.change:
        show_change(chosen.change)
    elif chosen.log:
        command = ["git", "log", "--no-merges", "--format=%s", chosen.log]
        words, value = index(subprocess.check_output(command, cwd=ROOT, text=True).split("\n"))
        print(f"{words} words, {value:.1f} phrases per 1,000 words")
    else:
        for name, (words, value) in measured().items():
            print(f"{name:12}{words:8} words{value:8.1f} phrases per 1,000")
    return 0


if __name__ == "__main__":
    sys.exit(main())
