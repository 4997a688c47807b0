"""The page: complete without a browser, and alive in one."""

import os
import re
import shutil
from dataclasses import replace

import chromium
import pytest
import synthetic
from matplotlib.figure import Figure

from bieqno.lab.report.page import build_page, write_page
from bieqno.lab.report.style import style_of
from bieqno.lab.studies import EXPERIMENTS, Result, Row, demo, write_result

# Where a browser must be there, as in .ci/run, its absence is an error and no reason to skip.
needs_browser = pytest.mark.skipif(
    chromium.PROGRAM is None and os.environ.get("BIEQNO_BROWSER_TESTS") != "required",
    reason="there is no Chromium on this machine",
)


DRAWN = {
    "step-1d": ("bands-random", "reliability", "covariance-random"),
    "trig-2d": ("maps", "diagonal", "reliability", "covariance"),
    "lorenz63": ("errors", "trajectories", "dynamics"),
    "lorenz96": ("errors", "waves", "dynamics"),
}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A page with all kinds of figures."""
    folder = tmp_path_factory.mktemp("runs")
    for result in (
        synthetic.step(),
        synthetic.trig(),
        synthetic.filters("lorenz63", 3),
        synthetic.filters("lorenz96", 24),
    ):
        # Drawing takes long and is tested elsewhere: any picture will do.
        figures = {name: Figure() for name in DRAWN[result.experiment]}
        write_result(replace(result, config={"command": "bieqno run it"}), folder, figures)
    return write_page(folder)


def test_the_page_is_one_file_that_names_no_other(page):
    text = page.read_text()
    addresses = re.findall(
        r"""(?:src|href|url)\s*[=(]\s*["']?([^"'\s)>]+)""", text.split('<script type="application/json"')[0]
    )
    assert addresses
    assert all(address.startswith(("data:", "#")) for address in addresses)
    assert [path.name for path in page.parent.iterdir() if path.name.startswith(".")] == []


def test_the_page_shows_claims_tables_settings_and_commands(page):
    text = page.read_text()
    for words in (
        "Every claim and its verdict",
        "reproduced",
        "best of its column",
        "2 diverged",
        "bieqno run it",
        "± 0.0",
        "settings that tuning found",
        "<td>N=2</td><td>inflation</td>",
    ):
        assert words in text
    assert text.count("<figure") >= 9
    assert text.count('class="static"') >= 8
    assert len(text) < 6e6


def test_what_results_say_is_text_and_never_markup():
    evil = '</script><img src=x onerror="alert(1)">'
    rows = [
        Row.of("N=2", evil, "relative_rmse", [0.5], ensemble_size=2, protocol="paper", diverged=0),
        Row.of(evil, "EnNF", evil, [0.5]),
    ]
    text = build_page([(Result(evil, evil, 0, tuple(rows), config={"command": evil}), {})])
    assert "<img src=x" not in text
    assert text.count("</script>") == 2


COMPARED = (  # by `bieqno compare`
    "baseline",
    "EnNF",
    "EnKF tuned",
    "ETKF tuned",
    "serial EnSRF tuned",
    "iterative EnKF tuned",
    "particle filter tuned",
    "LETKF tuned",
)


@pytest.mark.parametrize(
    "methods", [COMPARED, *(e.description.methods for e in EXPERIMENTS.values() if e is not demo.EXPERIMENT)]
)
def test_methods_that_meet_in_a_figure_look_different(methods):
    styles = [style_of(method) for method in methods]
    for mark in ("label", "color", "marker"):
        assert len({getattr(style, mark) for style in styles}) == len(methods), mark


def test_damaged_results_and_none_at_all_are_told(tmp_path):
    with pytest.raises(ValueError, match="bieqno run demo"):
        write_page(tmp_path)
    folder = write_result(synthetic.step(), tmp_path)
    (folder / "metrics.json").write_text("{")
    with pytest.raises(ValueError, match="step-1d is incomplete or damaged"):
        write_page(tmp_path)
    assert not (tmp_path / "report.html").exists()
    write_result(synthetic.step(), tmp_path)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="step-1d is incomplete or damaged"):
        write_page(tmp_path)


