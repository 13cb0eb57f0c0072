from __future__ import annotations

import re
from pathlib import Path

import pytest

from unmask.experiments import get_experiment
from unmask.experiments.page import write_page
from unmask.experiments.report import Finding, Report, Table

ROOT = Path(__file__).parents[2]
QUOTED = re.compile(r"\S+ \[[^\[\]]+, [^\[\]]+\]")  # a number and its interval, as pages print them


def page_of(lab, folder):
    """The page of one experiment with one finding."""
    report = Report(findings=(Finding("llada: water is wet", "holds", "1.00 [0.90, 1.10] points"),))
    write_page(folder / "page.md", lab, {get_experiment("drop-one"): report}, [])
    return (folder / "page.md").read_text(encoding="utf-8")


def test_a_reading_is_quoted_between_the_counts_and_what_holds(make_lab, tmp_path):
    lab = make_lab()
    without = page_of(lab, tmp_path)
    assert "In plain words" not in without
    lab.settings.out.mkdir(exist_ok=True)
    (lab.settings.out / "reading.md").write_text("Water is wet, to 10⁻³.\n\n", encoding="utf-8")
    section = "## In plain words\n\nWater is wet, to 10⁻³.\n\n"
    before, after = page_of(lab, tmp_path).split(section)
    assert before + after == without
    assert before.endswith("1 findings: holds: 1, does not hold: 0, undecided: 0.\n\n")
    assert after.startswith("## What holds\n")


def test_a_page_begins_with_the_few_rows_of_its_last_report_that_has_them(make_lab, tmp_path):
    reports = {
        get_experiment(name): Report(glance=Table(name, f"{name} is wet.", ("sampler",), ((name,),)))
        for name in ("drop-one", "policy")
    } | {get_experiment("budget"): Report()}
    write_page(tmp_path / "page.md", make_lab(), reports, [])
    page = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert page.startswith("# Results\n\n| sampler |\n| --- |\n| policy |\n\npolicy is wet.\n")


PAGES = {"results": "results", "evidence": "results/evidence"}  # page -> folder of its records


@pytest.mark.parametrize("page", PAGES)
def test_every_number_of_the_reading_stands_in_the_tables_and_findings(page):
    reading = (ROOT / PAGES[page] / "reading.md").read_text(encoding="utf-8").strip()
    before, after = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").split(reading)
    numbers = QUOTED.findall(" ".join(reading.split()))
    assert numbers
    assert [number for number in numbers if number not in before and number not in after] == []


@pytest.mark.parametrize("name", PAGES)
def test_the_page_shows_every_figure_beside_it(name):
    page = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    shown = re.findall(rf"^!\[.*\]\({name}/(.*)\)$", page, re.MULTILINE)
    assert sorted(shown) == sorted(file.name for file in (ROOT / "docs" / name).iterdir())
