"""The main table with the other readings of LESS and with confidence alone."""

from __future__ import annotations

from unmask.experiments.experiment import Experiment
from unmask.experiments.headline import table_report, table_runs
from unmask.experiments.methods import more_methods

EXPERIMENT = Experiment(
    name="extended",
    title="The main table with more methods",
    about=(
        "The same with Algorithm 1 to the letter (`less-paper`), the released code (`less-released`) and a "
        "plain confidence threshold, which is what LESS has to beat at equal cost."
    ),
    runs=lambda lab: table_runs(more_methods, lab),
    build=lambda lab, results: table_report("extended", more_methods, lab, results),
)
