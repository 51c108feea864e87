"""``evenhand doctor``: what it examines, and which broken installations it notices, in words and in its exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import jax
import pytest

import evenhand as eh
from evenhand.cli import main
from evenhand_command import doctor

KEYS = ["versions", "devices", "cache", "extras", "advice"]
Examined = tuple[int, dict[str, Any]]


@pytest.fixture(autouse=True)
def _installed_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether this folder was installed before or after the last change of its version is no matter of these tests."""
    monkeypatch.setattr(doctor, "_stale", list)


@pytest.fixture
def examined(capsys: pytest.CaptureFixture[str]) -> Callable[[], Examined]:
    """The exit code of ``evenhand doctor --json``, and what it printed."""

    def run() -> Examined:
        code = main(["doctor", "--json"])
        shown = capsys.readouterr()
        assert not shown.err
        return code, json.loads(shown.out)

    return run


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """Versions that are installed according to this dictionary, the others as they are; None is not installed."""
    pretended: dict[str, str | None] = {}
    true = metadata.version

    def version(name: str) -> str:
        value = pretended[name] if name in pretended else true(name)
        if value is None:
            raise metadata.PackageNotFoundError(name)
        return value

    monkeypatch.setattr(metadata, "version", version)
    return pretended


def test_the_environment_of_the_tests_is_sound(examined: Callable[[], Examined]) -> None:
    code, shown = examined()
    assert (code, shown["advice"]) == (0, [])
    assert list(shown) == KEYS
    assert shown["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    for name in ("jax", "jaxlib", "numpy", "flax", "optax", "orbax-checkpoint", "scikit-learn", "tyro"):
        assert shown["versions"][name] == metadata.version(name)
    [devices] = shown["devices"]
    assert devices == {"platform": "cpu", "kind": "cpu", "count": len(jax.devices())}
    assert shown["extras"]["parquet"] == "installed"
    assert not set(doctor.DEVELOPMENT) & shown["extras"].keys()
    provided = metadata.metadata("evenhand").get_all("Provides-Extra") or []
    assert {name for name in provided if name.endswith("test") or name == "docs"} <= set(doctor.DEVELOPMENT)
    for name, state in shown["extras"].items():
        assert state in ("installed", f"pip install 'evenhand[{name}]'")


def test_people_get_a_table_of_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        doctor, "_cache", lambda: ({"path": "/c", "writable": True, "files": 1234, "bytes": 5600000}, [])
    )
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert re.search(rf"(?m)^jax +{re.escape(jax.__version__)} +>=0\.10\.2,<0\.13$", shown)
    assert re.search(r"(?m)^devices +\d+ x cpu$", shown)
    assert re.search(r"(?m)^cache +/c\n +writable, 1,234 files, 5\.6 MB$", shown)
    assert shown.endswith("\nNothing is broken.\n")
    assert max(map(len, shown.splitlines())) <= 80


def test_every_command_lists_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert re.search(r"(?m)^\W*doctor +Check the installation \(packages, devices", capsys.readouterr().out)


# --- packages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "version", "sentence"),
    [
        ("flax", None, r"^Evenhand needs flax>=\S+, which is not installed: pip install 'flax>=\S+'\.$"),
        (
            "jax",
            "0.9.2",
            r"^Evenhand needs jax>=0\.10\.2,<0\.13, and jax 0\.9\.2 is installed: pip install 'jax>=",
        ),
        ("jax", "0.13.0", r"^Evenhand needs jax>=0\.10\.2,<0\.13, and jax 0\.13\.0 is installed: "),
        (
            "jax",
            "0.13.0.dev1",
            r"^Evenhand needs jax>=0\.10\.2,<0\.13, and jax 0\.13\.0\.dev1 is installed: ",
        ),
        ("jaxlib", "0.4.1", r"^jax needs jaxlib\S+, and jaxlib 0\.4\.1 is installed: pip install 'jaxlib"),
        ("opt_einsum", None, r"^jax needs opt_einsum, which is not installed: pip install 'opt_einsum'\.$"),
    ],
)
def test_packages_that_are_missing_or_do_not_fit(
    examined: Callable[[], Examined],
    versions: dict[str, str | None],
    name: str,
    version: str | None,
    sentence: str,
) -> None:
    versions[name] = version
    code, shown = examined()
    assert code == 1
    assert len([line for line in shown["advice"] if re.search(sentence, line)]) == 1, shown["advice"]
    assert sum(f" {name}" in line for line in shown["advice"]) == 1, "once, however many packages need it"
    if name in shown["versions"]:
        assert shown["versions"][name] == version


