"""Tables of prices."""

from pathlib import Path

import pytest

import costmodel
from costmodel.hardware.errors import InputError
from costmodel.prices import read_prices


@pytest.mark.parametrize(
    ("name", "text", "expected", "currency"),
    [
        ("a.csv", "gpu,price_per_hour\nh100,2.5\nl40s, 1\n", {"h100-sxm": 2.5, "l40s": 1.0}, None),
        ("b.csv", "name,price,currency\nh100,2.5,EUR\n", {"h100-sxm": 2.5}, "EUR"),
        (
            "c.toml",
            'currency = "USD"\n[prices]\nh100 = 2.5\n"a100" = 1\n',
            {"h100-sxm": 2.5, "a100-80gb-sxm": 1.0},
            "USD",
        ),
        (
            "e.csv",
            "\ufeffGPU, price_per_hour\nNVIDIA H100 80GB HBM3,2.50\n\nA100,1.4\n",
            {"h100-sxm": 2.5, "a100-80gb-sxm": 1.4},
            None,
        ),
        ("d.toml", "h200 = 3.5\n", {"h200": 3.5}, None),
    ],
)
def test_tables_of_prices(
    tmp_path: Path, name: str, text: str, expected: dict[str, float], currency: str | None
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    found = read_prices(tmp_path / name)
    assert dict(found.per_hour) == expected
    assert found.currency == currency


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "gpu,price_per_hour\nh1000,2.5\n", "line 2.*h100"),
        ("a.csv", "gpu,price_per_hour\nh100,free\n", "line 2.*price of h100"),
        ("a.csv", "gpu,price_per_hour\nh100,-1\n", "price of h100"),
        ("a.csv", "gpu,price_per_hour\nh100,1\nh100-sxm,2\n", "line 3.*already"),
        ("a.csv", "gpu\nh100\n", "must name the columns"),
        ("a.csv", "gpu,price,colour\nh100,1,red\n", "unknown column"),
        ("a.csv", "gpu,price,currency\nh100,1,EUR\nl40s,1,USD\n", "one currency"),
        ("a.csv", "gpu,price\nh100\n", "2 columns"),
        ("a.csv", "price,gpu\n2.5\n", "line 2: 2 columns"),
        ("a.csv", 'gpu,price\n"' + "h" * 140_000 + '",1\n', "line .*field"),
        ("a.csv", '"' + "h" * 140_000 + '",price\n', "line 1: field"),
        ("a.csv", "gpu,price\n", "at least one part"),
        ("a.toml", "h100 = ", "no TOML"),
        ("a.toml", "colour = 1\n[prices]\nh100 = 1\n", "unknown key"),
        ("a.toml", "currency = 1\nh100 = 1\n", "currency"),
        ("a.toml", 'h100 = "two"\n', "price of h100"),
        ("a.toml", "h100 = true\n", "price of h100"),
        ("a.csv", "gpu,price\nh100,1e12\n", "at most"),
    ],
)
def test_bad_tables(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        read_prices(tmp_path / name)


def test_files_and_mappings(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text("h100 = 2.5\n", encoding="utf-8")
    assert read_prices(str(path)) == read_prices({"H100": 2.5}) == read_prices(read_prices(path))
    with pytest.raises(InputError, match="h100-sxm"):
        read_prices({"h100": 1.0, "h100-sxm": 2.0})
    for bad in (tmp_path, tmp_path / "none.csv"):
        with pytest.raises(InputError, match="table of prices"):
            read_prices(bad)


def test_profiles_of_ones_own_have_prices_by_their_paths(
    tmp_path: Path, repo_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = (repo_root / "hardware" / "l40s.toml").read_text("utf-8")
    (tmp_path / "other").mkdir()
    for path in ("my.toml", "other/my.toml"):
        (tmp_path / path).write_text(profile, "utf-8")
    (tmp_path / "p.csv").write_text("gpu,price\nmy.toml,2\nl40s,3\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    prices = read_prices("p.csv")
    assert dict(prices.per_hour) == {"my.toml": 2.0, "l40s": 3.0}
    assert (prices.of("./my.toml"), prices.of(str(tmp_path / "my.toml")), prices.of("other/my.toml")) == (
        2.0,
        2.0,
        None,
    )
    rows = costmodel.sweep(gpu=["my.toml", str(tmp_path / "my.toml"), "other/my.toml", "l40s"], prices="p.csv").rows
    assert [row.cost_per_hour for row in rows] == [2.0, 2.0, None, 3.0]
    assert [row.gpu for row in rows] == ["my.toml", str(tmp_path / "my.toml"), "other/my.toml", "l40s"]
    with pytest.raises(InputError, match="already"):
        read_prices({"my.toml": 1.0, "./my.toml": 2.0})
