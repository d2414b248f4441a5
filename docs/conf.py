"""How the documentation is built, by `make docs`: the cells of its pages run, and pages print what they got."""

import os
import re
from importlib.metadata import version as version_of

from docutils.nodes import SkipNode
from docutils.utils.math import latex2mathml

os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")

project = "vanilla_transformer"
author = "the authors of vanilla_transformer"
version = release = version_of("vanilla-transformer")
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = os.environ.get("DOCS_EXECUTION", "cache")
nb_execution_cache_path = os.path.join(os.path.dirname(__file__), "_build", "cells")
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_output_stderr = "remove"
nb_code_prompt_show = "Answer"  # The cells that are folded answer exercises.
# Cells that are not run have no kernel that would name their language.
suppress_warnings = ["myst-nb.lexer"] if nb_execution_mode == "off" else []
nb_render_markdown_format = "myst"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
autodoc_inherit_docstrings = False
default_role = "literal"
napoleon_use_ivar = True
copybutton_exclude = ".linenos, .gp, .go"
html_theme = "furo"
html_title = "vanilla_transformer"
html_favicon = "_static/favicon.svg"
html_copy_source = True
html_show_sphinx = html_show_copyright = False
# The font of formulas is that of the page that computes.
html_static_path = [
    "_static",
    *(f"../vanilla_transformer/explore/web/vendor/stix-two-math{end}" for end in (".css", "-OFL.txt")),
]
html_css_files = ["stix-two-math.css", "pages.css"]
# A folder that holds `explore`, the quickstart's model as a page: see the Makefile.
if os.environ.get("DOCS_PAGES"):
    html_extra_path = [os.environ["DOCS_PAGES"]]
    tags.add("explore")  # noqa: F821  # Sphinx has put it there.
html_math_renderer = "mathml"
_THIN = '<mspace width="0.167em"/>'


def _mathml(tex, as_block=False):
    """A formula as MathML, with the thin spaces around the names of functions, which docutils leaves out.

    Without the one before it, `\\sin a \\sin b` reads as the arcsine of `a`.
    """
    formula = latex2mathml.tex2mathml(tex, as_block=as_block)
    operand, function = r"(</m(?!o>)\w+>|\)</mo>)", r"(\s*<mi>\w+</mi>\s*<mo>&ApplyFunction;)"
    formula = re.sub(operand + function, rf"\1{_THIN}\2", formula)
    return re.sub(r"(<mo>&ApplyFunction;</mo>)(?!\s*<mo)", rf"\1{_THIN}", formula)


def _inline_math(translator, node):
    translator.body.append(_mathml(node.astext()))
    raise SkipNode


def _displayed_math(translator, node):
    translator.body.append(f'<div class="math">{_mathml(node.astext(), as_block=True)}</div>')
    raise SkipNode


# What the page that computes shows to whoever comes from a chapter; the quickstart's model has two layers a stack.
LIVE_STATES = {
    "lecture/2-attention": "at=encoder-1-self_attention",
    "lecture/3-heads": "at=encoder-2-self_attention",
    "lecture/4-positions-and-norms": "at=encoder-embedding",
    "lecture/5-encoder-and-decoder": "at=encoder-1-self_attention_norm",
    "lecture/6-output-and-training": "at=output",
    "paper/1-introduction": "at=encoder-1-self_attention&other=telephony",
    "paper/3.1-stacks": "at=encoder-1-self_attention_norm",
    "paper/3.2-attention": "at=encoder-1-self_attention",
    "paper/3.3-feed-forward": "at=encoder-1-feed_forward",
    "paper/3.4-embeddings": "at=output",
    "paper/3.5-positions": "at=encoder-embedding",
    "paper/5.1-data": "text=unfathomable",
    "paper/5.3-optimizer": "at=training",
    "paper/6.1-translation": "at=search",
    "paper/6.2-variations": "at=what-if",
    "paper/one-sentence": "text=transformer&token=1",
    "paper/what-heads-attend-to": "at=decoder-2-cross_attention",
}


def _link_live_page(app, page, source):
    """On the front page and in chapters, links to its guide lead to the page that computes, where there is one."""
    if app.tags.has("explore") and page in {"index", "paper/index", *LIVE_STATES}:
        state = f"#{LIVE_STATES[page]}".replace("&", "&amp;") if page in LIVE_STATES else ""
        address = rf'<a href="\2explore/index.html{state}">\1</a>'
        source[0] = re.sub(r"\[([^\]]*)\]\((\S*)guides/explore\.md\)", address, source[0])


def setup(app):
    """Formulas as MathML, which browsers show by themselves: a script for them would come from elsewhere."""
    app.add_html_math_renderer("mathml", (_inline_math, None), (_displayed_math, None))
    app.connect("source-read", _link_live_page)