def test_two_results_of_one_experiment_are_not_mixed(tmp_path):
    folder = write_result(Result("step-1d", "quick", 0, ()), tmp_path)
    shutil.copytree(folder, tmp_path / ".step-1d.0123.old")  # left by a run that was killed
    assert write_page(tmp_path).read_text().count('class="experiment"') == 1
    shutil.copytree(folder, tmp_path / "step-1d-before")
    with pytest.raises(ValueError, match="both hold step-1d"):
        write_page(tmp_path)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    found = chromium.Chromium(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture(params=[(1100, "light"), (1100, "dark"), (390, "light"), (390, "dark")], ids=lambda p: f"{p[0]}-{p[1]}")
def opened(browser, page, request, tmp_path):
    """The page in a browser, at a width and in a theme; afterwards nothing was asked for and nothing went wrong."""
    width, theme = request.param
    browser.open(page, width=width, height=900, theme=theme)
    yield browser
    browser.screenshot(tmp_path / "page.png", full=False)
    assert browser.requests() == [page.as_uri()]
    assert browser.complaints() == []


def light(colour):
    return sum(map(int, re.findall(r"\d+", colour)[:3])) > 3 * 128


@needs_browser
def test_page_fits_its_width_and_theme(opened, request):
    width, theme = request.node.callspec.params["opened"]
    assert opened.run("document.documentElement.scrollWidth") <= width
    background, ink = opened.run(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    assert light(background) == (theme == "light")
    assert light(ink) == (theme == "dark")
    # Every figure was drawn, with a label for who does not see it.
    assert opened.run(
        "[...document.querySelectorAll('[data-chart] .live')].every((live) => live.querySelector('svg, canvas'))"
    )
    assert opened.run(
        "[...document.querySelectorAll('.live svg, .live canvas')].every((f) => f.getAttribute('aria-label'))"
    )
    assert opened.run("[...document.images].every((image) => image.alt)")


@needs_browser
def test_controls_work(browser, page):
    browser.open(page, width=1100, height=900, theme="light")
    plot = "document.getElementById('lorenz63-lorenz63-errors')"
    drawn = f"{plot}.querySelectorAll('[data-series=\"EnNF\"]').length"
    assert browser.run(drawn) == 1
    browser.run(f"{plot}.querySelector('[data-method=\"EnNF\"]').click()")
    assert browser.run(drawn) == 0
    assert browser.run(f"{plot}.querySelector('[data-method=\"EnNF\"]').getAttribute('aria-pressed')") == "false"
    browser.run(f"{plot}.querySelector('[data-method=\"EnNF\"]').click()")

    # By keyboard and by pointer the same values are read.
    browser.run(f"{plot}.querySelector('svg').focus()")
    browser.key("ArrowRight")
    by_key = browser.run(f"{plot}.querySelector('.readout').textContent")
    assert "ensemble size N 2" in by_key
    assert "EnNF 0.105" in by_key
    browser.key("ArrowRight")
    browser.run(f"{plot}.scrollIntoView()")
    area = browser.run(f"{plot}.querySelector('svg').getBoundingClientRect().toJSON()")
    browser.mouse("mouseMoved", area["x"] + 0.1 * area["width"], area["y"] + area["height"] / 2)
    assert browser.run(f"{plot}.querySelector('.readout').textContent") == by_key

    # With no method left there is nothing to read, and nothing goes wrong.
    buttons = f"{plot}.querySelectorAll('[aria-pressed=true]').forEach((button) => button.click())"
    browser.run(buttons)
    browser.run(f"{plot}.querySelector('svg').focus()")
    browser.key("ArrowLeft")
    assert browser.complaints() == []

    # Another view has other values.
    browser.run(
        f"(s => {{ s.selectedIndex = 1; s.dispatchEvent(new Event('change')); }})({plot}.querySelector('select'))"
    )
    assert browser.run(f"{plot}.querySelector('select').value") == "unseen truths"


@needs_browser
def test_slider_picks_the_ensemble_size_and_the_orbit_turns(browser, page):
    browser.open(page, width=1100, height=900, theme="light")
    orbit = "document.getElementById('lorenz63-lorenz63-orbit')"
    picture = f"{orbit}.querySelector('canvas').toDataURL()"
    browser.run(f"{orbit}.scrollIntoView()")
    first = browser.run(picture)
    browser.run(f"{orbit}.querySelector('input').focus()")
    browser.key("ArrowRight")
    assert browser.run(f"{orbit}.querySelector('output').textContent") == "4"
    assert browser.run(f"{orbit}.querySelector('input').getAttribute('aria-valuetext')") == "4 members"
    second = browser.run(picture)
    assert second != first
    browser.run(f"{orbit}.querySelector('canvas').focus()")
    browser.key("ArrowLeft")
    third = browser.run(picture)
    assert third != second
    x, y = browser.run(f"(({{x, y}}) => [x + 100, y + 100])({orbit}.querySelector('canvas').getBoundingClientRect())")
    browser.mouse("mousePressed", x, y, buttons=1)
    browser.mouse("mouseMoved", x + 60, y + 20, buttons=1)
    browser.mouse("mouseReleased", x + 60, y + 20)
    assert browser.run(picture) != third


@needs_browser
def test_waves_show_values_and_divergence(browser, page):
    browser.open(page, width=390, height=900, theme="dark")
    waves = "document.getElementById('lorenz96-lorenz96-waves')"
    panels = f"{waves}.querySelectorAll('canvas').length"
    assert browser.run(panels) == 5  # the truth, and of the paper's two the mean and its error
    browser.run(f"{waves}.querySelector('[data-method=\"EnKF tuned\"]').click()")
    assert browser.run(panels) == 7
    browser.run(f"(s => {{ s.value = 1; s.dispatchEvent(new Event('input')); }})({waves}.querySelector('input'))")
    browser.run(f"{waves}.querySelector('canvas').focus()")
    for _ in range(5):
        browser.key("ArrowUp")
    told = browser.run(f"{waves}.querySelector('.readout').textContent")
    assert "truth" in told
    assert "EnKF diverged" in told


@needs_browser
def test_print_shows_the_static_figures(browser, page):
    browser.open(page, width=1100, height=900, theme="light")
    shown = "getComputedStyle(document.querySelector('[data-chart] .static')).display"
    assert browser.run(shown) == "none"
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.run(shown) == "block"
    assert browser.run("getComputedStyle(document.querySelector('[data-chart] .live')).display") == "none"
    browser.call("Emulation.setEmulatedMedia", media="")
