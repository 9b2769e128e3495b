"""The pages of the report: what they say, where claims stand, what an incomplete run lacks; and in a real browser."""

from __future__ import annotations

import doctest
import re
import runpy
import shutil
import xml.etree.ElementTree as ET
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from research import judging, plots, report_cards, report_html, reproduce
from research.experiment import ENGINE, Experiment
from research.machine import cpu_model
from research.measurements import Unit, table_of
from research.papers import PAPERS
from research.rules import CURRENT, VERDICTS
from research.runner import Store, Task
from support.tiers import only

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SPEEDS = {
    "siena": 60.0,
    "tama": 9.0,
    "tama-map": 50.0,
    "h-tree": 30.0,
    "rein": 5.0,
    "simple": 90.0,
    "pri-rein": 5.2,
    "hitbox": 0.2,
}
"""Made up: nanoseconds per event and subscription."""
CHOSEN = {"rein": ("subscriptions", "constraints", "buckets"), "pri-rein": ("times", "priorities")}
NOT_MEASURED = ("rein", "constraints")
LACKING = ("rein", "subscriptions", 1_000, "h-tree")
"""Has its first seed only."""


@dataclass
class Written:
    out: Path
    record: dict[str, Any]
    pages: dict[str, str]


def rows(task: Task, label: str, seed: int) -> list[dict[str, Any]]:
    """Made-up measurements of a unit."""
    noise = np.random.default_rng([seed, *f"{task} {label}".encode()])
    shared = {"paper": task.paper, "experiment": task.experiment.name, "x": str(task.x), "series": task.series}
    shared |= {"n": task.n, "seed": seed, "contestant": label, "pace": 1.0}
    mean = 1_000.0 * SPEEDS[label] * task.n
    found: list[dict[str, Any]] = []
    for i in range(34):
        taken = mean * (1 + 0.1 * noise.uniform(-1, 1))
        row = shared | {"kind": "event", "sample": i, "ns": taken, "matches": int(noise.integers(1, 9))}
        if "times" in task.experiment.measures:
            row |= {"preparing": taken * 0.4, "gap": taken * 0.5, "interval": taken * 0.01, "ending": taken * 0.1}
            row |= {"urgency": noise.uniform(-1, 1)}
            for level in range(10):
                when = taken * (0.4 + 0.05 * (9 - level))
                found.append(shared | {"kind": "level", "sample": i, "level": level, "ns": when, "matches": 1})
                found[-1]["square"] = when**2
        found.append(row)
    found.append(shared | {"kind": "build", "sample": 0, "ns": 3.0 * mean, "bytes": int(task.n * 160)})
    if "upkeep" in task.experiment.measures:
        found += [shared | {"kind": "delete one", "sample": i, "ns": mean * noise.uniform(1, 2)} for i in range(5)]
    if label == "hitbox":
        found += [shared | {"kind": "count", "sample": i, "ns": 1.0, "matches": 250} for i in range(2)]
    return found


def write(out: Path) -> Written:
    """Two papers, two experiments each, at the smoke scale: one experiment and one unit are missing."""
    chosen = [PAPERS[name] for name in CHOSEN]
    todo = [
        task
        for name, experiments in CHOSEN.items()
        for task in reproduce.choose(name, "smoke")[1]
        if task.experiment.name in experiments
    ]
    store = Store(out)
    for task in todo:
        for label in task.lanes:
            for seed in (1, 2, 3):
                place = (task.paper, task.experiment.name)
                if place != NOT_MEASURED and (seed == 1 or (*place, task.x, label) != LACKING):
                    unit = Unit(label, seed, task.code(label), 34, 1.0, cpu=cpu_model())
                    store.point(task).put(unit, table_of(rows(task, label, seed)))
    record = reproduce.write(chosen, todo, store, "python -m research reproduce all --scale smoke", CURRENT)
    return Written(out, record, {path.name: path.read_text() for path in out.glob("*.html")})


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write(tmp_path_factory.mktemp("report"))


def article(page: str, name: str) -> str:
    found = re.search(rf"<article class='card[^']*' id='{name}'>.*?</article>", page, re.DOTALL)
    assert found, name
    return found[0]


