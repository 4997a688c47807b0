"""The page: complete without a browser, and alive in one."""

import re
import shutil
import time
from dataclasses import replace

import chromium
import pytest
import synthetic
from matplotlib.figure import Figure

from bieqno.lab.report.page import build_page, write_page
from bieqno.lab.report.style import style_of
from bieqno.lab.studies import EXPERIMENTS, Result, Row, demo, write_result

needs_browser = chromium.needed


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
        "The paper's claims, one by one",
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
    assert 'download="lorenz63-lorenz63-errors.csv"' in text
    assert len(text) < 6e6  # most of it is Plotly


def test_what_results_say_is_text_and_never_markup():
    evil = '</script><img src=x onerror="alert(1)">'
    rows = [
        Row.of("N=2", evil, "relative_rmse", [0.5], ensemble_size=2, protocol="paper", diverged=0),
        Row.of(evil, "EnNF", evil, [0.5]),
    ]
    text = build_page([(Result(evil, evil, 0, tuple(rows), config={"command": evil}), {})])
    assert "<img src=x" not in text
    assert text.count("</script>") == 3  # the figures, Plotly and the script


COMPARED = (  # by `bieqno compare`
    "baseline",
    "EnNF",
    "pretrained EnNF",
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
    for damaged in ("{", "[" * 100_000):
        (folder / "metrics.json").write_text(damaged)
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
    # Every figure is drawn when it comes near, with a label for who does not see it.
    for figure in opened.run("[...document.querySelectorAll('[data-chart]')].map((figure) => figure.id)"):
        show(opened, figure)
    assert opened.run("document.documentElement.scrollWidth") <= width
    assert opened.run(
        "[...document.querySelectorAll('.live, .table')].every((one) => one.ariaLabel && one.tabIndex === 0)"
    )
    assert opened.run("[...document.querySelectorAll('.controls [name]')].every((input) => input.labels.length)")
    assert opened.run("[...document.images].every((image) => image.alt)")
    # Plotly's offer to upload a figure to its cloud is not there.
    assert opened.run("document.querySelectorAll('.modebar-btn').length") > 0
    assert (
        opened.run("document.querySelectorAll('.modebar-btn[data-title*=hare], .modebar-btn[data-title*=loud]').length")
        == 0
    )


def show(browser, figure):
    """Bring a figure near, wait until it is drawn, and return the expression that names it."""
    found = f"document.getElementById('{figure}')"
    browser.run(f"{found}.scrollIntoView()")
    browser.wait(f"{found}.querySelector('.main-svg, canvas') !== null")
    return found


def choose(browser, figure, control, value):
    """Set a native control as a user does."""
    setting = f"i => {{ i.value = '{value}'; i.dispatchEvent(new Event('input', {{bubbles: true}})); }}"
    browser.run(f"({setting})({figure}.querySelector('[name={control}]'))")


def names(figure):
    return f"{figure}.querySelector('.live').data.map((trace) => trace.name)"


@needs_browser
def test_controls_work(browser, page):
    browser.open(page, width=1100, height=900, theme="light")
    plot = show(browser, "lorenz63-lorenz63-errors")
    box = f"{plot}.querySelector('[value=\"EnNF\"]')"
    assert "EnNF" in browser.run(names(plot))
    browser.run(f"{box}.focus()")
    browser.key(" ")
    assert browser.run(f"{box}.checked") is False
    assert "EnNF" not in browser.run(names(plot))
    browser.key(" ")
    assert "EnNF" in browser.run(names(plot))

    # By keyboard and by pointer the same values are read, and they are those of the table.
    browser.run(f"{plot}.querySelector('.live').focus()")
    browser.key("ArrowRight")
    browser.wait(f"{plot}.querySelector('.readout').textContent.includes('EnNF : 0.105')")
    by_key = browser.run(f"{plot}.querySelector('.readout').textContent")
    browser.run("Plotly.Fx.unhover(document.activeElement)")
    area = browser.run(f"{plot}.querySelector('.nsewdrag').getBoundingClientRect().toJSON()")
    browser.mouse("mouseMoved", area["x"] + 0.1 * area["width"], area["y"] + area["height"] / 2)
    seen = f"[...{plot}.querySelectorAll('.hoverlayer text')].map((text) => text.textContent).join(' · ')"
    browser.wait(f"{seen} !== ''")
    assert browser.run(seen) == by_key

    # With no method left there is nothing to read, and nothing goes wrong.
    browser.run(f"{plot}.querySelectorAll(':checked').forEach((box) => box.type === 'checkbox' && box.click())")
    browser.run(f"{plot}.querySelector('.live').focus()")
    browser.key("ArrowLeft")
    assert browser.complaints() == []
    assert browser.run(names(plot)) == []

    # Another view has other values.
    browser.run(f"{plot}.querySelector('[value=\"EnNF\"]').click()")
    first = browser.run(f"{plot}.querySelector('select').value")
    choose(browser, plot, "view", "unseen truths")
    assert (first, browser.run(names(plot))) == ("the paper's truth", ["EnNF"])


@needs_browser
def test_slider_picks_the_ensemble_size_and_the_orbit_turns(browser, page):
    browser.open(page, width=1100, height=900, theme="light")
    orbit = show(browser, "lorenz63-lorenz63-orbit")
    live, size = f"{orbit}.querySelector('.live')", f"{orbit}.querySelector('[name=size]')"
    browser.wait(f"{live}.querySelector('canvas') !== null")
    first, names_first = browser.picture(live), browser.run(names(orbit))
    browser.run(f"{size}.focus()")
    browser.key("ArrowRight")
    assert browser.run(f"{orbit}.querySelector('.controls label').textContent") == "Ensemble size N = 4 "
    assert browser.run(f"{size}.ariaValueText") == "4"
    assert names_first == ["truth", "EnKF, N = 2", "EnNF, N = 2"]
    assert browser.run(names(orbit)) == ["truth", "EnKF, N = 4", "EnNF, N = 4"]
    second = browser.picture(live)
    assert second != first
    # The path up to a time is shorter; the truth stays.
    lengths = f"{live}.data.map((trace) => trace.x.length)"
    whole = browser.run(lengths)
    choose(browser, orbit, "time", 0)
    assert browser.run(lengths) == [whole[0], whole[1] // 12, whole[2] // 12]
    choose(browser, orbit, "time", 11)

    eye = f"JSON.stringify({live}.layout.scene.camera.eye)"
    before = browser.run(eye)
    browser.run(f"{live}.focus()")
    browser.key("ArrowLeft")
    turned = browser.run(eye)
    assert turned != before
    third = browser.picture(live)
    assert third != second
    x, y = browser.run(f"(({{x, y}}) => [x + 300, y + 200])({live}.getBoundingClientRect())")
    browser.mouse("mouseMoved", x, y)
    browser.mouse("mousePressed", x, y, buttons=1)
    for step in (20, 40, 60):
        browser.mouse("mouseMoved", x + step, y + step / 3, buttons=1)
        time.sleep(0.1)  # the scene follows the pointer once per frame
    browser.mouse("mouseReleased", x + 60, y + 20)
    browser.wait(f"{eye} !== '{turned}'")
    dragged = browser.run(eye)
    choose(browser, orbit, "size", 0)
    assert browser.run(eye) == dragged  # another size is seen from the same side


@needs_browser
def test_waves_show_values_and_divergence(browser, page):
    browser.open(page, width=390, height=900, theme="dark")
    waves = show(browser, "lorenz96-lorenz96-waves")
    both = ["EnKF", "error of EnKF"]
    assert browser.run(names(waves)) == ["truth", *both, "EnNF", "error of EnNF"]  # the paper's two
    choose(browser, waves, "first", "EnKF tuned")
    assert "EnKF, tuned" in browser.run(names(waves))
    choose(browser, waves, "first", "EnKF")
    choose(browser, waves, "size", 1)
    gone = f"{waves}.querySelector('.live').data.find((trace) => trace.name === 'EnKF').z.filter(Number.isNaN).length"
    assert browser.run(gone) == 9 * 24  # from the fourth window on
    browser.run(f"{waves}.querySelector('.live').focus()")
    browser.key("ArrowRight")
    browser.key("ArrowUp")
    browser.wait(f"{waves}.querySelector('.readout').textContent.includes('truth1.00, 2.00: ')")


@needs_browser
def test_tables_are_sorted_by_any_column(browser, page):
    browser.open(page, width=1100, height=900, theme="light")
    table = "document.querySelector('#lorenz63 .table table')"
    column = f"[...{table}.tBodies[0].rows].map((row) => row.cells[3].textContent)"
    before = browser.run(column)
    browser.run(f"{table}.tHead.rows[0].cells[3].querySelector('button').focus()")
    browser.key(" ")
    up = browser.run(column)
    assert browser.run(f"{table}.tHead.rows[0].cells[3].ariaSort") == "ascending"
    browser.key(" ")
    down = browser.run(column)
    values = [float(text.split()[0]) for text in up if text and "diverged" not in text]
    assert values == sorted(values)
    assert [float(text.split()[0]) for text in down if text and "diverged" not in text] == values[::-1]
    assert sorted(up) == sorted(before)
    assert "diverged" in up[-1] + up[-2] + up[-3]  # what has no value comes last, in both orders
    assert "diverged" in down[-1] + down[-2] + down[-3]


def hidden(browser, selector):
    return browser.run(f"getComputedStyle(document.querySelector('{selector}')).display") == "none"


@needs_browser
def test_print_shows_the_static_figures(browser, page):
    browser.open(page, width=1100, height=900, theme="light")
    assert hidden(browser, "[data-chart] .static")
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert not hidden(browser, "[data-chart] .static")
    assert hidden(browser, "[data-chart] .live")
    assert hidden(browser, "[data-chart] .controls")
    browser.call("Emulation.setEmulatedMedia", media="")


@needs_browser
def test_without_scripts_tables_images_and_numbers_remain(browser, page):
    try:
        browser.open(page, width=390, height=900, theme="light", scripts=False)
        assert not hidden(browser, "[data-chart] .static")
        assert hidden(browser, "[data-chart] .live")
        assert hidden(browser, "[data-chart] .controls")
        assert not hidden(browser, "#lorenz63 .table")
        assert browser.run(
            "document.querySelector('#lorenz63-lorenz63-errors a[download]').href.startsWith('data:text/csv')"
        )
        assert browser.run("document.documentElement.scrollWidth") <= 390
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


@needs_browser
def test_no_other_script_is_run(browser, page, tmp_path):
    """Whatever text would get past the escaping: the policy of the page names its scripts by their digests."""
    evil = "<script>document.title = 'changed'</script><img src=x onerror=\"document.title = 'changed'\">"
    text = page.read_text(encoding="utf-8")
    assert "script-src 'sha256-" in text
    changed = tmp_path / "changed.html"
    changed.write_text(text.replace("</h1>", f"</h1>{evil}", 1), encoding="utf-8")
    browser.open(changed, width=800, height=600, theme="light")
    assert browser.run("document.title").startswith("bieqno")
    assert any("Content Security Policy" in complaint for complaint in map(str, browser.complaints()))
