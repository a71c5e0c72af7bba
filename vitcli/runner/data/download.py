"""Download of files: announced, from several URLs, checked, and written only if complete."""

import hashlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from vitcli.runner.data.catalogue import Download
from vitcli.runner.errors import InputError
from vitcli.runner.files import commit
from vitcli.runner.text import printable

TIMEOUT_SECONDS = 30.0
REPORT_SECONDS = 5.0
CHUNK = 1 << 18
SLACK = 1 << 20
# A URL slower than this after PATIENCE_SECONDS is given up for the next one.
MIN_BYTES_PER_SECOND = 200_000
# The last URL is given up only if it is so slow that the file would take days.
MIN_BYTES_PER_SECOND_OF_LAST = 1_000
PATIENCE_SECONDS = 30.0


class UnusableError(Exception):
    """A URL that did not deliver the file. The next URL is tried."""


def download(
    file: Download, folder: Path, on_message: Callable[[str], None], urls: tuple[str, ...] = ()
) -> Path:
    """Download one file into ``folder`` from the first URL that delivers the right bytes.

    Raises:
        InputError: All URLs failed. The text gives the reason for each.
    """
    target, reasons = folder / file.name, []
    urls = urls or file.urls
    for left, url in enumerate(urls, start=1 - len(urls)):
        on_message(
            f"downloading {printable(url)} ({file.size / 1e6:.1f} MB) to {printable(target)}"
        )
        try:
            content = _receive(url, file, on_message, last=left == 0)
            check_content(file, content)
        except UnusableError as error:
            reasons.append(f"{printable(url)}: {error}")
            on_message(f"failed: {reasons[-1]}")
            continue
        folder.mkdir(parents=True, exist_ok=True)
        commit(target, content)
        return target
    raise InputError(
        f"{file.name} could not be downloaded ({'; '.join(reasons)}).\n"
        "Use a copy of your own: vitcli data get NAME --from URL|PATH   "
        "Train on the embedded data set, without a download: vitcli train"
    )


def check_content(file: Download, content: bytes) -> None:
    """Raise UnusableError if the content differs from the published file."""
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != file.md5:
        raise UnusableError(f"wrong content ({len(content):,} bytes of {file.size:,}, MD5 differs)")
    if file.sha256 and hashlib.sha256(content).hexdigest() != file.sha256:
        raise UnusableError("wrong content (SHA-256 differs)")


def _receive(url: str, file: Download, on_message: Callable[[str], None], *, last: bool) -> bytes:
    request = urllib.request.Request(url, headers={"User-Agent": "vitcli"})
    content, min_rate = bytearray(), MIN_BYTES_PER_SECOND_OF_LAST if last else MIN_BYTES_PER_SECOND
    started = reported = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            while chunk := response.read1(CHUNK):  # read() would wait for a whole chunk
                content += chunk
                now = time.monotonic()
                if len(content) > file.size + SLACK:
                    raise UnusableError("the server sends more bytes than the file has")
                rate = len(content) / max(now - started, 1e-6)
                if now - started > PATIENCE_SECONDS and rate < min_rate:
                    raise UnusableError(f"too slow ({rate / 1e3:.1f} kB/s)")
                if now - reported > REPORT_SECONDS:
                    reported = now
                    on_message(_progress(len(content), file.size, rate))
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise UnusableError(printable(getattr(error, "reason", None) or error)) from error
    return bytes(content)


def _progress(done: int, size: int, rate: float) -> str:
    left = max(0, size - done) / rate
    return f"{done / 1e6:.1f} of {size / 1e6:.1f} MB, {rate / 1e6:.2f} MB/s, {left:.0f} s left"
