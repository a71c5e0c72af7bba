"""Curves in braille characters."""

from vitcli.cli.watch_screen import Range, draw, range_of


def picture(*curves, width=4, height=2) -> str:
    points = [point for curve in curves for point in curve]
    x, y = range_of([a for a, _ in points]), range_of([b for _, b in points])
    return "\n".join("".join(map(chr, row)) for row in draw(curves, width, height, x, y))


def test_a_rising_line_goes_from_the_lower_left_to_the_upper_right():
    assert picture([(0, 0), (7, 7)]) == "⠀⠀⡠⠊\n⡠⠊⠀⠀"


def test_a_falling_line_is_its_mirror_image():
    assert picture([(0, 7), (7, 0)]) == "⠑⢄⠀⠀\n⠀⠀⠑⢄"


def test_curves_share_characters():
    rising, falling = [(0, 0), (1, 3)], [(0, 3), (1, 0)]
    assert picture(rising, width=1, height=1) == "⡜"
    assert picture(rising, falling, width=1, height=1) == "⣿"


def test_one_point_is_one_dot_and_equal_numbers_are_in_the_middle():
    assert picture([(3, 5)], width=3, height=1).count("⠀") == 2
    assert Range(low=5, high=5).place(5, 9) == 4
