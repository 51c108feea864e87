"""Tables as pages, Markdown, LaTeX and CSV show them, and means over seeds in them."""

import math

import numpy as np
import pytest

from evenhand.report.formatting import Cell, Table, Value, deviation, over_seeds

TABLE = Table(
    ["method", "accuracy (%)", "p"],
    [
        [Value("a|b_1", is_marked=True), Value("87.6", "1.2", " %"), "0.5"],
        ["=1+1", Value("−3", is_marked=True), ""],
    ],
)


def test_markdown() -> None:
    assert TABLE.markdown() == (
        "| method | accuracy (%) | p |\n| --- | --- | --- |\n"
        "| **a\\|b_1** | 87.6 ± 1.2 % | 0.5 |\n| =1+1 | **−3** |  |\n"
    )


def test_latex() -> None:
    assert TABLE.latex() == "\n".join(
        [
            r"\begin{tabular}{lrr}",
            *(r"\toprule", r"method & accuracy (\%) & p \\", r"\midrule"),
            r"\textbf{a|b\_1} & 87.6 $\pm$ 1.2 \% & 0.5 \\",
            r"=1+1 & \textbf{$-$3} &  \\",
            *(r"\bottomrule", r"\end{tabular}", ""),
        ]
    )


def test_a_page_escapes_texts_but_not_cells() -> None:
    html = Table(["<b>", "x"], [["<i>", Value("<1", is_marked=True)], [Cell("<u>u</u>", "k"), "2"]]).html(
        "A & B"
    )
    assert '<p class="caption">A &amp; B</p>' in html
    assert '<th scope="col">&lt;b&gt;</th>' in html
    assert '<tr class=""><th scope="row">&lt;i&gt;</th>\n<td class="number best">&lt;1</td>' in html
    assert '<tr class="k"><th scope="row"><u>u</u></th>\n<td class="">2</td>' in html
    # The head of a column of words stands above these, that of numbers above those.
    words = Table(["a", "b", "c"], [["x", "y", Value("1")]]).html("")
    assert '<th scope="col" class="words">b</th><th scope="col">c</th>' in words.replace("\n", "")


def test_csv_rounds_nothing_and_disarms_formulas() -> None:
    rows = [["=1+1", 0.1 + 0.2, 3], ["a,b", math.nan, math.inf]]
    assert Table(["name", "x", "n"], rows).csv() == ('name,x,n\n\'=1+1,0.30000000000000004,3\n"a,b",,inf\n')


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.5], math.nan),
        ([], math.nan),
        ([0.5, math.nan], math.nan),
        ([0.5, math.inf], math.nan),
        ([0.25, 0.75], np.sqrt(0.125)),
        ([0.1 + 0.2, 0.3], 0.0),
    ],
)
def test_deviation(values: list[float], expected: float) -> None:
    np.testing.assert_allclose(deviation(values), expected)


def test_a_mean_over_seeds() -> None:
    assert over_seeds([0.25, 0.75], 100.0).joined() == "50.00 ± 35"
    assert over_seeds([0.5], 100.0) == Value("50.00")
    assert over_seeds([0.5, math.nan]) == Value("–")