def plain(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def test_there_is_an_overview_and_a_page_per_paper_and_they_need_only_what_they_share(written: Written) -> None:
    assert set(written.pages) == {"report.html", "rein.html", "pri-rein.html"}
    for name, text in report_html.shared().items():
        assert (written.out / name).read_text() == text
        assert not re.search(r"url\(|@import", text)
        assert sum(page.count(f"='{name}'") for page in written.pages.values()) == len(written.pages)
    for page in written.pages.values():
        foreign = re.findall(r"(?:src|href)='(?!#|data:|[a-z-]+\.html|report\.(?:css|js)')[^']*'|url\(|@import", page)
        assert foreign == []
        assert page.count("http") == page.count("xmlns='http://www.w3.org/2000/svg'")
        assert len(re.findall(r"<h1", page)) == 1
        ids = re.findall(r" id='([^']+)'", page)
        assert len(set(ids)) == len(ids)
        for other, anchor in re.findall(r"href='([a-z.-]*)(?:\?[^#']*)?#([^']+)'", page):
            assert f" id='{anchor}'" in (written.pages[other] if other else page), anchor


def test_the_first_screen_states_the_headline_and_how_it_was_measured(written: Written) -> None:
    for name, page in written.pages.items():
        top = plain(page[page.index("<h1") : page.index("class='contents'")])
        own = [row for row in written.record["verdicts"] if name == "report.html" or f"{row['paper']}.html" == name]
        found = judging.headline(own)
        for verdict in VERDICTS:
            assert re.search(rf"\b{found[verdict]} \S {verdict}", top), (name, verdict)
        for words in (
            "Baseline: With the labels of the matchers shuffled,",
            "scale smoke",
            "seeds per point",
            "events per point",
            "hours of measuring 0.0",
            "command python -m research reproduce all --scale smoke",
            f"code {written.record['code']}",
            "its verdicts mean nothing",
            "95% intervals",
        ):
            assert words in top, (name, words)


def test_an_incomplete_run_says_which_units_are_missing(written: Written) -> None:
    missing = written.record["missing"]
    assert {(one["paper"], one["experiment"]) for one in missing} == {NOT_MEASURED, LACKING[:2]}
    page = plain(written.pages["rein.html"])
    assert f"Not complete: {len(missing)} units of measurement are missing." in page
    assert "rein, subscriptions h-tree at 1,000: seeds 2" in page
    claims = next(len(one.claims) for one in PAPERS["rein"].experiments if one.name == NOT_MEASURED[1])
    assert f"Not measured yet: figure 8, table IV, with {claims} claims." in page
    assert f"The {claims} claims of experiments without any measurement are not counted." in page
    assert "Not complete" not in written.pages["pri-rein.html"]


def test_every_claim_stands_once_on_the_page_of_its_paper_and_on_the_overview(written: Written) -> None:
    for paper in CHOSEN:
        rows = [row for row in written.record["verdicts"] if row["paper"] == paper]
        for page in (written.pages[f"{paper}.html"], written.pages["report.html"]):
            assert len(re.findall(rf"<li data-verdict='[a-z]+' data-kind='[^']+' data-paper='{paper}'", page)) == len(
                rows
            )


@pytest.mark.parametrize(
    ("paper", "figure", "claim"),
    [
        ("rein", "subscriptions-figure-7", "At the largest n REIN is faster than SIENA"),
        ("rein", "subscriptions-figure-10", "REIN takes less time where more match"),
        ("rein", "subscriptions-figure-10", "falls logarithmically with the matches"),
        ("rein", "subscriptions-table-iii", "REIN varies least from event to event"),
        ("rein", "subscriptions-table-iii", "SIENA: slowest against fastest event"),
        ("rein", "subscriptions-figure-12", "SIENA is the quickest to insert"),
        ("rein", "subscriptions-figure-13", "REIN is the quickest to delete"),
        ("rein", "subscriptions-figure-14", "REIN takes the least memory"),
        ("rein", "buckets-figure-9", "More buckets help at first"),
        ("pri-rein", "times-figure-4-gap-time", "Gap / matching time of Rein"),
        ("pri-rein", "times-table-2", "Rein&#x27;s gap time varies least"),
        ("pri-rein", "priorities-figure-11", "Rein: priority and determining time are unrelated"),
        ("pri-rein", "priorities-table-6", "Within a priority Rein&#x27;s determining times spread more"),
    ],
)
def test_a_claim_stands_beside_the_figure_that_shows_it(written: Written, paper: str, figure: str, claim: str) -> None:
    assert claim in article(written.pages[f"{paper}.html"], figure)


def test_numbers_of_the_paper_are_drawn_where_they_would_lie(written: Written) -> None:
    """14 times REIN's time, in the place of SIENA."""
    figure = article(written.pages["rein.html"], "subscriptions-figure-7")
    ours = re.search(r"rein at 1,000: ([\d,]+) \(([\d,]+) to ([\d,]+)\)", figure)
    theirs = re.search(r"class='said'[^>]*><title>siena at 1,000 by the paper&#x27;s number: ([\d,]+)", figure)
    assert ours
    assert theirs
    middle, low, high = (int(text.replace(",", "")) for text in ours.groups())
    assert low < middle < high
    assert np.isclose(int(theirs[1].replace(",", "")) / middle, 14, rtol=0.01)
    assert "class='error'" in figure  # the interval
    assert f"the paper's: {theirs[1]}" in plain(figure)  # and in the table of its values
    share = article(written.pages["pri-rein.html"], "times-figure-4-gap-time")
    assert "by the paper&#x27;s number" in share


def test_the_engines_curve_can_be_left_out(written: Written) -> None:
    figure = article(written.pages["rein.html"], "subscriptions-figure-7")
    without, with_engine = re.findall(r"<svg.*?</svg>", figure, re.DOTALL)
    assert "hitbox at" not in without
    assert "hitbox at" in with_engine
    assert "siena at" in without
    assert figure.index("without-engine") < figure.index("with-engine")
    assert "with-engine" not in article(written.pages["rein.html"], "buckets-figure-9")  # it took no part there


def test_tables_are_tables_and_titles_have_the_number_of_subscriptions(written: Written) -> None:
    for paper in PAPERS.values():
        for experiment in paper.experiments:
            for plot in experiment.plots:
                assert plot.table == plot.figure.startswith("table"), plot.figure
    page = written.pages["rein.html"]
    table = article(page, "subscriptions-table-iii")
    assert "<svg" not in table
    assert [plain(part) for part in re.findall(r"<tr class='part'>.*?</tr>", table)] == [
        *("Slowest event", "Fastest event", "Standard deviation")
    ]
    formulas = article(page, "subscriptions-table-vii")
    assert formulas.count(">formula</th>") == 4
    assert "Number of subscriptions (m=20, k=10, w=0.5, b=1000), n=500 to 1,000" in page
    assert "Number of buckets (500 to 1,000 subscriptions, m=20, k=10, w=0.5)" in page


def test_determining_times_are_drawn_over_all_priorities(written: Written) -> None:
    figure = article(written.pages["pri-rein.html"], "priorities-figure-11")
    assert [f"rein at {level}: " in figure for level in range(10)] == [True] * 10


def test_what_has_changed_has_a_reason(written: Written) -> None:
    page = written.pages["report.html"]
    changed = re.findall(r"<tr data-paper=.*?</tr>", page)
    assert len(changed) == len(written.record["changed"]) > 0
    assert all(re.search(r"data-label='reason'>[^<]{10}", row) for row in changed)


def test_the_raw_rows_and_the_pictures_are_files_of_their_own(written: Written) -> None:
    raw = pq.read_table(written.out / "measurements.parquet")
    assert set(raw["paper"].to_pylist()) == set(CHOSEN)
    assert raw.num_rows > 1_000
    names = {path.stem for path in (written.out / "plots").glob("*.svg")}
    assert "overview" in names
    assert {"rein-subscriptions-figure-7", "rein-subscriptions-figure-10", "pri-rein-priorities-figure-11"} <= names
    for path in (written.out / "plots").glob("*.svg"):
        root = ET.parse(path).getroot()
        assert root.tag.endswith("svg")
        assert root.get("aria-label")


def test_no_archive_may_hold_raw_rows(tmp_path: Path) -> None:
    tool = runpy.run_path(str(Path(__file__).parents[2] / "tools/check_archive.py"))
    archive = tmp_path / "hitbox-1-py3-none-any.whl"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("hitbox/experiments/measurements.parquet", "")
    assert "holds hitbox/experiments/measurements.parquet" in tool["check"](archive)


@pytest.mark.parametrize("log", [True, False])
def test_an_axis_has_a_few_round_ticks(log: bool) -> None:
    for low, high in ((1e-4, 2e7), (3.0, 3.3), (0.12, 0.9), (1.0, 1e12)):
        scale = plots.Scale(low, high, 0, 100, log)
        found = plots.ticks(scale)
        assert 1 <= len(found) <= 7, (low, high)
        assert -0.01 <= scale(found[0]) <= scale(found[-1]) <= 100.01


@pytest.mark.parametrize("module", [judging, plots, report_cards, report_html], ids=lambda one: one.__name__)
def test_the_examples_in_docstrings_are_right(module: Any) -> None:
    failures, tried = doctest.testmod(module)
    assert failures == 0
    assert tried > 0


def test_a_figure_with_one_value_or_with_zeros_is_drawn() -> None:
    experiment: Experiment = PAPERS["rein"].experiments[0]
    plot = experiment.plots[0]
    for dots in ([plots.Dot(1, 5.0, 5.0, 5.0)], [plots.Dot(1, 0.0, 0.0, 0.0), plots.Dot(2, 0.0, 0.0, 0.0)]):
        text = plots.draw(experiment, plot, [plots.Line("rein", 0, tuple(dots))], "a & b")
        assert "nan" not in text
        ET.fromstring(text)


# In a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser: Any, written: Written) -> Iterator[Any]:
    contexts: list[Any] = []
    problems: list[str] = []

    def opened(name: str, width: int = 1280, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 844}, offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text) if said.type in ("error", "warning") else None)
        page.goto((written.out / name.partition("?")[0]).as_uri() + "".join(name.partition("?")[1:]))
        return page

    yield opened
    for context in contexts:
        context.close()
    assert problems == []