def test_a_package_that_fits_but_cannot_be_imported(
    examined: Callable[[], Examined], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str) -> Any:
        if name == "sklearn":
            raise ValueError("numpy.dtype size changed\nand more")
        return import_module(name)

    monkeypatch.setattr(doctor, "import_module", broken)
    code, shown = examined()
    assert code == 1
    [sentence] = shown["advice"]
    assert re.match(
        r"scikit-learn \S+ cannot be imported \(ValueError: numpy.dtype size changed\): "
        r"pip install --force-reinstall 'scikit-learn>=\S+'\.$",
        sentence,
    )


def test_an_extra_whose_packages_are_too_old_or_missing(
    examined: Callable[[], Examined], versions: dict[str, str | None]
) -> None:
    versions |= {"pyarrow": "10.0", "h5py": None}
    code, shown = examined()
    assert code == 0, "nothing that Evenhand needs is broken"
    assert shown["extras"]["parquet"] == "pip install 'evenhand[parquet]'"
    assert shown["extras"]["hdf5"] == "pip install 'evenhand[hdf5]'"
    assert shown["advice"] == [
        "The extra parquet needs pyarrow>=17, and 10.0 is installed: pip install 'evenhand[parquet]'."
    ]


def test_a_folder_that_is_not_installed(
    examined: Callable[[], Examined], versions: dict[str, str | None]
) -> None:
    versions["evenhand"] = None
    code, shown = examined()
    assert (code, shown["extras"]) == (1, {})
    assert shown["advice"] == ["Evenhand is not installed, so no versions are checked: pip install evenhand."]


def test_pip_noted_another_version_than_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(metadata, "version", lambda name: "0.0.1")
    [hint] = doctor._stale()
    assert hint.startswith(f"Evenhand {eh.__version__} runs, and pip has noted 0.0.1: ")
    monkeypatch.setattr(metadata, "version", lambda name: eh.__version__)
    assert not doctor._stale()


# --- devices ----------------------------------------------------------------------------------------------------


def test_jax_without_a_device_that_computes(
    examined: Callable[[], Examined], monkeypatch: pytest.MonkeyPatch
) -> None:
    def devices() -> None:
        raise RuntimeError("Unable to initialize backend 'cuda': no driver.")

    monkeypatch.setattr(jax, "devices", devices)
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    code, shown = examined()
    assert (code, shown["devices"]) == (1, [])
    [sentence] = shown["advice"]
    assert sentence.startswith(
        "JAX finds no device that computes with JAX_PLATFORMS=cuda (RuntimeError: Unable to initialize backend 'cuda': "
        "no driver): see "
    )


def test_a_gpu_that_jax_leaves_idle(
    examined: Callable[[], Examined], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_has_nvidia", lambda: True)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    code, shown = examined()
    [hint] = shown["advice"]
    assert code == 0
    extras = set(metadata.metadata("jax").get_all("Provides-Extra") or ())
    [extra] = re.findall(
        r"^JAX does not use this machine's NVIDIA GPU: pip install 'jax\[(\w+)\]>=0\.10\.2,<0\.13'\.$", hint
    )
    assert extra in extras and extra.startswith("cuda")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    [hint] = examined()[1]["advice"]
    assert hint.startswith("JAX_PLATFORMS=cpu keeps JAX from this machine's NVIDIA GPU: unset it")


# --- the cache of compiled programs -----------------------------------------------------------------------------


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], None]:
    """Says where JAX keeps programs, to the report alone: JAX itself opens its cache once."""

    def use(folder: object) -> None:
        class Config:
            jax_compilation_cache_dir = folder

        class Imported:
            config = Config
            devices = staticmethod(jax.devices)
            numpy = jax.numpy

        monkeypatch.setattr(
            doctor, "import_module", lambda name: Imported if name == "jax" else import_module(name)
        )

    return use


