"""Methods, aggregators and attacks of other packages: listed, run, checked, compared in a study, and recorded."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from test_cli_errors import refused

import evenhand as eh
from evenhand.cli import main
from evenhand.testing import Check

SOURCE = '''
"""A package outside of Evenhand, which uses public names only."""

import jax
import jax.numpy as jnp
import optax

import evenhand as eh
from evenhand.local import Work
from evenhand.types import Algorithm, Attack, Stack, Sum


def halved(work: Work, *, portion: float = 0.5, aggregator: Sum | Stack = eh.aggregators.mean()) -> Algorithm:
    """FedAvg whose server takes only a share of each step.

    Args:
      work: the clients' local work.
      portion: of the step :math:`\\\\Delta` that is taken.
      aggregator: as in ``fedavg``.
    """
    if not 0 < portion <= 1:
        raise eh.EvenhandError(f"halved(portion={portion}): give a portion above 0, at most 1.")
    method = eh.algorithms.fedavg(work, server_opt=optax.sgd(portion), aggregator=aggregator)
    return method._replace(name=f"halved(portion={portion:g})")


def gentle_mean(most: float = 1.0) -> Sum:
    """The mean of uploads of a bounded norm.

    Args:
      most: the largest norm.
    """
    return eh.aggregators.clip(most)


def zeros(fraction: float) -> Attack:
    """Malicious clients upload zeros.

    Args:
      fraction: of the clients that are malicious.
    """
    return Attack(fraction=fraction, upload=lambda delta, key: jax.tree.map(jnp.zeros_like, delta))
'''
ENTRIES = """
[evenhand.methods]
halved = mine:halved

[evenhand.aggregators]
gentle_mean = mine:gentle_mean

[evenhand.attacks]
zeros = mine:zeros
"""
QUICK = ["--clients", "5", "--rounds", "2", "--eval-every", "2"]

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a distribution on ``sys.path``, as an installed package is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def add(
        entries: str,
        source: str = SOURCE,
        module: str = "mine",
        name: str = "federated-mine",
        version: str = "1.2",
    ) -> Path:
        place = tmp_path / f"site-{name}-{version}"
        about = place / f"{name.replace('-', '_')}-{version}.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (about / "entry_points.txt").write_text(entries)
        (place / f"{module}.py").write_text(source)
        monkeypatch.syspath_prepend(str(place))
        monkeypatch.delitem(sys.modules, module, raising=False)
        return place

    return add


def test_the_plug_ins_are_listed_with_their_signatures(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install(ENTRIES)
    assert main(["list"]) == 0
    shown = capsys.readouterr()
    assert not shown.err
    text = " ".join(shown.out.split())
    assert "halved(portion=0.5, aggregator=...) FedAvg whose server takes only a share of each step." in text
    assert "gentle_mean(most=1.0) The mean of uploads of a bounded norm." in text
    assert "zeros(fraction=) Malicious clients upload zeros." in text


def test_a_run_composes_them_and_records_their_package(install: Install) -> None:
    install(ENTRIES)
    words = ["run", "halved", "--portion", "0.25", "--aggregator", "gentle_mean()", "--attack", "zeros(0.2)"]
    assert main([*words, *QUICK, "--quiet", "--out", "a"]) == 0
    config = json.loads(Path("a/config.json").read_text())
    assert config["method"] == "halved(portion=0.25, aggregator=gentle_mean())"
    assert config["plugins"] == {"federated-mine": "1.2"}
    assert main(["run", "ditto(halved(aggregator=clip(1)))", *QUICK, "--quiet", "--out", "b"]) == 0
    assert main(["run", "fedavg", *QUICK, "--quiet", "--out", "c"]) == 0
    assert "plugins" not in json.loads(Path("c/config.json").read_text())


def test_their_options_and_help_are_read_off_the_signature(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install(ENTRIES)
    with pytest.raises(SystemExit):
        main(["run", "halved", "--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "usage: evenhand run halved [-h]" in shown
    assert "--portion FLOAT of the step Δ that is taken (default: 0.5)" in shown
    assert "--aggregator AGGREGATOR how uploads are combined, such as geometric_median() (optional)" in shown
    for words, sentence in {
        "halved --portion x": "--portion takes a number, not 'x': see `evenhand run halved --help`.",
        "halved --portio 1": "halved has no option --portio (perhaps you meant --portion)",
        "halved --portion 2": "halved(portion=2.0): give a portion above 0",
        "halvd": "There is no method 'halvd' (perhaps you meant halved)",
        "fedavg --aggregator gentle_men()": "there is no aggregator 'gentle_men' (perhaps you meant gentle_mean)",
        "fedavg --portion 1": "fedavg has no option --portion",
    }.items():
        assert sentence in refused(["run", *words.split()], capsys)


def _plug_in(kind: type, text: str) -> object:
    model = eh.testing.toy_model()
    return eh.expressions.parse(text, kind, model, eh.local.sgd(model, 0.1, epochs=1))


def test_they_pass_the_checks_that_are_published(install: Install) -> None:
    install(ENTRIES)
    method, attack = _plug_in(eh.Algorithm, "halved()"), _plug_in(eh.types.Attack, "zeros(0.2)")
    aggregator = _plug_in(eh.types.Sum, "gentle_mean(100)")
    assert isinstance(method, eh.Algorithm) and isinstance(attack, eh.types.Attack)
    assert isinstance(aggregator, eh.types.Sum)
    checks: list[Check] = [
        *eh.testing.algorithm_checks(method),
        *eh.testing.aggregator_checks(aggregator),
        *eh.testing.attack_checks(attack),
    ]
    for check in checks:
        check()


def test_a_study_compares_them(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(ENTRIES)
    words = ["study", "fedavg", "halved(portion={0.25, 0.5})", "--attack", "zeros({0, 0.2})", "--seeds", "2"]
    assert main([*words, *QUICK, "--quiet", "--out", "a"]) == 0
    capsys.readouterr()
    page = Path("a/study.html").read_text()
    assert "halved" in page and "zeros(0.2)" in page and "federated-mine 1.2" in page


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "raise RuntimeError('no licence')",
            "cannot be imported: RuntimeError: no licence; repair or uninstall",
        ),
        ("import not_there_at_all", "cannot be imported: ModuleNotFoundError: No module named"),
        ("", "cannot be imported: AttributeError: "),
        ("import sys; sys.exit(3)", "cannot be imported: SystemExit: 3; repair or"),
        ("def halved(work): ...", "is not a function that is annotated to return Algorithm."),
        ("halved = 3", "is not a function that is annotated to return Algorithm."),
        ("def halved(work) -> 'Nothing': ...", "is not a function that is annotated to return Algorithm."),
    ],
)
def test_a_broken_plug_in_is_one_sentence_where_it_is_used(
    source: str, reason: str, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nowhere else."""
    install("[evenhand.methods]\nhalved = broken:halved\n", source, module="broken")
    for words in (
        ["run", "halved"],
        ["run", "ditto(halved())"],
        ["study", "halved"],
        ["run", "halved", "--portion", "1"],
    ):
        sentence = refused(words, capsys)
        assert "The plug-in halved of federated-mine 1.2 (broken:halved) " in sentence and reason in sentence
    assert main(["list", "methods"]) == 0
    shown = capsys.readouterr()
    assert "ditto(" in shown.out and reason in shown.err and shown.err.count("\n") == 1
    for page in (["run", "--help"], ["help", "run", "fedavg"], ["completion", "bash"]):
        with suppress(SystemExit):
            assert main(page) == 0
        assert not capsys.readouterr().err
    assert "There is no method 'fedporx' (perhaps you meant fedprox)" in refused(["run", "fedporx"], capsys)
    assert main(["run", "fedavg", "--rounds", "0", "--quiet", "--out", "halved"]) == 0


