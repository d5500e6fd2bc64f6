"""The report: made from what is there, and used in a real browser where there is one."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_figures import write_run

import variants
from common.rows import newest_run
from figures import report, source
from figures.__main__ import RESULTS, render
from figures.report import OUTPUT, markdown, slim, source_diff

PHONE, DESK = (390, 844), (1280, 900)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the committed results."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(report.render())
    return path


@pytest.fixture(scope="module")
def text(page: Path) -> str:
    return page.read_text()


# The page's text


def test_it_needs_no_network_and_nothing_beside_it(text: str) -> None:
    assert not re.search(r'<(?:script|img|iframe|source)[^>]+src=|<link[^>]+href="(?!data:)|@import|url\((?!#)', text)
    assert len(text) < 12e6


def test_every_variant_has_a_card_with_code_and_its_diff(text: str) -> None:
    for name in variants.all_names():
        card = text[text.index(f'id="variant-{name}"') :].split("</article>")[0]
        variant = variants.get(name)
        assert report.html.escape(variant.card.fix_up, quote=False).split("'")[0] in report.html.unescape(card)
        assert 'class="code"' in card
        assert ('class="diff"' in card or "to the letter" in card) == (variant.card.parent is not None)
        assert card.count("Known weakness") == len(variant.card.defects)


def test_every_link_inside_leads_somewhere_and_no_id_comes_twice(text: str) -> None:
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    ids = re.findall(r'\sid="([^"]+)"', outside)
    assert len(ids) == len(set(ids)), sorted({i for i in ids if ids.count(i) > 1})[:5]
    targets = set(re.findall(r'href="#([^"]+)"', outside)) | set(re.findall(r"url\(#([^)]+)\)", outside))
    assert targets <= set(ids), sorted(targets - set(ids))[:5]


def test_the_newest_runs_and_their_devices_are_on_top(text: str) -> None:
    head = text[: text.index("<nav")]
    for name in source.POPULATIONS:
        run = newest_run(RESULTS, name)
        assert run.header["device"]["name"] in head and run.header["versions"]["triton"] in head


def test_the_committed_page_is_of_the_newest_runs() -> None:
    if not OUTPUT.exists():
        pytest.skip("make report has not been run here")
    committed = OUTPUT.read_text()
    for name in (*source.POPULATIONS, "headline"):
        assert newest_run(RESULTS, name).id in committed, "figures/report.html is stale: make report"


def test_csv_files_hold_medians_and_statuses(tmp_path: Path) -> None:
    write_run(tmp_path, "headline", count=3)
    head = '{"header": {"device": {"name": "H200"}}, "records": [{"x": 1, "y": [2]}, {"z": null, "x": 3}]}'
    (tmp_path / "facts-20300101-000000.json").write_text(head)
    data = report.all_data(tmp_path)
    assert data["facts-20300101-000000"].csv == "x,y,z\n1,[2],\n3,,\n"
    table = list(csv.reader(io.StringIO(data["headline-20300101-000000"].csv)))
    run = newest_run(tmp_path, "headline")
    assert table[0] == ["M", "N", "K", *(c["label"] for c in run.candidates)]
    assert len(table) == 4
    problem = tuple(map(int, table[1][:3]))
    assert float(table[1][4]) == pytest.approx(run.medians("torch_matmul")[problem], abs=0.005)
    assert "incorrect" in {line[-1] for line in table}


def test_a_whole_corpus_is_named_and_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MOST_PROBLEMS", 4)
    write_run(tmp_path, "headline", count=5)
    write_run(tmp_path, "log_sampled", count=3)
    render("headline", tmp_path, tmp_path)
    text = report.render(tmp_path, tmp_path, tmp_path / "README.md")
    assert "headline-20300101-000000 <span>5 problems, too many for this page" in text
    assert 'csv-headline-20300101-000000"' not in text and 'data-csv="headline-20300101-000000"' not in text
    packed = re.search(r'id="csv-log_sampled-20300101-000000">([^<]+)<', text)
    assert gzip.decompress(base64.b64decode(packed[1])).decode().startswith("M,N,K,")


def test_a_large_table_is_held_where_a_picture_is_drawn_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "MOST_LETTERS", 4)
    write_run(tmp_path, "headline", count=5)
    write_run(tmp_path, "log_sampled", count=3)
    render("headline", tmp_path, tmp_path)
    text = report.render(tmp_path, tmp_path, tmp_path / "README.md")
    assert 'csv-headline-20300101-000000"' in text and 'csv-log_sampled-20300101-000000"' not in text
    assert re.search("log_sampled-20300101-000000 <span>[^<]*; behind no picture and too large for this page<", text)


def test_what_is_missing_is_left_out_and_named(tmp_path: Path) -> None:
    empty = report.render(tmp_path, tmp_path, tmp_path / "README.md")
    assert "Nothing is measured yet" in empty and 'id="headline"' not in empty
    assert "Not drawn yet: schedule, " in empty
    assert 'id="variant-v05_cas_lock"' in empty


def test_a_page_of_one_run_shows_it(tmp_path: Path) -> None:
    write_run(tmp_path, "headline", count=2)
    write_run(tmp_path, "log_sampled", count=4)
    render("headline", tmp_path, tmp_path)
    text = report.render(tmp_path, tmp_path, tmp_path / "README.md")
    assert 'id="figure-headline"' in text and 'id="csv-headline-20300101-000000"' in text
    assert "of cuBLAS" in text
    assert "<td>incorrect</td>" in text


def test_resources_are_of_the_newest_triton_and_the_known_gpus(tmp_path: Path) -> None:
    columns = "variant,kernel,architecture,launch,order,sem,status,registers,stack_bytes"
    for version, registers in (("3.10.0", 99), ("3.9.0", 11)):
        rows = [
            f"v05_cas_lock,first_wave,{arch},128x128x32 w4 s3,swizzled,relaxed,ok,{registers},0"
            for arch in ("sm_80", "sm_100")
        ]
        rows.append("v05_cas_lock,first_wave,sm_80,128x128x32 w4 s3,swizzled,relaxed,failed,,")
        (tmp_path / f"resources-triton-{version}.csv").write_text(
            "\n".join(["# made by a test", columns, *rows]) + "\n"
        )
    (found,) = report.resources(tmp_path)
    assert (found["registers"], found["gpu"], found["triton"]) == ("99", "A100", "3.10.0")
    entry = next(e for e in report.entries({}, tmp_path) if e.name == "v05_cas_lock")
    assert entry.resources == [found]
    assert report.resources(tmp_path / "none") == []


def test_tables_of_the_readme_become_html() -> None:
    made = markdown(
        "| claim | verdict |\n| --- | --- |\n| **C01** `a<b` [x](figures/grid.svg) | no \\| yes<br>more |\n\n"
        "Measured [there](https://example.org/a).\n\n- one [v05](variants/v05_cas_lock.py)\n- two\n"
    )
    assert "<strong>C01</strong> <code>a&lt;b</code>" in made and "no | yes<br>more" in made
    assert '<a href="#figure-grid">x</a>' in made and '<a href="#variant-v05_cas_lock">v05</a>' in made
    assert '<a href="https://example.org/a">there</a>' in made
    assert made.count("<li>") == 2 and made.count("<tr>") == 2
    assert "<td>" in made and "prose" not in made
    blocks = report.readme_blocks("<!-- claims: begin, generated -->\n| a |\n| --- |\n| b |\n<!-- claims: end -->")
    assert list(blocks) == ["claims"] and "<td>b</td>" in blocks["claims"]


def test_prose_among_many_columns_has_room() -> None:
    def table(columns: int) -> str:
        lines = (["idea", *"n" * columns], ["---"] * (columns + 1), ["word " * 20, *"1" * columns])
        return markdown("\n".join(f"| {' | '.join(line)} |" for line in lines))

    assert table(9).count('<td class="prose">word') == table(9).count("prose") == 1
    assert "prose" not in table(4)


def test_a_picture_keeps_its_glyphs_and_gets_identifiers_of_its_own() -> None:
    svg = (
        '<?xml version="1.0"?><!DOCTYPE svg><svg width="9pt" height="8pt" viewBox="0 0 9 8"><metadata>x</metadata>'
        '<g id="figure_1"><clipPath id="p1"/><path id="D-1" transform="scale(0.015625)" d="M 123.456789 -5.000001"/>'
        '<use xlink:href="#D-1" clip-path="url(#p1)"/><!-- note --></g></svg>'
    )
    made = slim(svg, "grid")
    assert made.startswith("<svg") and "metadata" not in made and "note" not in made
    assert "scale(0.015625)" in made and "M 123.46 -5" in made
    assert 'id="grid-D-1"' in made and 'href="#grid-D-1"' in made and "url(#grid-p1)" in made
    assert "figure_1" not in made and 'width="9pt"' not in made


def test_words_of_a_picture_are_text_as_wide_as_their_outlines() -> None:
    from matplotlib.figure import Figure

    from common import compact
    from figures import lettering

    figure, out = Figure(figsize=(3, 2)), io.StringIO()
    figure.text(0.1, 0.5, "two words & one", fontsize=8, fontweight="bold")
    figure.text(0.1, 0.2, "$10^3$", fontsize=8)
    figure.savefig(out, format="svg")
    svg = compact.svg(out.getvalue())
    made = lettering.as_text(re.sub(r"<defs>\s*</defs>\s*", "", report._GLYPH.sub("", svg)))
    (words,) = re.findall(r"<text [^>]*>([^<]*)</text>", made)
    assert words == "two words &amp; one" and 'font-size="8" font-weight="700"' in made
    last, letters = (
        lettering.advance("e", True),
        {letter: lettering.advance(letter, True) for letter in "two words & one"},
    )
    width = float(re.search('textLength="([^"]+)"', made)[1])
    assert last > 60 and width == pytest.approx(0.08 * sum(letters[x] for x in "two words & one"), rel=0.02)
    assert made.count("<use ") == 3, "a formula is drawn"


def test_a_diff_shows_kernels_alone() -> None:
    old, new = (variants.get(name).source for name in ("v04", "v05"))
    shown, count = source_diff(old, new, "v04", "v05")
    assert "atomic_cas" in shown and "CARD" not in shown and "Source:" not in shown
    assert count == len(re.findall(r'class="(?:ins|del)"', shown)) > 10


# In a browser


@pytest.fixture(scope="module")
def browser(page: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A headless Chromium with the page open."""
    driver = shutil.which("chromedriver")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not driver or not program:
        pytest.skip("no Chromium with chromedriver here")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = program
    quiet = ("quic", "gpu", "background-networking", "component-update", "sync")
    profile, saved = tmp_path_factory.mktemp("profile"), tmp_path_factory.mktemp("saved")
    for argument in ("headless=new", "no-sandbox", "no-first-run", f"user-data-dir={profile}"):
        options.add_argument(f"--{argument}")
    for feature in quiet:
        options.add_argument(f"--disable-{feature}")
    options.add_experimental_option("prefs", {"download.default_directory": str(saved)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    found = webdriver.Chrome(options=options, service=Service(driver))
    found.saved = saved
    try:
        size(found, DESK)
        found.get(page.as_uri())
        found.execute_script("document.documentElement.style.scrollBehavior = 'auto'")
        yield found
        assert found.get_log("browser") == [], "the page wrote to the console"
    finally:
        found.quit()


def size(browser: Any, shape: tuple[int, int]) -> None:
    width, height = shape
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def column(browser: Any, number: int) -> list[str]:
    rows = "[...document.querySelectorAll('#headline-table tbody tr')].filter(r => !r.hidden)"
    return browser.execute_script(f"return {rows}.map(r => r.cells[arguments[0]].textContent)", number)


def press(browser: Any, selector: str, *keys: str) -> None:
    browser.find_element("css selector", selector).send_keys(*keys)


@pytest.mark.parametrize("shape", [PHONE, DESK], ids=["phone", "desk"])
def test_nothing_is_wider_than_the_screen(browser: Any, shape: tuple[int, int]) -> None:
    size(browser, shape)
    try:
        wide = "return [document.documentElement.scrollWidth, innerWidth]"
        content, screen = browser.execute_script(wide)
        assert screen == shape[0] >= content
        drawn = "return [...document.querySelectorAll('.zoom svg')].map(s => s.getBoundingClientRect().height)"
        heights = browser.execute_script(drawn)
        assert heights and all(height > 100 for height in heights)
    finally:
        size(browser, DESK)


@pytest.mark.parametrize("shape", [PHONE, DESK], ids=["phone", "desk"])
def test_the_sections_bar_hides_no_title_and_keeps_its_button(browser: Any, shape: tuple[int, int]) -> None:
    size(browser, shape)
    try:
        place = "return arguments[0].getBoundingClientRect().toJSON()"
        bar, button = (browser.find_element("css selector", name) for name in ("nav", "#theme"))
        for section in ("figures", "claims", "data"):
            browser.execute_script("location.hash = arguments[0]", section)
            title = browser.find_element("css selector", f"#{section} h2")
            assert browser.execute_script(place, title)["top"] >= browser.execute_script(place, bar)["bottom"]
        assert browser.execute_script(place, button)["right"] <= shape[0]
        links = "const l = document.querySelector('nav div'); return l.scrollWidth <= l.clientWidth"
        assert browser.execute_script(links) == (shape == DESK)
    finally:
        browser.execute_script("location.hash = ''")
        size(browser, DESK)


def test_the_table_sorts_by_keyboard_in_both_directions(browser: Any) -> None:
    head = "#headline-table th:nth-child(3)"
    press(browser, f"{head} button", "\n")
    times = [float(cell) for cell in column(browser, 2) if cell != "–"]
    assert times == sorted(times) and len(times) > 20
    assert browser.find_element("css selector", head).get_attribute("aria-sort") == "ascending"
    press(browser, f"{head} button", "\n")
    cells = column(browser, 2)
    assert [float(c) for c in cells if c != "–"] == sorted(times, reverse=True)
    assert "–" not in cells[: len(times)], "what has no time stands last"
    press(browser, "#headline-table th:nth-child(2) button", "\n")
    assert column(browser, 1)[0].startswith("data_parallel")


def test_the_table_is_filtered_and_saved(browser: Any) -> None:
    press(browser, "#filter", "v05, split")
    names = column(browser, 1)
    assert names and all("v05" in name or "split" in name for name in names)
    browser.find_element("css selector", "[data-table]").click()
    saved = wait_for(browser.saved / "headline-table.csv")
    assert len(saved.read_text().splitlines()) == len(names) + 1
    browser.execute_script(
        "const f = document.getElementById('filter'); f.value = ''; f.dispatchEvent(new Event('input'))"
    )


def wait_for(path: Path) -> Path:
    for _ in range(100):
        if path.exists():
            return path
        time.sleep(0.05)
    raise AssertionError(f"{path.name} was not saved")


def test_the_data_behind_a_figure_is_saved(browser: Any) -> None:
    button = browser.find_element("css selector", "#figure-headline [data-csv]")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
    name = button.get_attribute("data-csv")
    button.click()
    run = newest_run(RESULTS, "headline")
    assert name == run.id
    table = list(csv.reader(io.StringIO(wait_for(browser.saved / f"{name}.csv").read_text())))
    assert len(table) == 1 + len({row.problem for row in run.rows})


def test_a_figure_opens_zooms_and_closes_by_keyboard(browser: Any) -> None:
    opener = browser.find_element("css selector", "#figure-schedule .zoom")
    assert "384x384x128" in opener.get_attribute("aria-label")
    opener.send_keys("\n")
    state = (
        "const v = document.getElementById('viewer'); return [v.open, v.querySelector('.stage svg')?.style.transform]"
    )
    assert browser.execute_script(state) == [True, "translate(0px, 0px) scale(1)"]
    press(browser, "#viewer [data-zoom=in]", "+", "\ue014")
    open_, transform = browser.execute_script(state)
    assert open_ and "scale(1.5)" in transform
    browser.switch_to.active_element.send_keys("\ue00c")
    assert browser.execute_script(state) == [False, None]
    assert browser.switch_to.active_element == opener, "the focus comes back"


def test_folds_open_alone_and_together(browser: Any) -> None:
    fold = "#variant-v05_cas_lock details:has(pre)"
    assert not browser.find_element("css selector", f"{fold} pre").is_displayed()
    press(browser, f"{fold} summary", "\n")
    shown = browser.find_element("css selector", f"{fold} pre")
    assert shown.is_displayed() and "atomic_cas" in shown.text
    count = "return [...document.querySelectorAll('details.fold')].filter(d => d.open).length"
    press(browser, "[data-all=open]", "\n")
    assert browser.execute_script(count) > 2 * 9
    press(browser, "[data-all=closed]", "\n")
    assert browser.execute_script(count) == 0


def test_light_and_dark_follow_the_system_and_the_button(browser: Any) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"

    def prefer(scheme: str) -> str:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        return browser.execute_script(paper)

    light, dark = prefer("light"), prefer("dark")
    assert sum(map(int, re.findall(r"\d+", light)[:3])) > 700 > 150 > sum(map(int, re.findall(r"\d+", dark)[:3]))
    browser.execute_script("document.getElementById('theme').click()")
    assert browser.execute_script(paper) == light
    browser.execute_script("delete document.documentElement.dataset.theme")
    prefer("light")


def test_print_leaves_out_what_paper_cannot_do(browser: Any) -> None:
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert not browser.find_element("css selector", "nav").is_displayed()
        assert browser.find_element("css selector", "#figure-speedup svg").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