def test_the_cache_is_measured(
    examined: Callable[[], Examined], cache: Callable[[object], None], tmp_path: Path
) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "inner" / "b").write_bytes(b"123")
    cache(str(tmp_path))
    code, shown = examined()
    assert code == 0
    assert shown["cache"] == {"path": str(tmp_path), "writable": True, "files": 2, "bytes": 8}
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "inner"], (
        "it leaves nothing behind"
    )
    cache(str(tmp_path / "not" / "yet"))
    assert examined()[1]["cache"]["writable"] is True
    assert not (tmp_path / "not").exists()


def test_a_cache_that_cannot_be_written(
    examined: Callable[[], Examined], cache: Callable[[object], None], tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "file").write_text("")
    # Below a file nobody can make a folder, not even an administrator, for whom permissions do not count.
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        cache(str(folder))
        code, shown = examined()
        assert (code, shown["cache"]["writable"]) == (1, False)
        [sentence] = shown["advice"]
        assert sentence.startswith(f"The cache of compiled programs, {folder}, cannot be written, and ")
        assert sentence.endswith("mend its permissions, or set JAX_COMPILATION_CACHE_DIR to another folder.")
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "NOT writable" in shown and "Nothing is broken." not in shown


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() == 0, reason="permissions do not bind this user")
def test_a_cache_without_permission(
    examined: Callable[[], Examined], cache: Callable[[object], None], tmp_path: Path
) -> None:
    tmp_path.chmod(0o500)
    cache(str(tmp_path))
    code, shown = examined()
    tmp_path.chmod(0o700)
    assert (code, shown["cache"]["writable"]) == (1, False)


def test_no_cache(
    examined: Callable[[], Examined], cache: Callable[[object], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache("")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    code, shown = examined()
    assert (code, shown["cache"]["writable"], shown["advice"]) == (0, None, []), "it was switched off"
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    code, shown = examined()
    assert (code, shown["cache"]["writable"]) == (1, False)
    assert shown["advice"][0].startswith(
        "The folder for compiled programs cannot be made in XDG_CACHE_HOME or "
    )


def test_a_bucket_is_left_to_jax(examined: Callable[[], Examined], cache: Callable[[object], None]) -> None:
    cache("gs://bucket/programs")
    code, shown = examined()
    assert (code, shown["advice"]) == (0, [])
    assert shown["cache"] == {"path": "gs://bucket/programs", "writable": None, "files": 0, "bytes": 0}


# --- a package without which Evenhand cannot be imported --------------------------------------------------------


@pytest.fixture
def without(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command where importing a package fails."""

    def run(package: str, line: str, *words: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(line)
        source = Path(eh.__file__).parents[1]
        code = "import sys; from evenhand_command import main; sys.exit(main())"
        return subprocess.run(
            [sys.executable, "-c", code, *words],
            env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{source}"},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_the_report_is_there_where_the_package_cannot_be_imported(
    without: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = without("flax", "raise ImportError('no flax today')", "doctor", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    shown = json.loads(done.stdout)
    assert list(shown) == KEYS
    assert shown["versions"]["flax"] == metadata.version("flax")
    assert shown["devices"], "JAX is there and works"
    [sentence] = [line for line in shown["advice"] if line.startswith("flax")]
    assert "cannot be imported (ImportError: no flax today): pip install --force-reinstall 'flax" in sentence


def test_without_any_jax(without: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = without("jax", "raise RuntimeError('jaxlib is too old')", "doctor")
    assert (done.returncode, done.stderr) == (1, "")
    assert re.search(
        r"(?m)^jax \S+ cannot be imported \(RuntimeError: jaxlib is too old\): pip install", done.stdout
    )
    assert re.search(r"(?m)^devices +none$", done.stdout)


def test_other_commands_point_to_the_report(without: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = without("flax", "raise ImportError('no flax today')", "run", "fedavg")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "evenhand: ImportError: no flax today: `evenhand doctor` shows what is missing.\n"


def test_the_cause_of_another_failure_is_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    failure = AttributeError("module 'jax' has no attribute 'jit'")
    with pytest.raises(AttributeError) as raised:
        doctor.without_package(["run"], failure)
    assert raised.value is failure
    assert any("evenhand doctor" in note for note in failure.__notes__)
