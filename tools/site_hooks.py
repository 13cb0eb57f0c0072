"""Hooks of mkdocs: add the files outside docs/ that pages link to, and the pages of the API reference.

On disk, and on a code host, a page of docs/ links to `../benchmarks/README.md`. In the site that file is at
`benchmarks/README.md`. So every link that leaves docs/ is rewritten, and its target is added to the site.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r'(\]\(|(?:src|href)=")([^)#":\s]+)')
UNTITLED = "    options: {show_root_heading: false, show_root_toc_entry: false}\n"  # the page has a title
API = {  # the pages of the reference: package, and the modules whose names it shows
    "unmask": ["unmask"],
    "types": ["unmask.types", "unmask.errors"],
    "decoding": [
        f"unmask.decoding.{name}"
        for name in ("canvas", "plan", "loop", "options", "result", "cache", "guidance", "executor", "bans")
    ],
    "samplers": ["unmask.samplers", "unmask.samplers.signals", "unmask.samplers.policies"],
    "models": ["unmask.models", "unmask.models.hf", "unmask.models.diffusion_gemma"],
    "text": [f"unmask.text.{name}" for name in ("config", "generate", "stream", "infill", "gaps", "prompts")],
    "fast": ["unmask.fast.compile", "unmask.fast.warm_up"],
    "trace": ["unmask.trace"],
    "serving": ["unmask.serving", "unmask.serving.app"],
    "evals": ["unmask.evals", "unmask.evals.harness"],
    "experiments": ["unmask.experiments", "unmask.experiments.report", "unmask.experiments.stats"],
    "training": ["unmask.training.recipe", "unmask.training.trainer", "unmask.training.tasks"],
    "sandbox": ["unmask.sandbox"],
}


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages of the reference, and all files outside docs/ that pages link to."""
    for name, modules in API.items():
        title = name if name == "unmask" else f"unmask.{name}"
        parts = [f"::: {module}\n" + UNTITLED * (module == title) for module in modules]
        files.append(File.generated(config, f"api/{name}.md", content="\n".join([f"# {title}\n", *parts])))
    for page in list(files.documentation_pages()):
        _add_targets(page, files, config)
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Make links into or out of docs/ relative to the site."""
    here = posixpath.dirname(_in_repository(page.file))

    def rewritten(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, match[2]))
        folder = posixpath.dirname(page.file.src_uri) or "."
        place = _in_site(target)
        known = place is not None and files.get_file_from_path(place)
        return match[1] + posixpath.relpath(place, folder) if known else match[0]

    return LINK.sub(rewritten, markdown)


def _add_targets(page: File, files: Files, config: Any) -> None:
    """Add the files outside docs/ that a page links to, and those that they link to."""
    here = posixpath.dirname(_in_repository(page))
    for _, link in LINK.findall(page.content_string):
        target = posixpath.normpath(posixpath.join(here, link))
        place = _in_site(target)
        if place is None or not (ROOT / target).is_file() or files.get_file_from_path(place):
            continue
        added = File.generated(config, place, abs_src_path=str(ROOT / target))
        files.append(added)
        if added.is_documentation_page():
            _add_targets(added, files, config)


def _in_repository(file: File) -> str:
    """Return where a file of the site is in the repository."""
    return file.src_uri if file.generated_by else f"docs/{file.src_uri}"


def _in_site(path: str) -> str | None:
    """Return where a file of the repository is in the site, or None if it is outside the repository."""
    return None if path.startswith("..") else path.removeprefix("docs/")
