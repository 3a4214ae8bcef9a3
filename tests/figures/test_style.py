"""Numbers are written alike everywhere, and nothing depends on colour alone."""

import subprocess
import sys
from itertools import combinations

import matplotlib as mpl
import pytest

from costmodel.cli.figures import style
from costmodel.cli.figures.groups import GROUPS
from costmodel.cli.text import count, plural


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.13127226, "131 ms"),
        (0.0051527, "5.15 ms"),
        (1.0545, "1.05 s"),
        (0.9996, "1.00 s"),
        (0.99949, "999 ms"),
        (1.62394e-5, "16.2 µs"),
        (9.9999e-4, "1.00 ms"),
        (0.1, "100 ms"),
        (1089.6, "1,090 s"),
        (0.0, "0 µs"),
    ],
)
def test_seconds_have_three_digits(seconds: float, text: str) -> None:
    assert style.format_seconds(seconds) == text


def test_other_numbers() -> None:
    assert style.format_limit(0.05) == "50 ms"
    assert style.format_limit(2.0) == "2 s"
    assert count(100000) == "100,000"
    assert [style.format_ratio(ratio) for ratio in (1.0, 9.94, 9.96, 25.48, 1193.7)] == [
        "1.0",
        "9.9",
        "10",
        "25",
        "1,194",
    ]
    assert [style.format_share(share) for share in (0.0, 0.0066, 0.0994, 0.0996, 1.0)] == [
        "0 %",
        "0.7 %",
        "9.9 %",
        "10 %",
        "100 %",
    ]
    assert style.significant(0.05154) == "0.0515"
    assert style.significant(0) == "0"
    assert plural(1, "stream") == "1 stream"
    assert style.time_unit(12.0) == (1.0, "s")


def test_stacked_neighbours_differ_without_colour() -> None:
    for one, other in combinations(GROUPS, 2):
        lighter = abs(style.luminance(one.color) - style.luminance(other.color))
        assert one.hatch != other.hatch or lighter > 0.25, (one.name, other.name)
        assert one.color != other.color


def test_curves_differ_without_colour() -> None:
    for (_, line, marker), (_, other_line, other_marker) in combinations(style.LOOKS, 2):
        assert marker != other_marker
        assert line != other_line


def test_palette_is_the_one_of_okabe_and_ito() -> None:
    assert set(style.PALETTE) == {
        "#000000",
        "#E69F00",
        "#56B4E9",
        "#009E73",
        "#F0E442",
        "#0072B2",
        "#D55E00",
        "#CC79A7",
    }
    assert {group.color for group in GROUPS} <= {*style.PALETTE, style.PALE}


def test_text_on_colour_has_contrast() -> None:
    for group in GROUPS:
        light, dark = sorted((style.luminance(group.color), style.luminance(style.BLACK)), reverse=True)
        if style.ink_on(group.color) == "white":
            light, dark = 1.0, style.luminance(group.color)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, group.name


def test_luminance_spans_black_to_white() -> None:
    assert style.luminance("#000000") == 0.0
    assert style.luminance("#FFFFFF") == pytest.approx(1.0)


def test_titles_break_at_pauses_and_keep_units_whole() -> None:
    with style.styled():
        figure = style.new_figure()
        assert style.wrap(figure, "short", 21, 12.0) == ["short"]
        text = "a first half of the sentence here; a second half of the sentence here, as long"
        assert style.wrap(figure, text, 21, 10.0)[0].endswith(";")
        for width in (3.0, 4.0, 5.0, 6.0):
            lines = style.wrap(
                figure, "tokens come up to 18.3 ms apart instead of 2.75 ms, for 68.3 ms in all", 21, width
            )
            assert not any(line[-1].isdigit() for line in lines)
        assert style.shorten(figure, "x" * 400, 11, 3.0).count("…") == 1


def test_user_settings_change_nothing(drawn) -> None:  # type: ignore[no-untyped-def]
    with mpl.rc_context({"font.size": 3, "figure.facecolor": "black", "axes.facecolor": "red"}):
        with style.styled():
            assert mpl.rcParams["font.size"] == style.TEXT_SIZE
            assert mpl.rcParams["axes.facecolor"] == "white"
        assert mpl.rcParams["font.size"] == 3


def test_dollars_in_names_are_text() -> None:
    with style.styled():
        figure = style.new_figure()
        style.add_frame(figure, "a model called $x_{ costs 5 ms", "$\\frac")
        figure.draw_without_rendering()


def test_matplotlib_is_imported_only_to_draw() -> None:
    source = (
        "import sys; import costmodel.cli.figures as figures; from pathlib import Path;"
        "figures.check_target(Path('x.png'), False); assert 'matplotlib' not in sys.modules, 'early';"
        "figures.draw_breakdown; assert 'matplotlib' in sys.modules; assert 'matplotlib.pyplot' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_unknown_names_are_attribute_errors() -> None:
    import costmodel.cli.figures

    with pytest.raises(AttributeError, match="no attribute"):
        costmodel.cli.figures.draw_nothing  # noqa: B018