@pytest.mark.parametrize("width", only([390], [390, 1280]))
@pytest.mark.parametrize("colours", only(["light"], ["light", "dark"]))
def test_no_page_is_wider_than_the_screen(open_page: Any, written: Written, width: int, colours: str) -> None:
    for name in written.pages:
        page = open_page(name, width, color_scheme=colours)
        page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        tops = page.evaluate("[...document.querySelectorAll('.cards')][0].getBoundingClientRect().width")
        plot = page.evaluate("document.querySelector('.card .plot').getBoundingClientRect().width")
        assert plot < tops * (0.55 if width > 1000 else 1), name  # two in a row, or one
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
        assert dark == (colours == "dark")


def test_filters_and_the_toggle_work(open_page: Any, written: Written) -> None:
    page = open_page("rein.html")
    rows = [row for row in written.record["verdicts"] if row["paper"] == "rein"]
    shown = page.locator("li[data-verdict]:not([hidden])")
    assert shown.count() == len(rows)
    assert page.locator("#shown").inner_text() == f"{len(rows)} of {len(rows)} claims shown"
    failed = sum(row["verdict"] == "fails" for row in rows)
    for verdict in ("factor reproduced", "direction only", "undecided", "not comparable"):
        page.get_by_label(verdict).uncheck()
    assert shown.count() == failed > 0
    assert page.locator("article:not([hidden]) li[data-verdict]:not([hidden])").count() == failed
    page.get_by_role("button", name="Show all").click()
    page.wait_for_function(f"document.querySelectorAll('li[data-verdict]:not([hidden])').length === {len(rows)}")
    page.get_by_label("Kind").select_option("memory")
    assert 0 < shown.count() < len(rows)
    assert page.locator("#subscriptions-figure-14").is_visible()
    assert not page.locator("#subscriptions-figure-7").is_visible()
    page.get_by_label("Kind").select_option("")
    page.get_by_label("those that any implementation satisfies").uncheck()
    assert shown.count() == sum(not row["trivial"] for row in rows)
    curve = page.locator("#subscriptions-figure-7 .with-engine")
    assert not curve.is_visible()
    page.get_by_label("our engine's curve").focus()
    page.keyboard.press("Space")
    assert curve.is_visible()
    assert not page.locator("#subscriptions-figure-7 .without-engine").is_visible()


