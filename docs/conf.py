"""The documentation as a site: `make docs`.

The source folder is the repository, so links among the Markdown files are the same here as in a
checkout. What docs/index.md lists is the navigation: there is no second list to keep.
"""

import ast
import pydoc
import re
import sys
from contextlib import suppress
from importlib import import_module
from operator import attrgetter
from pathlib import Path

from docutils.nodes import Element
from pygments.lexers.special import TextLexer
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

import rockoon

project = "Rockoon"
copyright = "Apache License 2.0"
root_doc = "docs/index"
include_patterns = ["docs/**", "*.md"]
exclude_patterns = [
    ".*",
    "**/__pycache__",
    "bench",
    "client",
    "core",
    "rpc",
    "deploy",
    "format",
    "protos",
    "services",
    "spark",
    "tests",
    "tools",
]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "Rockoon"
html_copy_source = False
html_static_path = ["site"]
html_js_files = ["drawings.js"]
# Mermaid, which `make docs` fetches once; without it the drawings are shown as text.
html_extra_path = [
    each for each in ("../.venv/share/mermaid",) if (Path(__file__).parent / each).exists()
]

autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_class_signature = "separated"
python_use_unqualified_type_names = True
napoleon_use_rtype = False

# `Producer.send` in a docstring is a link, and must lead somewhere. Lower-case words in backticks
# are arguments, options and commands; words of capitals are constants.
default_role = "py:obj"
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(?!rockoon\w*\.)[^A-Z].*|[A-Z_0-9]*|.*[^\w.].*"),
    (r"py:obj", r"Error|Trigger\..*|QueryProgressEvent"),  # of gRPC and Spark
]
# The navigation is a choice: README, SECURITY and pages for one other page are left out.
suppress_warnings = ["toc.not_included"]

COLON = "\N{MODIFIER LETTER COLON}"


def add_navigation(_app: Sphinx, name: str, text: list[str]) -> None:
    """Append the contents that Sphinx asks for, where readers of a checkout need none."""
    if name == root_doc:
        for section in text[0].split("\n## ")[1:]:
            pages = re.findall(r"\]\(([^)]+)\)", section)
            text[0] += "\n```{toctree}\n:hidden:\n:caption: " + section.partition("\n")[0] + "\n"
            text[0] += "\n".join(pages) + "\n```\n"
    elif name == "docs/adr/README":
        text[0] += "\n```{toctree}\n:glob:\n0*\n```\n"


def adapt_docstring(
    _app: Sphinx, what: str, _name: str, thing: object, _options: object, lines: list[str]
) -> None:
    """Make of a docstring, which is for readers of the source, what napoleon understands."""
    text = "\n".join(lines)
    # Names of arguments that share a description, over more than one line.
    text = re.sub(r"(?<=\w),\n +(?=(\w+, )*\w+(,\n|:))", ", ", text)
    if what == "module":
        # Examples and drawings are indented; from one blank line to the next text at the margin.
        text = re.sub(r"\n\n(?=    )((?:    .*|\n)*)", r"\n\n::\n\n\1\n", thing.__doc__ or "")
    if isinstance(thing, type) and issubclass(thing, rockoon.RockoonError) and not thing.__doc__:
        text = f"``{thing.sentence}``" + (" Retriable." if thing.retriable else "")
    if what in ("attribute", "property"):
        # Napoleon takes words before a colon in the first line for a type.
        first, end, rest = text.partition("\n")
        text = first.replace(":", COLON) + end + rest
    lines[:] = text.split("\n")


def restore_colons(*arguments: list[str]) -> None:
    """Undo what `adapt_docstring` hides from napoleon."""
    arguments[-1][:] = [line.replace(COLON, ":") for line in arguments[-1]]


def find_name(app: Sphinx, _env: object, node: pending_xref, content: Element) -> Element | None:
    """Find what a docstring names as its readers do: by the end of the full name.

    What is in the code, but not in the reference, stays text. What is nowhere fails the build.
    """
    if node["refdomain"] != "py":
        return None
    name = node["reftarget"].rstrip(".")
    domain = app.env.get_domain("py")
    found = domain.find_obj(app.env, None, None, name, None, searchmode=1)
    if found:
        return domain.resolve_xref(
            app.env, node["refdoc"], app.builder, "obj", found[0][0], node, content
        )
    if name.startswith("rockoon"):
        return content if pydoc.locate(name) else None
    wanted = attrgetter(name)
    modules = [each for name, each in sys.modules.items() if name.startswith("rockoon")]
    for each in modules:
        with suppress(AttributeError):
            wanted(each)
            return content
    return None


def import_what_only_annotations_need() -> None:
    """Give modules the names that they import `if TYPE_CHECKING`: signatures link to them."""
    for name in rockoon.__all__:
        getattr(rockoon, name)
    for name in ("rockoon.testing.disposable", "rockoon_spark.source.live_cluster"):
        import_module(name)
    for module in [each for name, each in sys.modules.items() if name.startswith("rockoon")]:
        # A compiled one has no text.
        text = Path(module.__file__).read_text() if module.__file__.endswith(".py") else ""
        for node in ast.parse(text).body:
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                for each in node.body:
                    with suppress(
                        ImportError
                    ):  # stubs of generated code name classes that are nowhere else
                        exec(compile(ast.Module([each], []), str(module), "exec"), module.__dict__)


def setup(app: Sphinx) -> None:
    import_what_only_annotations_need()
    app.add_lexer("mermaid", TextLexer)
    app.connect("source-read", add_navigation)
    app.connect("autodoc-process-docstring", adapt_docstring, priority=400)
    app.connect("autodoc-process-docstring", restore_colons, priority=600)
    app.connect("missing-reference", find_name)