def test_a_plug_in_cannot_replace_what_is_built_in(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("[evenhand.methods]\nfedavg = gone:fedavg\n", module="gone")
    sentence = "The plug-in fedavg of federated-mine 1.2 (gone:fedavg) has the name of a built-in one, which it cannot"
    assert main(["list", "methods"]) == 0
    shown = capsys.readouterr()
    assert sentence in shown.err and "fedavg(server_opt=" in shown.out
    assert main(["run", "fedavg", "--rounds", "0", "--out", "a"]) == 0
    assert sentence in capsys.readouterr().err
    assert main(["run", "fedprox", "--mu", "1", "--rounds", "0", "--out", "b"]) == 0
    assert sentence not in capsys.readouterr().err


def test_a_plug_in_without_a_name_that_can_be_called_is_ignored(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("[evenhand.methods]\nmy-own = gone:fedavg\nside_by_side = gone:fedavg\n", module="gone")
    assert main(["list", "methods"]) == 0
    warned = capsys.readouterr().err
    assert "plug-in my-own of federated-mine 1.2 (gone:fedavg) has a name that is no name in Python" in warned
    assert "plug-in side_by_side of federated-mine 1.2 (gone:fedavg) has the name of a built-in one" in warned
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    assert "my-own" not in capsys.readouterr().out


def test_two_packages_with_one_name_are_one_sentence(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install(ENTRIES)
    install("[evenhand.methods]\nhalved = other:halved\n", module="other", name="another")
    sentence = "The plug-in halved is ambiguous, as another and federated-mine both register it: uninstall one of them."
    assert sentence in refused(["run", "halved"], capsys)
    assert main(["list", "methods"]) == 0
    assert sentence in capsys.readouterr().err


def test_another_version_of_the_package_is_reported(
    install: Install, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = install(ENTRIES)
    assert main(["run", "halved", *QUICK, "--quiet", "--out", "a"]) == 0
    rows = Path("rows.npz")
    data = eh.data.load("digits", clients=5)
    np.savez(rows, x=data.test.x[:3])
    capsys.readouterr()
    (place / "federated_mine-1.2.dist-info").rename(place / "federated_mine-1.3.dist-info")
    metadata = place / "federated_mine-1.3.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("1.2", "1.3"))
    monkeypatch.syspath_prepend(str(place))
    sentence = "used the plug-ins of federated-mine 1.2, which is 1.3 now: the numbers may differ."
    assert main(["predict", "a", "--data", str(rows)]) == 0
    assert sentence in capsys.readouterr().err
    assert main(["run", "--config", "a", "--out", "b"]) == 0
    assert sentence in capsys.readouterr().err
    assert main(["resume", "a", "--rounds", "3"]) == 0
    assert sentence in capsys.readouterr().err
    monkeypatch.undo()  # the package is gone, and so is the folder that this test works in
    folder = place.parent / "a"
    for words in (["resume", str(folder), "--rounds", "4"], ["predict", str(folder), "--data", str(rows)]):
        needed = f"{folder / 'config.json'} needs the plug-ins of federated-mine 1.3, which is not installed"
        assert needed in refused(words, capsys)
    assert needed in refused(["run", "--config", str(folder)], capsys)
    assert main(["report", str(folder)]) == 0