def test_a_number_of_the_overview_leads_to_its_claims(open_page: Any, written: Written) -> None:
    page = open_page("report.html")
    page.get_by_role("combobox", name="Paper").select_option("pri-rein")
    assert page.locator("li[data-paper=rein]:not([hidden])").count() == 0
    assert page.locator("tr[data-paper=rein]:not([hidden])").count() == 0
    page.get_by_role("link", name="REIN (INFOCOM 2014): ").nth(2).click()
    page.wait_for_url("**/rein.html?verdict=fails#filters")
    kinds = page.locator("li[data-verdict]:not([hidden])").evaluate_all("all => all.map(one => one.dataset.verdict)")
    assert set(kinds) == {"fails"}
    # by keyboard: the first stop leads past the navigation
    page.goto((written.out / "rein.html").as_uri())
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"


def test_a_page_prints_in_ink_with_everything_open(open_page: Any) -> None:
    page = open_page("rein.html", color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert not page.locator("#filters").is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("[...document.querySelectorAll('details')].every(one => one.open)")
    assert page.pdf().startswith(b"%PDF")


def test_no_two_curves_of_a_figure_look_the_same() -> None:
    """Styles repeat after COLOURS curves; the engine has its own."""
    for paper in PAPERS.values():
        for experiment in paper.experiments:
            series = {series for _, series in experiment.places("paper")}
            names = {name for x, _ in experiment.places("paper") for name in experiment.lanes(x)} - {ENGINE}
            assert len(names) * len(series) <= plots.COLOURS, experiment.name
    lines = [plots.Line(f"m{style}", style, ()) for style in range(plots.COLOURS)]
    assert len({plots._marker(line, 0, 0) for line in lines}) == plots.COLOURS
    assert len({plots._dash(line) for line in lines}) == plots.COLOURS
    assert all(f".plot .{line.css} {{" in plots.style_sheet() for line in lines)
